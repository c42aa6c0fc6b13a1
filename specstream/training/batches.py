"""Makes batches from shards of replies, and the vocabulary that a head's drafts are made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specstream.training.store import ReplyFolder, StoredReply
from specstream.training.trainee import TrainingBatch

__all__ = ["Batches", "DraftVocabulary", "Position", "collate", "frequent_tokens", "pruned_size"]

_LARGE, _PRUNED = 16384, 8192  # by default, a vocabulary above the first is pruned to the second
_SLICE = 512  # rows of the target's logits over the whole vocabulary that are in memory at once


def pruned_size(given: MutableMapping[str, Any], size: int) -> int:
    """Take the setting ``vocabulary`` out of ``given``: how many of ``size`` tokens are kept; 0: all."""
    kept: int = given.pop("vocabulary", _PRUNED if size > _LARGE else 0)
    return kept % size


def frequent_tokens(counts: Tensor, most: int) -> Tensor:
    """Return the ids of the ``most`` most frequent tokens, ascending; ties go to the lowest ids.

    Args:
        counts: ``[V]``: how often each token was seen.
        most: How many ids to return.
    """
    return counts.argsort(descending=True, stable=True)[:most].sort().values


class DraftVocabulary:
    """All tokens of the target, or some.

    Args:
        head: ``[V, hidden]``: the target's output head.
        ids: Ids of the tokens that can be drafted, ascending; None: all.
        prune: How many tokens can be drafted once `choose` has selected them; 0: all of ``ids``.

    Attributes:
        ids: ``[n]``: ids of the tokens that can be drafted.
        pruned: Whether these are only some of the target's tokens.
        chooses: Whether `choose` must be called before the first step; see `ChoosesTokens`.
        rows: ``[n, hidden]`` float32: their rows of the head.
    """

    def __init__(self, head: Tensor, ids: Tensor | None = None, prune: int = 0) -> None:
        self._head = self.rows = head.detach().float()
        every = torch.arange(head.shape[0], device=head.device)
        self.chooses, self.ids = prune > 0, every
        if prune:
            ids = every[:prune]  # a placeholder until `choose`
        self.pruned = ids is not None
        if ids is not None:
            self._take(ids)

    def choose(self, counts: Tensor) -> None:
        """Take the most frequent tokens; ``counts [V]``: how often each is in the replies."""
        if self.pruned:
            self._take(frequent_tokens(counts, len(self.ids)))

    def _take(self, ids: Tensor) -> None:
        self.ids = ids.to(self._head.device)
        self.rows = self._head[self.ids]

    @torch.no_grad()
    def log_p(self, final: Tensor, wanted: Tensor, *, exact: bool) -> tuple[Tensor, Tensor]:
        """Return the target's log probabilities ``[n, tokens]`` at the n places that are wanted.

        Also returns ``[b, t]``: for each place of ``wanted``, its row in them.

        Args:
            final: ``[b, t, hidden]``: inputs of the output head.
            wanted: ``[b, t]`` bool.
            exact: False: the probabilities are normalised over the tokens that can be drafted, since
                logits of the others would cost more than the head that is trained.
        """
        parts = [self.rows.new_zeros(0, self.rows.shape[0])]
        for some in torch.split(final[wanted].float(), _SLICE):
            if exact and self.pruned:
                parts.append(F.linear(some, self._head).log_softmax(-1)[:, self.ids])
            else:
                parts.append(F.linear(some, self.rows).log_softmax(-1))
        return torch.cat(parts), wanted.flatten().cumsum(0).view(wanted.shape) - 1


BLOCK_BYTES = 400 << 20
"""Of the shards that are shuffled together, unless one alone is larger."""
_LEAST = 2  # tokens of a sequence, of which the second can be predicted


class Position(NamedTuple):
    """The position of the next batch in the data: indices of epoch, block and batch in the block."""

    epoch: int = 0
    block: int = 0
    batch: int = 0


@dataclass(kw_only=True)
class Batches:
    """An endless supply of batches from one folder of replies.

    A block of shards is read at a time; its sequences are cut to ``longest`` tokens, shuffled and
    grouped by length. The order depends only on the seed and on the position.

    Attributes:
        replies: The folder.
        depths: Depths of `TrainingBatch.states`, then the target's number of layers, the depth of
            final states.
        norm: See `collate`.
        tokens: Maximum tokens of a batch, padding included; a longer sequence is a batch of its own.
        longest: Maximum tokens of a sequence.
        dtype: See `collate`.
        device: See `collate`.
        prompts: Whether losses are taken on prompts too: `TrainingBatch.replies` is then True for them.
        skip: How many sequences at the end of the last shard are held out from `endless`.
        seed: Seed of the order.
    """

    replies: ReplyFolder
    depths: Sequence[int]
    norm: Callable[[Tensor], Tensor]
    tokens: int
    longest: int
    dtype: torch.dtype
    device: torch.device
    prompts: bool = False
    skip: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        self._names = self.replies.names
        self._columns = [self.replies.depths.index(one) for one in self.depths]

    def endless(self, start: Position) -> Iterator[tuple[Position, TrainingBatch]]:
        """Yield batches from a position on, each with the position after it."""
        epoch, block, first = start.epoch, start.block, start.batch
        while True:
            blocks = self._blocks(epoch)
            while block < len(blocks):
                groups = self._groups(blocks[block], f"{self.seed}:{epoch}:{block}")
                for number in range(first, len(groups)):
                    yield Position(epoch, block, number + 1), self._batch(groups[number])
                block, first = block + 1, 0
            epoch, block = epoch + 1, 0

    def held_out(self, count: int | None = None) -> Iterator[TrainingBatch]:
        """Yield the last ``count`` sequences of the last shard, or all sequences, once each."""
        for name in self._names if count is None else self._names[-1:]:
            replies = self.replies.read(name)
            kept = replies if count is None else replies[-count:]
            for group in self._grouped(self._cut(kept)):
                yield self._batch(group)

    def _batch(self, group: Sequence[StoredReply]) -> TrainingBatch:
        read = [replace(reply, states=reply.states[:, self._columns]) for reply in group]
        return collate(read, self.norm, self.dtype, self.device)

    def _blocks(self, epoch: int) -> list[list[str]]:
        """Return the shards in this epoch's order, as blocks that are read together."""
        names = list(self._names)
        random.Random(f"{self.seed}:{epoch}").shuffle(names)
        blocks: list[list[str]] = []
        size = 0
        for name in names:
            more = self.replies.size(name)
            if not blocks or size + more > BLOCK_BYTES:
                blocks.append([])
                size = 0
            blocks[-1].append(name)
            size += more
        return blocks

    def _groups(self, names: Sequence[str], seed: str) -> list[list[StoredReply]]:
        found: list[StoredReply] = []
        for name in names:
            replies = self.replies.read(name)
            if name == self._names[-1] and self.skip:
                replies = replies[: -self.skip]
            found += self._cut(replies)
        order = random.Random(seed)
        order.shuffle(found)
        groups = self._grouped(found)
        order.shuffle(groups)
        return groups

    def _cut(self, replies: Sequence[StoredReply]) -> list[StoredReply]:
        """Return windows of at most ``longest`` tokens in which at least one token is predicted."""
        found = []
        for reply in replies:
            count = reply.ids.shape[0]
            pieces = -(-count // self.longest)
            width = -(-count // pieces)  # pieces of about equal length
            for start in range(0, count, width):
                one = reply.window(start, min(start + width, count))
                if self.prompts:
                    one = replace(one, prompt=1)
                if len(one.ids) >= _LEAST and one.prompt < len(one.ids):
                    found.append(one)
        return found

    def _grouped(self, replies: Sequence[StoredReply]) -> list[list[StoredReply]]:
        """Group sequences of about equal length into batches, which keeps padding low."""
        groups: list[list[StoredReply]] = []
        width = 0
        for reply in sorted(replies, key=lambda one: one.ids.shape[0], reverse=True):
            if not groups or (len(groups[-1]) + 1) * width > self.tokens:
                groups.append([])
                width = reply.ids.shape[0]
            groups[-1].append(reply)
        return groups


def collate(
    group: Sequence[StoredReply],
    norm: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> TrainingBatch:
    """Make one batch of sequences, padded on the right.

    Args:
        group: The sequences. The last depth of their states is the target's number of layers; the other
            depths become `TrainingBatch.states`.
        norm: The target's final norm, which makes inputs of the output head of final states.
        dtype: Of the batch's states.
        device: Where the batch is put.
    """
    ids = pad_sequence([reply.ids.long() for reply in group], batch_first=True).to(device)
    counts = torch.tensor([[len(reply.ids)] for reply in group], device=device)
    prompts = torch.tensor([[reply.prompt] for reply in group], device=device)
    at = torch.arange(ids.shape[1], device=device)
    states = torch.zeros(*ids.shape, *group[0].states.shape[1:], dtype=dtype, device=device)
    for row, reply in zip(states, group, strict=True):
        row[: len(reply.states)] = reply.states
    with torch.no_grad():
        final = norm(states[:, :, -1])
    tokens = sum(len(reply.ids) for reply in group)
    return TrainingBatch(ids, (at >= prompts) & (at < counts), tokens, states[:, :, :-1], final)
