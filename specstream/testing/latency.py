"""Latencies of a conversation: stages, percentiles, and waterfalls of the parts of a wait."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from specstream.checks import counted
from specstream.errors import ConfigError

__all__ = ["STAGES", "LatencyReport", "TurnLatency", "assert_latency"]

STEPS = {
    "turn_end": "the agent knows that the user has finished",
    "transcript": "what was said is known",
    "asked": "the agent begins to answer",
    "first_token": "the model's first token",
    "first_phrase": "the first phrase that can be spoken",
    "first_speech": "the voice's first audio",
    "arrived": "the first audio at the listener",
    "first_audio": "the first audible sample at the listener",
}
"""The steps of a wait, in order. A step's time is counted from the user's last sound (or from sending a
typed question); its part of the wait is the time since the step before."""

STAGES = STEPS | {
    "interruption_silence": "from the first sound of an interruption to the reply's last",
    "gap": "the longest silence inside the reply because audio came late",
}
"""The stages whose latencies are measured, in milliseconds."""

_PERCENTILES = (50, 95, 99)
_BAR = 40  # characters


@dataclass(slots=True)
class TurnLatency:
    """One turn.

    Attributes:
        user: What the user said.
        typed: Whether it was typed.
        stages: Milliseconds by stage, see `STAGES`; a stage that wasn't seen is missing.
        parts: The wait for the first audible sample, cut at the steps that were seen.
        wait_ms: That wait, measured as a whole.
        interrupts: Whether it interrupted the reply before it; None if the scenario doesn't ask for
            an interruption.
        reply: The text of the reply.
    """

    user: str
    typed: bool
    stages: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    wait_ms: float = 0.0
    interrupts: bool | None = None
    reply: str = ""

    def split(self, began: float, seen: dict[str, float], audible: float) -> None:
        """Fill in the stages and parts; ``began``, ``seen`` and ``audible`` are seconds of one clock."""
        self.wait_ms = (audible - began) * 1e3
        self.parts.clear()
        before = began
        for step in STEPS:
            at = audible if step == "first_audio" else seen.get(step)
            if at is not None:
                at = min(max(before, at), audible)
                self.stages[step] = (at - began) * 1e3
                self.parts[step] = (at - before) * 1e3
                before = at

    @property
    def residual_ms(self) -> float:
        """The wait minus the sum of its parts."""
        return self.wait_ms - sum(self.parts.values())

    def waterfall(self) -> list[str]:
        """The parts as lines of text, with bars."""
        lines, at = [f"{self.wait_ms:9.1f} ms  {self.user!r}"], 0.0
        scale = _BAR / self.wait_ms if self.wait_ms > 0 else 0.0
        for step, ms in self.parts.items():
            left, right = round(at * scale), round((at + ms) * scale)
            bar = " " * left + "█" * (right - left)
            lines.append(f"{ms:9.1f} ms  {step:<13} {bar:<{_BAR}}".rstrip())
            at += ms
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain data, milliseconds to a thousandth."""
        return {
            "user": self.user,
            "typed": self.typed,
            "interrupts": self.interrupts,
            "wait_ms": round(self.wait_ms, 3),
            "parts_ms": _rounded(self.parts),
            "residual_ms": round(abs(self.residual_ms), 3),
            "stages_ms": _rounded(self.stages),
        }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(ms, 3) for name, ms in values.items()}


@dataclass(frozen=True, slots=True)
class LatencyReport:
    """The turns of a scenario; ``clock`` says by which clock they were measured."""

    scenario: str
    clock: Literal["virtual", "wall"]
    turns: tuple[TurnLatency, ...]

    def values(self, stage: str) -> list[float]:
        """The milliseconds of a stage, one for each turn in which it was seen, in order of size.

        Raises:
            ConfigError: there is no stage of that name.
        """
        if stage not in STAGES:
            raise ConfigError(f"no stage {stage!r}; known: {', '.join(STAGES)}")
        return sorted(turn.stages[stage] for turn in self.turns if stage in turn.stages)

    def percentile(self, stage: str, percent: float) -> float | None:
        """The least value that ``percent`` % don't exceed (nearest rank); None without values."""
        values = self.values(stage)
        return values[max(0, math.ceil(percent / 100 * len(values)) - 1)] if values else None

    def slow(self, percent: float, stage: str = "first_audio") -> TurnLatency | None:
        """A turn whose latency is that percentile of a stage."""
        at = self.percentile(stage, percent)
        if at is None:
            return None
        return next((turn for turn in self.turns if turn.stages.get(stage) == at), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the same turns give the same data."""
        return {
            "scenario": self.scenario,
            "clock": self.clock,
            "turns": len(self.turns),
            "missed_interruptions": self.missed,
            "stages_ms": {stage: _figures(self, stage) for stage in STAGES if self.values(stage)},
            "each": [turn.to_dict() for turn in self.turns],
        }

    @property
    def missed(self) -> int:
        """Interruptions that came after the reply's end."""
        return sum(turn.interrupts is False for turn in self.turns)

    def lines(self) -> list[str]:
        """A table of percentiles, and the waterfalls of the median turn and of a slow one."""
        lines = [f"{self.scenario}: {len(self.turns)} turns, {self.clock} clock"]
        lines.append(f"{'stage, ms':<22}{'turns':>7}{'p50':>9}{'p95':>9}{'p99':>9}{'max':>9}")
        for stage, figures in self.to_dict()["stages_ms"].items():
            shown = "".join(f"{figures[key]:>9.1f}" for key in ("p50", "p95", "p99", "max"))
            lines.append(f"{stage:<22}{figures['turns']:>7}{shown}")
        if self.missed:
            what = counted(self.missed, "interruption")
            lines.append(f"{what} missed: the reply had ended")
        for percent in (50, 95):
            if (turn := self.slow(percent)) is not None:
                lines += [f"p{percent} of first_audio:", *turn.waterfall()]
        return lines


def _figures(report: LatencyReport, stage: str) -> dict[str, Any]:
    values = report.values(stage)
    figures: dict[str, Any] = {"turns": len(values)}
    for percent in _PERCENTILES:
        figures[f"p{percent}"] = round(report.percentile(stage, percent) or 0.0, 3)
    return figures | {"max": round(values[-1], 3)}


def assert_latency(
    report: LatencyReport,
    *,
    stage: str,
    p50_ms: float | None = None,
    p95_ms: float | None = None,
    p99_ms: float | None = None,
    max_ms: float | None = None,
    least_turns: int = 1,
) -> None:
    """Check percentiles of a stage's latency.

    Raises:
        AssertionError: a percentile is above its limit (the message has the waterfall of a turn at
            that percentile), or fewer than ``least_turns`` turns have the stage.
        ConfigError: there is no stage of that name, no limit was given, or one isn't a number above 0.
    """
    __tracebackhide__ = True
    limits = {50: p50_ms, 95: p95_ms, 99: p99_ms, 100: max_ms}
    given = {percent: limit for percent, limit in limits.items() if limit is not None}
    if not given:
        raise ConfigError("give a limit: p50_ms, p95_ms, p99_ms or max_ms")
    for limit in given.values():
        if not (isinstance(limit, int | float) and limit > 0):
            raise ConfigError(f"a limit is a number of milliseconds above 0, not {limit!r}")
    count = len(report.values(stage))
    if count < max(1, least_turns):
        raise AssertionError(f"{stage} was measured in {count} turns of {len(report.turns)}")
    problems: list[str] = []
    for percent, limit in given.items():
        found = report.percentile(stage, percent)
        if found is not None and found > limit:
            name = "max" if percent == 100 else f"p{percent}"
            problems.append(f"{stage}: {name} is {found:.1f} ms, allowed are {limit:g}")
            turn = report.slow(percent, stage)
            if turn is not None and turn.parts:
                problems += [f"  {line}" for line in turn.waterfall()]
    if problems:
        raise AssertionError("\n".join(problems))
