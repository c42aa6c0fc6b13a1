"""Turn marks, spelling and audio of phrases into a gapless sequence of mouth segments."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

from specstream.types import Mark, Span, Speech
from specstream_adapters.avatar.directions import CLOSURES, SILENCE
from specstream_adapters.avatar.mouth import Loudness, Segment
from specstream_adapters.avatar.sounds import Phone, lone_stress, parse_ipa

__all__ = ["Timeline", "spell"]

_GROUPS = {
    "PP": "pp bb mm p b m", "FF": "ff ph f v", "TH": "th", "DD": "tt dd t d",
    "kk": "ck kk cc gg kh k g q c x", "CH": "tch sch sh ch zh j", "SS": "ss zz s z",
    "nn": "nn ng ll n l", "RR": "rr r", "aa": "aa a", "E": "e", "I": "ee ea ie ei i",
    "O": "oa o", "U": "oo eu ue u w",
}  # fmt: skip
_LETTERS = {letters: viseme for viseme, row in _GROUPS.items() for letters in row.split()}
_LETTERS |= {"h": "", "gh": "", "wh": "U"}
_GROUP = re.compile("|".join(sorted(_LETTERS, key=len, reverse=True)))
_VOWELS = "aeiou"
_CONSONANT_TIME = 0.6  # relative to a vowel's time
_NAMED = re.compile(
    r"(CYRILLIC|GREEK|HEBREW|ARABIC|.*?) (?:SMALL |CAPITAL |FINAL )*(?:LETTER|SYLLABLE) (.+)"
)
_DIGITS = "zero one two three four five six seven eight nine".split()


def _latin(char: str) -> str:
    """Some Latin letters that sound a little like ``char``; empty if it is not spoken."""
    if char.isdecimal():
        return _DIGITS[unicodedata.decimal(char)]
    plain = unicodedata.normalize("NFKD", char).casefold()
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    if not plain or plain.isascii() or not plain[0].isalpha():
        return plain if plain.isalpha() else ""
    named = _NAMED.match(unicodedata.name(char, ""))
    if named is None:
        return "ha"  # a sign without a reading in its name (Han, say): one open syllable
    script, name = named[1], named[2].split(" WITH ")[0].split()[-1].lower()
    if script == "CYRILLIC":  # consonants are called EL, EM, EN or BE, ZHE, SHA
        if name in ("sign", "yeru"):
            return "" if name == "sign" else "i"
        if len(name) == 2 and name[0] == "e":
            return name[1]
        return re.sub(r"(?<=[^aeiouy])[aeiou]$", "", name)
    return name[:1] if script in ("GREEK", "HEBREW", "ARABIC") else name


def spell(word: str) -> list[Phone]:
    """Guess the phones of a written word.

    Good enough to move the lips at the right moments (closures above all), no more: it knows the
    commonest letter groups of European spellings, and takes other scripts by their Unicode names.
    The shares sum to 1, or the list is empty.
    """
    letters = "".join(_latin(c) for c in unicodedata.normalize("NFC", word))
    letters = re.sub(r"\by(?=[aeiou])", "i", letters).replace("y", "i")
    if len(letters) > 3 and word[-1] in "eE":
        letters = re.sub(r"(?<=[^aeiou])e$", "", letters)  # silent, as in "lake"
    groups = [g for g in _GROUP.findall(letters) if _LETTERS[g]]
    lengths = [1.0 if g[0] in _VOWELS else _CONSONANT_TIME for g in groups]
    return [
        Phone(_LETTERS[group], length / sum(lengths), group[0] in _VOWELS)
        for group, length in zip(groups, lengths, strict=True)
    ]


_REST = Phone(SILENCE, 1.0)
_ROUNDING_MS = 20  # a hole this small between two marks is rounding, and belongs to the later one


class Timeline:
    """Covers the samples of a turn one after another with segments.

    Phoneme marks are used first, and as soon as they are known; a word without phonemes is spelled;
    audio that no mark covers follows the loudness once it is ``patience`` samples old. Covered samples
    don't change: of a mark that comes later, only the part after them is used.

    Attributes:
        covered: The sample up to which segments exist.
        heard: The sample up to which audio was added.
    """

    def __init__(self, sample_rate: int, patience: int) -> None:
        self._patience = patience
        self._rounding = sample_rate * _ROUNDING_MS // 1000
        self._loudness = Loudness(sample_rate)
        self._pcm = bytearray()  # the audio from `_pcm_from` to `heard`
        self._marks: list[Mark] = []
        self._out: list[Segment] = []
        self.rewind(0)

    def rewind(self, sample: int) -> None:
        """Go on at ``sample``: speech from there on was revoked."""
        self._pcm.clear()
        self._marks.clear()
        self._forget()
        self._out.clear()
        self.covered = self.heard = self._pcm_from = sample

    def add(self, speech: Speech) -> list[Segment]:
        """Take the next piece; return the segments that became known, perhaps past its end."""
        self._hear(speech)
        self._marks += [mark for mark in speech.marks if mark.kind != "tag"]
        self._marks.sort(key=lambda mark: (mark.samples.end, mark.kind == "word", mark.samples.start))
        while self._marks and self._reaches(self._marks[0]):
            self._take(self._marks.pop(0), speech.chars)
        self._follow_loudness(self.heard - self._patience, speech.chars)
        return self._drain()

    def finish(self, chars: Span) -> list[Segment]:
        """End the phrase: use the marks that are left and cover the rest of its audio."""
        for mark in self._marks:
            end = min(mark.samples.end, self.heard)
            self._take(replace(mark, samples=Span(min(mark.samples.start, end), end)), chars)
        self._marks.clear()
        self._follow_loudness(self.heard, chars)
        self._forget()
        return self._drain()

    def advance(self, sample: int) -> None:
        """Count the samples before ``sample`` as covered, and drop their audio."""
        drop = min(sample, self.heard) - self._pcm_from
        if drop > 0:
            del self._pcm[: 2 * drop]
            self._pcm_from += drop
        self.covered = sample

    def _hear(self, speech: Speech) -> None:
        if speech.samples.start > self.heard:  # audio that was never handed over is silence
            self._pcm += bytes(2 * (speech.samples.start - self.heard))
        size = 2 * speech.samples.length
        self._pcm += speech.pcm[:size].ljust(size, b"\0")
        self.heard = speech.samples.end
        self.advance(self.covered)

    def _reaches(self, mark: Mark) -> bool:
        """Whether the audio up to the mark is covered, or has come, so that its loudness can be used."""
        return mark.samples.start <= max(self.heard, self.covered + self._rounding)

    def _forget(self) -> None:
        self._phonemes_until = -1
        self._stress = 1.0
        self._previous = _REST

    def _drain(self) -> list[Segment]:
        out, self._out = self._out, []
        return out

    def _take(self, mark: Mark, phrase: Span) -> None:
        start, end = mark.samples
        phones = self._phones(mark)
        if mark.kind == "phoneme":
            self._phonemes_until = max(self._phonemes_until, end)
        if not phones or end < self.covered:
            return
        if start - self.covered > self._rounding:
            self._follow_loudness(start, phrase)
        chars = mark.chars if mark.chars.length else phrase
        self._lay(phones, max(start, 0), end, chars)

    def _phones(self, mark: Mark) -> list[Phone]:
        if mark.kind == "word":
            known = self._phonemes_until > mark.samples.start
            return [] if known else spell(mark.text)
        phones = parse_ipa(mark.text)
        if not phones:  # a stress mark on its own belongs to what follows, a length mark doesn't
            self._stress = lone_stress(mark.text)
            return [Phone(None, 1.0) if self._stress > 1.0 else self._previous]
        if self._stress > 1.0 and any(phone.vowel for phone in phones):
            phones = [p._replace(stress=self._stress) if p.vowel else p for p in phones]
            self._stress = 1.0
        self._previous = phones[-1]._replace(share=1.0)
        return phones

    def _lay(self, phones: list[Phone], start: int, end: int, chars: Span) -> None:
        """Spread the phones over their mark, by share; time before ``covered`` is cut off."""
        share = 0.0
        for i, phone in enumerate(phones):
            share += phone.share
            until = end if i == len(phones) - 1 else start + round((end - start) * share)
            if until >= self.covered:
                self._cover(phone, until, chars)

    def _cover(self, phone: Phone, until: int, chars: Span) -> None:
        if until > self.covered or phone.viseme in CLOSURES:
            at, vowel, stress = self.covered, phone.vowel, phone.stress
            segment = Segment(phone.viseme, at, until, chars, vowel, stress, sound=phone.sound)
            self._out.append(segment)
            self.advance(until)

    def _follow_loudness(self, until: int, chars: Span) -> None:
        at = self.covered - self._pcm_from
        if (length := min(until, self.heard) - self.covered) > 0:
            pcm = bytes(self._pcm[2 * at : 2 * (at + length)])
            self._out += self._loudness.segments(pcm, self.covered, chars)
            self.advance(self.covered + length)
