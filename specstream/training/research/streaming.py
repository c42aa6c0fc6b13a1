"""Trains streams for Speculative Streaming (arXiv 2402.11131); the target is frozen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from specstream.model.heads.research.streaming import MOST_RANK, MOST_STREAMS, PRODUCTS, StreamingShape
from specstream.model.layers import Layer, Norm, Product, layer_of, rotated
from specstream.model.runner import ModelRunner
from specstream.model.weights import DecoderWeights, LayerWeights, RotaryTable
from specstream.training.files import read_written, write_head
from specstream.training.loss import layers_of, losses_at, random_places, settings_of, whole
from specstream.training.options import TrainOptions
from specstream.training.trainee import Losses, TrainingBatch

__all__ = ["StreamingModule", "StreamingTrainee", "trainee"]

Angles = tuple[Tensor, Tensor]
Rows = tuple[Tensor, Tensor]


class StreamingModule(nn.Module):
    """Entries, adapters and final norm of the streams; the target's weights are not in the module.

    Args:
        shape: Sizes.
        target: The target's weights, of which the top layers are used.
    """

    def __init__(self, shape: StreamingShape, target: DecoderWeights) -> None:
        super().__init__()
        self.shape, hidden = shape, shape.hidden_size
        tops = target.layers[shape.depth :]
        self._tops = [_frozen(one, target) for one in tops]
        self.entry = nn.Linear(hidden, shape.streams * hidden)
        self.layers = nn.ModuleList(_Adapters(shape.rank, one) for one in tops)
        self.norm = nn.RMSNorm(hidden, target.eps)
        with torch.no_grad():
            self.entry.weight.copy_(torch.eye(hidden).repeat(shape.streams, 1))
            self.entry.bias.zero_()
            self.norm.weight.copy_(target.norm)

    @torch.no_grad()
    def text_rows(self, states: Tensor, angles: Angles) -> list[Rows]:
        """Compute keys and values ``[B, T, kv_heads, head_dim]`` of the text for each top layer.

        Args:
            states: ``[B, T, hidden]`` at the depth at which streams begin.
            angles: Cosines and sines ``[T, 1, head_dim]``.
        """
        x, found = states, list[Rows]()
        for layer in self._tops:
            queries, keys, values = _split(layer, layer.qkv(layer.norm(x)), angles)
            found.append((keys, values))
            mixed = F.scaled_dot_product_attention(
                queries.transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                is_causal=True,
                enable_gqa=True,
            )
            x = x + layer.out(mixed.transpose(1, 2).flatten(2))
            x = x + layer.down(_gated(layer, layer.gate_up(layer.mlp_norm(x))))
        return found

    def forward(self, states: Tensor, at: Tensor, rows: list[Rows], rotary: Angles) -> Tensor:
        """Compute the normed states of the streams, ``[B, P, streams, hidden]``.

        Args:
            states: ``[B, T, hidden]`` at the depth at which streams begin.
            at: ``[B, P]`` positions whose streams are computed.
            rows: Keys and values of the text; see `text_rows`.
            rotary: Cosines and sines by position; see `RotaryTable.upto`.
        """
        count, device = self.shape.streams, states.device
        each = torch.arange(states.shape[0], device=device).unsqueeze(1)
        x = self.entry(states[each, at]).unflatten(-1, (count, -1))
        positions = at.unsqueeze(-1) + torch.arange(1, count + 1, device=device)
        angles = rotary[0][positions].unsqueeze(-2), rotary[1][positions].unsqueeze(-2)
        hidden = torch.arange(states.shape[1], device=device) > at.unsqueeze(-1)
        mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)
        for layer, adapters, text in zip(self._tops, self.layers, rows, strict=True):
            x = x + _attend(layer, x, adapters, text, angles, mask[:, :, None, None, None])
            wide = layer.mlp_norm(x)
            gated = _gated(layer, layer.gate_up(wide) + adapters(wide, "gate_up"))
            x = x + layer.down(gated) + adapters(gated, "down")
        normed: Tensor = self.norm(x)
        return normed


class _Adapters(nn.Module):
    def __init__(self, rank: int, layer: LayerWeights) -> None:
        super().__init__()
        for name in PRODUCTS:
            out, into = getattr(layer, name).shape
            down = nn.Parameter(torch.randn(rank, into) * into**-0.5)
            self.register_parameter(f"{name}_a", down)
            self.register_parameter(f"{name}_b", nn.Parameter(torch.zeros(out, rank)))

    def forward(self, x: Tensor, name: str) -> Tensor:
        down, up = self.get_parameter(f"{name}_a"), self.get_parameter(f"{name}_b")
        return F.linear(F.linear(x, down), up)


def _frozen(weights: LayerWeights, sizes: DecoderWeights) -> Layer:
    """Make one of the target's layers, in float32."""

    def norm(weight: Tensor) -> Norm:
        wide = weight.detach().float()
        return lambda x: F.rms_norm(x, wide.shape, wide, sizes.eps)

    def product(weight: Tensor, bias: Tensor | None) -> Product:
        wide, added = weight.detach().float(), None if bias is None else bias.float()
        return lambda x: F.linear(x, wide, added)

    return layer_of(sizes, weights, norm, product)


def _gated(layer: Layer, joint: Tensor) -> Tensor:
    gate, up = joint.chunk(2, -1)
    return layer.activation(gate) * up


def _split(layer: Layer, joint: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
    """Split a product into queries and keys (rotated, and normed if the target does) and values."""
    heads = joint.view(*joint.shape[:-1], layer.heads, layer.head_dim)
    queries, kv = heads.split_with_sizes(layer.split, -2)
    keys, values = kv.chunk(2, -2)
    if layer.query_norm is not None and layer.key_norm is not None:
        queries, keys = layer.query_norm(queries), layer.key_norm(keys)
    return rotated(queries, *angles), rotated(keys, *angles), values


def _attend(
    layer: Layer, x: Tensor, adapters: nn.Module, text: Rows, angles: Angles, mask: Tensor
) -> Tensor:
    """Return the attention output for streams ``[B, P, streams, hidden]``, of the same shape."""
    normed = layer.norm(x)
    joint = layer.qkv(normed) + adapters(normed, "qkv")
    queries, keys, values = _split(layer, joint, angles)
    grouped = (*queries.shape[:-2], keys.shape[-2], -1, layer.head_dim)
    queries = queries.view(grouped) * layer.head_dim**-0.5
    over_text = torch.einsum("bpjkgd,btkd->bpjkgt", queries, text[0]) + mask
    own = torch.einsum("bpjkgd,bpikd->bpjkgi", queries, keys)
    count = x.shape[2]
    later = torch.ones(count, count, dtype=torch.bool, device=x.device).triu_(1)
    own = own.masked_fill(later[:, None, None], -torch.inf)
    weights = torch.cat([over_text, own], -1).softmax(-1)
    length = over_text.shape[-1]
    mixed = torch.einsum("bpjkgt,btkd->bpjkgd", weights[..., :length], text[1])
    mixed = mixed + torch.einsum("bpjkgi,bpikd->bpjkgd", weights[..., length:], values)
    flat = mixed.flatten(3)
    return layer.out(flat) + torch.as_tensor(adapters(flat, "out"))


_DECAY = 0.8  # weight of each further stream relative to the one before
_LAYERS = 3  # top layers with streams, by default


def trainee(
    target: ModelRunner, tokenizer: PreTrainedTokenizerBase, options: TrainOptions
) -> StreamingTrainee:
    """Make new streams, or load those of ``options.init``. Settings: those of `StreamingTrainee`.

    Raises:
        ConfigError: an invalid setting.
        ModelError: the target has too few layers, or ``options.init`` doesn't fit.
    """
    layers = layers_of(target, "a head of streams")
    known = {
        "streams": whole(1, MOST_STREAMS),
        "stream_layers": whole(1, layers - 1),
        "rank": whole(1, MOST_RANK),
        "places": whole(1, 1 << 16),
    }
    given = settings_of(options, known, kept=("places",))
    if (before := read_written(options, target)) is None:
        given.setdefault("stream_layers", min(_LAYERS, layers - 1))
        return StreamingTrainee(target, **given)
    shape = StreamingShape.of(before.config)
    fixed = {name: getattr(shape, name) for name in ("streams", "stream_layers", "rank")}
    made = StreamingTrainee(target, **fixed, **given)
    before.into(made.module)
    return made


class StreamingTrainee:
    """Streams in training: stream j of token t learns the target's distribution after token t + j.

    Args:
        target: The model for which the streams draft, of the Llama family; not trained.
        streams: Number of streams of each token.
        stream_layers: Number of top layers through which streams run.
        rank: Rank of the low-rank adapters.
        places: Tokens of each sequence whose streams are computed in a training step.

    Attributes:
        rotary: The table of the target's rotary embedding.

    Raises:
        ModelUnsupported: the target is no plain model of the Llama family.
    """

    def __init__(
        self,
        target: ModelRunner,
        *,
        streams: int = 3,
        stream_layers: int = _LAYERS,
        rank: int = 32,
        places: int = 64,
    ) -> None:
        weights = target.decoder.weights
        self.shape = StreamingShape(
            hidden_size=weights.hidden,
            vocab_size=weights.vocab_size,
            num_target_layers=len(weights.layers),
            stream_layers=stream_layers,
            streams=streams,
            rank=rank,
        )
        self.depths: tuple[int, ...] = (self.shape.depth,)
        self._places = places
        self._head = weights.head.detach().float()
        self.rotary = RotaryTable.of(target.model, weights.head_dim)
        self.module: StreamingModule = StreamingModule(self.shape, weights).to(weights.device)

    def losses(self, batch: TrainingBatch, *, acceptance: float) -> Losses:
        """See `Trainee.losses`; ``accepted`` has one entry for each stream."""
        wanted, count = batch.replies, self.shape.streams
        length = wanted.shape[1]
        # Place t: token t + 1 is the reply's, and token t + 2, which stream 1 predicts, is too.
        at, real = random_places(wanted[:, 2:] & wanted[:, 1:-1], self._places)
        wide = self.rotary.wide(length + count + 1)
        states = batch.states[:, :, 0].float()
        angles = wide[0][:length].unsqueeze(1), wide[1][:length].unsqueeze(1)
        out = self.module(states, at, self.module.text_rows(states, angles), wide)
        weights = _DECAY ** torch.arange(count, device=wanted.device)
        return losses_at(at + 2, real, out, batch, self._head, weights, acceptance)

    def save(self, folder: Path, card: Mapping[str, str]) -> None:
        """See `Trainee.save`."""
        title = "Streams for Speculative Streaming"
        write_head(folder, title, self.module, self.shape.config, card)
