"""Voices: espeak-ng, hibari (neural), a test voice; `openai` and `elevenlabs` are those of servers."""

from specstream_adapters.voice.espeak import EspeakVoice
from specstream_adapters.voice.hibari import HibariVoice
from specstream_adapters.voice.reference import ReferenceVoice

__all__ = ["EspeakVoice", "HibariVoice", "ReferenceVoice"]
