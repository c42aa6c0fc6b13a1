"""Join phrases to sentences, with their place in the reply and without text written for programs."""

from __future__ import annotations

import re
from collections import deque
from copy import copy
from dataclasses import dataclass, field, replace

from specstream.types import Phrase, Span
from specstream_adapters.prompt.speech import open_quote

__all__ = ["Reader", "Sentence", "is_code"]

_CODE = re.compile(r"[=(){}\[\]<>_\\]")
_CODE_MARKS = 5  # a sentence with at least this many marks of `_CODE` is no prose
_REMEMBERED = 64  # sentences that can be taken back
_MAX_CHARS = 600  # a sentence is cut after the phrase with which it gets this long
_MAX_JSON = 20_000  # characters after a brace; text without an end by then isn't taken for JSON
_TOKEN = re.compile(r"```|<\|[^|<>]{1,40}\|>|\\.|.", re.DOTALL)
_JSON = re.compile(r"\s*(?:[\"'}]|\Z)|[^\S\n]*\n")  # what follows the first brace


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, or the beginning of one.

    Attributes:
        text: The spoken text of ``span``, offsets kept: tags and machine text are spaces.
        span: Where it lies in the reply; sentences laid end to end are the reply.
        tokens: The tokens that wrote its phrases.
        tags: Names of the directions inside it.
        spoken_before: Characters spoken before it began, tags and machine text not counted.
        ended: Whether the sentence is complete.
    """

    text: str
    span: Span
    tokens: Span
    tags: tuple[str, ...]
    spoken_before: int
    ended: bool = True


def is_code(text: str) -> bool:
    """Whether a sentence is written in a programming language."""
    return len(_CODE.findall(text)) >= _CODE_MARKS


class _MachineText:
    """Blanks text for programs (JSON, fenced code, special tokens), which may span several calls."""

    def __init__(self) -> None:
        self._depth = self._inside = 0
        self._quoted = self._fenced = False

    def copy(self) -> _MachineText:
        """An independent copy."""
        return copy(self)

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


@dataclass(slots=True)
class _Open:
    """The phrases of one sentence, and the state where it began."""

    machine: _MachineText
    before: int  # characters spoken before it
    phrases: list[Phrase] = field(default_factory=list)

    def copy(self) -> _Open:
        """An independent copy; ``machine`` is shared, because it is never changed."""
        return _Open(self.machine, self.before, self.phrases.copy())

    def read(self) -> tuple[str, int, _MachineText]:
        """Its spoken text, how many of its characters are spoken, and the state after it."""
        machine, text, spoken = self.machine.copy(), "", 0
        for phrase in self.phrases:
            shown, hidden = machine.blank(phrase.spoken)
            text += shown
            spoken += len(shown) - hidden - sum(tag.chars.length for tag in phrase.tags)
        return text, spoken, machine


class Reader:
    """Joins the phrases of one turn to sentences.

    A sentence ends with a phrase that the segmenter cut at the end of a sentence, unless a quotation is
    open. The phrases of the last 64 sentences are kept, so that text can be taken back.
    """

    def __init__(self) -> None:
        # The last sentence is under way.
        self._sentences = deque([_Open(_MachineText(), 0)], _REMEMBERED)
        self.end: int | None = None
        """Where the text so far ends in the reply; None before the first phrase."""

    def copy(self) -> Reader:
        """An independent copy."""
        other = copy(self)
        other._sentences = deque((s.copy() for s in self._sentences), _REMEMBERED)
        return other

    def add(self, phrase: Phrase) -> Sentence | None:
        """Take the next phrase; return its sentence as far as it is known, if it says anything.

        A phrase that starts before the text so far ends replaces what lay there.
        """
        start = phrase.chars.start
        if self.end is None:
            self._sentences[-1].before = start
        elif start < self.end:
            self.revoke(start)
        elif start > self.end:  # text was left out
            self._sentences.append(_Open(_MachineText(), self._sentences[-1].before))
        current = self._sentences[-1]
        current.phrases.append(phrase)
        self.end = phrase.chars.end
        sentence = self.close()
        if sentence is not None:
            ended = phrase.reason in ("sentence", "end") and not open_quote(sentence.text)
            if ended or len(sentence.text) >= _MAX_CHARS:
                _, spoken, machine = current.read()
                self._sentences.append(_Open(machine, current.before + spoken))
            else:
                sentence = replace(sentence, ended=False)
        return sentence

    def close(self) -> Sentence | None:
        """The sentence under way as far as it is known, if it says anything."""
        current = self._sentences[-1]
        text = current.read()[0]
        if not text.strip():
            return None
        first, last = current.phrases[0], current.phrases[-1]
        span = Span(first.chars.start, last.chars.end)
        tokens = Span(first.tokens.start, last.tokens.end)
        tags = tuple(tag.name for phrase in current.phrases for tag in phrase.tags)
        return Sentence(text, span, tokens, tags, current.before)

    def revoke(self, char: int) -> None:
        """Take back the text from ``char`` on: the sentence that it cuts is under way again."""
        if self.end is None or char >= self.end:
            return
        self.end = char
        while True:
            current = self._sentences[-1]
            kept = [_until(char, p) for p in current.phrases if p.chars.start < char]
            if kept or len(self._sentences) == 1:
                break
            if current.phrases and current.phrases[0].chars.start == char:
                break
            self._sentences.pop()
        current.phrases = kept


def _until(char: int, phrase: Phrase) -> Phrase:
    """The phrase up to an offset of the reply."""
    if phrase.chars.end <= char:
        return phrase
    tags = tuple(tag for tag in phrase.tags if tag.chars.end <= char)
    length = char - phrase.chars.start
    return replace(
        phrase, text=phrase.text[:length], chars=Span(phrase.chars.start, char), tags=tags
    )
