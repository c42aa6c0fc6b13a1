"""The replies that a draft learns from: the latest ones, a bounded number of tokens of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.train.trainee import Batch

__all__ = ["Buffer", "Kept", "Window"]

_HELD = 4  # of so many replies one is held out


@dataclass(slots=True, eq=False)
class Kept:
    """A prompt and the target's reply to it.

    Attributes:
        ids: Their tokens, from the end of the prompt on as far as there is room.
        prompt: How many of them are the prompt's.
        held: Held out: measured, never learnt from.
        states: ``[T, depths, hidden]``: the target's hidden states of all tokens, once they were read.
        final: ``[T, hidden]``: the input of its output head.
    """

    ids: list[int]
    prompt: int
    held: bool
    states: Tensor | None = None
    final: Tensor | None = None

    def windows(self, width: int) -> Iterator[Window]:
        """Stretches of at most ``width`` tokens in which each token of the reply is learnt once."""
        first = self.prompt
        while first < len(self.ids):
            start = max(0, first - width // 2)
            end = min(len(self.ids), start + width)
            yield Window(self, start, first, end)
            first = end


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens from ``start`` to ``end`` of a reply; those from ``first`` on are predicted."""

    kept: Kept
    start: int
    first: int
    end: int

    def batch(self) -> Batch:
        """A batch of one sequence, whose states were read."""
        kept, span = self.kept, slice(self.start, self.end)
        assert kept.states is not None and kept.final is not None
        device = kept.final.device
        ids = torch.tensor([kept.ids[span]], device=device)
        replies = torch.zeros_like(ids, dtype=torch.bool)
        replies[:, self.first - self.start :] = True
        present = torch.ones_like(replies)
        return Batch(ids, replies, present, kept.states[span][None], kept.final[span][None])


class Buffer:
    """The latest replies; an identical one is not kept twice, so that none is on both sides.

    Args:
        replies: At most so many.
        tokens: At most so many, prompts included.
        longest: Of one reply and its prompt at most so many, from their end.
    """

    def __init__(self, replies: int, tokens: int, longest: int) -> None:
        self._replies, self._tokens, self._longest = replies, tokens, longest
        self._kept: deque[Kept] = deque()
        self._added = 0
        self.tokens = 0

    def add(self, ids: Sequence[int], prompt: int) -> bool:
        """Keep a reply; False if there is nothing in it to learn."""
        cut = max(0, len(ids) - self._longest)
        own, prompt = list(ids[cut:]), max(1, prompt - cut)
        if prompt >= len(own) or any(kept.ids == own for kept in self._kept):
            return False
        self._added += 1
        self._kept.append(Kept(own, prompt, held=self._added % _HELD == 0))
        self.tokens += len(own)
        while self.tokens > self._tokens or len(self._kept) > self._replies:
            self.tokens -= len(self._kept.popleft().ids)
        return True

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept)
