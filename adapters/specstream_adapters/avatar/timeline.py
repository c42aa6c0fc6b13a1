"""Turn the marks and the audio of phrases into a gapless sequence of mouth segments."""

from __future__ import annotations

from dataclasses import replace

from specstream.types import Mark, Span, Speech
from specstream_adapters.avatar.mouth import Loudness, Segment
from specstream_adapters.avatar.sounds import Phone, lone_stress, parse_ipa
from specstream_adapters.avatar.spelling import spell
from specstream_adapters.avatar.visemes import CLOSURES, SILENCE

__all__ = ["Timeline"]

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
        self._marks.sort(
            key=lambda mark: (mark.samples.end, mark.kind == "word", mark.samples.start)
        )
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
