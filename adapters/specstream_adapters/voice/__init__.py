"""Voices: `EspeakVoice` (espeak-ng), `HibariVoice` (neural), `ReferenceVoice` (a test voice)."""

from specstream_adapters.voice.espeak import EspeakVoice
from specstream_adapters.voice.hibari import HibariVoice
from specstream_adapters.voice.reference import ReferenceVoice

__all__ = ["EspeakVoice", "HibariVoice", "ReferenceVoice"]
