"""The target's caches: one per running request, and one kept per conversation."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence

from specstream.engine.request import Slot
from specstream.model.kv import KVCache

__all__ = ["Slots"]


class Slots:
    """Hands out caches and keeps those of at most ``max_kept`` idle conversations.

    ``on_drop`` is told the id of every slot that is gone for good, so that whoever keeps something
    under it can let go.
    """

    def __init__(
        self, new_cache: Callable[[], KVCache], max_kept: int, on_drop: Callable[[int], None]
    ) -> None:
        self._new_cache = new_cache
        self._max_kept = max_kept
        self._on_drop = on_drop
        self._numbers = itertools.count()
        self._kept: OrderedDict[str, Slot] = OrderedDict()  # idle conversations, oldest first
        self._out: set[int] = set()
        self._busy: set[str] = set()  # conversations whose slot is out
        self._over: set[str] = set()  # of those, the ones that have ended meanwhile

    def take(self, session: str | None, prompt_ids: Sequence[int]) -> tuple[Slot, int]:
        """A slot for a prompt, and how many of its tokens are still cached from before.

        At least the prompt's last token is left to be read: its logits begin the reply.
        """
        slot = self._kept.pop(session, None) if session is not None else None
        if slot is None:
            slot = Slot(next(self._numbers), self._new_cache())
        same = 0
        limit = min(len(slot.rows), slot.cache.length, len(prompt_ids) - 1)
        while same < limit and slot.rows[same] == prompt_ids[same]:
            same += 1
        slot.cache.rollback_to(same)
        del slot.rows[same:]
        self._out.add(slot.id)
        if session is not None:
            self._busy.add(session)
        return slot, same

    def give_back(self, slot: Slot, session: str | None, token_ids: Sequence[int]) -> None:
        """A request is over; its conversation's cache is kept, any other dropped."""
        self._out.discard(slot.id)
        over = session in self._over
        if session is not None:
            self._busy.discard(session)
            self._over.discard(session)
        if session is None or over or self._max_kept == 0:
            self._on_drop(slot.id)
            return
        slot.rows = list(token_ids[: slot.cache.length])
        self._kept[session] = slot
        while len(self._kept) > self._max_kept:
            _, oldest = self._kept.popitem(last=False)
            self._on_drop(oldest.id)

    def forget(self, session: str) -> None:
        """The conversation has ended. Idempotent."""
        slot = self._kept.pop(session, None)
        if slot is not None:
            self._on_drop(slot.id)
        elif session in self._busy:
            self._over.add(session)

    @property
    def in_use(self) -> int:
        """Slots held by running requests."""
        return len(self._out)

    @property
    def kept(self) -> int:
        """Slots held by idle conversations."""
        return len(self._kept)
