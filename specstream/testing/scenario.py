"""Scenario files: what a user says and when, and how model, voice, recogniser and network behave."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specstream.checks import problem
from specstream.config import read_config
from specstream.errors import ConfigError

__all__ = [
    "ListeningScript",
    "ModelScript",
    "NetworkScript",
    "RecognizerScript",
    "Scenario",
    "ScriptedNetwork",
    "TurnScript",
    "VoiceScript",
    "read_scenario",
]

MAX_TURNS = 100_000
"""Most turns of one scenario, repetitions included."""


class _Script(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NetworkScript(_Script):
    """Both directions between user and agent; see `ScriptedNetwork`."""

    delay_ms: float = Field(0.0, ge=0, le=10_000)
    jitter_ms: float = Field(0.0, ge=0, le=10_000)
    loss: float = Field(0.0, ge=0, lt=1)
    retransmit_ms: float = Field(200.0, ge=0, le=10_000)


class ModelScript(_Script):
    """See `ScriptedModel`."""

    first_token_ms: float = Field(200.0, ge=0, le=60_000)
    round_ms: float = Field(30.0, ge=0, le=10_000)
    drafted: int = Field(4, ge=0, le=64)
    acceptance: float = Field(0.7, ge=0, le=1)


class VoiceScript(_Script):
    """See `ScriptedVoice`."""

    first_audio_ms: float = Field(80.0, ge=0, le=60_000)
    real_time_factor: float = Field(0.1, ge=0, le=10)
    word_ms: float = Field(250.0, ge=20, le=5_000)
    leading_silence_ms: float = Field(0.0, ge=0, le=5_000)


class RecognizerScript(_Script):
    """How long the recogniser takes for a transcript, and the turn detector to notice a pause."""

    takes_ms: float = Field(80.0, ge=0, le=60_000)
    notice_ms: float = Field(96.0, ge=0, le=5_000)


class ListeningScript(_Script):
    """How turns are detected; see `ListenerSettings`. ``frame_ms``: length of an audio frame."""

    silence_ms: float = Field(500.0, ge=0, le=10_000)
    by_words: bool = False
    partial_ms: float | None = Field(500.0, ge=100, le=10_000)
    frame_ms: int = Field(20, ge=5, le=200)


class TurnScript(_Script):
    """One turn.

    Attributes:
        user: What the user says.
        typed: Whether it is typed instead.
        reply: What the scripted model answers; a live server's model writes its own.
        pause_ms: Silence between the last reply and this turn.
        interrupts_after_ms: If set, the turn interrupts: it begins this long after the last reply's
            first audible sample, and ``pause_ms`` has no effect.
        word_ms: How long the user takes for a word; has no effect on the voice used with a live server.
    """

    user: str = Field(min_length=1, max_length=10_000)
    typed: bool = False
    reply: str = Field("All right.", min_length=1, max_length=100_000)
    pause_ms: float = Field(500.0, ge=0, le=60_000)
    interrupts_after_ms: float | None = Field(None, ge=0, le=600_000)
    word_ms: float = Field(300.0, ge=20, le=5_000)


class Scenario(_Script):
    """A conversation, run ``repeat`` times, each time with other random delays, losses and acceptances.

    The same ``seed`` gives the same ones.
    """

    name: str = Field("conversation", max_length=200)
    seed: int = 0
    repeat: int = Field(1, ge=1, le=MAX_TURNS)
    network: NetworkScript = NetworkScript()  # type: ignore[call-arg]
    model: ModelScript = ModelScript()  # type: ignore[call-arg]
    voice: VoiceScript = VoiceScript()  # type: ignore[call-arg]
    recognizer: RecognizerScript = RecognizerScript()  # type: ignore[call-arg]
    listening: ListeningScript = ListeningScript()  # type: ignore[call-arg]
    turns: tuple[TurnScript, ...] = Field(min_length=1, max_length=MAX_TURNS)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.turns[0].interrupts_after_ms is not None:
            raise ValueError("the first turn has no reply to interrupt")
        if any(turn.typed and turn.interrupts_after_ms is not None for turn in self.turns):
            raise ValueError("a turn that interrupts is spoken, not typed")
        for turn in self.turns:
            if not turn.typed and not any(map(str.isalnum, turn.user)):
                raise ValueError(f"a spoken turn needs a word, and {turn.user!r:.80} has none")
        if len(self.turns) * self.repeat > MAX_TURNS:
            raise ValueError(f"{MAX_TURNS} turns are the most, repetitions included")
        return self


def read_scenario(path: str | Path) -> Scenario:
    """Read a scenario from a TOML file.

    Raises:
        ConfigError: the file can't be read, isn't TOML, or holds something else.
    """
    values = read_config(path, "scenario")
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        told = "; ".join(map(_problem, error.errors()))
        raise ConfigError(f"{path}: {told}") from None


def _problem(detail: Any) -> str:
    """Describe one validation error, with a suggestion where a key is misspelled."""
    place = ".".join(str(part) for part in detail["loc"])
    table: Any = Scenario
    if len(detail["loc"]) > 1:
        outer = detail["loc"][0]
        table = TurnScript if outer == "turns" else Scenario.model_fields[outer].annotation
    message = problem(detail, table.model_fields)
    return f"{place}: {message}" if place else message


_MAX_LOSSES = 8  # most losses of one message


class ScriptedNetwork:
    """One direction of a connection that keeps the order of messages, as a WebSocket does.

    A message takes ``delay_ms`` and up to ``jitter_ms`` more (evenly distributed). It is lost with the
    probability ``loss``; then it is sent again after ``retransmit_ms``, and may be lost again. A message
    never overtakes the one before it. The same ``seed`` gives the same times.

    Raises:
        ValueError: a time is negative, or ``loss`` is not from 0 to below 1.
    """

    def __init__(
        self,
        *,
        delay_ms: float = 0.0,
        jitter_ms: float = 0.0,
        loss: float = 0.0,
        retransmit_ms: float = 200.0,
        seed: int | str = 0,
    ) -> None:
        if min(delay_ms, jitter_ms, retransmit_ms) < 0 or not 0 <= loss < 1:
            raise ValueError("times must be at least 0, and loss from 0 to below 1")
        self._delay_s, self._jitter_s = delay_ms / 1e3, jitter_ms / 1e3
        self._loss, self._again_s = loss, retransmit_ms / 1e3
        self._random = random.Random(seed)
        self._last = float("-inf")

    def arrival(self, sent: float) -> float:
        """Return when the next message arrives if it is sent at ``sent`` (seconds of one clock)."""
        chance = self._random.random
        took = self._delay_s + self._jitter_s * chance()
        for _ in range(_MAX_LOSSES):
            if chance() >= self._loss:
                break
            took += self._again_s
        self._last = max(self._last, sent + took)
        return self._last
