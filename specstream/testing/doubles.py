"""Scripted doubles: a model with a tempo, a voice, a recogniser and a turn detector."""

from __future__ import annotations

import math
import random
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import anyio

from specstream.listening.interfaces import (
    HeardWord,
    RecognizerCapabilities,
    SpeechStarted,
    SpeechStopped,
    Transcript,
    TurnCapabilities,
    VoiceActivity,
)
from specstream.stages.interfaces import VoiceCapabilities
from specstream.testing.engine import ScriptedEngine, chunks_of
from specstream.types import Chunk, Mark, Phrase, Span, SpeechBuffer

__all__ = ["ScriptedModel", "ScriptedRecognizer", "ScriptedTurnDetector", "ScriptedVoice"]


class ScriptedModel(ScriptedEngine):
    """A `ScriptedEngine` with the timing of speculative decoding.

    The first token comes ``first_token_ms`` after the request, then a round every ``round_ms``. A round
    drafts ``drafted`` tokens, each of which is accepted with the probability ``acceptance`` if those
    before it were, and writes one token more than were accepted. A token has at most six characters.
    The same ``seed`` gives the same rounds. Rounds don't wait for the reader, as in an engine.

    The chunks of replies that are given as chunks come at their own ``t_ms``.

    Raises:
        ValueError: a time or ``drafted`` is negative, or ``acceptance`` is not from 0 to 1.
    """

    def __init__(
        self,
        replies: Sequence[str | Sequence[Chunk]],
        *,
        first_token_ms: float = 200.0,
        round_ms: float = 30.0,
        drafted: int = 4,
        acceptance: float = 0.7,
        seed: int | str = 0,
    ) -> None:
        if min(first_token_ms, round_ms, drafted) < 0 or not 0 <= acceptance <= 1:
            raise ValueError("times and drafted must be at least 0, and acceptance from 0 to 1")
        super().__init__(replies, timed=True)
        self._first_ms, self._round_ms = first_token_ms, round_ms
        self._drafted, self._acceptance = drafted, acceptance
        self._random = random.Random(seed)

    def _chunks(self, reply: str) -> Sequence[Chunk]:
        """One chunk a round; the last, without tokens, comes at the time of the last round."""
        tokens = sum(len(chunk.token_ids) for chunk in chunks_of(reply))
        sizes = [1]
        while (left := tokens - sum(sizes)) > 0:
            sizes.append(min(left, 1 + self._accepted()))
        made = chunks_of(reply, sizes)
        first, by = self._first_ms, "scripted" if self._drafted else ""
        return [
            replace(
                chunk,
                t_ms=first + min(at, len(sizes) - 1) * self._round_ms,
                drafted=self._drafted if at and chunk.token_ids else 0,
                accepted=max(0, len(chunk.token_ids) - 1),
                proposer=by if at and chunk.token_ids else "",
            )
            for at, chunk in enumerate(made)
        ]

    def _accepted(self) -> int:
        count = 0
        while count < self._drafted and self._random.random() < self._acceptance:
            count += 1
        return count


_WORD = re.compile(r"\S*[^\W_]\S*")
_BUFFER_S = 0.06
_LOUD = b"\x28\x23"  # one sample of 9000


class ScriptedVoice:
    """A `SpeechSynthesizer` whose words are tones of ``word_ms`` each.

    A phrase's first buffer comes ``first_audio_ms`` after it was asked for; making a second of audio
    takes ``real_time_factor`` seconds. Each phrase begins with ``leading_silence_ms`` of zeros.
    ``spoken`` records the phrases.
    """

    def __init__(
        self,
        *,
        first_audio_ms: float = 0.0,
        real_time_factor: float = 0.0,
        word_ms: float = 250.0,
        leading_silence_ms: float = 0.0,
        sample_rate: int = 24_000,
    ) -> None:
        self.capabilities = VoiceCapabilities(
            "scripted", sample_rate, streaming=True, deterministic=True, words=True
        )
        self._first_s, self._factor = first_audio_ms / 1e3, real_time_factor
        self._word = int(word_ms * sample_rate / 1e3)
        self._silence = int(leading_silence_ms * sample_rate / 1e3)
        self.spoken: list[str] = []

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """See `SpeechSynthesizer`."""
        self.spoken.append(phrase.spoken)
        words = [
            Span(phrase.chars.start + found.start(), phrase.chars.start + found.end())
            for found in _WORD.finditer(phrase.spoken)
        ]
        if not words:
            return
        rate = self.capabilities.sample_rate
        size, end = int(_BUFFER_S * rate), self._silence + self._word * len(words)
        began, marked = anyio.current_time() + self._first_s, 0
        for at in range(0, end, size):
            until = min(at + size, end)
            await anyio.sleep_until(began + at / rate * self._factor)
            quiet = max(0, min(until, self._silence) - at)
            marks: list[Mark] = []
            while marked < len(words) and self._end(marked) <= until:
                samples = Span(self._end(marked) - self._word, self._end(marked))
                where = slice(*(edge - phrase.chars.start for edge in words[marked]))
                marks.append(Mark("word", phrase.spoken[where], samples, words[marked]))
                marked += 1
            yield SpeechBuffer(bytes(2 * quiet) + _LOUD * (until - at - quiet), tuple(marks))

    def _end(self, word: int) -> int:
        return self._silence + self._word * (word + 1)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""


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
