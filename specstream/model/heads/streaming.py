"""Heads for Speculative Streaming (arXiv 2402.11131): verification and drafting in one pass.

In the target's top layers each verified token has, in addition to its own row, *streams*: one row for
each token to be drafted. Stream j of a token sees the text up to that token and the token's streams up
to j. Streams go through the target's own layers, to whose products low-rank adapters are added. In the
paper streams share the matrix products of the verified rows; here they follow these rows, so that the
verified rows have the bits of a pass without streams. A *node* is a verified token that gets streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from specstream.errors import ModelUnsupported
from specstream.model.attention.base import AttentionPlan, Batch
from specstream.model.attention.heads import Heads
from specstream.model.heads.recognise import read_head_config
from specstream.model.heads.shape import check_made_for
from specstream.model.heads.streaming_format import PRODUCTS, StreamingShape
from specstream.model.heads.tensors import Placed, Tensors
from specstream.model.kv.contiguous import ContiguousCache
from specstream.model.layers import Layer
from specstream.model.norms import rms_norm
from specstream.model.products import Product
from specstream.model.runner import ModelRunner
from specstream.model.transfer import to_device

__all__ = ["StreamingHead", "Streams", "load"]


class StreamingHead:
    """A streaming head on its target's top layers.

    Args:
        shape: Sizes.
        tensors: Its weights.
        target: The model that it drafts for.

    Raises:
        ModelBroken: a tensor is missing or has another shape.
        ModelUnsupported: it was made for another target, or the target's passes can't take streams.
    """

    kind = "streaming"

    def __init__(self, shape: StreamingShape, tensors: Tensors, target: ModelRunner) -> None:
        _check(shape, target)
        self.shape, self.target, self.device = shape, target, target.device
        decoder = target.decoder
        weights, take = decoder.weights, Placed(tensors, decoder.weights.embedding)
        hidden, count = shape.hidden_size, shape.streams
        products = decoder.products
        entry = take("entry.weight", count * hidden, hidden)
        self._entry = products(entry, take("entry.bias", count * hidden))
        self._norm = rms_norm(take("norm.weight", hidden), weights.eps)
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
        return self._entry(states).view(-1, self.shape.hidden_size)

    def logits(self, states: Tensor) -> Tensor:
        """Logits ``[n, vocab_size]`` of streams after the last layer, ``[n, hidden]``."""
        return self.target.head_logits(self._norm(states))


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
        self._batch, count = batch, self._head.shape.streams
        self._starts = [cache.length for cache in batch.caches]
        for nodes, cache, new in zip(self._nodes, batch.caches, batch.counts, strict=False):
            cache.reserve(cache.length + new + nodes * count)

    def run(self, states: Tensor) -> None:
        """See `Rider.run`."""
        head, count, device = self._head, self._head.shape.streams, states.device
        firsts = [
            stop - 1 - tokens.shape[0]
            for stop, tokens in zip(accumulate(self._batch.counts), self._proposed, strict=False)
        ]
        if self._least > 0.0:
            self._prune(states, firsts)
        rows, places = list[int](), list[int]()
        for number, (first, nodes) in enumerate(zip(firsts, self._nodes, strict=True)):
            end = self._starts[number] + self._batch.counts[number]
            position = end - 1 - self._proposed[number].shape[0]
            rows += range(first, first + nodes)
            # Stream j of a node at position p is at p + j, like the token in whose place it stands.
            places += [position + i + j for i in range(nodes) for j in range(1, count + 1)]
        x = head.entered(states.index_select(0, to_device(rows, device)))
        table, at = head.target.decoder.rotary.upto(max(places) + 1), to_device(places, device)
        cos, sin = (one.index_select(0, at).unsqueeze(1) for one in table)
        plan = _StreamsPlan(head, self._batch, self._starts, self._nodes)
        for index, layer in enumerate(head.layers, head.shape.depth):
            x = layer(x, cos, sin, plan, index)
        each = x.view(-1, count, x.shape[1])
        self.states = list(each.split_with_sizes(self._nodes))

    def _prune(self, states: Tensor, firsts: Sequence[int]) -> None:
        """Reduce each input's nodes to those that the early exit finds likely enough."""
        asked = [
            first + i
            for first, tokens in zip(firsts, self._proposed, strict=True)
            for i in range(tokens.shape[0])
        ]
        if not asked:
            return
        target = self._head.target
        normed = target.decoder.normed(states.index_select(0, to_device(asked, states.device)))
        probs = target.head_logits(normed).float().softmax(-1)
        told = probs.gather(1, torch.cat(list(self._proposed)).unsqueeze(1)).squeeze(1)
        sizes = [tokens.shape[0] for tokens in self._proposed]
        for number, each in enumerate(told.split_with_sizes(sizes)):
            likely = each.cumprod(0) >= self._least
            self._nodes[number] = 1 + int(likely.sum())


class _StreamsPlan(AttentionPlan):
    """Attention of a pass's streams, whose keys and values are stored behind the pass's rows.

    The streams' rows are never declared valid, so the next pass overwrites them.
    """

    def __init__(
        self, head: StreamingHead, batch: Batch, starts: Sequence[int], nodes: Sequence[int]
    ) -> None:
        self._heads, device, count = head.heads, head.device, head.shape.streams
        self._counts = [one * count for one in nodes]
        self._ends, self._layers, self._masks = list[int](), list[tuple[Tensor, ...]](), []
        for number, some in enumerate(nodes):
            cache = cast(ContiguousCache, batch.caches[number])
            end = starts[number] + batch.counts[number]
            self._ends.append(end)
            self._layers.append(cache.layer_rows(end + some * count))
            first = end - batch.keeps[number]
            seen = _seen(first, some, count, end, device)
            mask = torch.zeros(seen.shape, dtype=head.target.dtype, device=device)
            mask = mask.masked_fill_(~seen, -torch.inf)
            self._masks.append(mask.repeat_interleave(self._heads.group, 0))

    def narrow(self) -> slice:
        """See `AttentionPlan.narrow`: all streams are kept."""
        return slice(None)

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """See `AttentionPlan.forward`."""
        heads, mixed = self._heads, list[Tensor]()
        each = zip(
            queries.split_with_sizes(self._counts), kv.split_with_sizes(self._counts), strict=True
        )
        for number, (some, new) in enumerate(each):
            end, count = self._ends[number], self._counts[number]
            keys, values = self._layers[number][2 * layer : 2 * layer + 2]
            keys[:, end : end + count] = new[:, : heads.keys].transpose(0, 1)
            values[:, end : end + count] = new[:, heads.keys :].transpose(0, 1)
            shown = keys[:, : end + count].unsqueeze(0), values[:, : end + count].unsqueeze(0)
            mixed.append(heads.attend_few(some, *shown, self._masks[number]))
        return torch.cat(mixed)


class _Adapted:
    """A matrix product of the target, with a low-rank adapter."""

    def __init__(self, base: Product, down: Product, up: Product) -> None:
        self._base, self._down, self._up = base, down, up

    def __call__(self, x: Tensor) -> Tensor:
        made = self._base(x)
        made += self._up(self._down(x))
        return made


def _seen(first: int, nodes: int, count: int, end: int, device: torch.device) -> Tensor:
    """The streams' attention mask, ``[nodes * count, end + nodes * count]`` bool: True where visible.

    Args:
        first: The first node's row in the cache.
        nodes: Number of nodes.
        count: Streams of each node.
        end: Rows of the cache before the streams.
        device: Device of the mask.
    """
    rows = torch.arange(nodes * count, device=device)
    limits = (first + rows // count).unsqueeze(1)
    text = torch.arange(end, device=device) <= limits
    same = (rows.unsqueeze(1) // count) == (rows // count)
    return torch.cat([text, same & (rows <= rows.unsqueeze(1))], 1)


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
