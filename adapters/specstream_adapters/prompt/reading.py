"""Join phrases to sentences, with their place in the reply and without text written for programs."""

from __future__ import annotations

import re
from collections import deque
from copy import copy
from dataclasses import dataclass, replace

from specstream.types import Phrase, Span
from specstream_adapters.prompt.shots import Sentence, ShotState
from specstream_adapters.prompt.speech import open_quote

__all__ = ["Passage", "Reader"]

_REMEMBERED = 64  # sentences that can be taken back
_MAX_CHARS = 600  # a sentence is cut after the phrase with which it gets this long
_MAX_JSON = 20_000  # characters after a brace; text without an end by then isn't taken for JSON
_TOKEN = re.compile(r"```|<\|[^|<>]{1,40}\|>|\\.|.", re.DOTALL)
_JSON = re.compile(r"\s*(?:[\"'}]|\Z)|[^\S\n]*\n")  # what follows the first brace


class _MachineText:
    """Blanks text for programs (JSON, fenced code, special tokens), which may span several calls."""

    def __init__(self) -> None:
        self._depth = self._inside = 0
        self._quoted = self._fenced = False

    def blank(self, text: str) -> tuple[str, int]:
        """The text with a space for each character written for programs, and the number of those.

        "```" and "<|...|>" must not be split between two calls.
        """
        shown, hidden = "", 0
        for found in _TOKEN.finditer(text):
            token, hide = found[0], True
            if self._depth:
                self._in_json(token)
            elif token == "```":
                self._fenced = not self._fenced
            elif not self._fenced and token == "{" and _JSON.match(text, found.end()):
                self._depth, self._inside, self._quoted = 1, 0, False
            else:
                hide = self._fenced or len(token) > 2
            shown += " " * len(token) if hide else token
            hidden += len(token) if hide else 0
        return shown, hidden

    def _in_json(self, token: str) -> None:
        self._inside += len(token)
        if self._inside > _MAX_JSON:
            self._depth = 0
        elif token == '"':
            self._quoted = not self._quoted
        elif not self._quoted:
            self._depth += (token == "{") - (token == "}")


@dataclass(frozen=True, slots=True)
class Passage:
    """The phrases of one sentence, and what was known where it began; copies of a reader share it.

    Attributes:
        machine: Whether text for programs was open there.
        spoken_before: Characters spoken before it.
        state: What was known; not to be changed.
        phrases: Its phrases so far.
        shot_id: The shot that it began; "" if it began none.
        ended: Whether it is complete.
    """

    machine: _MachineText
    spoken_before: int
    state: ShotState
    phrases: tuple[Phrase, ...] = ()
    shot_id: str = ""
    ended: bool = False

    def read(self) -> tuple[str, int, _MachineText]:
        """Its spoken text, the characters spoken up to its end, and the machine text's state there."""
        machine, text, spoken = copy(self.machine), "", self.spoken_before
        for phrase in self.phrases:
            shown, hidden = machine.blank(phrase.spoken)
            text += shown
            spoken += len(shown) - hidden - sum(tag.chars.length for tag in phrase.tags)
        return text, spoken, machine


class Reader:
    """Joins the phrases of one turn to sentences.

    A sentence ends with a phrase that the segmenter cut at the end of a sentence, unless a quotation is
    open. The last 64 sentences are kept with the state before each, so that text can be taken back.
    """

    def __init__(self) -> None:
        self._passages: deque[Passage] = deque(maxlen=_REMEMBERED)  # the last one is under way
        self.end: int | None = None
        """Where the text so far ends in the reply; None before the first phrase."""

    def copy(self) -> Reader:
        """An independent copy."""
        other = copy(self)
        other._passages = self._passages.copy()
        return other

    @property
    def last(self) -> Passage:
        """The last sentence, which is under way unless it ended."""
        return self._passages[-1]

    def began(self, shot_id: str) -> None:
        """Record the shot that the last sentence began."""
        self._passages[-1] = replace(self.last, shot_id=shot_id)

    def state_at(self, char: int) -> ShotState | None:
        """What was known before the first sentence that begins at or after an offset."""
        later = (p for p in self._passages if p.phrases and p.phrases[0].chars.start >= char)
        return next((passage.state for passage in later), None)

    def add(self, phrase: Phrase, state: ShotState) -> Sentence | None:
        """Take the next phrase; return its sentence as far as it is known, if it says anything.

        ``state`` is kept if a sentence begins with the phrase, which must not start before the text so
        far ends (see `revoke`).
        """
        start = phrase.chars.start
        if self.end is None:
            self._passages.append(Passage(_MachineText(), start, state))
        elif self.last.ended or start > self.end:  # past the end: text was left out
            _, spoken, machine = self.last.read()
            machine = _MachineText() if start > self.end else machine
            self._passages.append(Passage(machine, spoken, state))
        self.end = phrase.chars.end
        passage = replace(self.last, phrases=(*self.last.phrases, phrase))
        self._passages[-1] = passage
        sentence = self.close()
        if sentence is not None:
            ended = phrase.reason in ("sentence", "end") and not open_quote(sentence.text)
            ended = ended or len(sentence.text) >= _MAX_CHARS
            self._passages[-1] = replace(passage, ended=ended)
            sentence = replace(sentence, ended=ended)
        return sentence

    def close(self) -> Sentence | None:
        """The sentence under way as far as it is known, if it says anything."""
        passage = self.last
        text = passage.read()[0]
        if passage.ended or not text.strip():
            return None
        first, last = passage.phrases[0], passage.phrases[-1]
        span = Span(first.chars.start, last.chars.end)
        tokens = Span(first.tokens.start, last.tokens.end)
        tags = tuple(tag.name for phrase in passage.phrases for tag in phrase.tags)
        return Sentence(text, span, tokens, tags, passage.spoken_before)

    def revoke(self, char: int) -> None:
        """Take back the text from ``char``, which is in it, on: the sentence cut is under way again."""
        self.end = char
        while True:
            passage = self.last
            kept = tuple(_until(char, p) for p in passage.phrases if p.chars.start < char)
            starts = bool(passage.phrases) and passage.phrases[0].chars.start == char
            if kept or starts or len(self._passages) == 1:
                break
            self._passages.pop()
        name = passage.shot_id if kept else ""
        self._passages[-1] = replace(passage, phrases=kept, shot_id=name, ended=False)


def _until(char: int, phrase: Phrase) -> Phrase:
    """The phrase up to an offset of the reply."""
    if phrase.chars.end <= char:
        return phrase
    tags = tuple(tag for tag in phrase.tags if tag.chars.end <= char)
    length = char - phrase.chars.start
    return replace(
        phrase, text=phrase.text[:length], chars=Span(phrase.chars.start, char), tags=tags
    )
