"""Puts a reply's words between the samples of its audio."""

from __future__ import annotations

from collections import deque

from pipecat_specstream.written_word import WrittenWord
from specstream import Speech

__all__ = ["WordCutter"]


class WordCutter:
    """Cuts the audio of one turn at the middle of each word, where the word's text belongs.

    The text is that of the reply as it was written, and all pieces laid end to end are the reply: a
    word comes with the white space before it and the punctuation behind it. A written form that is
    spoken as several words, such as "$5.50", counts as one, whose middle is known once all of them
    are: until then its second half is held back.
    """

    def __init__(self) -> None:
        self._pcm = bytearray()
        self._given = 0  # samples of the turn that were given out
        self._said = 0  # characters of the reply that were given out
        self._words: deque[WrittenWord] = deque()

    def add(self, speech: Speech, reply: str) -> list[bytes | str]:
        """Take the next piece of speech; return audio and text, in the order of hearing.

        Args:
            speech: The next piece of the turn.
            reply: The reply so far, at least up to the end of the phrase that is spoken.
        """
        self._pcm += speech.pcm
        for mark in speech.marks:
            if mark.kind == "word":
                word = WrittenWord.of(mark.chars, mark.samples, mark.text, reply, speech.chars.end)
                if not self._words or not self._words[-1].joins(word):
                    self._words.append(word)
        pieces: list[bytes | str] = []
        end = speech.samples.end
        while self._words:
            word = self._words[0]
            middle = min(word.middle, end) if speech.last else word.middle
            self._cut(pieces, middle)
            known = word.as_written or len(self._words) > 1 or speech.last
            if not known or middle > end:
                return pieces
            self._words.popleft()
            self._say(pieces, reply, word.end)
        self._cut(pieces, end)
        if speech.last:
            self._say(pieces, reply, speech.chars.end)
        return pieces

    def close(self, reply: str) -> list[bytes | str]:
        """The turn has ended: return the audio of a voice that broke, and white space at the end."""
        pieces: list[bytes | str] = []
        self._cut(pieces, self._given + len(self._pcm) // 2)
        if reply[self._said :].isspace():
            pieces.append(reply[self._said :])
        return pieces

    def _cut(self, pieces: list[bytes | str], sample: int) -> None:
        """Give out the audio up to ``sample``, as far as it is there."""
        size = max(0, 2 * (sample - self._given))
        if pcm := bytes(self._pcm[:size]):
            del self._pcm[:size]
            self._given += len(pcm) // 2
            pieces.append(pcm)

    def _say(self, pieces: list[bytes | str], reply: str, end: int) -> None:
        while end > self._said and reply[end - 1].isspace():
            end -= 1  # white space goes with the word behind it
        if end > self._said:
            pieces.append(reply[self._said : end])
            self._said = end
