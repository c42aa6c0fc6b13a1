"""Doubles for the Realtime server: a voice, a face, a storyboard, clocks, and a bare client."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

import anyio
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from specstream.client.client import Done, RealtimeClient, RealtimeEvent, Reply, TextDelta
from specstream.server.options import ServerAccess, ServerLimits
from specstream.server.server import RealtimeServer
from specstream.signals import Signal
from specstream.stages.interfaces import VoiceCapabilities
from specstream.testing import ScriptedEngine, ScriptedGeneration
from specstream.types import (
    AvatarCue,
    Chunk,
    Mark,
    Phrase,
    Preview,
    ScenePrompt,
    Span,
    Speech,
    SpeechBuffer,
)

WORD_S = 0.2
WORDS = " ".join(f"word{n}" for n in range(30)) + "."  # 6 seconds of speech, one phrase
ALL_OWN = {"specstream": {"events": ["avatar", "prompt", "revoke", "report"]}}
AROUND = ["conversation.item.added", "conversation.item.done", "response.created"]
BEGIN = ["response.output_item.added", "conversation.item.added", "response.content_part.added"]
END = [
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
]
TEXT_DONE = ["response.output_text.done"]
AUDIO_DONE = ["response.output_audio.done", "response.output_audio_transcript.done"]


def shape(types: Sequence[str]) -> list[str]:
    """The order of events; a run of deltas, with events that may come among them, counts as one."""
    out: list[str] = []
    for type in types:
        name = "deltas" if type.endswith(".delta") else type
        if not (out and name == out[-1] == "deltas"):
            out.append(name)
    return out


async def settle() -> None:
    """Wait until no task and no socket makes progress any more."""
    for _ in range(200):
        await anyio.lowlevel.checkpoint()


async def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        await anyio.lowlevel.checkpoint()


class WordVoice:
    """Every word is a tone of 200 ms, in buffers of 50 ms; ``gate`` may hold each buffer back."""

    def __init__(self, rate: int = 24000, gate: Callable[[], anyio.Event | None] = lambda: None) -> None:
        self.rate = rate
        self.gate = gate
        self.closed = False
        self.speaking = 0

    @property
    def capabilities(self) -> VoiceCapabilities:
        return VoiceCapabilities("words", self.rate, True, True, True, False)

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        length, quarter = int(self.rate * WORD_S), int(self.rate * WORD_S) // 4
        tone = np.rint(9000 * np.sin(np.arange(length) * 0.1)).astype("<i2")
        self.speaking += 1
        try:
            for index, word in enumerate(re.finditer(r"\w+", phrase.spoken)):
                for at in range(0, length, quarter):
                    if (event := self.gate()) is not None:
                        await event.wait()
                    await anyio.lowlevel.checkpoint()
                    marks: tuple[Mark, ...] = ()
                    if at + quarter >= length:
                        chars = Span(*(phrase.chars.start + edge for edge in word.span()))
                        samples = Span(index * length, (index + 1) * length)
                        marks = (Mark("word", word.group(), samples, chars),)
                    yield SpeechBuffer(tone[at : at + quarter].tobytes(), marks)
        finally:
            self.speaking -= 1

    async def aclose(self) -> None:
        self.closed = True


class BrokenVoice(WordVoice):
    """A voice that raises at the second word."""

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        buffers = super().synthesize(phrase)
        for _ in range(5):
            yield await anext(buffers)
        await buffers.aclose()
        raise RuntimeError("the loudspeaker is on fire")


class OneCueFace:
    """One cue for each word, and one that closes the mouth."""

    def open(self, sample_rate: int) -> OneCueTrack:
        return OneCueTrack(sample_rate)


class OneCueTrack:
    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.last = 0

    def _cue(self, name: str, samples: Span, speech: Speech | None) -> AvatarCue:
        chars, tokens = (speech.chars, speech.tokens) if speech else (Span(0, 0), Span(0, 0))
        at = samples.start / self.rate * 1e3
        return AvatarCue("viseme", name, at, 200.0, 1.0, samples, chars, tokens, {"jawOpen": 0.5})

    def add(self, speech: Speech) -> Sequence[AvatarCue]:
        self.last = speech.samples.end
        return [self._cue("aa", m.samples, speech) for m in speech.marks if m.kind == "word"]

    def close(self) -> Sequence[AvatarCue]:
        return [self._cue("sil", Span(self.last, self.last), None)]


class OneShotBoard:
    """One shot for each phrase."""

    def open(self) -> OneShotBoard:
        return self

    async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
        facts = ("a fox", "runs", "a wood", "wide", "oil")
        return [
            ScenePrompt(
                f"shot-{phrase.index}", 0, 0.0, phrase.chars, phrase.tokens, *facts, "prompt", "blur"
            )
        ]

    async def close(self) -> Sequence[ScenePrompt]:
        return []


class FreeClock:
    """A clock on which waiting takes no time: it jumps to the moment that is waited for."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    async def sleep_until(self, moment: float) -> None:
        self.time = max(self.time, moment)
        await anyio.lowlevel.checkpoint()


class HandClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.time = 0.0
        self._moved = Signal()

    def now(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds
        self._moved.notify()

    async def sleep_until(self, moment: float) -> None:
        while self.time < moment:
            await self._moved.wait()


class Gate:
    """Holds a scripted model or voice back until a test lets it go."""

    def __init__(self, *, shut: bool = True) -> None:
        self._event: anyio.Event | None = anyio.Event() if shut else None
        self._free = 0

    def __call__(self) -> anyio.Event | None:
        if self._free > 0:
            self._free -= 1
            return None
        return self._event

    def shut(self, after: int = 0) -> None:
        """Hold back all that arrive, after letting ``after`` more through."""
        self._event, self._free = anyio.Event(), after

    def open(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            event.set()


class Wire:
    """A bare client: sends and receives JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    async def send(self, type: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def next(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.socket.recv())
        self.seen.append(event)
        return event

    async def until(self, type: str) -> dict[str, Any]:
        """Read on to the next event of that type, and return it."""
        while (event := await self.next())["type"] != type:
            assert event["type"] != "error" or type == "error", event
        return event

    async def ask(self, text: str, **response: Any) -> None:
        """Send a user message and request a response to it."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        await self.send("conversation.item.create", item=item)
        await self.send("response.create", response=response)

    async def configure(self, **session: Any) -> dict[str, Any]:
        """Change settings of the session; returns the answer."""
        await self.send("session.update", session={"type": "realtime", **session})
        return await self.until("session.updated")

    async def done(self) -> dict[str, Any]:
        """Read on to the end of a response, and return it."""
        response: dict[str, Any] = (await self.until("response.done"))["response"]
        return response

    async def reply(self, text: str, **response: Any) -> dict[str, Any]:
        """Have a message answered; returns the response that has ended."""
        await self.ask(text, **response)
        return await self.done()

    async def refused(self, type: str, **fields: Any) -> dict[str, Any]:
        """Send a frame that is refused; returns the error's detail."""
        await self.send(type, **fields)
        event = await self.next()
        assert event["type"] == "error", event
        error: dict[str, Any] = event["error"]
        return error

    async def closed(self) -> tuple[int | None, str | None]:
        """Read on until the server has closed the connection; its code and reason."""
        with suppress(ConnectionClosed):
            while True:
                await self.next()
        return self.socket.close_code, self.socket.close_reason

    async def truncate(self, item_id: str, heard_ms: int) -> None:
        """Ask for a spoken item to be cut."""
        fields = {"item_id": item_id, "content_index": 0, "audio_end_ms": heard_ms}
        await self.send("conversation.item.truncate", **fields)

    async def retrieve(self, item_id: str) -> dict[str, Any]:
        """The item as the server has it."""
        await self.send("conversation.item.retrieve", item_id=item_id)
        item: dict[str, Any] = (await self.until("conversation.item.retrieved"))["item"]
        return item

    def of(self, *types: str) -> list[dict[str, Any]]:
        """The events so far whose types end with one of these."""
        return [event for event in self.seen if event["type"].endswith(types)]

    def types(self) -> list[str]:
        return [event["type"] for event in self.seen]


def server_options(**flat: Any) -> dict[str, Any]:
    """The server's options, with access and limits each in its own object."""
    made: dict[str, Any] = {}
    for name, kind in (("access", ServerAccess), ("limits", ServerLimits)):
        named = [option for option in kind.model_fields if option in flat]
        made[name] = kind(**{option: flat.pop(option) for option in named})
    return {**made, **flat}


class Stand:
    """A server with test doubles for engine and adapters, and its clients."""

    def __init__(self, engine: ScriptedEngine, **options: Any) -> None:
        self.engine = engine
        self.voices: list[WordVoice] = []
        self.clock = options.pop("clock", None) or FreeClock()
        make_voice = options.pop("voice", WordVoice)

        def voice() -> WordVoice:
            self.voices.append(make_voice())
            return self.voices[-1]

        makers: dict[str, Any] = {"voice": voice if make_voice else None}
        makers |= {"avatar": OneCueFace, "prompts": OneShotBoard}
        self.server = RealtimeServer(
            engine, **{**makers, "port": 0, "clock": self.clock, **server_options(**options)}
        )
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self, None]:
        async with self.server.start() as self.port:
            yield self

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/realtime"

    @asynccontextmanager
    async def client(self, query: str = "", **options: Any) -> AsyncGenerator[Wire, None]:
        """A client that has read its ``session.created``."""
        async with connect(self.url + query, proxy=None, **options) as socket:
            wire = Wire(socket)
            await wire.until("session.created")
            yield wire

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[Wire, None]:
        """Run the server for one client."""
        async with self.running(), self.client() as wire:
            yield wire

    @asynccontextmanager
    async def python(self, **options: Any) -> AsyncGenerator[RealtimeClient, None]:
        """Run the server for one client of the package."""
        async with self.running(), RealtimeClient.connect(self.url, **options) as client:
            yield client


async def read(reply: Reply) -> list[RealtimeEvent]:
    """All events of a reply, as the package's client gives them."""
    return [event async for event in reply]


def text_of(events: list[RealtimeEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def end_of(events: list[RealtimeEvent]) -> Done:
    """The last event, which ends the reply."""
    assert isinstance(events[-1], Done)
    return events[-1]


def drafting(monkeypatch: pytest.MonkeyPatch, draft: Callable[[Chunk], str]) -> None:
    """Make scripted replies show a preview before each chunk but the first: ``draft`` of the chunk."""

    async def previewed(self: ScriptedGeneration) -> AsyncGenerator[Chunk | Preview, None]:
        while self.ahead:
            chunk = self.ahead[0]
            if chunk.round and chunk.text:
                chars = Span(chunk.chars.start, chunk.chars.start + len(draft(chunk)))
                yield Preview(draft(chunk), (), chunk.tokens, chars, (), chunk.round)
            try:
                yield await anext(self)
            except StopAsyncIteration:
                return

    monkeypatch.setattr(ScriptedGeneration, "previewed", previewed, raising=False)
