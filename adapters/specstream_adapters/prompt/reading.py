"""Phrases back to sentences: with their exact place in the reply, and without machine text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specstream.types import Phrase, Span

__all__ = ["Reader", "Sentence", "is_code"]

_CODE = re.compile(r"[=(){}\[\]<>_\\]")
_CODE_MARKS = 5  # so many in one sentence, and it is no prose
_MAX_CHARS = 600  # a longer sentence is taken as it stands
_MAX_JSON = 20_000
_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>")
_TAG = "\ue000"  # stands in for each character of a tag: white space, but not the sentence's own
_SPACE = f" \t\r\n{_TAG}"
_STOP = re.compile(rf"(?:[.!?…]+[\"'”’»)\]]*(?=[\s{_TAG}]|\Z)|[。！？]+[」』”]*|\n\s*\n)\s*")
_ABBREVIATION = re.compile(
    r"\b(?:mr|mrs|ms|dr|st|prof|capt|sgt|lt|col|gen|jr|sr|vs|etc|e\.g|i\.e|approx|int|ext"
    r"|[a-z])\.$",
    re.IGNORECASE,
)
_OPEN_END = re.compile(r"\b(?:INT|EXT|Mrs?|Ms|Dr|Prof|Capt|Sgt|Lt)\.\s*$|(?:^|\n)\s*\d+\.\s*$")
_ATTRIBUTION = re.compile(
    r"(?:[A-Z]\w+(?: [A-Z]\w+)?|[Tt]he \w+(?: \w+)?|[HhSs]he|[Ii]t|[Tt]hey|I) "
    r"(?:said|says|asks?|asked|cries|cried|whisper(?:s|ed)|shout(?:s|ed)|call(?:s|ed)|answer(?:s|ed)|"
    r"repl(?:y|ies|ied)|murmur(?:s|ed)|mutter(?:s|ed)|laugh(?:s|ed)|sigh(?:s|ed)|gasp(?:s|ed))\b"
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, or the beginning of one.

    Attributes:
        text: What is spoken of ``span``, offsets kept: tags and machine text are spaces.
        span: Where it lies in the reply; sentences laid end to end are the reply.
        tokens: The tokens of the phrases that it lies in.
        tags: Names of the directions inside it.
        spoken_before: Characters spoken before it began, tags and machine text not counted.
        complete: Whether its end was seen.
    """

    text: str
    span: Span
    tokens: Span
    tags: tuple[str, ...]
    spoken_before: int
    complete: bool


class Reader:
    """Collects the phrases of one turn; holds at most one unfinished sentence."""

    def __init__(self) -> None:
        self._text = ""
        self._spoken: list[bool] = []  # for each character of _text
        self._phrases: list[Phrase] = []  # those that _text lies in
        self._start: int | None = None
        self._before = 0
        self._machine = _MachineText()

    @property
    def end(self) -> int | None:
        """Where the text so far ends in the reply; None before any."""
        return None if self._start is None else self._start + len(self._text)

    def add(self, phrase: Phrase) -> list[Sentence]:
        """Take the next phrase; return the sentences it completed, then the one it left open.

        A phrase that starts before the text so far ends replaces what lay there.
        """
        if self._start is None:
            self._start = self._before = phrase.chars.start
        elif phrase.chars.start != self.end:
            self._go_to(phrase.chars.start)
        text, spoken = self._machine.blank(phrase.spoken)
        for tag in phrase.tags:
            a, b = tag.chars.start - phrase.chars.start, tag.chars.end - phrase.chars.start
            spoken[a:b] = [False] * (b - a)
            text = text[:a] + _TAG * (b - a) + text[b:]
        self._spoken += spoken
        self._text += text
        self._phrases.append(phrase)
        sentences = []
        while (end := self._sentence_end(ended=phrase.reason in ("sentence", "end"))) is not None:
            sentences.append(self._take(end))
        if self._text.strip(_SPACE):
            sentences.append(self._sentence(len(self._text), complete=False))
        return sentences

    def close(self) -> Sentence | None:
        """What is left when the text has ended."""
        return self._take(len(self._text)) if self._text.strip(_SPACE) else None

    def _go_to(self, char: int) -> None:
        """Something was taken back (or left out): go on at ``char``."""
        assert self._start is not None
        gap = char - self._start - len(self._text)
        self._text += " " * gap
        self._spoken += [False] * gap
        keep = max(0, char - self._start)
        if keep == 0:  # rough, but only where what comes next may no longer be what came before
            self._before = max(0, self._before - max(0, self._start - char))
        self._text, self._spoken = self._text[:keep], self._spoken[:keep]
        self._phrases = [p for p in self._phrases if p.chars.start < char]
        self._start = char - keep
        self._machine = _MachineText()

    def _sentence_end(self, *, ended: bool) -> int | None:
        for stop in _STOP.finditer(self._text):
            rest = self._text[stop.end() :]
            if not rest.strip(_SPACE):
                break
            if not _in_quotes(self._text[: stop.end()]) and _ends_here(self._text, stop, rest):
                return stop.end()
        if len(self._text) > _MAX_CHARS:
            return self._text.rfind(" ", 0, _MAX_CHARS) + 1 or _MAX_CHARS
        ended = ended and not _OPEN_END.search(self._text)
        if ended and self._text.strip(_SPACE) and not _in_quotes(self._text):
            return len(self._text)
        return None

    def _take(self, end: int) -> Sentence:
        sentence = self._sentence(end, complete=True)
        self._before += sum(self._spoken[:end])
        self._text, self._spoken = self._text[end:], self._spoken[end:]
        self._start = sentence.span.end
        self._phrases = [p for p in self._phrases if p.chars.end > sentence.span.end]
        return sentence

    def _sentence(self, end: int, *, complete: bool) -> Sentence:
        assert self._start is not None
        span = Span(self._start, self._start + end)
        inside = [p for p in self._phrases if p.chars.start < span.end and p.chars.end > span.start]
        tags = [t.name for p in inside for t in p.tags if span.start <= t.chars.start < span.end]
        tokens = Span(min(p.tokens.start for p in inside), max(p.tokens.end for p in inside))
        text = self._text[:end].replace(_TAG, " ")
        return Sentence(text, span, tokens, tuple(tags), self._before, complete)


def _in_quotes(text: str) -> bool:
    return text.count('"') % 2 == 1 or text.count("“") > text.count("”")


def _ends_here(text: str, stop: re.Match[str], rest: str) -> bool:
    word, rest = text[: stop.end()].rstrip(), rest.lstrip(_SPACE)
    if (
        _ABBREVIATION.search(word)
        or _OPEN_END.search(word)
        or (rest[0].isalpha() and rest[0].islower())
    ):
        return False
    return not (word[-1] in "\"”'’»" and _ATTRIBUTION.match(rest))


def is_code(text: str) -> bool:
    """Whether a sentence is written in a programming language."""
    return len(_CODE.findall(text)) >= _CODE_MARKS


class _MachineText:
    """Blanks what is written for programs: JSON, fenced code, special tokens."""

    def __init__(self) -> None:
        self._depth = 0
        self._string = self._escaped = self._fenced = False
        self._inside = 0

    def blank(self, text: str) -> tuple[str, list[bool]]:
        """The text with every such character as a space, and for each whether it is spoken.

        State is kept from call to call; "```" and "<|...|>" must not be cut in two.
        """
        special = [range(*found.span()) for found in _SPECIAL.finditer(text)]
        spoken: list[bool] = []
        while len(spoken) < len(text):
            at = len(spoken)
            if text.startswith("```", at) and not self._depth:
                self._fenced = not self._fenced
                spoken += [False] * 3
            else:
                spoken.append(not (self._consume(text, at) or any(at in s for s in special)))
        shown = [char if said else " " for char, said in zip(text, spoken, strict=True)]
        return "".join(shown), spoken

    def _consume(self, text: str, at: int) -> bool:
        """Whether the character at ``at`` belongs to machine text."""
        char = text[at]
        if self._fenced:
            return True
        if not self._depth:
            if char != "{" or text[at + 1 :].lstrip()[:1] not in ("", '"', "'", "}", "\n"):
                return False
            self._depth, self._inside = 1, 0
            return True
        self._inside += 1
        if self._inside > _MAX_JSON:  # not JSON after all, or hopelessly broken
            self._depth, self._string = 0, False
            return False
        if self._string:
            closes = char == '"' and not self._escaped
            self._escaped = char == "\\" and not self._escaped
            self._string = not closes
        elif char == '"':
            self._string = True
        elif char in "{}":
            self._depth += 1 if char == "{" else -1
        return True
