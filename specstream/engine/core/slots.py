"""Slots: the target's KV caches, one per running request and idle conversation."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from specstream.model.kv import KVCache, common_prefix
from specstream.model.runner import ModelRunner

__all__ = ["Slot", "Slots", "free_memory"]

_HEADROOM = 512 * 2**20  # bytes reserved for activations and the draft's caches


_WORTH = 16  # tokens; a shorter common beginning is read again
_MOST_LEFT = 4  # conversations whose beginnings are kept after they were dropped
_BEGINNING = 2048  # tokens of such a beginning


@dataclass(slots=True, eq=False)
class Slot:
    """A KV cache, and the tokens whose keys and values it holds; of a running request, its prompt."""

    id: int
    cache: KVCache
    rows: list[int] = field(default_factory=list)
    session: str | None = None  # the conversation that keeps the cache from turn to turn
    reserved: int = 0  # bytes that the cache may grow to
    most: int | None = None  # tokens to keep at most when the request ends; None: all

    def cut(self) -> None:
        """Roll the cache back to the first ``most`` tokens, if a bound is set."""
        if self.most is not None and self.most < len(self.rows):
            self.cache.rollback_to(self.most)
            del self.rows[self.most :]
        self.most = None


class Slots:
    """Hands out caches and keeps those of at most ``max_kept`` idle conversations.

    A new sequence begins with a copy of the rows that it has in common with another one, such as those
    of the same system message: of one that runs, is idle, or was among the last to be dropped.

    ``on_drop`` is called with the id of each slot that is dropped. ``free_bytes`` returns the device's
    free memory; None turns the memory check off. Without ``shares`` a sequence uses rows of its own
    conversation only.

    Attributes:
        kept: Slots of idle conversations, the oldest first.
    """

    def __init__(
        self,
        target: ModelRunner,
        max_kept: int,
        on_drop: Callable[[int], None],
        free_bytes: Callable[[], int] | None = None,
        *,
        shares: bool = True,
    ) -> None:
        self._target = target
        self._max_kept = max_kept
        self._on_drop = on_drop
        self._free_bytes = free_bytes
        self._numbers = itertools.count()
        self.kept: OrderedDict[str, Slot] = OrderedDict()
        self._used: dict[int, Slot] = {}
        # Beginnings of dropped sequences: the tokens, and their rows.
        self._left: deque[tuple[list[int], KVCache]] = deque(maxlen=_MOST_LEFT if shares else 0)
        self._shares = shares

    def has_room(self, session: str | None, tokens: int) -> bool:
        """Whether memory suffices for a new sequence of ``tokens`` tokens and for all running ones.

        Drops caches of idle conversations, oldest first, as far as that is needed.
        """
        if self._free_bytes is None:
            return True
        own = self.kept.get(session) if session is not None else None
        needed = self._target.cache_bytes(tokens) - (own.cache.nbytes if own else 0)
        needed += sum(max(0, slot.reserved - slot.cache.nbytes) for slot in self._used.values())
        while needed > self._free_bytes():
            if self._left:
                self._left.popleft()
                continue
            oldest = next((name for name in self.kept if name != session), None)
            if oldest is None:
                return False
            self._on_drop(self.kept.pop(oldest).id)
        return True

    def take(
        self, session: str | None, prompt_ids: Sequence[int], limit: int = 0, *, reuse: bool = True
    ) -> tuple[Slot, int]:
        """Return a slot for a prompt, and how many of the prompt's tokens its cache still holds.

        The sequence may grow to ``limit`` tokens. Without ``reuse`` all of the prompt is read again. The
        prompt's last token is never taken from the cache,
        since the target must read it to give the logits of the reply's first token.
        """
        slot = self.kept.pop(session, None) if session is not None else None
        if slot is None:
            slot = Slot(next(self._numbers), self._target.new_cache(), session=session)
        same = common_prefix(slot.rows, prompt_ids)
        same = min(same, slot.cache.length, len(prompt_ids) - 1) if reuse else 0
        slot.cache.rollback_to(same)
        if self._shares and reuse:
            same = self._copied(slot, prompt_ids, same)
        slot.rows = list(prompt_ids)
        if self._free_bytes is not None:
            slot.reserved = self._target.cache_bytes(limit)
        self._used[slot.id] = slot
        return slot, same

    def _copied(self, slot: Slot, prompt_ids: Sequence[int], same: int) -> int:
        """Copy the longest beginning of a prompt that another cache holds, if longer than ``same``.

        Returns how many of the prompt's tokens the slot's cache holds.
        """
        wanted, found, rows = list(prompt_ids[:-1]), None, same + _WORTH - 1
        others = [(s.rows, s.cache) for s in (*self._used.values(), *self.kept.values())]
        for tokens, cache in (*others, *self._left):
            held = min(common_prefix(tokens, wanted), cache.length)
            if held > rows:
                found, rows = cache, held
        if found is None:
            return same
        slot.cache.begin_as(found, rows)
        return rows

    def _leave(self, slot: Slot) -> None:
        """Drop a slot, and keep the beginning of its sequence for others."""
        rows = min(len(slot.rows), slot.cache.length, _BEGINNING)
        if rows >= _WORTH and self._shares:
            tokens = slot.rows[:rows]
            for held in [held for held in self._left if held[0] == tokens[: len(held[0])]]:
                self._left.remove(held)
            with suppress(torch.OutOfMemoryError):
                self._left.append((tokens, self._beginning(slot.cache, rows)))
        self._on_drop(slot.id)

    def _beginning(self, cache: KVCache, rows: int) -> KVCache:
        """The first rows of a cache that nobody else needs."""
        if cache.nbytes <= 2 * self._target.cache_bytes(rows):
            cache.rollback_to(rows)
            return cache
        shorter = self._target.new_cache()
        shorter.begin_as(cache, rows)
        return shorter

    def give_back(self, slot: Slot, token_ids: Sequence[int]) -> None:
        """Take back an ended request's slot: kept if it belongs to a conversation, else dropped."""
        del self._used[slot.id]
        slot.rows = list(token_ids[: slot.cache.length])
        if slot.session is None or self._max_kept == 0:
            self._leave(slot)
            return
        slot.cut()
        self.kept[slot.session] = slot
        if len(self.kept) > self._max_kept:
            self.forget(next(iter(self.kept)))

    def trim(self, session: str, tokens: int) -> None:
        """Keep at most the first ``tokens`` tokens of a conversation, now or when its request ends."""
        kept = self.kept.get(session)
        if kept is not None:
            kept.most = tokens
            kept.cut()
        for slot in self._used.values():
            if slot.session == session:
                slot.most = tokens

    def forget(self, session: str) -> None:
        """Drop a conversation's cache, now or when its request ends. Idempotent."""
        slot = self.kept.pop(session, None)
        if slot is not None:
            self._leave(slot)
        for slot in self._used.values():
            if slot.session == session:
                slot.session = None

    @property
    def in_use(self) -> int:
        """Slots of running requests."""
        return len(self._used)


def free_memory(target: ModelRunner) -> Callable[[], int] | None:
    """Return a function that reads the bytes free for new KV caches; None if the target is on no GPU.

    With a key-value pool these are the pool's unused bytes; otherwise the device's free memory, less a
    reserve.
    """
    device = target.device
    if device.type != "cuda":
        return None

    def read() -> int:
        pooled = target.free_cache_bytes
        if pooled is not None:
            return pooled
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached - _HEADROOM

    return read
