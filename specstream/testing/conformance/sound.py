"""Sound for what listens, where no speech is given: a voice-like buzz in syllables."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from specstream.listening.resampler import Resampler

__all__ = ["RATE", "at_rate", "babble", "in_pieces"]

RATE = 16_000
_SYLLABLES = 8
_FORMANTS = ((700, 110), (1200, 120), (2500, 160))  # Hz: centre and width


@lru_cache(maxsize=1)
def babble() -> bytes:
    """Two seconds of vowels, four a second, at 16 kHz (s16 little-endian mono)."""
    time = np.arange(RATE * _SYLLABLES // 4) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 12 * np.sin(2 * np.pi * 1.5 * time)) / RATE
    wave = np.zeros_like(time)
    for harmonic in range(1, 30):
        level = sum(np.exp(-(((120 * harmonic - f) / (2 * w)) ** 2)) for f, w in _FORMANTS)
        wave += (level + 0.02) * np.sin(harmonic * phase)
    wave *= 0.2 + 0.8 * np.sin(np.pi * 4 * time) ** 2
    pcm: bytes = (wave / np.abs(wave).max() * 14_000).astype("<i2").tobytes()
    return pcm


def at_rate(pcm: bytes, rate: int) -> bytes:
    """Convert sound of 16 kHz to another sample rate."""
    if rate == RATE:
        return pcm
    resampler = Resampler(RATE, rate)
    return resampler.push(pcm) + resampler.flush()


def in_pieces(pcm: bytes, samples: int) -> list[bytes]:
    """Cut sound into pieces of so many samples."""
    size = 2 * samples
    return [pcm[at : at + size] for at in range(0, len(pcm), size)]
