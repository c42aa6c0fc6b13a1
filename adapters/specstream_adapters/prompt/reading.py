"""Phrases back to sentences, with their place in the reply and without text written for programs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from specstream.types import Phrase, Span

__all__ = ["Reader", "Sentence", "is_code"]

_CODE = re.compile(r"[=(){}\[\]<>_\\]")
_CODE_MARKS = 5  # so many in one sentence, and it is no prose
_MAX_CHARS = 600  # a longer sentence is taken as it stands
_MAX_JSON = 20_000  # characters behind a brace; more is no JSON after all, or hopelessly broken
_TOKEN = re.compile(r"```|<\|[^|<>]{1,40}\|>|\\.|.", re.DOTALL)
_JSON = re.compile(r"\s*(?:[\"'}]|\Z)|[^\S\n]*\n")  # what follows the first brace


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, or the beginning of one.

    Attributes:
        text: The spoken text of ``span``, offsets kept: tags and machine text are spaces.
        span: Where it lies in the reply; sentences laid end to end are the reply.
        tokens: The tokens of its phrases.
        tags: Names of the directions inside it.
        spoken_before: Characters spoken before it began, tags and machine text not counted.
    """

    text: str
    span: Span
    tokens: Span
    tags: tuple[str, ...]
    spoken_before: int


class Reader:
    """Joins the phrases of one turn to sentences; holds at most one unfinished sentence.

    A sentence ends with the phrase that the segmenter cut for that reason, unless a quotation is open.
    """

    def __init__(self) -> None:
        self._phrases: list[Phrase] = []  # of the sentence under way; their texts as spoken
        self._spoken = self._before = 0  # characters spoken: of that sentence; before it
        self._machine = _MachineText()
        self.end: int | None = None
        """Where the text so far ends in the reply; None before any."""

    def add(self, phrase: Phrase) -> Sentence | None:
        """Take the next phrase; return its sentence as far as it is known, if it says anything.

        A phrase that starts before the text so far ends replaces what lay there.
        """
        start = phrase.chars.start
        if self.end is None:
            self._before = start
        elif start != self.end:
            self._go_to(start)
        text, hidden = self._machine.blank(phrase.spoken)
        self._spoken += len(text) - hidden - sum(tag.chars.length for tag in phrase.tags)
        self._phrases.append(replace(phrase, text=text))
        self.end = phrase.chars.end
        sentence = self.close()
        if sentence is not None:
            ended = phrase.reason in ("sentence", "end") and not _in_quotes(sentence.text)
            if ended or len(sentence.text) >= _MAX_CHARS:
                self._before += self._spoken
                self._phrases, self._spoken = [], 0
        return sentence

    def close(self) -> Sentence | None:
        """The sentence under way as far as it is known, if it says anything."""
        text = "".join(phrase.text for phrase in self._phrases)
        if not text.strip():
            return None
        span = Span(self._phrases[0].chars.start, self._phrases[-1].chars.end)
        tokens = Span(self._phrases[0].tokens.start, self._phrases[-1].tokens.end)
        tags = tuple(tag.name for phrase in self._phrases for tag in phrase.tags)
        return Sentence(text, span, tokens, tags, self._before)

    def _go_to(self, char: int) -> None:
        """Text was taken back (or left out): go on at ``char``."""
        self._machine = _MachineText()
        first = self._phrases[0].chars.start if self._phrases else self.end or 0
        self._phrases = [p for p in self._phrases if p.chars.start < char]
        if not self._phrases:  # an estimate, since the sentences before it are not kept
            self._before, self._spoken = max(0, self._before - max(0, first - char)), 0
            return
        self._spoken = max(0, self._spoken - max(0, (self.end or 0) - char))
        last = self._phrases[-1]
        length = char - last.chars.start
        tags = tuple(tag for tag in last.tags if tag.chars.end <= char)
        chars, text = Span(last.chars.start, char), last.text[:length].ljust(length)
        self._phrases[-1] = replace(last, text=text, chars=chars, tags=tags)


def _in_quotes(text: str) -> bool:
    """Whether a quotation is open at the end of ``text``."""
    return text.count('"') % 2 == 1 or text.count("“") > text.count("”")


def is_code(text: str) -> bool:
    """Whether a sentence is written in a programming language."""
    return len(_CODE.findall(text)) >= _CODE_MARKS


class _MachineText:
    """Blanks text that is written for programs (JSON, fenced code, special tokens), call by call."""

    def __init__(self) -> None:
        self._depth = self._inside = 0
        self._quoted = self._fenced = False

    def blank(self, text: str) -> tuple[str, int]:
        """The text with every such character as a space, and how many there are.

        "```" and "<|...|>" must not be cut in two.
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
