"""Speech to text by a server of OpenAI's ``/v1/audio/transcriptions``."""

from __future__ import annotations

import io
import json
import logging
import wave
from collections.abc import Mapping
from typing import Any

from specstream.checks import valid_text
from specstream.errors import AdapterFailed, ConfigError
from specstream.listening.interfaces import HeardWord, RecognizerCapabilities, Transcript
from specstream_adapters.checks import in_range
from specstream_adapters.servers import OPENAI, OpenAIServer, settings_of

__all__ = ["OpenAIRecognizer", "language_code"]

_RATE = 16_000
_log = logging.getLogger("specstream.ears")
_LEAST = 2 * _RATE // 10  # bytes; in less audio nothing can have been said


class OpenAIRecognizer:
    """A `Recognizer` behind OpenAI's HTTP API for transcriptions: OpenAI, speaches, LocalAI, vLLM, ours.

    Each transcript sends the turn's audio from its beginning as a WAV file. Words have times where the
    server tells them. A server that refuses ``verbose_json`` (OpenAI's gpt-4o models do) is asked for
    plain JSON from then on.

    Args:
        url: The server's base address. Its query may set ``model`` and ``language``, for the command
            line: ``--ears "openai=http://127.0.0.1:8000/v1?model=whisper-1"``.
        model: The model's name there; None: ``whisper-1``, which many servers take for their own.
        language: The language where the listener names none, an ISO 639-1 code; None: any.
        words: Ask for the times of words.
        workers: Requests at once, of all listeners together.
        api_key: Sent as a bearer; None: ``$OPENAI_API_KEY``. Never logged.
        answer_s: Seconds that a transcript may take; less than `ListenerSettings.deadline_s`.
        fields: Further fields of the request, such as ``{"prompt": "Names: Zoë, Ngũgĩ"}``.

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
        language: str | None = None,
        words: bool = True,
        workers: int = 4,
        api_key: str | None = None,
        answer_s: float = 8.0,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        in_range("workers", workers, 1, 64, whole=True)
        in_range("answer_s", answer_s, 0.1, 600)
        self._server = OpenAIServer("recognizer openai", url, api_key, answer_s, answer_s)
        named = settings_of(url, model=model, language=language)
        for option, value in named.items():
            if not isinstance(value, str | None):
                raise ConfigError(f"{option} must be a text, not {value!r:.80}")
        self._model, self._language = named["model"] or "whisper-1", named["language"]
        self._fields, self._words = dict(fields or {}), words
        self._plain = False  # the server refuses verbose_json
        self.capabilities = RecognizerCapabilities("openai", (_RATE,), (), words, workers)

    def open(self, sample_rate: int, *, language: str | None = None) -> OpenAITranscription:
        """Begin a turn; see `specstream.listening.interfaces.Recognizer`.

        Raises:
            AdapterFailed: another rate than 16 kHz.
        """
        if sample_rate != _RATE:
            raise AdapterFailed(f"the recogniser openai takes {_RATE} Hz, not {sample_rate}")
        return OpenAITranscription(self, language or self._language)

    async def read(self, pcm: bytes, language: str | None) -> Transcript:
        """Return what is said in audio (s16 mono, 16 kHz); cancelling ends the request.

        Raises:
            AdapterUnavailable: nobody answers, or the server refuses the key or knows no such model.
            AdapterFailed: the server refuses or breaks, or its answer is no transcript.
        """
        data = _wave(pcm)
        if not self._plain:
            try:
                return await self._asked(data, language, self._verbose())
            except AdapterFailed as error:
                if not _refuses_format(error):
                    raise
                self._plain = True
        return await self._asked(data, language, {"response_format": "json"})

    def _verbose(self) -> dict[str, Any]:
        times = {"timestamp_granularities": ["word"]} if self._words else {}
        return {"response_format": "verbose_json", **times}

    async def _asked(self, data: bytes, language: str | None, form: dict[str, Any]) -> Transcript:
        fields = {**form, **({"language": language} if language else {})}

        async def ask(client: Any) -> str:
            answer = await client.audio.transcriptions.with_raw_response.create(
                file=("turn.wav", data, "audio/wav"),
                model=self._model,
                extra_body=self._fields or None,
                **fields,
            )
            text: str = answer.text
            return text

        answer = await self._server.answer(ask)
        try:
            return _transcript(json.loads(answer), language)
        except (ValueError, TypeError, KeyError) as error:
            raise AdapterFailed(
                f"recognizer openai: {self._server.url} sends no transcript: {answer!r:.120}"
            ) from error

    async def aclose(self) -> None:
        """Close the connections; requests under way end. Idempotent."""
        await self._server.aclose()


class OpenAITranscription:
    """The audio of one turn; one request at a time reads it from its beginning.

    Attributes:
        recognizer: Its server's.
    """

    def __init__(self, recognizer: OpenAIRecognizer, language: str | None) -> None:
        self.recognizer, self._language = recognizer, language
        self._pcm = bytearray()
        self._known = Transcript("", language=language)
        self._read_to = 0  # bytes of audio in the last transcript
        self._closed = False

    def add(self, pcm: bytes) -> None:
        """See `specstream.listening.interfaces.RecognizerStream`."""
        self._pcm += pcm

    async def partial(self) -> Transcript:
        """Transcribe what was said so far; asks nothing if no audio came since the last transcript.

        Where a server fails, the last transcript stays: it may be well again when the turn ends.
        Cancelling ends the request; the stream stays usable.

        Raises:
            AdapterUnavailable: nobody answers, or the server refuses the key or knows no such model.
            AdapterFailed: the stream is closed.
        """
        try:
            return await self.finish()
        except AdapterFailed as error:
            if self._closed:
                raise
            _log.warning("no partial transcript: %s", error)
            return self._known

    async def finish(self) -> Transcript:
        """Return the whole transcript; asks nothing if no audio came since the last one.

        Cancelling ends the request.

        Raises:
            AdapterUnavailable: nobody answers, or the server refuses the key or knows no such model.
            AdapterFailed: the server refuses or breaks, or the stream is closed.
        """
        if self._closed:
            raise AdapterFailed("the recognition of this turn was closed")
        size = len(self._pcm)
        if size >= _LEAST and size != self._read_to:
            self._known = await self.recognizer.read(bytes(self._pcm), self._language)
            self._read_to = size
        return self._known

    async def aclose(self) -> None:
        """Release the audio; idempotent."""
        self._closed = True
        self._pcm.clear()


def _wave(pcm: bytes) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(_RATE)
        out.writeframes(pcm)
    return file.getvalue()


def _refuses_format(error: AdapterFailed) -> bool:
    status = getattr(error.__cause__, "status_code", 0)
    return status in (400, 422) and any(
        name in str(error) for name in ("response_format", "verbose_json", "timestamp_granularities")
    )


def _transcript(answer: Any, language: str | None) -> Transcript:
    """Read an answer; words that are no words with times are left out.

    Raises:
        TypeError, KeyError: it has no text.
    """
    text = answer["text"]
    if not isinstance(text, str):
        raise TypeError("text is no text")
    words = []
    for each in answer.get("words") or ():
        try:
            start, end = float(each["start"]) * 1e3, float(each["end"]) * 1e3
            words.append(HeardWord(valid_text(str(each["word"])).strip(), start, max(start, end)))
        except (TypeError, KeyError, ValueError):
            continue
    told = answer.get("language")
    return Transcript(text.strip(), tuple(words), (language_code(told) if told else None) or language)


_NAMES = """
en=english zh=chinese de=german es=spanish ru=russian ko=korean fr=french ja=japanese
pt=portuguese tr=turkish pl=polish ca=catalan nl=dutch ar=arabic sv=swedish it=italian
id=indonesian hi=hindi fi=finnish vi=vietnamese he=hebrew uk=ukrainian el=greek ms=malay
cs=czech ro=romanian da=danish hu=hungarian ta=tamil no=norwegian th=thai ur=urdu
hr=croatian bg=bulgarian lt=lithuanian la=latin mi=maori ml=malayalam cy=welsh sk=slovak
te=telugu fa=persian lv=latvian bn=bengali sr=serbian az=azerbaijani sl=slovenian kn=kannada
et=estonian mk=macedonian br=breton eu=basque is=icelandic hy=armenian ne=nepali
mn=mongolian bs=bosnian kk=kazakh sq=albanian sw=swahili gl=galician mr=marathi pa=punjabi
si=sinhala km=khmer sn=shona yo=yoruba so=somali af=afrikaans oc=occitan ka=georgian
be=belarusian tg=tajik sd=sindhi gu=gujarati am=amharic yi=yiddish lo=lao uz=uzbek
fo=faroese ht=haitian ps=pashto tk=turkmen nn=nynorsk mt=maltese sa=sanskrit
lb=luxembourgish my=myanmar bo=tibetan tl=tagalog mg=malagasy as=assamese tt=tatar
haw=hawaiian ln=lingala ha=hausa ba=bashkir jw=javanese su=sundanese yue=cantonese
"""
_CODES = {name: code for code, _, name in (pair.partition("=") for pair in _NAMES.split())}


def language_code(told: object) -> str | None:
    """Return the code of a language that is told by its name or its tag; None where it is neither.

    ``"english"``, ``"English"``, ``"en"`` and ``"en-US"`` give ``"en"``.
    """
    if not isinstance(told, str):
        return None
    name = told.strip().lower()
    if name in _CODES:
        return _CODES[name]
    tag = name.replace("_", "-").partition("-")[0]
    return tag if tag in _CODES.values() else _CODES.get(name.partition(" ")[0])
