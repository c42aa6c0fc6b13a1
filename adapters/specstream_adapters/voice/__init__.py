"""Voices: `EspeakVoice` (espeak-ng, about 100 languages) and `ReferenceVoice` (a test voice)."""

from specstream_adapters.voice.espeak import EspeakVoice
from specstream_adapters.voice.reference import ReferenceVoice

__all__ = ["EspeakVoice", "ReferenceVoice"]
