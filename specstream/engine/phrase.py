"""How far a reply is from the end of its first speakable phrase."""

from __future__ import annotations

import re

__all__ = ["FirstPhrase", "PhraseLengths"]

_END = re.compile(r"[.!?…,;:]['\")\]]*\s|[。！？，；：]|\n")
_SHORTEST = 6  # characters; a voice wants more than "So," to begin with
_LONGEST = 240  # characters; what has no end by then is cut there
_FIRST_GUESS = 12.0  # tokens
_WEIGHT = 0.1


class PhraseLengths:
    """The usual number of tokens of a first phrase, learned over an engine's replies."""

    def __init__(self) -> None:
        self.usual = _FIRST_GUESS

    def add(self, tokens: int) -> None:
        """A first phrase has ended."""
        self.usual += _WEIGHT * (tokens - self.usual)


class FirstPhrase:
    """Follows one reply until a voice could begin to speak."""

    def __init__(self, lengths: PhraseLengths) -> None:
        self._lengths = lengths
        self._over = False

    def read(self, text: str, tokens: int) -> None:
        """``text`` is the reply so far, of so many tokens."""
        if self._over:
            return
        if len(text) >= _LONGEST or _END.search(text, _SHORTEST):
            self._over = True
            self._lengths.add(tokens)

    def left(self, tokens: int) -> int | None:
        """Tokens that the phrase probably still lacks, at least 1; None once it is over.

        One that is longer than usual may be so by a good deal: it is expected to go on for a quarter
        of the usual length, however long it is already.
        """
        if self._over:
            return None
        usual = self._lengths.usual
        return max(1, round(usual / 4), round(usual) - tokens)
