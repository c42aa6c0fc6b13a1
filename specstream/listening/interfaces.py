"""The interfaces of recognisers (speech to text) and turn detectors (voice activity).

Adapters of the entry-point groups ``specstream.recognizer`` and ``specstream.turns`` implement them,
and are loaded by name like voices (`specstream.stages.adapters`). One object of each serves all
sessions of a server at once: ``open`` begins a stream that is independent of every other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from specstream.checks import valid_text
from specstream.errors import ConfigError

__all__ = [
    "Alternative",
    "EchoCanceller",
    "EchoTrack",
    "EndOfTurnDetector",
    "HeardWord",
    "Recognizer",
    "RecognizerCapabilities",
    "RecognizerStream",
    "SpeechStarted",
    "SpeechStopped",
    "Transcript",
    "TurnCapabilities",
    "TurnDetector",
    "TurnTrack",
    "VoiceActivity",
]


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


@dataclass(frozen=True, slots=True)
class HeardWord:
    """A recognised word; its times count from the first sample of its stream."""

    text: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """One reading of the audio; ``probability`` is its share among the transcript's alternatives.

    Raises:
        ConfigError: a value is something else.
    """

    text: str
    probability: float

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not _is_share(self.probability):
            raise ConfigError(f"an alternative is a text and a number from 0 to 1, not {self!r:.80}")


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said: the text without outer whitespace, empty if nothing was, as valid Unicode.

    ``words`` may be empty where the recogniser gives no times; ``language`` is an ISO 639-1 code, or
    None where it isn't known. ``confidence`` is the geometric mean of the tokens' probabilities, None if
    it isn't known. ``alternatives`` are the likeliest readings, with the text's own, or none if the
    recogniser looks for one only; with them the end of a turn is judged better.

    Raises:
        ConfigError: a value is something else.
    """

    text: str
    words: tuple[HeardWord, ...] = ()
    language: str | None = None
    confidence: float | None = None
    alternatives: tuple[Alternative, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not isinstance(self.language, str | None):
            raise ConfigError(f"a transcript's text and language are texts, not {self!r:.80}")
        object.__setattr__(self, "text", valid_text(self.text))
        if self.confidence is not None and not _is_share(self.confidence):
            raise ConfigError(f"confidence is a number from 0 to 1, not {self.confidence!r:.80}")
        for name, kind in (("words", HeardWord), ("alternatives", Alternative)):
            parts = getattr(self, name)
            if not isinstance(parts, tuple) or not all(isinstance(one, kind) for one in parts):
                raise ConfigError(f"{name} are a tuple of {kind.__name__}, not {parts!r:.80}")

    @property
    def has_words(self) -> bool:
        """Whether a letter or a digit was said; recognisers write noise as "..." or nothing."""
        return any(map(str.isalnum, self.text))


@dataclass(frozen=True, slots=True)
class RecognizerCapabilities:
    """Facts about a recogniser.

    ``sample_rates``: those that `Recognizer.open` takes, the best first. ``languages``: ISO 639-1
    codes, empty if it isn't known which. ``words``: transcripts have words with times. ``workers``:
    transcripts that it makes at once.
    """

    name: str
    sample_rates: tuple[int, ...] = (16_000,)
    languages: tuple[str, ...] = ()
    words: bool = False
    workers: int = 1


class RecognizerStream(Protocol):
    """The recognition of one turn. Calls of `partial` and `finish` never overlap."""

    def add(self, pcm: bytes) -> None:
        """Take the next audio, s16 little-endian mono, whole samples. Returns at once."""

    async def partial(self) -> Transcript:
        """Return what was said so far, as far as it can be told; later audio may change any word.

        The very object of the call before means that the audio since then couldn't be told.
        Cancelling gives up the wait; the stream stays usable. Raises AdapterFailed.
        """

    async def finish(self) -> Transcript:
        """Return what was said in all of the audio; nothing is added afterwards.

        Where nothing was added since the last `partial`, this should cost nothing: a caller asks for
        a partial transcript in a pause, and finishes when the pause turns out to be the end.
        Cancelling gives up the wait. Raises AdapterFailed.
        """

    async def aclose(self) -> None:
        """Release what the stream holds, finished or not; idempotent."""


class Recognizer(Protocol):
    """Speech to text. Works on threads of its own; the event loop is never blocked."""

    @property
    def capabilities(self) -> RecognizerCapabilities:
        """Fixed facts about this recogniser."""

    def open(self, sample_rate: int, *, language: str | None = None) -> RecognizerStream:
        """Begin a turn. ``sample_rate`` is one of the capabilities'; ``language`` None: any."""

    async def aclose(self) -> None:
        """Release the model; idempotent."""


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """A voice is heard since ``at_ms``, in milliseconds from the first sample of its track."""

    at_ms: float


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """No voice is heard since ``at_ms``: a pause within a turn, or its end."""

    at_ms: float


VoiceActivity = SpeechStarted | SpeechStopped


@dataclass(frozen=True, slots=True)
class TurnCapabilities:
    """Facts about a turn detector; ``sample_rates`` as in `RecognizerCapabilities`.

    ``scripted``: it is for tests, whose audio is no microphone's and has no echoes.
    """

    name: str
    sample_rates: tuple[int, ...] = (16_000,)
    scripted: bool = False


class TurnTrack(Protocol):
    """Voice activity in one stream of audio, from its first sample on."""

    def add(self, pcm: bytes) -> Sequence[VoiceActivity]:
        """Take the next audio (s16 little-endian mono, whole samples); return what became certain.

        Starts and stops alternate, beginning with a start. A stop is reported within about 200 ms
        of silence: whether it ends the turn is decided elsewhere. Runs on the event loop: it takes
        no longer than a small fraction of the audio. Raises AdapterFailed.
        """


class TurnDetector(Protocol):
    """Finds where speech begins and ends."""

    @property
    def capabilities(self) -> TurnCapabilities:
        """Fixed facts about this detector."""

    def open(self, sample_rate: int, *, threshold: float = 0.5) -> TurnTrack:
        """Begin a stream. A higher ``threshold`` (0 to 1) needs a clearer voice to report speech."""


@runtime_checkable
class EndOfTurnDetector(TurnDetector, Protocol):
    """A turn detector that also hears, in a pause, whether the speaker is done."""

    def ended(self, pcm: bytes) -> float:
        """Return the probability that the turn is over, from 0 to 1.

        ``pcm`` is the turn's audio up to the pause and the silence so far (s16 little-endian mono, at
        the first of the detector's sample rates). Blocks: called on a thread, one call at a time.
        """


class EchoTrack(Protocol):
    """The cancellation of echoes in one stream of a microphone. Calls never overlap."""

    @property
    def frame(self) -> int:
        """Samples that `cancel` takes at once."""

    def cancel(self, heard: bytes, played: bytes) -> bytes:
        """Return ``heard`` without what it contains of the audio that is played.

        Both are one frame of s16 little-endian mono at the stream's rate. A sample of ``played`` is
        played when the same sample of ``heard`` is recorded or up to some tens of milliseconds later;
        its echoes come within the canceller's tail.
        """


class EchoCanceller(Protocol):
    """Takes out of a microphone's audio what the loudspeaker plays."""

    def open(self, sample_rate: int) -> EchoTrack:
        """Begin a stream. Raises AdapterFailed if the rate can't be had."""
