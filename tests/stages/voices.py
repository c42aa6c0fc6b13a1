"""Voices and a model in virtual time: how soon a reply is heard, with drafts and without."""

import random
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

import anyio

from specstream.stages.drafts import Presynthesis, PresynthesisReport
from specstream.stages.interfaces import VoiceCapabilities
from specstream.stages.pipeline import Pipeline
from specstream.stages.stages import SegmentStage, VoiceStage
from specstream.testing import chunks_of
from specstream.types import Chunk, Phrase, Preview, Span, Speech, SpeechBuffer

TEXTS = (
    "Dr. Lee found the fox near the old barn. It was cold, and it would not eat. She waited.",
    "Light from the sun is made of all colours. Blue is scattered most. So we see a blue sky.",
    "Go to bed at the same time each day. Keep the room dark! And leave the phone outside.",
    "Sure! Chop an onion and fry it gently in oil. Add the tomatoes, then simmer for 20 min.",
)
_RATE = 8000
_BUFFER_S = 0.06
_CHARS_A_SECOND = 14


@dataclass
class PacedVoice:
    """Silent for ``first_s`` at each phrase, then ``factor`` times as long as its audio lasts."""

    first_s: float
    factor: float = 0.3
    stop_s: float = 0.0
    capabilities = VoiceCapabilities("paced", _RATE, streaming=True, deterministic=True)

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        try:
            await anyio.sleep(self.first_s)
            for _ in range(1 + int(len(phrase.text) / _CHARS_A_SECOND / _BUFFER_S)):
                await anyio.sleep(self.factor * _BUFFER_S)
                yield SpeechBuffer(b"\1\1" * int(_RATE * _BUFFER_S))
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self.stop_s)

    async def aclose(self) -> None:
        return None


def rounds(text: str, accept: float, rng: random.Random, drafted: int = 5) -> list[Preview | Chunk]:
    """A reply; its drafted tokens are right with probability ``accept`` each. Round 0 drafts nothing."""
    wrong = [chunk.text for other in TEXTS for chunk in chunks_of(other)[:-1]]
    tokens = [chunk.text for chunk in chunks_of(text)[:-1]]
    found: list[Preview | Chunk] = []
    at = number = 0
    while at < len(tokens):
        same, most = 0, min(drafted, len(tokens) - at) if number else 0
        while same < most and rng.random() < accept:
            same += 1
        if number:
            guess = tokens[at : at + same] + rng.choices(wrong, k=drafted - same)
            found.append(Preview(*_spans(tokens, at, guess), number))
        found.append(Chunk(*_spans(tokens, at, tokens[at : at + same + 1]), number))
        at, number = found[-1].tokens.end, number + 1
    return found


def _spans(
    tokens: list[str], at: int, pieces: list[str]
) -> tuple[str, tuple[int, ...], Span, Span, tuple[int, ...]]:
    start = len("".join(tokens[:at]))
    ends = tuple(start + sum(map(len, pieces[: n + 1])) for n in range(len(pieces)))
    ids = tuple(map(hash, pieces))
    return "".join(pieces), ids, Span(at, at + len(pieces)), Span(start, ends[-1]), ends


class Reply:
    """Stands in for a generation: ``draft_s`` to draft, ``pass_s`` to judge."""

    def __init__(
        self, items: list[Preview | Chunk], draft_s: float = 0.01, pass_s: float = 0.05
    ) -> None:
        self._items = items
        self._seconds = {Preview: draft_s, Chunk: pass_s}

    async def previewed(self) -> AsyncIterator[Preview | Chunk]:
        for item in self._items:
            await anyio.sleep(self._seconds[type(item)])
            yield item

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        async for item in self.previewed():
            if isinstance(item, Chunk):
                yield item


class Listener:
    """A voice behind a pipeline, for turn after turn."""

    def __init__(
        self,
        voice: PacedVoice,
        *,
        settings: Presynthesis | None = None,
        drafts: bool = False,
        lookahead: bool = False,
    ) -> None:
        head = SegmentStage(clock=anyio.current_time, drafts=drafts, lookahead=lookahead)
        self._line = Pipeline(
            [[VoiceStage(voice)]], head=head, clock=anyio.current_time, presynthesis=settings
        )

    @property
    def report(self) -> PresynthesisReport:
        return self._line.presynthesis

    async def turn(
        self, items: list[Preview | Chunk], pass_s: float = 0.05
    ) -> list[tuple[float, Speech]]:
        """Return each piece of speech and when it was released, if a target pass takes ``pass_s``."""
        began = anyio.current_time()
        async with self._line.run(Reply(items, pass_s=pass_s)) as run:
            return [
                (anyio.current_time() - began, event.item)
                async for event in run
                if isinstance(event.item, Speech) and event.item.pcm
            ]
