"""Batches from shards of replies: bounded memory, an order that a seed fixes, little padding."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.train.store import Replies, Reply
from specstream.train.trainee import Batch

__all__ = ["Batches", "Position", "finishing"]

_BLOCK_BYTES = 400 << 20
_LEAST = 2  # tokens of a sequence that something can be learnt from


@dataclass(frozen=True, slots=True)
class Position:
    """Where in the data the next batch is."""

    epoch: int = 0
    block: int = 0
    batch: int = 0


def finishing(norm: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """From states before the final norm, as stored, to the input of the output head."""

    @torch.no_grad()
    def finish(states: Tensor) -> Tensor:
        return norm(states.to(dtype))

    return finish


class Batches:
    """Batches of one folder's replies, without end.

    A few shards are read at a time; their sequences are cut to ``longest`` tokens, shuffled, and put
    together by length. The order depends on the seed and on the position alone.

    Args:
        replies: The folder.
        names: The shards to use.
        depths: Of `Batch.states`.
        layers: The depth of the final states.
        finish: See `finishing`.
        tokens: Of a batch, padding included, at most.
        longest: Tokens of a sequence, at most.
        prompts: `Batch.replies` is True for prompts too.
        skip: Sequences of the last shard, from its end, that are held out.
        seed: Of the order.
        device: Of the batches.
    """

    def __init__(
        self,
        replies: Replies,
        names: Sequence[str],
        *,
        depths: Sequence[int],
        layers: int,
        finish: Callable[[Tensor], Tensor],
        tokens: int,
        longest: int,
        dtype: torch.dtype,
        device: torch.device,
        prompts: bool = False,
        skip: int = 0,
        seed: int = 0,
    ) -> None:
        self._replies, self._names = replies, list(names)
        self._columns = [replies.depths.index(depth) for depth in depths]
        self._final = replies.depths.index(layers)
        self._finish, self._tokens, self._longest = finish, tokens, longest
        self._dtype, self._device, self._prompts = dtype, device, prompts
        self._skip, self._seed = skip, seed
        self.padded = self.present = 0

    def endless(self, start: Position) -> Iterator[tuple[Position, Batch]]:
        """Batches from a position on, each with the position behind it."""
        epoch, block, first = start.epoch, start.block, start.batch
        while True:
            blocks = self._blocks(epoch)
            while block < len(blocks):
                groups = self._groups(blocks[block], f"{self._seed}:{epoch}:{block}")
                for number in range(first, len(groups)):
                    yield Position(epoch, block, number + 1), self.collate(groups[number])
                block, first = block + 1, 0
            epoch, block = epoch + 1, 0

    def held_out(self, count: int | None = None) -> Iterator[Batch]:
        """The last ``count`` sequences of the last shard, or all sequences, once."""
        for name in self._names if count is None else self._names[-1:]:
            replies = self._replies.read(name, lazily=True)
            kept = replies if count is None else replies[-count:]
            for group in self._grouped(self._cut(kept)):
                yield self.collate(group)

    def collate(self, group: Sequence[Reply]) -> Batch:
        """One batch: padded on the right, states at the asked depths."""
        rows, width = len(group), max(reply.ids.shape[0] for reply in group)
        hidden, whole = (
            self._replies.hidden,
            self._columns == list(range(len(self._replies.depths))),
        )
        ids = torch.zeros(rows, width, dtype=torch.int64)
        replied, present = (torch.zeros(rows, width, dtype=torch.bool) for _ in range(2))
        states = torch.zeros(rows, width, len(self._columns), hidden, dtype=self._dtype)
        final = torch.zeros(rows, width, hidden, dtype=self._dtype)
        for row, reply in enumerate(group):
            count, read = reply.ids.shape[0], reply.states.shape[0]
            ids[row, :count] = reply.ids
            present[row, :count] = True
            replied[row, (1 if self._prompts else reply.prompt) : count] = True
            if self._columns:
                states[row, :read] = reply.states if whole else reply.states[:, self._columns]
            final[row, :read] = reply.states[:, self._final]
        final = self._finish(final.to(self._device))
        self.padded += rows * width
        self.present += sum(reply.ids.shape[0] for reply in group)
        on = self._device
        return Batch(ids.to(on), replied.to(on), present.to(on), states.to(on), final)

    def _blocks(self, epoch: int) -> list[list[str]]:
        """The shards in this epoch's order, in blocks that are read at once."""
        names = list(self._names)
        random.Random(f"{self._seed}:{epoch}").shuffle(names)
        blocks: list[list[str]] = []
        size = 0
        for name in names:
            more = self._replies.size(name)
            if not blocks or size + more > _BLOCK_BYTES:
                blocks.append([])
                size = 0
            blocks[-1].append(name)
            size += more
        return blocks

    def _groups(self, names: Sequence[str], seed: str) -> list[list[Reply]]:
        found: list[Reply] = []
        for name in names:
            replies = self._replies.read(name, lazily=True)
            if name == self._names[-1] and self._skip:
                replies = replies[: -self._skip]
            found += self._cut(replies)
        order = random.Random(seed)
        order.shuffle(found)
        groups = self._grouped(found)
        order.shuffle(groups)
        return groups

    def _cut(self, replies: Sequence[Reply]) -> list[Reply]:
        """Windows of at most ``longest`` tokens in which something is to be learnt."""
        found = []
        for reply in replies:
            count = reply.ids.shape[0]
            pieces = -(-count // self._longest)
            width = -(-count // pieces)  # pieces of about one length
            for start in range(0, count, width):
                one = reply.window(start, min(start + width, count))
                size = one.ids.shape[0]
                if size >= _LEAST and (self._prompts or one.prompt < size):
                    found.append(one)
        return found

    def _grouped(self, replies: Sequence[Reply]) -> list[list[Reply]]:
        """Sequences of about one length, so that a batch is hardly padded."""
        groups: list[list[Reply]] = []
        width = 0
        for reply in sorted(replies, key=lambda one: one.ids.shape[0], reverse=True):
            if not groups or (len(groups[-1]) + 1) * width > self._tokens:
                groups.append([])
                width = reply.ids.shape[0]
            groups[-1].append(reply)
        return groups
