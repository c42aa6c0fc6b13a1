"""Join phrases to sentences, with their place in the reply and without text written for programs."""

from __future__ import annotations

from collections import deque
from copy import copy
from dataclasses import replace

from specstream.types import Phrase, Span
from specstream_adapters.prompt.shots import Sentence, ShotState
from specstream_adapters.prompt.speech import MachineText, open_quote

__all__ = ["Reader"]

_REMEMBERED = 64  # sentences that can be taken back
_MAX_CHARS = 600  # a sentence is cut after the phrase with which it gets this long


class Reader:
    """Joins the phrases of one turn to sentences.

    A sentence ends with a phrase that the segmenter cut at the end of a sentence, unless a quotation is
    open. The last 64 sentences are kept with the state before each, so that text can be taken back.
    """

    def __init__(self) -> None:
        self._sentences: deque[Sentence] = deque(maxlen=_REMEMBERED)  # the last one is under way
        self.end: int | None = None
        """Where the text so far ends in the reply; None before the first phrase."""

    def copy(self) -> Reader:
        """An independent copy."""
        other = copy(self)
        other._sentences = self._sentences.copy()
        return other

    @property
    def last(self) -> Sentence:
        """The last sentence, which is under way unless it ended."""
        return self._sentences[-1]

    def began(self, shot_id: str) -> None:
        """Record the shot that the last sentence began."""
        self._sentences[-1] = replace(self.last, shot_id=shot_id)

    def state_at(self, char: int) -> ShotState | None:
        """What was known before the first sentence that begins at or after an offset."""
        later = (s for s in self._sentences if s.phrases and s.span.start >= char)
        return next((sentence.state for sentence in later), None)

    def add(self, phrase: Phrase, state: ShotState) -> Sentence | None:
        """Take the next phrase; return its sentence as far as it is known, if it says anything.

        ``state`` is kept if a sentence begins with the phrase, which must not start before the text so
        far ends (see `revoke`).
        """
        start = phrase.chars.start
        if self.end is None:
            self._sentences.append(Sentence(MachineText(), start, state))
        elif self.last.ended or start > self.end:  # past the end: text was left out
            _, spoken, machine = self.last.read()
            machine = MachineText() if start > self.end else machine
            self._sentences.append(Sentence(machine, spoken, state))
        self.end = phrase.chars.end
        sentence = replace(self.last, phrases=(*self.last.phrases, phrase))
        text = sentence.text
        if text.strip():
            closed = phrase.reason in ("sentence", "end") and not open_quote(text)
            sentence = replace(sentence, ended=closed or len(text) >= _MAX_CHARS)
        self._sentences[-1] = sentence
        return sentence if text.strip() else None

    def close(self) -> Sentence | None:
        """The sentence under way, which the text's end completes, if it says anything."""
        says = not self.last.ended and self.last.text.strip()
        return replace(self.last, ended=True) if says else None

    def revoke(self, char: int) -> None:
        """Take back the text from ``char``, which is in it, on: the sentence cut is under way again."""
        self.end = char
        while True:
            sentence = self.last
            kept = tuple(_until(char, p) for p in sentence.phrases if p.chars.start < char)
            starts = bool(sentence.phrases) and sentence.span.start == char
            if kept or starts or len(self._sentences) == 1:
                break
            self._sentences.pop()
        name = sentence.shot_id if kept else ""
        self._sentences[-1] = replace(sentence, phrases=kept, shot_id=name, ended=False)


def _until(char: int, phrase: Phrase) -> Phrase:
    """The phrase up to an offset of the reply."""
    if phrase.chars.end <= char:
        return phrase
    tags = tuple(tag for tag in phrase.tags if tag.chars.end <= char)
    length = char - phrase.chars.start
    return replace(
        phrase, text=phrase.text[:length], chars=Span(phrase.chars.start, char), tags=tags
    )
