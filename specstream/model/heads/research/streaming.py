"""Heads for Speculative Streaming (arXiv 2402.11131): verification and drafting in one pass.

In the target's top layers each verified token has, in addition to its own row, *streams*: one row for
each token to be drafted. Stream j of a token sees the text up to that token and the token's streams up
to j. Streams go through the target's own layers, to whose products low-rank adapters are added. In the
paper streams share the matrix products of the verified rows; here they follow these rows, so that the
verified rows have the bits of a pass without streams. A *node* is a verified token that gets streams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.attention.base import Batch
from specstream.model.attention.contiguous import Heads
from specstream.model.heads.base import check_made_for, read_head_config, reading
from specstream.model.heads.layer import FleetingPlan, folded_mask
from specstream.model.heads.tensors import Placed, Tensors
from specstream.model.kv import ContiguousCache
from specstream.model.layers import Layer, Product, rms_norm
from specstream.model.numerics import to_device
from specstream.model.runner import ModelRunner

__all__ = [
    "MODEL_TYPE",
    "MOST_RANK",
    "MOST_STREAMS",
    "PRODUCTS",
    "StreamingHead",
    "StreamingShape",
    "Streams",
    "load",
]

MODEL_TYPE = "specstream-streaming"
PRODUCTS = ("qkv", "out", "gate_up", "down")
"""The matrix products of a layer; each has an adapter, whose tensors are ``layers.I.NAME_a [rank, in]``
and ``layers.I.NAME_b [out, rank]``.
"""
MOST_STREAMS, MOST_RANK = 16, 4096


@dataclass(frozen=True, slots=True)
class StreamingShape:
    """Sizes of a head for Speculative Streaming.

    Attributes:
        hidden_size: Size of the target's hidden states.
        vocab_size: Rows of the target's embedding.
        num_target_layers: Number of layers of the target.
        stream_layers: In how many of the target's last layers there are streams.
        streams: Streams of each node, which is the most tokens that can be drafted.
        rank: Rank of the adapters.
    """

    hidden_size: int
    vocab_size: int
    num_target_layers: int
    stream_layers: int
    streams: int
    rank: int

    def __post_init__(self) -> None:
        top = 1 <= self.stream_layers < self.num_target_layers
        few = 1 <= self.streams <= MOST_STREAMS and 1 <= self.rank <= MOST_RANK
        if not (top and few and self.hidden_size > 0 and self.vocab_size > 0):
            raise ModelBroken(f"the config.json of the streaming head makes no sense: {self}")

    @property
    def depth(self) -> int:
        """The number of the target's layers before the streams begin."""
        return self.num_target_layers - self.stream_layers

    @staticmethod
    def fits(config: Mapping[str, Any]) -> bool:
        """Whether ``config`` describes a streaming head."""
        return config.get("model_type") == MODEL_TYPE

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> StreamingShape:
        """The shape of a ``config.json``.

        Raises:
            ModelBroken: a field is missing or out of range.
        """
        with reading("the streaming head"):
            return cls(**{name: int(config[name]) for name in cls.__dataclass_fields__})

    @property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        return {"model_type": MODEL_TYPE, "architectures": ["StreamingHead"], **asdict(self)}


class StreamingHead:
    """A streaming head on its target's top layers.

    Args:
        shape: Sizes.
        tensors: Its weights.
        target: The model that it drafts for.

    Attributes:
        entry: Makes the streams of a token of its hidden state.
        norm: The norm of the streams before the output head.

    Raises:
        ModelBroken: a tensor is missing or has another shape.
        ModelUnsupported: it was made for another target, or the target's passes can't take streams.
    """

    kind = "streaming"
    depths: tuple[int, ...] = ()  # its streams follow the pass themselves

    def __init__(self, shape: StreamingShape, tensors: Tensors, target: ModelRunner) -> None:
        _check(shape, target)
        self.shape, self.target, self.device = shape, target, target.device
        decoder = target.decoder
        weights, take = decoder.weights, Placed(tensors, decoder.weights.embedding)
        hidden, count = shape.hidden_size, shape.streams
        products = decoder.products
        entry = take("entry.weight", count * hidden, hidden)
        self.entry = products(entry, take("entry.bias", count * hidden))
        self.norm = rms_norm(take("norm.weight", hidden), weights.eps)
        self.heads = Heads(weights.heads, weights.kv_heads, weights.head_dim)
        self.layers = list[Layer]()  # the target's top layers with the adapters added
        for index in range(shape.stream_layers):
            layer = decoder.layers[shape.depth + index]
            adapted: dict[str, Any] = {}
            for name in PRODUCTS:
                out, into = getattr(weights.layers[shape.depth + index], name).shape
                down = take(f"layers.{index}.{name}_a", shape.rank, into)
                up = take(f"layers.{index}.{name}_b", out, shape.rank)
                base = cast(Product, getattr(layer, name))
                adapted[name] = _Adapted(base, products(down), products(up))
            self.layers.append(replace(layer, **adapted))
        self.parameters, self.nbytes = take.parameters, take.nbytes

    def entered(self, states: Tensor) -> Tensor:
        """The streams' initial rows, ``[n * streams, hidden]``, from the nodes' states at `depth`."""
        return self.entry(states).view(-1, self.shape.hidden_size)

    def logits(self, states: Tensor) -> Tensor:
        """Logits ``[n, vocab_size]`` of streams after the last layer, ``[n, hidden]``."""
        return self.target.head_logits(self.norm(states))


class Streams:
    """The streams of one pass; a `Rider`.

    Args:
        head: The streaming head.
        proposed: For each of the pass's first inputs its proposed tokens, which are its last tokens.
            They and the token before them are the input's nodes.
        least: Proposed tokens get streams only before the first whose path an early exit, before the top
            layers, finds less likely than this. 0: all get streams, and the exit isn't computed.

    Attributes:
        states: After the pass, for each of those inputs the final states of its nodes' streams,
            ``[nodes, streams, hidden]``.
    """

    def __init__(self, head: StreamingHead, proposed: Sequence[Tensor], least: float = 0.0) -> None:
        self._head, self._proposed, self._least = head, proposed, least
        self._nodes = [1 + tokens.shape[0] for tokens in proposed]
        self.depth = head.shape.depth
        self.states: list[Tensor] = []

    def prepare(self, batch: Batch) -> None:
        """See `Rider.prepare`."""
        self._batch = batch
        self._ends = list[int]()  # rows of each input's cache after the pass
        for nodes, cache, new in zip(self._nodes, batch.caches, batch.counts, strict=False):
            self._ends.append(cache.length + new)
            cache.reserve(self._ends[-1] + nodes * self._head.shape.streams)

    def run(self, states: Tensor) -> None:
        """See `Rider.run`."""
        head, count, device = self._head, self._head.shape.streams, states.device
        firsts = [
            stop - 1 - tokens.shape[0]
            for stop, tokens in zip(accumulate(self._batch.counts), self._proposed, strict=False)
        ]
        if self._least > 0.0:
            self._prune(states, firsts)
        rows, places, masks = list[int](), list[int](), list[Tensor]()
        each = zip(firsts, self._nodes, self._ends, self._proposed, strict=True)
        for first, nodes, end, proposed in each:
            position = end - 1 - proposed.shape[0]
            rows += range(first, first + nodes)
            # Stream j of a node at position p is at p + j, like the token in whose place it stands.
            places += [position + i + j for i in range(nodes) for j in range(1, count + 1)]
            masks.append(_mask(head, position, nodes, end))
        x = head.entered(states.index_select(0, to_device(rows, device)))
        cos, sin = head.target.decoder.rotary.at(places)
        counts = [nodes * count for nodes in self._nodes]
        caches = cast("Sequence[ContiguousCache]", self._batch.caches[: len(counts)])
        plan = FleetingPlan(head.heads, caches, self._ends, counts, masks)
        for index, layer in enumerate(head.layers, head.shape.depth):
            x = layer(x, cos, sin, plan, index)
        self.states = list(x.view(-1, count, x.shape[1]).split_with_sizes(self._nodes))

    def _prune(self, states: Tensor, firsts: Sequence[int]) -> None:
        """Reduce each input's nodes to those that the early exit finds likely enough."""
        sizes = [tokens.shape[0] for tokens in self._proposed]
        each = zip(firsts, sizes, strict=True)
        asked = [row for first, size in each for row in range(first, first + size)]
        if not asked:
            return
        target = self._head.target
        normed = target.decoder.normed(states.index_select(0, to_device(asked, states.device)))
        probs = target.head_logits(normed).float().softmax(-1)
        told = probs.gather(1, torch.cat(list(self._proposed)).unsqueeze(1)).squeeze(1)
        for number, chances in enumerate(told.split_with_sizes(sizes)):
            likely = chances.cumprod(0) >= self._least
            self._nodes[number] = 1 + int(likely.sum())


class _Adapted:
    """A matrix product of the target, with a low-rank adapter."""

    def __init__(self, base: Product, down: Product, up: Product) -> None:
        self._base, self._down, self._up = base, down, up

    def __call__(self, x: Tensor) -> Tensor:
        made = self._base(x)
        made += self._up(self._down(x))
        return made


def _mask(head: StreamingHead, first: int, nodes: int, end: int) -> Tensor:
    """The mask of the streams' attention to a cache of ``end`` rows, behind which they are stored.

    Args:
        head: The head.
        first: The first node's row in the cache.
        nodes: Number of nodes.
        end: Rows of the cache before the streams.
    """
    rows = torch.arange(nodes * head.shape.streams, device=head.device)
    node = (rows // head.shape.streams).unsqueeze(1)
    text = torch.arange(end, device=head.device) <= first + node
    seen = torch.cat([text, (node == node.T) & (rows <= rows.unsqueeze(1))], 1)
    return folded_mask(seen, head.heads, head.target.dtype)


def load(folder: Path, target: ModelRunner) -> StreamingHead:
    """Load the head of a folder; see `specstream.model.heads.recognise.load_head`."""
    return StreamingHead(StreamingShape.of(read_head_config(folder)), Tensors.read(folder), target)


def _check(shape: StreamingShape, target: ModelRunner) -> None:
    target.check_states((shape.depth,))
    weights = target.decoder.weights
    check_made_for(
        "the streaming head",
        ("hidden states of size", shape.hidden_size, weights.hidden),
        ("a vocabulary of", shape.vocab_size, weights.vocab_size),
        ("states of so many layers:", shape.num_target_layers, len(weights.layers)),
    )
    if not isinstance(target.new_cache(), ContiguousCache):
        raise ModelUnsupported(
            f"streams can't travel over the key-value pool of {target.device}, only over the caches "
            "that are used on a CPU; choose another proposer"
        )
