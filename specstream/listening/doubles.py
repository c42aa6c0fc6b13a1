"""Scripted ears: a recogniser and a turn detector for tests. Re-exported by `specstream.testing`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import anyio

from specstream.pipeline.listening_interfaces import (
    HeardWord,
    RecognizerCapabilities,
    SpeechStarted,
    SpeechStopped,
    Transcript,
    TurnCapabilities,
    VoiceActivity,
)

__all__ = ["ScriptedRecognizer", "ScriptedTurnDetector"]


class ScriptedTurnDetector:
    """A `TurnDetector` for which any sample but 0 is a voice.

    A start is reported at once, a stop after ``stop_ms`` of zeros. Once ``error`` is set, every piece of
    audio raises it.
    """

    capabilities = TurnCapabilities("scripted", (16_000, 8_000), scripted=True)

    def __init__(self, *, stop_ms: float = 96.0) -> None:
        self._stop_ms = stop_ms
        self.error: Exception | None = None
        self.thresholds: list[float] = []

    def open(self, sample_rate: int, *, threshold: float = 0.5) -> _ScriptedTrack:
        """Begin a stream; ``thresholds`` records the threshold."""
        self.thresholds.append(threshold)
        return _ScriptedTrack(self, sample_rate / 1000, self._stop_ms)


class _ScriptedTrack:
    def __init__(self, detector: ScriptedTurnDetector, per_ms: float, stop_ms: float) -> None:
        self._detector, self._per_ms, self._stop_ms = detector, per_ms, stop_ms
        self._now = self._voice_until = 0.0
        self._speaking = False

    def add(self, pcm: bytes) -> Sequence[VoiceActivity]:
        if self._detector.error is not None:
            raise self._detector.error
        began = self._now
        self._now += len(pcm) / 2 / self._per_ms
        if any(pcm):
            self._voice_until = self._now
            if not self._speaking:
                self._speaking = True
                return (SpeechStarted(began),)
        elif self._speaking and self._now - self._voice_until >= self._stop_ms:
            self._speaking = False
            return (SpeechStopped(self._voice_until),)
        return ()


class ScriptedRecognizer:
    """A `Recognizer` that hears prepared texts, one a turn; the last one repeats for ever.

    A partial transcript has a word for every ``word_ms`` of audio. A text that is an exception is
    raised instead. Every transcript takes ``takes_s`` seconds of the event loop's clock (infinity: it
    never comes), and ``real_time_factor`` more for each second of audio. ``audio`` records what each
    turn's stream was given, ``asked`` how many transcripts of new audio it was asked for, ``languages``
    the languages asked for; ``open_streams`` counts those that were not closed.
    """

    capabilities = RecognizerCapabilities("scripted", (16_000,), ("en",), words=True)

    def __init__(
        self,
        texts: Sequence[str | Exception],
        *,
        takes_s: float = 0.0,
        real_time_factor: float = 0.0,
        word_ms: float = 250.0,
    ) -> None:
        self._texts = list(texts)
        self.takes_s, self.real_time_factor, self.word_ms = takes_s, real_time_factor, word_ms
        self.audio: list[bytearray] = []
        self.asked: list[int] = []
        self.languages: list[str | None] = []
        self.open_streams = 0
        self.closed = False

    def open(self, sample_rate: int, *, language: str | None = None) -> _ScriptedStream:
        """Begin a turn with the next text."""
        text = self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]
        self.audio.append(bytearray())
        self.asked.append(0)
        self.languages.append(language)
        self.open_streams += 1
        return _ScriptedStream(self, len(self.audio) - 1, text, sample_rate / 1000)

    async def aclose(self) -> None:
        """Set ``closed``."""
        self.closed = True


class _ScriptedStream:
    def __init__(
        self, owner: ScriptedRecognizer, turn: int, text: str | Exception, per_ms: float
    ) -> None:
        self._owner, self._turn, self._text, self._per_ms = owner, turn, text, per_ms
        self._known: tuple[int, Transcript] = (0, Transcript(""))
        self._open = True

    def add(self, pcm: bytes) -> None:
        self._owner.audio[self._turn] += pcm

    async def partial(self) -> Transcript:
        length = len(self._owner.audio[self._turn])
        if length != self._known[0]:
            self._owner.asked[self._turn] += 1
            seconds = length / 2 / self._per_ms / 1e3
            await (
                anyio.sleep_forever()
                if math.isinf(self._owner.takes_s)
                else anyio.sleep(self._owner.takes_s + self._owner.real_time_factor * seconds)
            )
            if isinstance(self._text, Exception):
                raise self._text
            words = int(length / 2 / self._per_ms / self._owner.word_ms)
            self._known = (length, self._transcript(self._text.split()[:words]))
        return self._known[1]

    async def finish(self) -> Transcript:
        await self.partial()
        assert isinstance(self._text, str)
        return self._transcript(self._text.split())

    async def aclose(self) -> None:
        self._owner.open_streams -= self._open
        self._open = False

    def _transcript(self, words: Sequence[str]) -> Transcript:
        each = self._owner.word_ms
        heard = (HeardWord(word, i * each, (i + 1) * each) for i, word in enumerate(words))
        return Transcript(" ".join(words), tuple(heard), "en")
