"""Run a scenario's conversation with an agent, in virtual time or on the wall clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import anyio

from specstream.agent import Agent, ReplyEnded, ReplyFailed, ReplyStarted
from specstream.errors import ConfigError
from specstream.listening.ears import Ears
from specstream.listening.events import (
    ListenerSettings,
    ListeningFailed,
    TurnEnded,
    TurnHeard,
    TurnLost,
)
from specstream.playback.playout import Playout
from specstream.stages.pipeline import StageFailed
from specstream.testing.doubles import (
    ScriptedModel,
    ScriptedRecognizer,
    ScriptedTurnDetector,
    ScriptedVoice,
)
from specstream.testing.latency import LatencyReport, TurnLatency
from specstream.testing.loop import VirtualTimeLoop
from specstream.testing.network import ScriptedNetwork
from specstream.testing.scenario import Scenario, TurnScript
from specstream.testing.talk import Ear, Talk, Utterance, counted_on
from specstream.types import Chunk, Phrase, Speech

__all__ = ["Parts", "run_scenario"]

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
                self.turns[self.answering].measured.reply += text
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
