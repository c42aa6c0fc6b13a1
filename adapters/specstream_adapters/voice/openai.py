"""Speech by a server of OpenAI's ``/v1/audio/speech``: vLLM-Omni, Kokoro, speaches, LocalAI, OpenAI."""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from specstream.errors import AdapterError, AdapterFailed, ConfigError
from specstream.stages.interfaces import VoiceCapabilities
from specstream.types import Phrase, SpeechBuffer
from specstream_adapters.checks import delivery, in_range
from specstream_adapters.servers import OPENAI, OpenAIServer, settings_of
from specstream_adapters.voice.shared import plain, speakable

__all__ = ["OpenAIVoice", "SampleReader"]

_BUFFER_MS = 60


class OpenAIVoice:
    """A `SpeechSynthesizer` behind OpenAI's HTTP API for speech; streams, and gives no marks.

    Phrases are asked for as PCM; an answer that is a WAV file is read by its header. The connection is
    kept for the next phrase. If nobody answers, that is tried once more, before the first byte only.

    Args:
        url: The server's base address. Its query may set ``model``, ``voice``, ``language`` and
            ``sample_rate``, for the command line: ``--voice "openai=http://127.0.0.1:8880/v1?voice=af_sky"``.
        model: The model's name there; None: ``tts-1``, which many servers take for their own.
        voice: The speaker's name there; None: ``alloy``, likewise.
        sample_rate: Samples a second of the server's PCM, 8,000 to 48,000; None: 24,000. A WAV answer
            must have this rate, too.
        speed: 1 is usual, and isn't sent; 0.5 to 2.
        language: The tag of the language, by which numbers and dates are put into words. It isn't sent.
        api_key: Sent as a bearer; None: ``$OPENAI_API_KEY``. Never logged.
        extra: Further fields of the request's body, such as ``{"lang_code": "j"}``.
        first_s: Seconds that the server may take until a phrase's first byte.
        between_s: Seconds between two pieces of audio.

    Raises:
        AdapterUnavailable: the package openai is missing, or OpenAI's own server is named without a key.
        ConfigError: an option is wrong.
    """

    named_by = "url"

    def __init__(
        self,
        *,
        url: str = OPENAI,
        model: str | None = None,
        voice: str | None = None,
        sample_rate: int | None = None,
        speed: float = 1.0,
        language: str | None = None,
        api_key: str | None = None,
        extra: Mapping[str, Any] | None = None,
        first_s: float = 20.0,
        between_s: float = 10.0,
    ) -> None:
        self._server = OpenAIServer("voice openai", url, api_key, first_s, between_s)
        written = None if sample_rate is None else str(sample_rate)
        named = settings_of(url, model=model, voice=voice, language=language, sample_rate=written)
        rate = _rate(named["sample_rate"] or "24000") if sample_rate is None else sample_rate
        in_range("sample_rate", rate, 8_000, 48_000, whole=True)
        delivery(speed, 1.0)
        self._asked = {"model": named["model"] or "tts-1", "voice": named["voice"] or "alloy"}
        for option, value in self._asked.items():
            if not isinstance(value, str):
                raise ConfigError(f"{option} must be a name, not {value!r:.80}")
        self._speed: dict[str, float] = {} if speed == 1 else {"speed": speed}
        self._extra = dict(extra or {})
        name = f"openai:{self._asked['voice']}"
        self.capabilities = VoiceCapabilities(
            name, rate, streaming=True, language=named["language"] or ""
        )

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """Speak ``phrase.spoken`` in buffers of at most 60 ms as they come; nothing for no words.

        Closing the generator or cancelling the task that waits for it closes the connection of this
        phrase, which stops the server.

        Raises:
            AdapterUnavailable: nobody answers, or the server refuses the key or knows no such model.
            AdapterFailed: the server refuses or breaks, or sends no PCM; or the voice was closed.
        """
        _ = self._server.client  # raises if the voice was closed
        text = plain(phrase.spoken).strip()
        if not speakable(text):
            return
        size = 2 * (self.capabilities.sample_rate * _BUFFER_MS // 1000)
        answer: Any = None
        parts: AsyncIterator[bytes] | None = None
        try:
            answer = await self._server.answer(lambda client: self._request(client, text))
            reader = SampleReader(self.capabilities.sample_rate, answer.headers.get("content-type", ""))
            parts = answer.iter_bytes()
            while (part := await self._next(parts)) is not None:
                pcm = self._read(reader, part)
                for at in range(0, len(pcm), size):
                    if self._server.closed:
                        return
                    yield SpeechBuffer(pcm[at : at + size])
            self._end(reader)
        except AdapterError:
            if not self._server.closed:
                raise
        finally:
            if answer is not None:
                await answer.close()
            if parts is not None:
                with suppress(Exception):  # a closed answer ends, and so does what reads it
                    await anext(parts)

    async def _next(self, parts: AsyncIterator[bytes]) -> bytes | None:
        return await self._server.piece(lambda: anext(parts, None))

    async def _request(self, client: Any, text: str) -> Any:
        """Return the answer, whose audio is still to come."""
        return await client.audio.speech.with_streaming_response.create(
            input=text, response_format="pcm", extra_body=self._extra, **self._asked, **self._speed
        ).__aenter__()

    def _read(self, reader: SampleReader, part: bytes) -> bytes:
        try:
            return reader.add(part)
        except ValueError as error:
            raise AdapterFailed(f"voice openai: {self._server.url} sends {error}") from error

    def _end(self, reader: SampleReader) -> None:
        if not reader.begun:
            raise AdapterFailed(f"voice openai: {self._server.url} sends no audio")
        if reader.missing:
            raise AdapterFailed(
                f"voice openai: {self._server.url} ended {reader.missing} bytes before its WAV file"
            )

    async def aclose(self) -> None:
        """Stop what is being spoken and close the connections; idempotent."""
        await self._server.aclose()


def _rate(written: str) -> int:
    try:
        return int(written)
    except ValueError:
        raise ConfigError(f"sample_rate must be a whole number, not {written!r:.40}") from None


_MOST_HEADER = 1 << 16  # bytes before a WAV file's samples
_PCM, _EXTENSIBLE = 1, 0xFFFE
_UNKNOWN = 1 << 30  # bytes; a stream's header names as many or more, as its length isn't known
_OTHERS = tuple(
    "audio/mp audio/ogg audio/opus audio/flac audio/x-flac audio/aac audio/webm video/ text/ "
    "application/json application/problem application/xml application/ogg".split()
)
_SETTING = re.compile(r";\s*(rate|channels)=\"?(\d{1,9})\b")
_MAGIC = (b"id3", b"oggs", b"flac", b"<!doctype", b"<html")  # in small letters


class SampleReader:
    """Takes pieces of an answer, and gives whole samples (s16 little-endian mono) of one rate.

    Args:
        rate: Samples a second that the answer must have, where it tells.
        content_type: The answer's. That of a format which isn't read here is believed only where the
            bytes are no WAV file.

    Attributes:
        begun: Whether a sample has come.
    """

    def __init__(self, rate: int, content_type: str = "") -> None:
        self._rate, self._type = rate, content_type.lower()
        self._held = b""  # a beginning that isn't understood yet, or half of a sample
        self._raw = False  # the beginning was understood: samples come
        self._left: int | None = None  # bytes of samples to come, where a WAV header tells
        self.begun = False

    @property
    def missing(self) -> int:
        """Bytes that a WAV header tells of and that have not come."""
        return self._left or 0

    def add(self, part: bytes) -> bytes:
        """Return the samples that the next piece completes.

        Raises:
            ValueError: this is no PCM, or of another rate or width; its text says what it is.
        """
        self._held += part
        if not self._raw and not self._understood():
            return b""
        taken = len(self._held) // 2 * 2
        if self._left is not None:
            taken = min(taken, self._left)  # other chunks may follow in a WAV file
            self._left -= taken
        pcm, self._held = self._held[:taken], self._held[taken:]
        self._held = b"" if self._left == 0 else self._held
        self.begun = self.begun or bool(pcm)
        return pcm

    def _understood(self) -> bool:
        """Whether the samples' place is known; a WAV header is taken out."""
        begins = self._held[:12].lower()
        if len(begins) < 12 and any(one.startswith(begins[: len(one)]) for one in (b"riff", *_MAGIC)):
            return False
        if not (self._held.startswith(b"RIFF") and self._held[8:12] == b"WAVE"):
            if self._type.startswith(_OTHERS) or begins.startswith(_MAGIC):
                raise ValueError(f"{self._type}, not PCM: {self._held[:60]!r}")
            self._check(*_told(self._type, self._rate))
            self._raw = True
            return True
        at, known = 12, False
        while len(self._held) >= at + 8:
            kind, size = struct.unpack_from("<4sI", self._held, at)
            if kind == b"data":
                if not known:
                    raise ValueError("a WAV file without a format")
                # Streams of unknown length have 0 or the largest number there.
                self._left = size // 2 * 2 if 0 < size < _UNKNOWN else None
                self._held, self._raw = self._held[at + 8 :], True
                return True
            if kind == b"fmt " and len(self._held) >= at + 24:
                form, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", self._held, at + 8)
                if form not in (_PCM, _EXTENSIBLE) or bits != 16:
                    raise ValueError(f"WAV of {bits} bits in the format {form}; it must be s16 mono")
                self._check(channels, rate)
                known = True
            at += 8 + size + size % 2
        if at > _MOST_HEADER:
            raise ValueError("a WAV file with too long a header")
        return False

    def _check(self, channels: int, rate: int) -> None:
        if channels != 1:
            raise ValueError(f"{channels} channels; it must be s16 mono")
        if rate != self._rate:
            raise ValueError(f"{rate} samples a second, not {self._rate}; set sample_rate={rate}")


def _told(content_type: str, rate: int) -> tuple[int, int]:
    """Channels and rate in a type such as ``audio/l16;rate=16000``; else one, and ``rate``."""
    told = {"channels": 1, "rate": rate}
    for name, value in _SETTING.findall(content_type):
        told[name] = int(value)
    return told["channels"], told["rate"]
