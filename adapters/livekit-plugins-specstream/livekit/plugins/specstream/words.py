"""The written text of a reply, word by word, at the times at which it is spoken."""

import re
from collections.abc import Iterator

from livekit.agents.types import TimedString
from specstream import Speech

__all__ = ["TimedWords"]

_WRITTEN = re.compile(r"\s*\S+(?:\s+$)?")


class TimedWords:
    """Cuts a reply at the word marks of its speech. All pieces in a row are the reply.

    Punctuation goes with the word before it, a space with the word behind it; what has no word comes at
    the end. Where several spoken words stand for a written one, such as "$5", the others are empty.
    """

    def __init__(self) -> None:
        self._text = ""
        self._said = 0  # characters that were given
        self._phrase_from = 0  # the first sample of the phrase under way
        self._marked = False  # whether the phrase has word marks

    def write(self, text: str) -> None:
        """Take more of the reply's text."""
        self._text += text

    def spoken(self, speech: Speech) -> list[TimedString]:
        """The words whose marks come with this speech, to be told before its audio.

        The times in a phrase without marks are estimated, once it ends, from the lengths of its words.
        """
        made = []
        for mark in speech.marks:
            if mark.kind != "word":
                continue
            self._marked = True
            end = self._closed(mark.chars.end, speech.chars.end)
            made.append(self._to(max(end, self._said), mark.samples, speech.sample_rate))
        if speech.last:
            spoken = (self._phrase_from, speech.samples.end)
            if not self._marked and spoken[0] < spoken[1] and speech.chars.end > self._said:
                made += self._estimated(speech.chars.end, spoken, speech.sample_rate)
            self._phrase_from, self._marked = speech.samples.end, False
        return made

    def rest(self, samples: int, sample_rate: int) -> list[TimedString]:
        """The text after the last word, at the end of the speech."""
        if self._said == len(self._text):
            return []
        return [self._to(len(self._text), (samples, samples), sample_rate)]

    def _closed(self, end: int, limit: int) -> int:
        """The end of a word with the punctuation that closes it."""
        while end < limit and not self._text[end].isspace() and not self._text[end].isalnum():
            end += 1
        return end

    def _estimated(self, end: int, samples: tuple[int, int], rate: int) -> Iterator[TimedString]:
        start, length = self._said, end - self._said
        per_char = (samples[1] - samples[0]) / length
        for word in _WRITTEN.finditer(self._text[start:end]):
            edges = (samples[0] + word.start() * per_char, samples[0] + word.end() * per_char)
            yield self._to(start + word.end(), edges, rate)

    def _to(self, end: int, samples: tuple[float, float], rate: int) -> TimedString:
        text, self._said = self._text[self._said : end], end
        return TimedString(text, start_time=samples[0] / rate, end_time=samples[1] / rate)
