"""How each sound is made: formant targets, sources and lengths, one row a sound.

Vowel formants follow Peterson and Barney (1952), "Control methods used in a study of the vowels";
consonant targets and the source-filter model follow Klatt (1980), "Software for a cascade/parallel
formant synthesizer". Frequencies are Hz, lengths milliseconds, levels linear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specstream.types import PAUSE

__all__ = ["Piece", "base_ms", "pieces_of"]

Formants = tuple[float, float, float]

_VOWELS = """
iː 120 270 2290 3010
i 80 300 2200 2900
ɪ 85 390 1990 2550
ɛ 100 530 1840 2480
æ 130 660 1720 2410
ɑː 130 730 1090 2440
ɔː 130 570 840 2410
ʊ 85 440 1020 2240
uː 115 300 900 2240
ʌ 95 640 1190 2390
ɜː 130 490 1350 1690
ə 55 500 1450 2450
ɚ 75 480 1350 1700
eɪ 150 480 1950 2550 330 2250 2800
aɪ 165 750 1200 2450 390 2050 2650
ɔɪ 170 550 880 2400 380 1950 2500
aʊ 165 740 1300 2450 430 900 2300
oʊ 145 520 1000 2350 370 830 2250
"""
# name, ms, three formants, voicing, noise level, centre and width of the noise
_SOUNDS = """
w 65 290 610 2150 0.7 0 0 0
j 60 260 2150 3000 0.7 0 0 0
ɹ 65 320 1060 1450 0.7 0 0 0
l 60 330 1050 2800 0.7 0 0 0
m 65 270 1050 2150 0.6 0 0 0
n 60 270 1550 2500 0.6 0 0 0
ŋ 70 270 1950 2500 0.6 0 0 0
f 85 340 1100 2080 0 0.10 7000 7000
θ 80 320 1350 2540 0 0.08 6500 6000
s 95 320 1500 2530 0 0.34 6800 2400
ʃ 100 300 1840 2650 0 0.36 3300 1500
v 60 250 1100 2080 0.40 0.04 7000 7000
ð 50 270 1350 2540 0.45 0.03 6500 6000
z 75 260 1500 2530 0.35 0.17 6800 2400
ʒ 75 260 1840 2650 0.35 0.18 3300 1500
"""
# name, closure ms, burst ms, formants, voicing of the closure, burst level, its centre and width
_STOPS = """
p 60 10 250 850 2150 0 0.22 900 1500
t 50 14 250 1700 2650 0 0.36 4800 3000
k 55 18 250 1850 2200 0 0.36 0 700
b 55 6 220 850 2150 0.16 0.12 800 1500
d 45 8 220 1700 2650 0.16 0.18 4500 3000
ɡ 50 12 220 1850 2200 0.16 0.20 0 700
tʃ 45 65 250 1840 2650 0 0.34 3400 1700
dʒ 40 45 240 1840 2650 0.16 0.24 3400 1700
"""
_ASPIRATED = {"p": 35.0, "t": 35.0, "k": 40.0}
_BREATH_MS = 55.0
_NASALS = frozenset("mnŋ")
_NEUTRAL: Formants = (500.0, 1500.0, 2500.0)
_QUICK, _SLOW = 18.0, 30.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch with one target. ``glide`` is how long before and after a border targets move.

    The sources are ``voice``, ``breath`` (noise through the formants) and ``noise`` (noise around
    ``centre``). ``damp`` widens the upper formants, as the nose does.
    """

    ms: float
    formants: Formants
    voice: float = 0.0
    breath: float = 0.0
    noise: float = 0.0
    centre: float = 3000.0
    width: float = 3000.0
    damp: float = 1.0
    glide: float = _QUICK


@dataclass(frozen=True, slots=True)
class _Row:
    lengths: tuple[float, ...]
    targets: tuple[Formants, ...]
    sources: tuple[float, ...] = ()


def _table(rows: str, lengths: int, formants: int | None) -> dict[str, _Row]:
    table = {}
    for row in filter(None, rows.split("\n")):
        name, *cells = row.split()
        values = [float(cell) for cell in cells]
        end = lengths + formants if formants else len(values)
        triples = range(lengths, end, 3)
        targets = tuple((values[i], values[i + 1], values[i + 2]) for i in triples)
        table[name] = _Row(tuple(values[:lengths]), targets, tuple(values[end:]))
    return table


_VOWEL = _table(_VOWELS, 1, None)
_SOUND = _table(_SOUNDS, 1, 3)
_STOP = _table(_STOPS, 2, 3)


def base_ms(phone: str, *, aspirated: bool) -> float:
    """How long ``phone`` lasts in the middle of a phrase at normal speed."""
    if phone == "h":
        return _BREATH_MS
    if phone in _STOP:
        return sum(_STOP[phone].lengths) + (_ASPIRATED.get(phone, 0.0) if aspirated else 0.0)
    return (_VOWEL.get(phone) or _SOUND[phone]).lengths[0]


def _first_formants(phone: str) -> Formants:
    row = _VOWEL.get(phone) or _SOUND.get(phone) or _STOP.get(phone)
    return row.targets[0] if row else _NEUTRAL


def pieces_of(phone: str, ms: float, following: str, *, aspirated: bool) -> Iterator[Piece]:
    """``phone`` as pieces that last ``ms`` together; ``following`` colours "h", "k" and breath."""
    if phone == PAUSE:
        yield Piece(ms, _first_formants(following))
    elif phone == "h":
        yield Piece(ms, _first_formants(following), breath=0.55)
    elif phone in _VOWEL:
        targets = _VOWEL[phone].targets
        parts = (1.0,) if len(targets) == 1 else (0.5, 0.5)
        glide = _SLOW if len(targets) == 1 else 0.25 * ms
        for part, target in zip(parts, targets, strict=True):
            yield Piece(part * ms, target, voice=1.0, glide=glide)
    elif phone in _SOUND:
        voice, noise, centre, width = _SOUND[phone].sources
        damp = 3.0 if phone in _NASALS else 1.0
        target = _SOUND[phone].targets[0]
        yield Piece(ms, target, voice, 0.0, noise, centre or 3000.0, width or 3000.0, damp)
    else:
        yield from _stop(phone, ms / base_ms(phone, aspirated=aspirated), following, aspirated)


def _stop(phone: str, scale: float, following: str, aspirated: bool) -> Iterator[Piece]:
    row = _STOP[phone]
    (closure, burst), target = row.lengths, row.targets[0]
    voice, noise, centre, width = row.sources
    vowel = _first_formants(following)
    if not centre:  # velar: the burst is where the second formant is going
        centre = min(max(1.15 * vowel[1], 1300.0), 2900.0)
        target = (target[0], centre, centre + 350.0)
    yield Piece(closure * scale, target, voice=voice, centre=centre, width=width)
    yield Piece(burst * scale, target, 2 * voice, 0.0, noise, centre, width)
    if aspirated and phone in _ASPIRATED:
        yield Piece(_ASPIRATED[phone] * scale, vowel, breath=0.4, centre=centre, width=width)
