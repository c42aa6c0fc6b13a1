"""Finds stop strings across token borders; text that may begin a stop string is held back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["Repeats", "StopMatcher", "held_back"]

_SENTENCE = re.compile(r"[^.!?…。！？\n]*(?:[.!?…。！？]+(?=\s)|\n)")
_WORD = re.compile(r"\w+")
_LEAST = 3  # words of a sentence that is counted: "No." may be said often


class StopMatcher:
    """Searches the text of one reply for stop strings.

    The text given out never contains a stop string, nor any part of the one that ended the reply.
    At most ``len(longest stop) - 1`` characters are held back at any time.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def add(self, text: str, *, searching: bool = True) -> str:
        """Add text; return the text that may be shown now. Sets ``stopped`` at a complete stop string.

        With ``searching=False``, a stop string completed by this text is treated as ordinary text.
        """
        if not self._stops:
            return text
        held, text = len(self._held), self._held + text
        # A match may begin in the text held back, but must end in the new text.
        found = (text.find(stop, max(0, held - len(stop) + 1)) for stop in self._stops)
        starts = [at for at in found if at >= 0] if searching else []
        if starts:
            self.stopped = True
            self._held = ""
            return text[: min(starts)]
        shown = len(text) - held_back(text, self._stops)
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """End the reply without a stop string; return the text held back. Idempotent."""
        held, self._held = self._held, ""
        return held


class Repeats:
    """Counts the sentences of one reply, whatever their case and marks.

    Attributes:
        looping: The sentence that was written ``most`` times; "" before that.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._at = 0  # of the reply; what is before it has been counted
        self.looping = ""

    def read(self, reply: str) -> None:
        """Count the sentences that have become complete in ``reply``, the whole text so far."""
        for found in _SENTENCE.finditer(reply, self._at):
            self._at = found.end()
            words = tuple(_WORD.findall(found.group().lower()))
            self._counts[words] += len(words) >= _LEAST
            if self._counts[words] >= self._most:
                self.looping = self.looping or found.group().strip()


def held_back(text: str, marks: Iterable[str]) -> int:
    """Return how many of the last characters of ``text`` may be the beginning of one of ``marks``."""
    longest = 0
    for mark in marks:
        sizes = range(min(len(mark) - 1, len(text)), longest, -1)
        longest = next((size for size in sizes if text.endswith(mark[:size])), longest)
    return longest
