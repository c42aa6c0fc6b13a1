"""What an adapter implements, and nothing more.

An adapter is a plain object. The pipeline wraps it in a stage that does what is the same for all of
them: the turn's sample clock, provenance, back-pressure, cancel and revoke. Adapters are found by
name through the entry-point groups ``specstream.voice``, ``specstream.avatar`` and
``specstream.prompt``; an entry point is a callable that takes keyword options and returns the adapter.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from specstream.types import AvatarCue, Message, Phrase, ScenePrompt, Speech, SpeechBuffer

__all__ = [
    "AvatarScripter",
    "AvatarTrack",
    "PromptRewriter",
    "SpeechSynthesizer",
    "Storyboard",
    "TextGenerator",
    "VoiceCapabilities",
]


@dataclass(frozen=True, slots=True)
class VoiceCapabilities:
    """What a voice can do; asked instead of its type.

    ``streaming``: audio arrives while the phrase is still being made. ``deterministic``: the same
    phrase always gives the same samples. ``words`` and ``phonemes``: those marks are given.
    """

    name: str
    sample_rate: int
    streaming: bool
    deterministic: bool
    words: bool
    phonemes: bool


class SpeechSynthesizer(Protocol):
    """Text to audio, one phrase at a time. One object may serve several turns, one after another."""

    @property
    def capabilities(self) -> VoiceCapabilities:
        """Fixed facts about this voice."""
        ...

    def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """Speak ``phrase.spoken`` in buffers of at most about 60 ms.

        The text is to be read as it is: Markdown is taken out before a voice is asked (see
        `specstream.pipeline.readout`), and the phrase's offsets count what is left.

        Sample positions of marks count from the phrase's first sample. Where the voice gives
        phonemes, their spans tile the phrase's audio: no gap, no overlap, pauses included. A phrase
        with nothing to say may yield nothing.

        Closing the generator early stops the voice within one buffer and leaves it ready for the
        next phrase. Raises AdapterFailed when the engine behind it breaks.
        """
        ...

    async def aclose(self) -> None:
        """Release what the voice holds; idempotent."""
        ...


class AvatarTrack(Protocol):
    """The avatar's script of one turn; lives from the turn's first sample to its last."""

    def add(self, speech: Speech) -> Sequence[AvatarCue]:
        """Take the next piece of speech; return the cues that became certain, in time order."""
        ...

    def close(self) -> Sequence[AvatarCue]:
        """The speech has ended (or was cancelled): return the cues that bring the face to rest."""
        ...


class AvatarScripter(Protocol):
    """Speech marks to visemes, gestures and emotions. Pure computation, no waiting."""

    def open(self, sample_rate: int) -> AvatarTrack:
        """Begin a turn whose audio has ``sample_rate`` samples a second."""
        ...


class Storyboard(Protocol):
    """The shot list of one turn."""

    async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
        """Take the next phrase; return the shots (or revisions of shots) that it completed."""
        ...

    async def close(self) -> Sequence[ScenePrompt]:
        """The text has ended: return what was still open."""
        ...


class PromptRewriter(Protocol):
    """Text to prompts for an image or video generator."""

    def open(self) -> Storyboard:
        """Begin a turn. Memory of subjects may live on from earlier turns."""
        ...


class TextGenerator(Protocol):
    """A language model as an adapter sees it: messages in, text out."""

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int, reference: str = ""
    ) -> str:
        """Return the reply's text.

        ``reference`` is text that the reply is expected to repeat in part; an engine may use it as
        a draft. It never changes what is written, only how fast. Cancelling stops the generation.
        """
        ...
