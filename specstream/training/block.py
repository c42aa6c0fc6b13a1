"""Trains a block-parallel head (DFlash, arXiv 2602.06036) from blocks at random places of a reply."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specstream.engine.build import end_ids
from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.heads.base import LayerShape
from specstream.model.heads.block import MOST_BLOCK, BlockShape
from specstream.model.heads.layer import rotary_of
from specstream.model.layers import rotated
from specstream.model.runner import ModelRunner
from specstream.training.files import read_written, write_head
from specstream.training.loss import (
    depths,
    layers_of,
    losses_at,
    positive,
    random_places,
    settings_of,
    whole,
)
from specstream.training.options import TrainOptions
from specstream.training.trainee import Losses, Mlp, TrainingBatch, projections

__all__ = ["BlockModule", "BlockTrainee", "trainee"]


class BlockModule(nn.Module):
    """Projection of tapped hidden states, decoder layers that attend to them and to the block, a norm.

    Embedding and output head belong to the target and are not part of the module.
    """

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = s = shape
        self.fc = nn.Linear(len(s.depths) * s.hidden, s.hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(s.hidden, s.eps)
        self.layers = nn.ModuleList(_Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden, s.eps)

    def forward(
        self, states: Tensor, x: Tensor, rotary: tuple[Tensor, Tensor], positions: Tensor, seen: Tensor
    ) -> Tensor:
        """Compute the normed hidden states ``[B, Q, hidden]`` of the blocks' tokens.

        Args:
            states: ``[B, T, depths, hidden]``: hidden states of the target.
            x: ``[B, Q, hidden]``: embeddings of the Q tokens of all blocks of a sequence.
            rotary: Cosines and signed sines by position; see `RotaryTable.upto`.
            positions: ``[B, Q]`` int64 of the blocks' tokens.
            seen: ``[B, 1, Q, T + Q]`` bool: attention mask over the T states, then the Q tokens.
        """
        features = self.hidden_norm(self.fc(states.flatten(-2)))
        context = _angles(rotary, torch.arange(states.shape[1], device=x.device).unsqueeze(0))
        block = _angles(rotary, positions)
        for layer in self.layers:
            x = layer(x, features, context, block, seen)
        normed: Tensor = self.norm(x)
        return normed


class _Layer(nn.Module):
    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = s = shape
        self.input_layernorm = nn.RMSNorm(s.hidden, s.eps)
        norms = {name: nn.RMSNorm(s.head_dim, s.eps) for name in ("q_norm", "k_norm")}
        self.self_attn = nn.ModuleDict(projections(s) | norms)
        self.post_attention_layernorm = nn.RMSNorm(s.hidden, s.eps)
        self.mlp = Mlp(s)

    def forward(
        self,
        x: Tensor,
        features: Tensor,
        context: tuple[Tensor, Tensor],
        block: tuple[Tensor, Tensor],
        seen: Tensor,
    ) -> Tensor:
        a, normed = self.self_attn, self.input_layernorm(x)
        queries = rotated(a["q_norm"](self._split(a["q_proj"](normed))), *block)
        keys = torch.cat([self._keys(features, context), self._keys(normed, block)], 1)
        values = torch.cat([a["v_proj"](features), a["v_proj"](normed)], 1)
        mixed = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            self._split(values).transpose(1, 2),
            attn_mask=seen,
            enable_gqa=self.shape.heads != self.shape.kv_heads,
        )
        x = x + a["o_proj"](mixed.transpose(1, 2).flatten(2))
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result

    def _keys(self, rows: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        a = self.self_attn
        return rotated(a["k_norm"](self._split(a["k_proj"](rows))), *angles)

    def _split(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:-1], -1, self.shape.head_dim)


def _angles(rotary: tuple[Tensor, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = rotary
    return cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)


_CHANGED = {"anchors", "decay"}  # settings of the training, which a head's folder doesn't fix


def trainee(
    target: ModelRunner, tokenizer: PreTrainedTokenizerBase, options: TrainOptions
) -> BlockTrainee:
    """Make a new head, or load the one of ``options.init``. Settings: those of `BlockTrainee`.

    Raises:
        ConfigError: an invalid setting, or the target has no special token to serve as mask token.
        ModelError: the target has too few layers, or ``options.init`` doesn't fit.
    """
    layers = layers_of(target, "a block head")
    known = {
        "mask_token_id": whole(0, target.model_vocab_size - 1),
        "block_size": whole(2, MOST_BLOCK),
        "layers": whole(1, layers),
        "depths": depths(layers - 1),
        "anchors": whole(1, 1 << 16),
        "decay": positive,
    }
    given = settings_of(options, known, kept=_CHANGED)
    if (before := read_written(options, target)) is None:
        if "mask_token_id" not in given:
            given["mask_token_id"] = _mask(target, tokenizer)
        return BlockTrainee(target.model, **given)
    shape = BlockShape.of(before.config)
    fixed = {name: getattr(shape, name) for name in known.keys() - _CHANGED}
    made = BlockTrainee(target.model, **fixed, **given)
    if made.shape != shape:
        raise ModelUnsupported(f"--init {options.init} has layers unlike the target's: not trained here")
    before.into(made.module)
    return made


def _mask(target: ModelRunner, tokenizer: PreTrainedTokenizerBase) -> int:
    """Choose the mask token: a special token that replies don't use."""
    t, ends = tokenizer, end_ids(target.model, tokenizer)
    named = (t.mask_token_id, t.pad_token_id, t.unk_token_id, t.bos_token_id, *t.all_special_ids)
    for one in named:
        if isinstance(one, int) and one not in ends and one < target.model_vocab_size:
            return one
    raise ConfigError(
        "the target has no special token to stand for one that is to be drafted: name a token that "
        "replies don't use with --set mask_token_id=NUMBER"
    )


class BlockTrainee:
    """A DFlash head in training; its layers are initialised with the target's last layers.

    Args:
        target: The model for which the head drafts, of the Llama family; not trained.
        mask_token_id: The token that stands for tokens to be drafted; one that replies don't use.
        block_size: Tokens of a block, the anchor included.
        layers: Decoder layers of the head.
        depths: The depths (numbers of target layers) whose hidden states the head reads, not including
            the last. Default: up to five, evenly spread.
        anchors: Blocks of each sequence in a training step.
        decay: The loss at position i of a block has the weight ``exp(-(i - 1) / decay)``, since later
            positions are reached less often.

    Attributes:
        rotary: The table of the head's rotary embedding.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        *,
        mask_token_id: int,
        block_size: int = 8,
        layers: int = 2,
        depths: Sequence[int] | None = None,
        anchors: int = 32,
        decay: float = 4.0,
    ) -> None:
        config, inner = target.config, target.model
        output: Any = target.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._embedding = inner.embed_tokens.weight.detach().float()
        self._head = output.weight.detach().float()
        count = int(config.num_hidden_layers)
        self.depths = tuple(depths or _spread(count))
        self._anchors, self._decay = anchors, decay
        self.shape = shape = BlockShape(
            **LayerShape.read(config.to_dict()) | {"bias": False},
            layers=layers,
            block_size=block_size,
            mask_token_id=mask_token_id,
            depths=self.depths,
            target_layers=count,
            causal=(False,) * layers,
            windows=(None,) * layers,
        )
        self.rotary = rotary_of(shape, self._embedding)
        self.module: BlockModule = BlockModule(shape).to(self._embedding.device)
        _begin(self.module, inner)

    def losses(self, batch: TrainingBatch, *, acceptance: float) -> Losses:
        """See `Trainee.losses`; ``accepted`` has one entry for each position after the anchor."""
        size, device = self.shape.block_size, batch.token_ids.device
        anchors, real = random_places(batch.replies[:, 1:], self._anchors)
        offsets = torch.arange(size, device=device)
        positions = anchors.unsqueeze(-1) + offsets  # [b, blocks, size]
        x = self.blocks(batch.token_ids, anchors)
        rotary = self.rotary.upto(batch.token_ids.shape[1] + size)
        seen = _seen(anchors, batch.token_ids.shape[1], size)
        states = batch.states.float()
        out = self.module(states, x.flatten(1, 2), rotary, positions.flatten(1), seen)
        out = out.unflatten(1, positions.shape[1:])[:, :, 1:]
        weights = torch.exp(-offsets[:-1] / self._decay)
        return losses_at(anchors + 1, real, out, batch, self._head, weights, acceptance)

    def blocks(self, tokens: Tensor, anchors: Tensor) -> Tensor:
        """Return the embeddings ``[b, blocks, size, hidden]`` of anchors and the masks after them."""
        ids = torch.full((*anchors.shape, self.shape.block_size), self.shape.mask_token_id)
        ids = ids.to(tokens.device)
        ids[:, :, 0] = tokens.gather(1, anchors)
        return F.embedding(ids, self._embedding)

    def save(self, folder: Path, card: Mapping[str, str]) -> None:
        """See `Trainee.save`: the published layout of DFlash."""
        write_head(folder, "Block-parallel head (DFlash)", self.module, self.shape.config, card)


def _spread(layers: int) -> tuple[int, ...]:
    """Return up to five depths, evenly spread from 2 to ``layers - 2``, as far as there are so many."""
    first, last = min(2, layers - 1), max(layers - 2, 1)
    steps = min(5, last - first + 1)
    if steps < 2:
        return (last,)
    return tuple(sorted({round(first + i * (last - first) / (steps - 1)) for i in range(steps)}))


def _seen(anchors: Tensor, length: int, size: int) -> Tensor:
    """Return the attention mask ``[b, 1, Q, length + Q]`` of blocks: True where a key is seen.

    A block's tokens see the target's states before their anchor, and all tokens of their block.
    """
    starts = anchors.repeat_interleave(size, 1)
    context = torch.arange(length, device=anchors.device) < starts.unsqueeze(-1)
    block = torch.arange(starts.shape[1], device=anchors.device) // size
    same = (block.unsqueeze(1) == block).expand(anchors.shape[0], -1, -1)
    return torch.cat([context, same], -1).unsqueeze(1)


@torch.no_grad()
def _begin(module: BlockModule, inner: Any) -> None:
    """Initialise with the target's last layers, except the norms of queries and keys (left at one)."""
    shape, layers = module.shape, inner.layers
    one = torch.eye(shape.hidden) / math.sqrt(len(shape.depths))
    module.fc.weight.copy_(torch.cat([one] * len(shape.depths), 1))
    module.norm.weight.copy_(inner.norm.weight)
    mine: Any = module.layers
    for ours, theirs in zip(mine, layers[len(layers) - shape.layers :], strict=True):
        found = theirs.state_dict()
        norms = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
        ours.load_state_dict({n: found[n] for n in ours.state_dict() if n not in norms}, strict=False)
