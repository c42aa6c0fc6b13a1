"""Runs a scenario's conversation: with an agent, in virtual time or not, or with a Realtime server."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import anyio

import specstream.realtime.events as ev
from specstream.agent import Agent, ReplyEnded, ReplyFailed, ReplyStarted
from specstream.client.client import Exchange, RealtimeClient
from specstream.errors import ConfigError, EngineError, ProtocolError, RequestError
from specstream.listening.ears import Ears
from specstream.listening.events import ListenerSettings, ListeningFailed, TurnEnded, TurnHeard, TurnLost
from specstream.playback.playout import Playout
from specstream.realtime.wire import SAMPLE_RATE
from specstream.server.sessions.timings import audible
from specstream.stages.pipeline import StageFailed
from specstream.testing.doubles import (
    ScriptedModel,
    ScriptedRecognizer,
    ScriptedTurnDetector,
    ScriptedVoice,
)
from specstream.testing.latency import LatencyReport, TurnLatency
from specstream.testing.loop import VirtualTimeLoop
from specstream.testing.scenario import Scenario, ScriptedNetwork, TurnScript
from specstream.testing.talk import Ear, Talk, Utterance, counted_on
from specstream.types import Chunk, Phrase, Speech

__all__ = ["Parts", "run_live", "run_scenario"]

_RATE = 16_000


@dataclass(frozen=True, slots=True)
class Parts:
    """The scripted parts of an agent under test; replace those whose real latency is to be measured.

    ``playout`` sends audio over the scenario's network to the simulated listener, where it is measured:
    the agent must play through it.
    """

    model: ScriptedModel
    voice: ScriptedVoice
    ears: Ears
    listening: ListenerSettings
    playout: Playout
    sample_rate: int = _RATE

    def agent(self) -> Agent:
        """An agent of all the scripted parts."""
        return Agent(
            engine=self.model,
            voice=self.voice,
            ears=self.ears,
            listening=self.listening,
            sample_rate=self.sample_rate,
            play=self.playout,
        )


async def run_scenario(
    scenario: Scenario,
    make: Callable[[Parts], Agent] = Parts.agent,
    *,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> LatencyReport:
    """Run the conversation ``scenario.repeat`` times and measure every turn.

    Cancelling it closes the agent.

    Args:
        scenario: What is said, and how the scripted parts behave.
        make: Makes the agent under test; called once for each repetition.
        progress: Called after each reply with the number of turns that were answered and of all.

    Raises:
        ConfigError: ``make`` returned no agent.
        EngineError: a reply that never ends, or in which nothing is audible.
        SpecstreamError: what ended a reply, a turn that was lost, or a stage that broke.
    """
    turns: list[TurnLatency] = []
    total = len(scenario.turns) * scenario.repeat
    for number in range(scenario.repeat):
        tell = counted_on(progress, len(turns), total)
        turns += await _AgentTalk(scenario, number, make, tell).hold()
    virtual = isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    return LatencyReport(scenario.name, "virtual" if virtual else "wall", tuple(turns))


class _AgentTalk(Talk):
    """A conversation with an agent in this process; ``number`` is the repetition, part of the seeds."""

    def __init__(
        self,
        scenario: Scenario,
        number: int,
        make: Callable[[Parts], Agent],
        progress: Callable[[int], object],
    ) -> None:
        seed, network = f"{scenario.seed}/{number}", scenario.network.model_dump()
        super().__init__(scenario, Ear(ScriptedNetwork(**network, seed=f"{seed}/down")), progress)
        self._uplink = ScriptedNetwork(**network, seed=f"{seed}/up")
        script, listening = scenario.recognizer, scenario.listening
        spoken = [turn.user for turn in scenario.turns if not turn.typed]
        recognizer = ScriptedRecognizer(spoken or [""], takes_s=script.takes_ms / 1e3)
        replies = [turn.reply for turn in scenario.turns]
        model = scenario.model.model_dump()
        self._agent = make(
            Parts(
                model=ScriptedModel(replies, **model, seed=f"{seed}/model"),
                voice=ScriptedVoice(**scenario.voice.model_dump()),
                ears=Ears(recognizer, ScriptedTurnDetector(stop_ms=script.notice_ms)),
                listening=ListenerSettings(**listening.model_dump(exclude={"frame_ms"})),
                playout=Playout(self.ear, audible=False),
            )
        )

        if not isinstance(self._agent, AbstractAsyncContextManager):
            given = type(self._agent).__name__
            if isinstance(self._agent, Coroutine):
                self._agent.close()  # else Python warns that nobody awaited it
            raise ConfigError(f"make must be a plain function that returns an Agent, not a {given}")

    async def hold(self) -> list[TurnLatency]:
        async with self._agent:
            return await super().hold()

    async def read(self) -> None:
        async for event in self._agent:
            self._take(event.item)

    def _take(self, item: object) -> None:
        match item:
            case TurnEnded():
                self.heard("turn_end")
            case TurnHeard():
                self.heard("transcript")
            case ReplyStarted():
                self.reply_begins()
            case Chunk(token_ids=ids, text=text):
                if ids:
                    self.step("first_token")
                self.wrote(text)
            case Phrase():
                self.step("first_phrase")
            case Speech(pcm=pcm) if pcm:
                self.step("first_speech")
            case ReplyEnded(outcome=outcome):
                self.reply_over(complete=outcome.complete)
            case TurnLost() | ListeningFailed() | ReplyFailed() | StageFailed():
                raise item.error

    async def type(self, text: str) -> None:
        await anyio.sleep_until(self._uplink.arrival(anyio.current_time()))
        await self._agent.say(text)

    async def utterance(self, script: TurnScript) -> Utterance:
        frame_ms = self.scenario.listening.frame_ms
        words = max(1, len(script.user.split()))
        count = max(1, round(words * script.word_ms / frame_ms))
        samples = _RATE * frame_ms // 1000
        return Utterance([b"\x28\x23" * samples] * count, 0, count - 1)

    async def send(self, pcm: bytes, due: float) -> None:
        await anyio.sleep_until(self._uplink.arrival(due))
        await self._agent.hear(pcm)


def _samples(data: str) -> bytes:
    try:
        pcm = base64.b64decode(data, validate=True)
    except ValueError as error:
        raise ProtocolError(f"the server's audio is no base64: {error}") from None
    if len(pcm) % 2:
        raise ProtocolError(f"the server's audio ends within a sample: it has {len(pcm)} bytes")
    return pcm


_HARMLESS = {"response_cancel_not_active", "conversation_already_has_active_response"}


async def run_live(
    scenario: Scenario,
    url: str,
    *,
    speak: Callable[[str], Awaitable[bytes]],
    api_key: str | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> LatencyReport:
    """Run the conversation with the server at ``url``, one connection for each repetition.

    The scenario says what the user says and when. Model, voice, recogniser and network are real: the
    scenario's tables for them have no effect. Cancelling closes the connection.

    Args:
        scenario: The conversation.
        url: ``ws://host:port/v1/realtime``.
        speak: Returns a text as the user's voice says it: signed 16-bit little-endian mono at 24 kHz.
        api_key: Sent as a bearer token.
        progress: Called once the server answers and after each turn, with the number of turns that were
            answered and of all.

    Raises:
        ConnectionFailed: nobody answers, or the connection broke.
        RequestError: the server refused something, such as audio input without ears.
        EngineError: a response failed, never ended, or had nothing audible.
        ProtocolError: its audio isn't whole samples in base64.
    """
    turns: list[TurnLatency] = []
    each, total = len(scenario.turns), len(scenario.turns) * scenario.repeat
    for repeat in range(scenario.repeat):
        tell = counted_on(progress, repeat * each, total)
        async with RealtimeClient.connect(url, api_key=api_key, events=()) as client:
            tell(0)
            await client.update(output_modalities=["audio"], **_hearing(scenario))
            turns += await _ServerTalk(scenario, client.exchange, speak, tell).hold()
    return LatencyReport(scenario.name, "wall", tuple(turns))


def _hearing(scenario: Scenario) -> dict[str, Any]:
    """Settings that ask for turn detection and transcripts; none if no turn is spoken."""
    if all(turn.typed for turn in scenario.turns):
        return {}
    turns: dict[str, Any] = {"type": "semantic_vad"}
    if not scenario.listening.by_words:
        silence = round(scenario.listening.silence_ms)
        turns = {"type": "server_vad", "silence_duration_ms": silence}
    return {"audio": {"input": {"turn_detection": turns, "transcription": {}}}}


class _ServerTalk(Talk):
    def __init__(
        self,
        scenario: Scenario,
        exchange: Exchange,
        speak: Callable[[str], Awaitable[bytes]],
        progress: Callable[[int], object],
    ) -> None:
        super().__init__(scenario, Ear(), progress)
        self._exchange = exchange
        self._voice = speak
        self._spoken: str | None = None  # the id of the item that the user spoke last
        self._item: str | None = None  # the id of the item whose audio is being played
        self._cut = False  # whether the user interrupted the reply: its further audio is ignored

    async def read(self) -> None:
        while True:
            await self._take(await self._exchange.receive())

    async def _take(self, event: ev.ServerEvent) -> None:
        now = anyio.current_time()
        match event:
            case ev.ErrorEvent(error=error) if error.code not in _HARMLESS:
                raise RequestError(f"the server refused: {error.message} ({error.code})")
            case ev.InputSpeechStarted():
                await self._interrupt(now)
            case ev.InputSpeechStopped(item_id=item):
                self._spoken = item
                self.heard("turn_end")
            case ev.TranscriptionCompleted(item_id=item, transcript=text):
                if item == self._spoken:
                    self.understood(text)
                else:  # of a part of the turn, which has come late
                    self.heard("transcript")
            case ev.TranscriptionFailed(error=error):
                raise EngineError(f"what was said was not recognised: {error.message}")
            case ev.ResponseEvent(type="response.created"):
                self._cut = False
                self.reply_begins()
            case ev.TextDeltaEvent(delta=text):
                self.step("first_token")
                self.wrote(text)
            case ev.AudioDeltaEvent(delta=data, item_id=item):
                self._item = item
                if not self._cut:
                    self.ear.take(_samples(data), SAMPLE_RATE, now)
            case ev.ResponseEvent(type="response.done", response=response):
                details = response.status_details
                if response.status == "failed":
                    failure = details.error if details is not None else None
                    raise EngineError(failure.message if failure is not None else "it failed")
                if not self._cut:
                    self.reply_over(complete=response.status != "cancelled")

    async def _interrupt(self, now: float) -> None:
        """Stop playing because the user speaks, and tell the server how much was heard."""
        if self._item is None or now >= self.ear.end or self._cut:
            return
        heard_ms = self.ear.cut(now)
        self._cut = True
        where = {"item_id": self._item, "content_index": 0, "audio_end_ms": int(heard_ms)}
        self._item = None
        self.reply_over(complete=False)
        await self._exchange.send("conversation.item.truncate", **where)

    async def type(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        await self._exchange.send("conversation.item.create", item=item)
        await self._exchange.send("response.create")

    async def utterance(self, script: TurnScript) -> Utterance:
        pcm = await self._voice(script.user)
        size = 2 * (SAMPLE_RATE * self.scenario.listening.frame_ms // 1000)
        frames = [pcm[at : at + size].ljust(size, b"\0") for at in range(0, len(pcm), size)]
        loud = [at for at, frame in enumerate(frames) if audible(frame).size]
        if not loud:
            raise EngineError(f"the voice says nothing audible for {script.user!r}")
        return Utterance(frames, loud[0], loud[-1])

    async def send(self, pcm: bytes, due: float) -> None:
        await anyio.sleep_until(due)
        await self._exchange.send("input_audio_buffer.append", audio=base64.b64encode(pcm).decode())
