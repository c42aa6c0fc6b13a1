"""Voices: espeak-ng, hibari and piper (neural), a test voice; of servers: `openai`, `elevenlabs`."""

from specstream_adapters.voice.espeak import EspeakVoice
from specstream_adapters.voice.hibari import HibariVoice
from specstream_adapters.voice.reference import ReferenceVoice

__all__ = ["EspeakVoice", "HibariVoice", "ReferenceVoice"]
