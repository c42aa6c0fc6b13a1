"""Source-filter synthesis in numpy: pulses and noise through formants, 60 ms at a time.

The formants are the cascade of two-pole resonators of Klatt (1980). As the recursion can't be
vectorised, each glottal pulse is the inverse Fourier transform of the cascade's response at that
moment, added in where the pulse falls (fractions of a sample included); noise is shaped the same
way in overlapping windows. Everything is a function of the clauses and the seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from specstream.types import PAUSE
from specstream_adapters.voice.formants import Piece, pieces_of
from specstream_adapters.voice.prosody import Clause, Sound

__all__ = ["FormantSynth"]

Array = NDArray[np.float64]
Spectra = NDArray[np.complex128]

_FRAME_MS = 5
_FRAMES_PER_BLOCK = 12
_UPPER = ((3350.0, 220.0), (4100.0, 300.0), (5100.0, 450.0))
"""Formants that don't move (Hz), with their bandwidths (Hz)."""
_WIDTHS = (70.0, 95.0, 140.0)
_GLOTTIS_HZ = 120.0
_LIFT_HZ = (1200.0, 9000.0)
"""Where the rise begins and ends that stands in for all the formants above the upper ones."""
_VOICE_GAIN, _BREATH_GAIN, _NOISE_GAIN = 0.0036, 0.0003, 0.0034
_FADE_MS = 5.0


class FormantSynth:
    """Renders the clauses of one phrase; the end of one clause rings on into the next."""

    def __init__(self, sample_rate: int, pitch_hz: float, seed: int) -> None:
        self._rate = sample_rate
        self._pitch = pitch_hz
        self._frame = round(sample_rate * _FRAME_MS / 1000)
        self._frame_ms = 1000 * self._frame / sample_rate
        self._size = 1 << math.ceil(math.log2(0.04 * sample_rate))
        self._hz = np.arange(self._size // 2 + 1) * sample_rate / self._size
        self._s = np.asarray(1j * self._hz, dtype=np.complex128)  # the Laplace variable, in Hz
        edge = np.clip((self._hz / sample_rate - 0.4) / 0.1, 0.0, 1.0)
        upper = np.cos(0.5 * np.pi * edge) + 0j  # nothing at half the sample rate, so nothing rings
        for hz, width in _UPPER:
            upper *= self._resonators(np.array([hz]), np.array([width]))[0]
        radiation = self._s / 1000
        upper *= (1 + self._s / _LIFT_HZ[0]) / (1 + self._s / _LIFT_HZ[1])
        # Pulses and white noise are scaled so that the level is the same at any sample rate.
        self._glottis = upper * radiation * sample_rate / (1 + self._s / _GLOTTIS_HZ) ** 2
        self._breath = upper * radiation
        self._window = np.hanning(2 * self._frame + 1)[:-1] * math.sqrt(sample_rate)
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._past_noise = np.zeros(self._frame)
        self._ringing = np.zeros(self._size)

    def starts(self, sounds: Sequence[Sound]) -> list[int]:
        """The first sample of each sound, and the end of the last: a whole number of frames."""
        at, starts = 0.0, []
        for sound in sounds:
            starts.append(round(at * self._rate / 1000))
            at += sound.ms
        frames = math.ceil(at / self._frame_ms)
        return [*starts, frames * self._frame]

    def render(self, clause: Clause) -> Iterator[NDArray[np.int16]]:
        """Blocks of at most 60 ms, as many samples together as `starts` says."""
        tracks = _Tracks(_pieces(clause.sounds))
        frames = self.starts(clause.sounds)[-1] // self._frame
        pulses = self._pulses(clause, frames)
        for first in range(0, frames, _FRAMES_PER_BLOCK):
            count = min(_FRAMES_PER_BLOCK, frames - first)
            start, length = first * self._frame, count * self._frame
            out = np.zeros(length + self._size)
            out[: self._size] += self._ringing
            inside = pulses[(pulses >= start) & (pulses < start + length)]
            self._add_voice(out, inside - start, tracks, inside * 1000 / self._rate)
            self._add_noise(
                out, tracks, np.arange(first + 1.0, first + count + 1.0) * self._frame_ms
            )
            self._ringing = out[length : length + self._size].copy()
            yield (np.tanh(out[:length]) * 32000).astype(np.int16)

    def _pulses(self, clause: Clause, frames: int) -> Array:
        """When the glottis closes, in samples: where the melody's phase passes whole numbers."""
        ms = np.arange(frames + 1.0) * self._frame_ms
        times, factors = zip(*clause.melody, strict=True)
        line = np.interp(ms, times, factors)
        seconds = ms / 1000  # slow flutter keeps the voice from droning (Klatt and Klatt 1990)
        flutter = np.sin(2 * np.pi * np.outer(seconds, (12.7, 7.1, 4.7))).sum(axis=1)
        phase = np.cumsum(self._pitch * line * (1 + 0.004 * flutter)) * self._frame_ms / 1000
        closed: Array = np.interp(np.arange(1.0, int(phase[-1]) + 1), phase, ms)
        return closed * (self._rate / 1000)

    def _resonators(self, hz: Array, width: Array) -> Spectra:
        """The responses of two-pole resonators with gain 1 at 0 Hz, one a row."""
        square = (hz * hz)[:, None]
        response: Spectra = square / (square + self._s * (self._s + width[:, None]))
        return response

    def _vocal_tract(self, tracks: _Tracks, ms: Array, widen: float) -> Spectra:
        damp = tracks.at("damp", ms)
        response = np.ones((len(ms), len(self._hz)), dtype=np.complex128)
        for number, width in enumerate(_WIDTHS):
            widths = width * widen * (damp if number else np.ones_like(damp))
            response *= self._resonators(tracks.formant(number, ms), widths)
        return response

    def _add_voice(self, out: Array, places: Array, tracks: _Tracks, ms: Array) -> None:
        level = tracks.at("voice", ms) * _VOICE_GAIN
        heard = level > 1e-4
        places, ms, level = places[heard], ms[heard], level[heard]
        if not len(places):
            return
        whole = np.floor(places)
        delay = np.exp(-2 * np.pi / self._rate * np.outer(places - whole, self._s))
        spectrum = self._vocal_tract(tracks, ms, 1.0) * self._glottis * delay * level[:, None]
        for place, pulse in zip(whole.astype(int), np.fft.irfft(spectrum, self._size), strict=True):
            out[place : place + self._size] += pulse

    def _add_noise(self, out: Array, tracks: _Tracks, ms: Array) -> None:
        frame = self._frame
        fresh = self._random.standard_normal((len(ms), frame))
        before = np.vstack([self._past_noise[None], fresh[:-1]])
        self._past_noise = fresh[-1]
        breath, noise = tracks.at("breath", ms), tracks.at("noise", ms)
        heard = (breath > 1e-4) | (noise > 1e-4)
        if not heard.any():
            return
        ms, breath, noise = ms[heard], breath[heard], noise[heard]
        windows = np.hstack([before, fresh])[heard] * self._window
        shape = self._vocal_tract(tracks, ms, 2.0) * self._breath
        shape *= breath[:, None] * _BREATH_GAIN
        shape += self._band(tracks, ms) * noise[:, None] * _NOISE_GAIN
        shaped = np.fft.irfft(np.fft.rfft(windows, self._size) * shape, self._size)
        for number, window in zip(np.flatnonzero(heard), shaped, strict=True):
            out[number * frame : number * frame + self._size] += window

    def _band(self, tracks: _Tracks, ms: Array) -> Spectra:
        """Band-pass responses with gain 1 at their centres."""
        centre = np.minimum(tracks.step("centre", ms), 0.38 * self._rate)
        width = tracks.step("width", ms)
        skirt = np.outer(width / (centre * centre), self._s)
        band: Spectra = (self._resonators(centre, width) * skirt) ** 2
        return band


class _Tracks:
    """The targets of pieces as functions of time: formants glide, sources fade, bands jump."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        lengths = np.array([piece.ms for piece in pieces])
        self._ends = np.cumsum(lengths)
        starts = self._ends - lengths
        glides = np.minimum([piece.glide for piece in pieces], 0.45 * lengths)
        fades = np.minimum(_FADE_MS, 0.3 * lengths)
        self._gliding = np.stack([starts + glides, self._ends - glides], axis=1).ravel()
        self._fading = np.stack([starts + fades, self._ends - fades], axis=1).ravel()
        self._formants = np.repeat([piece.formants for piece in pieces], 2, axis=0)
        names = ("voice", "breath", "noise", "damp", "centre", "width")
        self._values = {
            name: np.array([getattr(piece, name) for piece in pieces]) for name in names
        }

    def formant(self, number: int, ms: Array) -> Array:
        values: Array = np.interp(ms, self._gliding, self._formants[:, number])
        return values

    def at(self, name: str, ms: Array) -> Array:
        values: Array = np.interp(ms, self._fading, np.repeat(self._values[name], 2))
        return values

    def step(self, name: str, ms: Array) -> Array:
        index = np.searchsorted(self._ends, ms, side="right")
        values: Array = self._values[name][np.minimum(index, len(self._ends) - 1)]
        return values


def _pieces(sounds: Sequence[Sound]) -> list[Piece]:
    pieces: list[Piece] = []
    for number, sound in enumerate(sounds):
        following = sounds[number + 1].phone if number + 1 < len(sounds) else PAUSE
        pieces += pieces_of(sound.phone, sound.ms, following, aspirated=sound.aspirated)
    return pieces
