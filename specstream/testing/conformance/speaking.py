"""A voice under test: made, closed, and asked to speak; a stage takes the place of one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

from specstream.stages.contract import Link
from specstream.stages.interfaces import SpeechSynthesizer, VoiceCapabilities
from specstream.testing.conformance.checks import UnderTest, require, require_members
from specstream.types import Mark, Phrase, Span, Speech, SpeechBuffer, Tag

__all__ = [
    "LONE_SURROGATE",
    "NEXT",
    "NOTHING",
    "PLAIN",
    "UNUSUAL",
    "SpokenPhrase",
    "StageVoice",
    "opened",
    "phrase_of",
    "same_sound",
    "say",
]

PLAIN = "Seven small ships sailed past the green hills, then turned north. Nobody saw them."
NEXT = "The second phrase follows."
UNUSUAL = (
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u4f60\u597d \u0645\u0631\u062d\u0628\u0627",
    "na\u00efve caf\u00e9, Zo\u00eb\u2019s \u201cplan\u201d \U0001f469\u200d\U0001f52c\u2764\ufe0f",
    "\x00 and \x1b[31m escape",
    "a\u0301\u0300\u0308" * 30,
    "w" * 300,
    "9" * 40,
    "<speak>one</speak> [[two]] {three} \\four & %d",
)
LONE_SURROGATE = "half \ud800 a character"  # can't be sent over a socket
_MARKS = ("word", "phoneme", "tag")
NOTHING = ("", "  \n\t ", "...!?", "\U0001f600 \u2764\ufe0f", "** -- __")


class SpokenPhrase(NamedTuple):
    """What a voice gave for a phrase."""

    buffers: list[SpeechBuffer]

    @property
    def pcm(self) -> bytes:
        """All samples."""
        return b"".join(bytes(one.pcm) for one in self.buffers)

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return len(self.pcm) // 2

    def marks(self, kind: str = "") -> list[Mark]:
        """The marks of words and phonemes, or those of one kind."""
        every = [mark for one in self.buffers for mark in one.marks if mark.kind != "tag"]
        return [mark for mark in every if not kind or mark.kind == kind]


class StageVoice:
    """A stage, such as a voice behind a socket, as the voice that it stands for."""

    def __init__(self, stage: Any, capabilities: VoiceCapabilities) -> None:
        self._stage, self.capabilities = stage, capabilities

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """Speak one phrase as a turn of its own."""
        link = Link[Phrase]()
        await link.send(phrase)
        link.close()
        async with aclosing(self._stage.run(link)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Speech) and (piece.pcm or piece.marks):
                    yield SpeechBuffer(piece.pcm, piece.marks)

    async def aclose(self) -> None:
        """Close the stage."""
        await self._stage.aclose()


@asynccontextmanager
async def opened(
    subject: UnderTest[Any], *, close: bool = True
) -> AsyncGenerator[SpeechSynthesizer, None]:
    """Make a voice and ``close`` it at the end of the block."""
    made = await subject.new()
    voice: SpeechSynthesizer = (
        StageVoice(made, (await made.connect()).voice) if hasattr(made, "connect") else made
    )
    require_members(voice, "capabilities", "synthesize", "aclose")
    try:
        yield voice
    finally:
        if close:
            await voice.aclose()


def phrase_of(text: str, start: int = 0, tags: tuple[Tag, ...] = ()) -> Phrase:
    """A phrase at an offset of the reply."""
    return Phrase(text, Span(start, start + len(text)), Span(0, max(1, len(text) // 4)), tags=tags)


async def say(voice: SpeechSynthesizer, phrase: Phrase, most: int = 0) -> SpokenPhrase:
    """Speak a phrase, or its first ``most`` buffers, and close the generator."""
    found, made = list[SpeechBuffer](), voice.synthesize(phrase)
    if isinstance(made, Coroutine):
        made.close()  # else Python warns that nobody awaited it
    kind = f"synthesize gives a {type(made).__name__}"
    require(
        hasattr(made, "__anext__") and hasattr(made, "aclose"),
        f"{kind}; it must be an async generator (async def, with yield)",
    )
    async with aclosing(made) as buffers:
        async for buffer in buffers:
            _check(buffer)
            found.append(buffer)
            if len(found) == most:
                break
    return SpokenPhrase(found)


def _check(buffer: object) -> None:
    kind = type(buffer).__name__
    require(isinstance(buffer, SpeechBuffer), f"it gave {kind}; it must yield SpeechBuffer(pcm)")
    assert isinstance(buffer, SpeechBuffer)
    kind = type(buffer.pcm).__name__
    require(isinstance(buffer.pcm, bytes | bytearray | memoryview), f"{kind} as PCM; it must be bytes")
    for mark in buffer.marks:
        known = mark.kind in _MARKS
        require(known, f"a mark of kind {mark.kind!r}; there are {', '.join(_MARKS)}")


def same_sound(voice: SpeechSynthesizer, one: SpokenPhrase, other: SpokenPhrase) -> bool:
    """Whether two phrases sound alike, as far as the voice's claims let it be told."""
    if voice.capabilities.deterministic:
        return one.pcm == other.pcm and one.marks() == other.marks()
    texts = [[mark.text for mark in said.marks("word")] for said in (one, other)]
    return texts[0] == texts[1] and 0.5 < (one.samples + 1) / (other.samples + 1) < 2
