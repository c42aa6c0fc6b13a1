"""The replies that a draft learns from: the latest ones, bounded in number and in tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specstream.train.store import Reply

__all__ = ["Buffer", "Kept"]

_HELD = 4  # every fourth reply is held out to measure acceptance


@dataclass(slots=True, eq=False)
class Kept:
    """A prompt and the target's reply to it.

    Attributes:
        ids: Token ids of prompt and reply; too long a prompt is cut at its beginning.
        prompt: How many of ``ids`` belong to the prompt.
        held: Whether the reply is held out: measured, but never learnt from.
        states: ``[T, depths, hidden]``: the target's hidden states of all tokens, the last depth being
            its number of layers; None until the target has read the reply for learning.
    """

    ids: list[int]
    prompt: int
    held: bool
    states: Tensor | None = None

    def windows(self, width: int) -> Iterator[Reply]:
        """Yield windows of at most ``width`` tokens that together predict each reply token once.

        What a window doesn't predict counts as its prompt. The reply's states must be there.
        """
        assert self.states is not None
        whole, first = Reply(torch.tensor(self.ids), self.prompt, self.states), self.prompt
        while first < len(self.ids):
            start = max(0, first - width // 2)
            end = min(len(self.ids), start + width)
            yield replace(whole.window(start, end), prompt=first - start)
            first = end


class Buffer:
    """The latest replies, without duplicates, so that no reply is both learnt from and held out.

    Args:
        replies: Maximum number of replies.
        tokens: Maximum number of tokens of all replies, prompts included.
        longest: Maximum number of tokens of one prompt and reply, counted from their end.
    """

    def __init__(self, replies: int, tokens: int, longest: int) -> None:
        self._replies, self._tokens, self._longest = replies, tokens, longest
        self._kept: deque[Kept] = deque()
        self._added = 0
        self.tokens = 0

    def add(self, ids: Sequence[int], prompt: int) -> bool:
        """Keep a reply; return False if it is empty or kept already. ``prompt``: prompt tokens."""
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
