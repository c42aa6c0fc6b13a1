"""A word of a reply as it is written, and when it is heard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from specstream import Span

__all__ = ["WrittenWord"]


@dataclass(slots=True)
class WrittenWord:
    """A word, or a form such as "7:30" that is spoken as several.

    Attributes:
        chars: Where it lies in the reply.
        end: The same with the punctuation that follows at once.
        samples: When it is heard, on the turn's clock.
        as_written: Whether it is spoken as it is written, so that no further word belongs to it.
    """

    chars: Span
    end: int
    samples: Span
    as_written: bool

    @classmethod
    def of(cls, chars: Span, samples: Span, spoken: str, reply: str, phrase_end: int) -> Self:
        """The word at ``chars`` of the reply; punctuation is looked for up to its phrase's end."""
        end = chars.end
        while end < phrase_end and not reply[end].isspace() and not reply[end].isalnum():
            end += 1
        written = reply[slice(*chars)]
        return cls(chars, end, samples, spoken.casefold() == written.casefold())

    @property
    def middle(self) -> int:
        """The sample from which on it counts as heard."""
        return (self.samples.start + self.samples.end) // 2

    def joins(self, word: WrittenWord) -> bool:
        """Whether ``word`` is spoken for the same written form; its samples are then added."""
        if word.chars != self.chars:
            return False
        self.samples = Span(self.samples.start, word.samples.end)
        return True
