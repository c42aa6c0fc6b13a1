"""What a voice promises of its marks, one check a promise."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from specstream.stages.limits import ROUNDING_MS
from specstream.testing.conformance.checks import UnderTest, apply_if, require
from specstream.testing.conformance.speaking import (
    NEXT,
    PLAIN,
    UNUSUAL,
    SpokenPhrase,
    opened,
    phrase_of,
    same_sound,
    say,
)
from specstream.types import PAUSE, Phrase, Span, Tag

__all__ = ["MARK_CHECKS"]


async def words_claimed(subject: UnderTest[Any]) -> None:
    """Words are marked, each of a plain sentence, exactly if the capabilities say so."""
    async with opened(subject) as voice:
        marks = (await say(voice, phrase_of(PLAIN))).marks("word")
        if not voice.capabilities.words:
            require(not marks, "it marks words, and its capabilities deny it")
            return
        spans = [mark.chars for mark in marks]
        require(len(set(spans)) == len(spans), f"a word is marked twice: {spans}")
        for mark in marks:
            written = PLAIN[mark.chars.start : mark.chars.end]
            said, meant = (re.sub(r"\W", "", text).casefold() for text in (mark.text, written))
            about = f"the word {mark.text!r} is marked at {written!r}"
            require(bool(said) and (said in meant or meant in said), about)
        for found in re.finditer(r"\w+", PLAIN):
            covered = any(m.chars.start < found.end() and found.start() < m.chars.end for m in marks)
            require(covered, f"no mark for the word {found[0]!r} of {PLAIN!r}")


async def phonemes_claimed(subject: UnderTest[Any]) -> None:
    """Phonemes are marked exactly if the capabilities say so."""
    async with opened(subject) as voice:
        marks = (await say(voice, phrase_of(PLAIN))).marks("phoneme")
        claimed = voice.capabilities.phonemes
        found = "marks none" if claimed else "marks some"
        require(bool(marks) == claimed, f"phonemes is {claimed}, and it {found}")


async def _marked(
    subject: UnderTest[Any], texts: Iterable[str]
) -> list[tuple[Phrase, SpokenPhrase, int]]:
    """Each text as a phrase, what was said, and the samples that times may be off by."""
    async with opened(subject) as voice:
        facts = voice.capabilities
        apply_if(facts.words or facts.phonemes, "it gives no marks")
        phrases = [phrase_of(text) for text in texts]
        off, found = (facts.sample_rate * ROUNDING_MS // 1000, list[tuple[Phrase, SpokenPhrase, int]]())
        for phrase in phrases:
            with suppress(Exception):  # what can't be spoken is found by the check unusual_text
                found.append((phrase, await say(voice, phrase), off))
        return found


_LEAST = 0.3  # of a sentence's audio is over when its last word ends, silence behind included
_MARKED = (PLAIN, "It costs $3.50 at 5:30, for 1,234 of them.", *UNUSUAL[:2], UNUSUAL[-1])


async def marks_in_text(subject: UnderTest[Any]) -> None:
    """Marks lie inside the phrase's characters, counted from the beginning of the reply."""
    for phrase, said, _ in await _marked(subject, _MARKED):
        for mark in said.marks():
            inside = phrase.chars.start <= mark.chars.start <= mark.chars.end <= phrase.chars.end
            where = f"characters {tuple(mark.chars)} of a phrase at {tuple(phrase.chars)}"
            require(inside, f"the {mark.kind} {mark.text!r} covers {where}")


async def marks_in_audio(subject: UnderTest[Any]) -> None:
    """Marks lie inside the phrase's audio, counted from its first sample."""
    for phrase, said, off in await _marked(subject, _MARKED):
        most = said.samples + off
        for mark in said.marks():
            inside = 0 <= mark.samples.start <= mark.samples.end <= most
            where = f"samples {tuple(mark.samples)} of {said.samples} in {phrase.text!r}"
            require(inside, f"the {mark.kind} {mark.text!r} covers {where}")
        words = said.marks("word")
        if phrase.text == PLAIN and words:
            end = words[-1].samples.end
            where = f"sample {end} of {said.samples}; marks are counted in samples"
            require(end >= said.samples * _LEAST, f"the last word ends at {where}")


async def marks_in_order(subject: UnderTest[Any]) -> None:
    """Marks of a kind come in the order of their samples."""
    for phrase, said, off in await _marked(subject, _MARKED):
        for kind in ("word", "phoneme"):
            starts = [mark.samples.start for mark in said.marks(kind)]
            for one, after in zip(starts, starts[1:], strict=False):
                late = after < one - off
                require(not late, f"a {kind} at {after} comes after one at {one}: {phrase.text!r}")
            if kind == "word" and phrase.text == PLAIN and starts:
                places = len(set(starts))
                about = f"{len(starts)} words begin at only {places} samples: {phrase.text!r}"
                require(2 * places >= len(starts), about)


async def phonemes_tile(subject: UnderTest[Any]) -> None:
    """Phonemes tile the phrase's audio: no gap, no overlap, pauses included."""
    async with opened(subject) as voice:
        apply_if(voice.capabilities.phonemes, "it marks no phonemes")
        for text in (PLAIN, NEXT):
            said, at = await say(voice, phrase_of(text)), 0
            for mark in said.marks("phoneme"):
                start = mark.samples.start
                require(start == at, f"{mark.text!r} begins at sample {start}, not at {at}")
                at = mark.samples.end
            require(at == said.samples, f"phonemes end at sample {at}, the audio at {said.samples}")


async def phonemes_in_words(subject: UnderTest[Any]) -> None:
    """The phonemes of a word are spoken while the word is."""
    async with opened(subject) as voice:
        facts = voice.capabilities
        apply_if(facts.phonemes and facts.words, "it doesn't mark both")
        said = await say(voice, phrase_of(PLAIN))
        words = {mark.chars: mark for mark in said.marks("word")}
        for mark in said.marks("phoneme"):
            if (word := words.get(mark.chars)) is not None and mark.text != PAUSE:
                start, end = word.samples
                middle = (mark.samples.start + mark.samples.end) / 2
                where = f"around sample {middle:g}, the word from {start} to {end}"
                require(start <= middle <= end, f"{mark.text!r} of {word.text!r} is {where}")


async def offsets(subject: UnderTest[Any]) -> None:
    """A phrase further on in the reply has the same marks, moved by as many characters."""
    async with opened(subject) as voice:
        facts = voice.capabilities
        apply_if(facts.words or facts.phonemes, "it gives no marks")
        first = (await say(voice, phrase_of(PLAIN))).marks()
        moved = (await say(voice, phrase_of(PLAIN, 1000))).marks()
        back = [replace(m, chars=Span(m.chars[0] - 1000, m.chars[1] - 1000)) for m in moved]
        same = [(m.kind, m.text, m.chars) for m in first] == [(m.kind, m.text, m.chars) for m in back]
        require(same, "the marks of a phrase at character 1000 aren't those of one at 0, moved")


async def tags(subject: UnderTest[Any]) -> None:
    """Directions such as [smile] aren't spoken: the words are those of the text without them."""
    async with opened(subject) as voice:
        facts = voice.capabilities
        apply_if(facts.words or facts.deterministic, "without marks or equal samples nothing tells")
        text = "Oh [smile] hello there."
        said = await say(voice, phrase_of(text, tags=(Tag("smile", Span(3, 10)),)))
        plain = await say(voice, phrase_of("Oh         hello there."))
        require(same_sound(voice, said, plain), f"the tag in {text!r} is spoken")


MARK_CHECKS = (
    words_claimed,
    phonemes_claimed,
    marks_in_text,
    marks_in_audio,
    marks_in_order,
    phonemes_tile,
    phonemes_in_words,
    offsets,
    tags,
)
"""The checks of a voice's marks, in order."""
