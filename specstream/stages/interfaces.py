"""The interfaces that an adapter implements, and `voice_from_function` for the simplest voice.

An adapter is a plain object. The pipeline wraps it in a stage that does what is the same for all of
them: the turn's sample clock, provenance, back-pressure, cancel and revoke.

To add a voice:

1. Write a class with the three members of `SpeechSynthesizer` (``adapters/…/voice/reference.py`` is a
   small one). For a function from text to PCM, one line is enough::

       def my_voice():
           return voice_from_function(my_tts, 24_000)

2. Name it in your ``pyproject.toml``, under ``[project.entry-points."specstream.voice"]``:
   ``mine = "my_package.my_module:my_voice"``. The target is a class or function that takes its options
   as keywords and returns the adapter. Avatars (``specstream.avatar``), prompt adapters
   (``specstream.prompt``) and marks of speech (``specstream.mark``) are found the same way.
3. Install your package and try it: ``specstream say --voice mine "Hello."``.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from specstream.checks import for_future
from specstream.errors import AdapterFailed, ConfigError, SpecstreamError
from specstream.types import AvatarCue, Message, Phrase, ScenePrompt, Speech, SpeechBuffer

__all__ = [
    "AudioMark",
    "AvatarScripter",
    "AvatarTrack",
    "MarkCapabilities",
    "MarkTrack",
    "PromptRewriter",
    "RevocableStoryboard",
    "SpeechSynthesizer",
    "Storyboard",
    "TextGenerator",
    "VoiceCapabilities",
    "listened_until",
    "silent_at",
    "voice_from_function",
]


_BUFFER_MS = 60  # the longest buffer of a voice made from a function
_Synthesis: TypeAlias = Callable[[str], bytes | Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class VoiceCapabilities:
    """Facts about a voice.

    ``streaming``: audio arrives while the phrase is still being synthesized. ``deterministic``: the same
    phrase always gives the same samples. ``words`` and ``phonemes``: those marks are given.
    ``language``: the tag of the language that it speaks, such as ``"en-us"``; numbers, dates and other
    written forms are given to it in words of that language. Empty: it is given them as written.
    """

    name: str
    sample_rate: int
    streaming: bool = False
    deterministic: bool = False
    words: bool = False
    phonemes: bool = False
    language: str = ""


class SpeechSynthesizer(Protocol):
    """A voice: text to audio, one phrase at a time. One object serves several turns in sequence.

    An adapter that can speak faster or higher takes the options ``speed`` and ``pitch``, of which 1 is
    usual; it refuses what it can't do with ConfigError. A class attribute ``named_by`` names the option
    that ``--voice NAME=VALUE`` sets.
    """

    @property
    def capabilities(self) -> VoiceCapabilities:
        """Fixed facts about this voice."""

    def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """Speak ``phrase.spoken`` in buffers of at most about 60 ms.

        Read the text as it is: Markdown is taken out and written forms are put into words before a
        voice is asked (see `specstream.text.spoken` and `VoiceCapabilities.language`), and the
        phrase's offsets count the text that results.

        Sample positions of marks count from the phrase's first sample. Where the voice gives
        phonemes, their spans tile the phrase's audio: no gap, no overlap, pauses included. Marks
        that lie out of the phrase's text or audio, or run backwards, end the turn's speech (see
        `specstream.stages.limits`). A phrase with nothing to say may yield nothing.

        Closing the generator early stops the voice within one buffer and leaves it ready for the
        next phrase. Raises AdapterFailed when the engine behind it breaks.
        """

    async def aclose(self) -> None:
        """Release what the voice holds; idempotent."""


class _FunctionVoice:
    """See `voice_from_function`."""

    def __init__(self, function: _Synthesis, capabilities: VoiceCapabilities) -> None:
        self._function = function
        self.capabilities = capabilities
        self._thread = ThreadPoolExecutor(1, "specstream-voice")  # starts with the first call
        self._closed = False

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """Speak ``phrase.spoken``; cancelling gives up the wait, a plain function runs to its end.

        Raises:
            AdapterFailed: the function raised or returned no ``bytes``, or the voice is closed.
        """
        if self._closed:
            raise AdapterFailed("the voice is closed; make a new one")
        if not any(map(str.isalnum, phrase.spoken)):
            return
        loop = asyncio.get_running_loop()
        try:
            made = await loop.run_in_executor(self._thread, for_future, self._function, phrase.spoken)
            pcm = await made if inspect.isawaitable(made) else made
        except SpecstreamError:
            raise
        except Exception as error:
            raise AdapterFailed(f"voice {self.capabilities.name!r} broke: {error}") from error
        if not isinstance(pcm, bytes):
            kind = type(pcm).__name__
            raise AdapterFailed(f"voice {self.capabilities.name!r} returned {kind}, not bytes")
        size = 2 * (self.capabilities.sample_rate * _BUFFER_MS // 1000)
        for at in range(0, len(pcm), size):
            if self._closed:
                return
            yield SpeechBuffer(pcm[at : at + size])

    async def aclose(self) -> None:
        """Stop what is being spoken; idempotent."""
        self._closed = True
        self._thread.shutdown(wait=False)


def voice_from_function(
    function: _Synthesis, sample_rate: int, *, name: str = "function", language: str = ""
) -> SpeechSynthesizer:
    """Make a voice of a function from text to PCM (signed 16-bit little-endian mono).

    ``voice_from_function(my_tts, 24_000)`` is all that a non-streaming voice needs. It gives no marks,
    so the avatar follows the loudness.

    Args:
        function: Called once a phrase, on a thread of the voice's own: it may block, and calls never
            overlap. If it returns an awaitable, that is awaited on the event loop.
        sample_rate: Samples a second of the PCM.
        name: The voice's name in capabilities and errors.
        language: The language that it speaks, such as ``"en"``: numbers, dates and the like are then
            given to it in words.

    Raises:
        ConfigError: no function, or the sample rate is not one of speech.
    """
    if not callable(function):
        raise ConfigError(f"a voice needs a function from text to PCM, not {function!r:.80}")
    if not isinstance(sample_rate, int) or sample_rate < 1000:
        raise ConfigError(f"sample_rate must be a whole number of at least 1000, not {sample_rate!r}")
    return _FunctionVoice(function, VoiceCapabilities(name, sample_rate, language=language))


@dataclass(frozen=True, slots=True)
class MarkCapabilities:
    """Facts about a mark of machine-made speech.

    ``delay_ms``: how much audio a track may hold back, at most 1000 ms at any sample rate.
    ``deterministic``: the same samples in the same pieces are always marked the same way.
    """

    name: str
    delay_ms: float = 0.0
    deterministic: bool = False


class MarkTrack(Protocol):
    """The mark of one phrase's audio: every sample that is added comes back once, in order.

    PCM is 16-bit signed little-endian mono. A piece may be of any length. What comes back may be of
    another length, but never be ahead of what was added, nor behind it by more than the delay.
    """

    async def add(self, pcm: bytes) -> bytes:
        """Take the next samples; return those that are marked by now. Cancelling ends the track."""

    async def close(self) -> bytes:
        """The phrase has ended: return what is left, so that as many samples came as were added."""


class AudioMark(Protocol):
    """A mark in the speech itself, such as a watermark; stands between a voice and who gets its audio.

    It may change samples, not their number. Work that takes long is done on a thread. A class attribute
    ``named_by`` names the option that ``--mark NAME=VALUE`` sets.
    """

    @property
    def capabilities(self) -> MarkCapabilities:
        """Fixed facts about this mark."""

    def open(self, sample_rate: int) -> MarkTrack:
        """Begin a phrase; nothing of the phrases before it may show in its samples.

        A track whose phrase was interrupted or revoked is forgotten without a `MarkTrack.close`.
        Raises AdapterFailed at a sample rate that it can't mark.
        """

    async def aclose(self) -> None:
        """Release what the mark holds; idempotent."""


class AvatarTrack(Protocol):
    """The avatar's script of one turn; lives from the turn's first sample to its last."""

    def add(self, speech: Speech) -> Sequence[AvatarCue]:
        """Take the next piece of speech; return the cues that became certain, in time order."""

    def close(self) -> Sequence[AvatarCue]:
        """The speech has ended (or was cancelled): return the cues that bring the face to rest."""


class AvatarScripter(Protocol):
    """Speech marks to visemes, gestures and emotions. Pure computation, no waiting.

    With a class attribute ``copies = True`` its tracks may be copied (`copy.deepcopy`): they are then
    given speech of drafted text, too. If that is revoked, a copy from before it takes the track's place.
    """

    def open(self, sample_rate: int) -> AvatarTrack:
        """Begin a turn whose audio has ``sample_rate`` samples a second."""


class Storyboard(Protocol):
    """The shot list of one turn.

    A shot is open until one that begins later is returned: later text may revise it and extend its
    span. After that only its wording may be revised, with the same span.
    """

    async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
        """Take the next phrase; return the shots (or revisions of shots) that it completed."""

    async def close(self) -> Sequence[ScenePrompt]:
        """The text has ended: return what was still open."""


@runtime_checkable
class RevocableStoryboard(Storyboard, Protocol):
    """A shot list that can take text back. On a revoke, any other is closed and a new one is opened."""

    async def revoke(self, from_char: int) -> Sequence[ScenePrompt]:
        """Forget the text from ``from_char`` on, and withdraw every shot that shows some of it.

        Return what is left of the shots that began before ``from_char``, as revisions that end at or
        before it. New text from ``from_char`` on may follow.
        """


class PromptRewriter(Protocol):
    """Text to prompts for an image or video generator.

    With a class attribute ``copies = True`` its boards may be copied (`copy.deepcopy`): they are then
    given drafted phrases, too. If these are revoked, a copy from before them takes the board's place.
    """

    def open(self) -> Storyboard:
        """Begin a turn. Memory of subjects may live on from earlier turns."""


class TextGenerator(Protocol):
    """A language model as an adapter sees it: messages in, text out."""

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int, reference: str = ""
    ) -> str:
        """Return the reply's text.

        ``reference`` is text that the reply is expected to repeat in part; an engine may use it as
        a draft. It never changes what is written, only how fast. Cancelling stops the generation.
        """


listened_until: ContextVar[Callable[[], float]] = ContextVar("listened_until")
"""Set in the tasks of a turn; see `silent_at`."""


def silent_at() -> float:
    """When the listener of the turn that the calling task works for has nothing left to hear.

    On the event loop's clock; inf if nobody listens. A voice that speaks for several turns on one thread
    or device takes the phrase of the earliest first.
    """
    return listened_until.get(lambda: math.inf)()
