"""Random drafts and verdicts, and a pipeline without an event loop whose stages take turns at random."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Sequence,
)
from copy import copy
from functools import cache
from typing import Any

from specstream.stages.drafts import Account, DraftEvent, DraftLedger, Gate, Presynthesis
from specstream.stages.interfaces import VoiceCapabilities
from specstream.stages.segment_stage import DraftedPhrases
from specstream.stages.stages import AvatarStage, PromptStage, VoiceStage
from specstream.text.segmenter import Segmenter
from specstream.types import (
    AvatarCue,
    Chunk,
    Mark,
    Phrase,
    Preview,
    Revoke,
    ScenePrompt,
    Span,
    Speech,
    SpeechBuffer,
)
from tests.support.standins import stream

ALWAYS = Presynthesis(max_waste=1e9, min_stood=0, ahead_s=1e9)
REPLIES = ("A! B? C", "Dr. I! I", "1. 2? No", "Is. It. S", "a etc. b! C")
WRONG = ("! S", "? I", ". ", "We ")


def tokens_of(text: str) -> list[str]:
    """Split a text into tokens of one or two characters."""
    sizes = (2, 1, 2)
    found, at = list[str](), 0
    while at < len(text):
        found.append(text[at : at + sizes[len(found) % len(sizes)]])
        at += len(found[-1])
    return found


def schedule(text: str, rng: random.Random) -> Iterator[Preview | Chunk]:
    """The engine's side: rounds with drafts that are accepted up to a random token."""
    pieces, at, chars, number = tokens_of(text), 0, 0, 0
    while at < len(pieces):
        drafted = [rng.choice(WRONG) if rng.random() < 0.4 else p for p in pieces[at : at + 4]]
        drafted = drafted[: rng.randrange(1, 5)]
        same = 0
        while same < len(drafted) and drafted[same] == pieces[at + same]:
            same += 1
        if drafted and rng.random() < 0.9:
            yield Preview("".join(drafted), *_spans(drafted, at, chars), number)
        taken = pieces[at : at + same + 1]
        counts = (number, len(drafted), min(same, len(taken)))
        yield Chunk("".join(taken), *_spans(taken, at, chars), *counts)
        at, chars, number = at + len(taken), chars + sum(map(len, taken)), number + 1


def _spans(
    pieces: Sequence[str], at: int, chars: int
) -> tuple[tuple[int, ...], Span, Span, tuple[int, ...]]:
    ends = [chars + sum(map(len, pieces[: n + 1])) for n in range(len(pieces))]
    ids = tuple(hash(piece) for piece in pieces)
    return ids, Span(at, at + len(pieces)), Span(chars, ends[-1]), tuple(ends)


class Previewing:
    """Stands in for a generation that was asked for previews."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events
        self.asked = False

    def previewed(self) -> AsyncIterator[Any]:
        self.asked = True
        return stream(self._events)

    def __aiter__(self) -> AsyncIterator[Any]:
        return stream([event for event in self._events if not isinstance(event, Preview)])


class Pause:
    """Lets another stage have its turn."""

    def __await__(self) -> Generator[None]:
        yield  # also a turn of asyncio's loop


class TinyVoice:
    """Two samples a character, that tell the character and its place in the phrase."""

    capabilities = VoiceCapabilities("tiny", 8000, streaming=True, deterministic=True, words=True)

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        text = phrase.spoken
        for at in range(0, len(text), 4):
            await Pause()
            piece = text[at : at + 4]
            pcm = b"".join(bytes((ord(char) % 251, (at + n) % 251)) for n, char in enumerate(piece))
            chars = Span(phrase.chars.start + at, phrase.chars.start + at + len(piece))
            yield SpeechBuffer(pcm, (Mark("word", piece, Span(at, at + len(piece)), chars),))

    async def aclose(self) -> None:
        return None


class TinyTrack:
    """Counts the speech that it was given, so that a track restored wrongly shows in its cues."""

    def __init__(self) -> None:
        self.count = 0

    def __deepcopy__(self, memo: object) -> TinyTrack:
        return copy(self)

    def add(self, speech: Speech) -> list[AvatarCue]:
        self.count += 1
        where = (speech.samples, speech.chars, speech.tokens)
        return [AvatarCue("viseme", f"{self.count}", 0.0, 0.0, 1.0, *where)]

    def close(self) -> list[AvatarCue]:
        nowhere = Span(0, 0)
        return [AvatarCue("viseme", f"sil{self.count}", 0.0, 0.0, 1.0, nowhere, nowhere, nowhere)]


class TinyFace:
    copies = True

    def open(self, sample_rate: int) -> TinyTrack:
        return TinyTrack()


class TinyBoard:
    """Gives one shot for each phrase, once the next phrase has come."""

    def __init__(self) -> None:
        self.count = 0
        self.open: Phrase | None = None

    def __deepcopy__(self, memo: object) -> TinyBoard:
        return copy(self)

    async def add(self, phrase: Phrase) -> list[ScenePrompt]:
        shots = await self.close()
        await Pause()
        self.open = phrase
        return shots

    async def close(self) -> list[ScenePrompt]:
        if self.open is None:
            return []
        self.count += 1
        phrase, self.open = self.open, None
        return [ScenePrompt(f"{self.count}", 0, 0.0, phrase.chars, phrase.tokens, *[phrase.text] * 7)]


class TinyRewriter:
    copies = True

    def open(self) -> TinyBoard:
        return TinyBoard()


class Tape:
    """Stands in for `Inlet` and `Link`, without an event loop."""

    cancelled = False
    drafted = True

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.revoked: deque[int] = deque()
        self.closed = False
        self.idle = True  # the stage waits for an item
        self.reach = 0

    def send(self, item: Any) -> None:
        if isinstance(item, Revoke):
            self.revoked.append(item.from_char)
        self.items.append(item)

    def __aiter__(self) -> Tape:
        return self

    async def __anext__(self) -> Any:
        while not self.items:
            if self.closed:
                raise StopAsyncIteration
            self.idle = True
            await Pause()
        self.idle = False
        item = self.items.popleft()
        if isinstance(item, Revoke):
            self.revoked.popleft()
            self.reach = min(self.reach, item.from_char)
        else:
            self.reach = max(self.reach, item.chars.end)
        return item

    def unwanted(self, end: int) -> bool:
        return any(char < end for char in self.revoked)

    async def unless_cancelled(self, work: Callable[[], Awaitable[Any]], end: int = 0) -> Any:
        if self.unwanted(end):
            return None
        made = await work()
        return None if self.unwanted(end) else made


class Station:
    """One stage, stepped by hand."""

    def __init__(self, stage: Any, life: DraftLedger, sink: Tape | None = None) -> None:
        self.tape, self.sink = Tape(), sink
        self.gate = Gate(life, stage.name)
        self._outputs = stage.run(self.tape)
        self._step: Any = None
        self.over = False

    @property
    def busy(self) -> bool:
        """Whether it has something to do."""
        tape = self.tape
        return not self.over and bool(tape.items or tape.closed or not tape.idle)

    def step(self) -> list[Any]:
        """Let the stage go on until it waits or yields; return what was released."""
        self._step = self._step or self._outputs.__anext__()
        try:
            self._step.send(None)
            return []
        except StopIteration as made:
            self._step = None
            self.gate.put(made.value, self.tape.reach)
            if self.sink is not None:
                self.sink.send(made.value)
        except StopAsyncIteration:
            self.over = True
            if self.sink is not None:
                self.sink.closed = True
        return self.released()

    def released(self) -> list[Any]:
        return list(iter(self.gate.ready, None))


Bend = Callable[[list[Station], DraftLedger], None]


def live(
    events: Sequence[Preview | Chunk],
    rng: random.Random,
    bend: Bend = lambda stations, life: None,
    stages: Callable[[], list[Any]] = lambda: [
        VoiceStage(TinyVoice()),
        AvatarStage(TinyFace()),
        PromptStage(TinyRewriter()),
    ],
) -> tuple[dict[str, list[Any]], list[DraftEvent]]:
    """One turn: what each stage released, and the trace."""
    trace: list[DraftEvent] = []
    life = DraftLedger(Account(ALWAYS).turn(lambda: 0.0), trace.append)
    made = stages()
    avatar = Station(made[1], life)
    voice, prompt = Station(made[0], life, avatar.tape), Station(made[2], life)
    stations = [voice, avatar, prompt]
    bend(stations, life)
    found: dict[str, list[Any]] = {"text": [], "voice": [], "avatar": [], "prompt": []}

    def head(items: Sequence[Any]) -> None:
        for item in items:
            verified, drafts = life.route("text", item)
            if verified is not None:
                found["text"].append(verified)
            for station in stations:
                found[station.gate.name] += station.released()
            if drafts is not None:
                voice.tape.send(drafts)
                prompt.tape.send(drafts)

    segmenter = Segmenter(first_clause_chars=4, first_words_chars=None)
    drafts = DraftedPhrases(segmenter)
    for event in events:
        life.note("read", "engine", event)
        if isinstance(event, Preview):
            head(drafts.preview(event))
        else:
            head([*drafts.judged(event), *drafts.verified(segmenter.add(event))])
        for _ in range(rng.randrange(9)):
            station = stations[rng.randrange(3)]
            if station.busy:
                found[station.gate.name] += station.step()
    head([*drafts.verified(segmenter.close()), *drafts.withdraw()])
    life.end()
    voice.tape.closed = prompt.tape.closed = True
    while any(not station.over for station in stations):
        for station in filter(lambda station: station.busy, stations):
            found[station.gate.name] += station.step()
    return found, trace


@cache
def plain(text: str) -> dict[str, list[Any]]:
    """What the stages make of a reply without any draft."""
    events = [e for e in schedule(text, random.Random(0)) if isinstance(e, Chunk)]
    return live(events, random.Random(0))[0]
