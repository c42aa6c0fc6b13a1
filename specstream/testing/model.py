"""A scripted model: prepared replies, written in rounds at known times and with a known acceptance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from specstream.testing.chunks import chunks_of
from specstream.testing.engine import ScriptedEngine
from specstream.types import Chunk

__all__ = ["ScriptedModel"]


class ScriptedModel(ScriptedEngine):
    """A `ScriptedEngine` with the timing of speculative decoding.

    The first token comes ``first_token_ms`` after the request, then a round every ``round_ms``. A round
    drafts ``drafted`` tokens, each of which is accepted with the probability ``acceptance`` if those
    before it were, and writes one token more than were accepted. A token has at most six characters.
    The same ``seed`` gives the same rounds. Rounds don't wait for the reader, as in an engine.

    The chunks of replies that are given as chunks come at their own ``t_ms``.

    Raises:
        ValueError: a time or ``drafted`` is negative, or ``acceptance`` is not from 0 to 1.
    """

    def __init__(
        self,
        replies: Sequence[str | Sequence[Chunk]],
        *,
        first_token_ms: float = 200.0,
        round_ms: float = 30.0,
        drafted: int = 4,
        acceptance: float = 0.7,
        seed: int | str = 0,
    ) -> None:
        if min(first_token_ms, round_ms, drafted) < 0 or not 0 <= acceptance <= 1:
            raise ValueError("times and drafted must be at least 0, and acceptance from 0 to 1")
        super().__init__(replies, timed=True)
        self._first_ms, self._round_ms = first_token_ms, round_ms
        self._drafted, self._acceptance = drafted, acceptance
        self._random = random.Random(seed)

    def _chunks(self, reply: str) -> Sequence[Chunk]:
        """One chunk a round; the last, without tokens, comes at the time of the last round."""
        tokens = sum(len(chunk.token_ids) for chunk in chunks_of(reply))
        sizes = [1]
        while (left := tokens - sum(sizes)) > 0:
            sizes.append(min(left, 1 + self._accepted()))
        made = chunks_of(reply, sizes)
        first, by = self._first_ms, "scripted" if self._drafted else ""
        return [
            replace(
                chunk,
                t_ms=first + min(at, len(sizes) - 1) * self._round_ms,
                drafted=self._drafted if at and chunk.token_ids else 0,
                accepted=max(0, len(chunk.token_ids) - 1),
                proposer=by if at and chunk.token_ids else "",
            )
            for at, chunk in enumerate(made)
        ]

    def _accepted(self) -> int:
        count = 0
        while count < self._drafted and self._random.random() < self._acceptance:
            count += 1
        return count
