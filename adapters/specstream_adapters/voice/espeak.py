"""Speech through espeak-ng: small, quick, about 100 languages, with word and phoneme times."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator

from specstream.errors import AdapterFailed, ConfigError
from specstream.pipeline.interfaces import VoiceCapabilities
from specstream.types import Phrase, SpeechBuffer
from specstream_adapters.voice.espeak_worker import Settings, Utterance, shared_worker
from specstream_adapters.voice.text import plain, speakable

__all__ = ["EspeakVoice"]


class EspeakVoice:
    """A `SpeechSynthesizer` on libespeak-ng, from the extra ``espeak`` or the system.

    Audio is 22,050 Hz. It is not ``deterministic``: the library's pitch flutter goes on from phrase
    to phrase. The text is always read as plain text, never as SSML or phoneme input. Phonemes are
    IPA without stress marks; two that the library sounds as one come as one mark. All voices of a
    process share one library thread, and none waits for the consumer of another.

    Args:
        voice: A language or voice name, perhaps with a variant: ``"en-us"``, ``"de"``, ``"fr+f3"``.
        rate_wpm: Words a minute, 80 to 450.
        pitch: 0 to 99.

    Raises:
        AdapterUnavailable: the library is missing, or it has no such voice.
        ConfigError: an option is out of range.
    """

    def __init__(self, *, voice: str = "en-us", rate_wpm: int = 175, pitch: int = 50) -> None:
        if not isinstance(voice, str) or not 0 < len(voice) <= 60 or not voice.isprintable():
            raise ConfigError(f"voice must be a short name such as 'en-us', not {voice!r:.80}")
        if not isinstance(rate_wpm, int) or not 80 <= rate_wpm <= 450:
            raise ConfigError(f"rate_wpm must be a whole number from 80 to 450, not {rate_wpm!r}")
        if not isinstance(pitch, int) or not 0 <= pitch <= 99:
            raise ConfigError(f"pitch must be a whole number from 0 to 99, not {pitch!r}")
        self._settings: Settings = (voice, rate_wpm, pitch)
        self._worker = shared_worker()
        self._worker.call(lambda library: library.choose(*self._settings))
        self._speaking: weakref.WeakSet[Utterance] = weakref.WeakSet()
        self._closed = False

    @staticmethod
    def voices() -> list[str]:
        """The language codes that ``voice`` may be.

        Raises:
            AdapterUnavailable: the library is missing.
        """
        return sorted(shared_worker().call(lambda library: library.voices()))

    @property
    def capabilities(self) -> VoiceCapabilities:
        """Fixed facts about this voice."""
        return VoiceCapabilities(
            name=f"espeak:{self._settings[0]}",
            sample_rate=self._worker.library.sample_rate,
            streaming=True,
            deterministic=False,
            words=True,
            phonemes=True,
        )

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """Speak ``phrase.spoken`` in buffers of 60 ms; nothing if it has no letter and no digit.

        Closing the generator or cancelling the task that waits for it stops the library within one
        buffer and leaves it ready for the next phrase.

        Raises:
            AdapterFailed: the library broke, or the voice was closed.
        """
        if self._closed:
            raise AdapterFailed("the voice is closed; make a new one")
        text = plain(phrase.spoken)
        if not speakable(text):
            return
        utterance = Utterance(self._worker, self._settings, text, phrase.chars.start)
        self._speaking.add(utterance)
        try:
            while (buffer := await utterance.next()) is not None:
                yield buffer
        finally:
            utterance.close()

    async def aclose(self) -> None:
        """Stop what is being spoken; idempotent. The library stays, for the other voices."""
        self._closed = True
        for utterance in list(self._speaking):
            utterance.close()
