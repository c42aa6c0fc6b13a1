"""Text to timed sounds and a melody, clause by clause, so that long text needs little memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from specstream.types import PAUSE, Span
from specstream_adapters.voice.formants import base_ms
from specstream_adapters.voice.g2p import Word, is_vowel
from specstream_adapters.voice.spoken import spoken
from specstream_adapters.voice.text import tokens

__all__ = ["Clause", "Sound", "clauses"]

_MOST_WORDS, _MOST_WORDS_IN_TOKEN = 30, 60
_PAUSES = {
    **dict.fromkeys(",)(", 160.0), **dict.fromkeys(";:\u2013\u2014-\uff0c\u3001", 220.0),
    **dict.fromkeys(".!?\u2026\n\u3002\uff01\uff1f", 340.0),
}  # fmt: skip
_LAST_PAUSE = 40.0
"""Milliseconds after a phrase that ends without a mark, in which its last sound fades."""
_DOT_IS_NO_STOP = re.compile(r"(?:mr|mrs|dr|st|vs|(?:\w\.)+\w)$", re.IGNORECASE)
_APPROXIMANTS = frozenset("wjɹl")
_ASPIRATING = frozenset("ptk")


@dataclass(frozen=True, slots=True)
class Sound:
    """One phoneme (or `PAUSE`) of the token ``token``, which lies there in the text."""

    phone: str
    ms: float
    token: Span
    stressed: bool = False
    aspirated: bool = False


@dataclass(frozen=True, slots=True)
class Clause:
    """What is said in one breath. ``melody``: (milliseconds, factor of the voice's pitch)."""

    sounds: tuple[Sound, ...]
    melody: tuple[tuple[float, float], ...]


def clauses(text: str, speed: float) -> Iterator[Clause]:
    """Speak ``text`` at ``speed`` (1: about 165 words a minute)."""
    words: list[tuple[Span, Word]] = []
    for token, gap in _with_gaps(text):
        for word in spoken(text[token.start : token.end]):
            if len(words) >= _MOST_WORDS_IN_TOKEN:
                yield _clause(words, "", 0.0, speed)
                words = []
            words.append((token, word))
        pause = max((_PAUSES.get(char, 0.0) for char in gap), default=0.0)
        if words and (pause or len(words) >= _MOST_WORDS):
            yield _clause(words, gap, pause, speed)
            words = []
    if words:
        yield _clause(words, "", _LAST_PAUSE, speed)


def _with_gaps(text: str) -> Iterator[tuple[Span, str]]:
    """Each token with the signs between it and the next."""
    found = iter(tokens(text))
    before = next(found, None)
    for token in found:
        assert before is not None
        yield before, _gap(text, before, token.start)
        before = token
    if before is not None:
        yield before, _gap(text, before, len(text))


def _gap(text: str, token: Span, end: int) -> str:
    gap = text[token.end : end]
    short = len(gap.strip()) == 1 and end < len(text) and text[token.end] == "."
    return "" if short and _DOT_IS_NO_STOP.search(text[token.start : token.end]) else gap


def _clause(words: Sequence[tuple[Span, Word]], gap: str, pause: float, speed: float) -> Clause:
    sounds = [
        sound for i, word in enumerate(words) for sound in _sounds(*word, i == len(words) - 1)
    ]
    if pause:
        end = words[-1][0].end
        sounds.append(Sound(PAUSE, pause, Span(end, end)))
    timed = tuple(Sound(s.phone, s.ms / speed, s.token, s.stressed, s.aspirated) for s in sounds)
    return Clause(timed, _melody(timed, gap))


def _sounds(token: Span, word: Word, last: bool) -> Iterator[Sound]:
    phones = ("", *word.phones, "")
    vowels = [i for i, phone in enumerate(word.phones) if is_vowel(phone)]
    for i, (before, phone, after) in enumerate(zip(phones, phones[1:], phones[2:], strict=False)):
        stressed = i == word.stress
        leads = is_vowel(after) or after in _APPROXIMANTS
        strong = not before or i + 1 == word.stress
        aspirated = phone in _ASPIRATING and leads and strong and before != "s"
        ms = base_ms(phone, aspirated=aspirated)
        if is_vowel(phone):
            ms *= 1.1 if stressed else 0.8
        elif (before and not is_vowel(before)) or (after and not is_vowel(after)):
            ms *= 0.8
        if last and vowels and i >= vowels[-1]:
            ms *= 1.35 if is_vowel(phone) else 1.15
        yield Sound(phone, ms, token, stressed, aspirated)


def _melody(sounds: Sequence[Sound], gap: str) -> tuple[tuple[float, float], ...]:
    """A falling line with a rise on every stressed vowel, and an ending that the mark asks for."""
    total = sum(sound.ms for sound in sounds if sound.phone != PAUSE)
    line = [(0.0, 1.04)]
    at = 0.0
    for sound, following in pairwise((*sounds, Sound(PAUSE, 0.0, Span(0, 0)))):
        base = 1.06 - 0.16 * at / max(total, 1.0)
        if sound.stressed:
            peak = at + 0.5 * sound.ms
            line += [(at, base), (peak, base + 0.14), (at + sound.ms + following.ms, base)]
        at += sound.ms
    mark = next((char for char in gap if char in "?!.,"), "")
    ending = {"?": 1.4, ",": 1.08, "": 0.96}.get(mark, 0.72)
    fall = max(0.0, total - 160.0)
    kept = [point for point in line if point[0] <= fall]
    return (*sorted(kept), (total, ending))
