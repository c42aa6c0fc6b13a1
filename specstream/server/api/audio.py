"""``/v1/audio/speech`` and ``/v1/audio/transcriptions``: the server's voice and ears by themselves."""

from __future__ import annotations

import io
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import anyio.to_thread
import numpy as np
import soundfile
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from specstream.errors import AdapterFailed
from specstream.listening.interfaces import Transcript
from specstream.listening.resampler import Resampler
from specstream.realtime.wire import SAMPLE_RATE
from specstream.server.api.body import Body
from specstream.server.api.errors import ApiError
from specstream.server.sessions.request import AdapterPool, Service
from specstream.signals import finished
from specstream.stages.contract import StageFailed
from specstream.types import Chunk, Span, Speech

__all__ = ["Listening", "SpeechBody", "kind_of", "listening_of", "spoken", "transcribed"]

_LONGEST = 4096  # characters that are spoken, as at OpenAI
_LONGEST_S = 1800.0  # seconds that are transcribed
_BLOCK = 1 << 16  # frames that are decoded at once
_NO_VOICE = "this server has no voice; start it with --voice"
_NO_EARS = "this server has no recogniser; start it with --ears"


class SpeechBody(Body):
    """The body of ``/v1/audio/speech``. The server's own voice speaks, whatever ``voice`` names."""

    model: str | None = None
    input: str
    voice: Any = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    speed: Literal[1] = 1


def kind_of(body: SpeechBody) -> str:
    """The content type: PCM where that was asked for, else WAV, also where another format was."""
    return "audio/pcm" if body.response_format == "pcm" else "audio/wav"


async def spoken(body: SpeechBody, service: Service) -> AsyncGenerator[bytes, None]:
    """Speak a text; yields PCM at 24 kHz (s16, mono) as it is made, behind a WAV header if asked for.

    Raises:
        ApiError: no voice, no text or too long a text.
        AdapterFailed: the voice broke.
    """
    if service.factories.voice is None:
        raise ApiError(501, _NO_VOICE, "server_error", code="no_voice")
    if not body.input.strip() or len(body.input) > _LONGEST:
        message = f"input must have 1 to {_LONGEST} characters"
        raise ApiError(400, message, param="input", code="invalid_value")
    pool = AdapterPool(service.factories)
    try:
        pipeline = await pool.pipeline(audio=True, avatar=False, prompt=False)
        resampler: Resampler | None = None
        header = b"" if kind_of(body) == "audio/pcm" else _wav_header()
        async with pipeline.run(_as_chunks(body.input)) as run:
            async for event in run:
                if isinstance(event.item, StageFailed):
                    raise event.item.error
                if isinstance(event.item, Speech):
                    if resampler is None:
                        resampler = Resampler(event.item.sample_rate, SAMPLE_RATE)
                    if made := header + resampler.push(event.item.pcm):
                        service.counters.audio_samples += (len(made) - len(header)) // 2
                        header = b""
                        yield made
        if resampler is not None and (rest := resampler.flush()):
            yield header + rest
    finally:
        await finished(pool.aclose())


async def _as_chunks(text: str) -> AsyncIterator[Chunk]:
    chars = Span(0, len(text))
    yield Chunk(text, (0,), Span(0, 1), chars, ends=(len(text),), finish_reason="stop")


def _wav_header() -> bytes:
    """The header of a WAV file of unknown length, as streams have it."""
    unknown, width = 0xFFFFFFFF, 2
    form = struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE, SAMPLE_RATE * width, width, 8 * width)
    return (
        b"RIFF"
        + struct.pack("<I", unknown)
        + b"WAVEfmt \x10\0\0\0"
        + form
        + b"data"
        + struct.pack("<I", unknown)
    )


class Listening(NamedTuple):
    """What is to be transcribed, and how it is told."""

    audio: bytes
    language: str | None
    format: str
    words: bool
    stream: bool
    model: str | None


_FIELDS = {
    *("model", "language", "response_format", "stream", "temperature"),
    *("timestamp_granularities", "timestamp_granularities[]", "chunking_strategy"),
}


async def listening_of(headers: Headers, data: bytes) -> Listening:
    """Read a form.

    Raises:
        ApiError: it is no form, lacks a file, or names a format or a field that isn't known.
    """

    async def stream() -> AsyncGenerator[bytes, None]:
        yield data

    try:
        form = await MultiPartParser(headers, stream(), max_part_size=len(data) + 1).parse()
    except (MultiPartException, KeyError) as error:
        raise ApiError(400, f"the body is no multipart form: {error}", code="invalid_form") from None
    try:
        return await _listening(form)
    finally:
        await form.close()


async def _listening(form: FormData) -> Listening:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise ApiError(400, "file is missing", param="file", code="invalid_value")
    for name in form:
        if name not in _FIELDS and name != "file" and form[name] != "":
            message = f"{name} isn't known here; leave it out"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    format = str(form.get("response_format", "json"))
    if format not in ("json", "text", "verbose_json"):
        message = f"response_format is json, text or verbose_json here, not {format}"
        raise ApiError(400, message, param="response_format", code="unsupported_parameter")
    asked = [*form.getlist("timestamp_granularities"), *form.getlist("timestamp_granularities[]")]
    if unknown := [one for one in asked if one not in ("word", "segment")]:
        message = f"timestamp_granularities are word and segment, not {unknown[0]}"
        raise ApiError(400, message, param="timestamp_granularities", code="invalid_value")
    if str(form.get("temperature") or 0) not in ("0", "0.0"):
        message = "temperature can only be 0: the recogniser writes the likeliest words"
        raise ApiError(400, message, param="temperature", code="unsupported_parameter")
    language = form.get("language")
    return Listening(
        await file.read(),
        str(language) if language else None,
        format,
        "word" in asked,
        str(form.get("stream", "")).lower() == "true",
        str(form["model"]) if form.get("model") else None,
    )


async def transcribed(asked: Listening, service: Service) -> dict[str, Any]:
    """Recognise what is said in a file; returns the fields of ``verbose_json``.

    Raises:
        ApiError: no recogniser, or no audio file that can be read.
        AdapterFailed: the recogniser broke.
    """
    ears = service.ears
    if ears is None:
        raise ApiError(501, _NO_EARS, "server_error", code="no_ears")
    rate = ears.recognizer.capabilities.sample_rates[0]
    seconds = await anyio.to_thread.run_sync(_seconds, asked.audio, rate)
    async with ears.line.place(seconds):  # which bounds the files that are decoded at once, too
        pcm = await anyio.to_thread.run_sync(_decoded, asked.audio, rate)
        seconds = len(pcm) / 2 / rate
        try:
            stream = ears.recognizer.open(rate, language=asked.language)
        except AdapterFailed as error:
            if asked.language is None:
                raise
            raise ApiError(400, str(error), param="language", code="invalid_value") from None
        try:
            stream.add(pcm)
            found = await stream.finish()
        finally:
            await finished(stream.aclose())
    return _told(found, seconds, asked)


@contextmanager
def _opened(data: bytes, rate: int) -> Iterator[tuple[soundfile.SoundFile, Resampler]]:
    """A sound file, and what converts it to a rate."""
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.frames / file.samplerate > _LONGEST_S:
                raise ApiError(400, f"a file has at most {_LONGEST_S:g} s", param="file")
            yield file, Resampler(file.samplerate, rate)
    except (soundfile.SoundFileError, RuntimeError, AdapterFailed) as error:
        why = str(error).partition(">: ")[2] or str(error)  # else the file's address in memory
        message = f"the file can't be read as audio ({why}); send WAV, FLAC, OGG or MP3"
        raise ApiError(400, message, param="file", code="invalid_audio") from None


def _seconds(data: bytes, rate: int) -> float:
    with _opened(data, rate) as (file, _):
        return float(file.frames / file.samplerate)


def _decoded(data: bytes, rate: int) -> bytes:
    """A sound file as s16 mono of a rate; what is no number in it is silence."""
    made = bytearray()
    with _opened(data, rate) as (file, resampler):
        for samples in file.blocks(_BLOCK, dtype="float32", always_2d=True):
            mono = np.nan_to_num(samples.mean(axis=1)).clip(-1, 1)
            made += resampler.push(np.rint(mono * 32767).astype("<i2").tobytes())
        made += resampler.flush()
    return bytes(made)


def _told(found: Transcript, seconds: float, asked: Listening) -> dict[str, Any]:
    told: dict[str, Any] = {
        "task": "transcribe",
        "language": found.language or asked.language or "",
        "duration": round(seconds, 3),
        "text": found.text,
        "segments": [],
    }
    if asked.words:
        told["words"] = [
            {"word": one.text, "start": one.start_ms / 1e3, "end": one.end_ms / 1e3}
            for one in found.words
        ]
    return told
