"""Estimates how many tokens a reply lacks to the end of its first speakable phrase."""

from __future__ import annotations

import re

__all__ = ["FirstPhrase", "PhraseLengths"]

_END = re.compile(r"[.!?…]['\")\]]*\s|[。！？]|\n")
_SHORTEST = 6  # characters before a sentence end is looked for
_CLAUSE = re.compile(r"[,;:]['\")\]]*\s|[，；：]")
_SHORTEST_CLAUSE = 22  # characters before a clause mark; see `specstream.text.segmenter`
_LONGEST = 240  # characters; a phrase without an end is cut there
_FIRST_GUESS = 12.0  # tokens of a first phrase, before any was seen
_WEIGHT = 0.1  # of a new sample in the moving average


class PhraseLengths:
    """Moving average of the tokens of a first phrase, over an engine's replies."""

    def __init__(self) -> None:
        self.usual = _FIRST_GUESS

    def add(self, tokens: int) -> None:
        """Add the length of a first phrase that has ended."""
        self.usual += _WEIGHT * (tokens - self.usual)


class FirstPhrase:
    """Follows one reply until a voice could begin to speak.

    Attributes:
        left: Estimate of the tokens that the first phrase still lacks, at least 1; None once it has
            ended. A phrase longer than the average is expected to last a quarter of the average more.
    """

    def __init__(self, lengths: PhraseLengths) -> None:
        self._lengths = lengths
        self.left: int | None = None
        self._expect(0)

    def read(self, text: str, tokens: int) -> None:
        """Update the estimate; ``text`` is the reply so far and ``tokens`` its length in tokens."""
        if self.left is None:
            return
        clause = _CLAUSE.search(text, _SHORTEST_CLAUSE)
        if len(text) >= _LONGEST or clause or _END.search(text, _SHORTEST):
            self.left = None
            self._lengths.add(tokens)
        else:
            self._expect(tokens)

    def _expect(self, tokens: int) -> None:
        usual = self._lengths.usual
        self.left = max(1, round(usual / 4), round(usual) - tokens)
