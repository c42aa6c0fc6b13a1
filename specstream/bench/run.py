"""The experiment: order of the arms, warm-up, and measurement until the budget is used up."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from specstream.bench.arms.base import PEERS, Arm, label
from specstream.bench.prompts import Prompt, PromptSet
from specstream.bench.records import BenchRun, Record
from specstream.checks import counted
from specstream.errors import PromptError, SpecstreamError
from specstream.types import SamplingParams

__all__ = ["Budget", "Cell", "Faults", "Outcome", "cells", "run_cells", "turned", "warm_up"]

WARM_UP_TOKENS = 32
Tell = Callable[[int, int], None]  # steps done, steps in all
_SEED_STEP = 7919  # added to the seed for each repeat, so that sampled repeats differ
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell:
    """One prompt, answered once by every arm. ``visit`` counts the cells of its domain."""

    prompt: Prompt
    repeat: int
    visit: int


def cells(prompts: PromptSet, repeats: int) -> Iterator[Cell]:
    """Yield all cells: domains take turns, and every prompt comes once before any is repeated.

    Wherever the experiment is cut off, the domains have been measured about equally often.
    """
    visits: Counter[str] = Counter()
    by_domain = [prompts.of(domain) for domain in prompts.domains]
    for repeat in range(repeats):
        for row in range(max(map(len, by_domain), default=0)):
            for prompt in (of_domain[row] for of_domain in by_domain if row < len(of_domain)):
                yield Cell(prompt, repeat, visits[prompt.domain])
                visits[prompt.domain] += 1


def turned(arms: Sequence[T], visit: int) -> list[T]:
    """Return the arms' order in a cell: forward and backward in turn (ABBA), from a rotating start.

    Slow drift (clock, temperature, other load) then affects every arm alike.
    """
    shift = (visit // 2) % len(arms) if arms else 0
    order = [*arms[shift:], *arms[:shift]]
    return order[::-1] if visit % 2 else order


class Budget:
    """Seconds of wall time that may be used; None: no limit."""

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self._seconds, self._clock, self._started = seconds, clock, clock()

    @property
    def used(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    @property
    def left(self) -> float | None:
        """Seconds that may still be used; None: no limit."""
        return None if self._seconds is None else self._seconds - self.used

    def allows(self, expected: float) -> bool:
        """Whether ``expected`` more seconds still fit."""
        return self.left is None or expected <= self.left


@dataclass(slots=True)
class Outcome:
    """The result of the measurement."""

    records: list[Record] = field(default_factory=list)  # of cells that every working arm completed
    cells: int = 0  # completed cells
    cut_short: str = ""  # why not all cells were run; empty if they were
    broken: dict[str, str] = field(default_factory=dict)  # peers that failed, by label, and why
    notes: list[str] = field(default_factory=list)  # sentences about how it was measured
    crowd: dict[str, Any] | None = None  # figures of concurrent requests, if they were measured

    def drop(self, arm: Arm, error: Exception) -> None:
        """Mark an arm as broken and remove its records."""
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        self.broken[label(arm.name, arm.setting)] = reason
        self.records = [r for r in self.records if (r.arm, r.setting) != (arm.name, arm.setting)]


async def warm_up(
    arms: Sequence[Arm],
    prompts: PromptSet,
    params: SamplingParams,
    outcome: Outcome,
    *,
    thorough: bool = False,
    tell: Tell = lambda done, total: None,
) -> None:
    """Let every arm answer the first prompt of every second domain, without a record.

    ``thorough`` takes whole replies, the longest prompt first and then every domain twice: a pass is
    compiled when it first runs, and again when the cache is larger than in any pass before.

    Raises:
        PromptError: a prompt doesn't fit the model; the message names the prompt.
    """
    if not thorough:
        params = replace(params, max_tokens=min(params.max_tokens, WARM_UP_TOKENS))
    domains = prompts.domains * 2 if thorough else prompts.domains[::2]
    firsts = [prompts.of(domain)[0] for domain in domains]
    if thorough:
        firsts = [max(prompts.prompts, key=_characters), *firsts]
    steps = [(prompt, arm) for prompt in firsts for arm in arms]
    for number, (prompt, arm) in enumerate(steps):
        tell(number, len(steps))
        await _run(arm, prompt, params, outcome)


def _characters(prompt: Prompt) -> int:
    return sum(len(message["content"]) for message in prompt.messages)


async def run_cells(
    arms: Sequence[Arm],
    cells: Sequence[Cell],
    params: SamplingParams,
    budget: Budget,
    outcome: Outcome,
    *,
    tell: Tell = lambda done, total: None,
    keep: Callable[[Record], None] = lambda record: None,
) -> None:
    """Run the cells and add them to ``outcome``, which stays valid when this is cancelled.

    A cell begins only if one as long as the longest so far still fits the budget; but the first cell of
    a domain always runs, so that every domain has figures. ``keep`` is called with each record as soon
    as it is made.

    Raises:
        PromptError: a prompt doesn't fit the model; the message names the prompt.
    """
    longest = 0.0
    for number, cell in enumerate(cells):
        tell(number, len(cells))
        prompt = cell.prompt
        if cell.visit and not budget.allows(longest):
            outcome.cut_short = "the time budget was used up"
            continue  # not break: a domain's first cell may still follow
        started = budget.used
        # A seed makes our arms verify by exact match; without one, the usual rule applies.
        seed = None if params.seed is None else params.seed + _SEED_STEP * cell.repeat
        seeded = replace(params, seed=seed)
        done: list[Record] = []
        for place, arm in enumerate(turned(arms, cell.visit)):
            run = await _run(arm, prompt, seeded, outcome)
            if run is not None:
                where = (prompt.domain, prompt.id, arm.name, arm.setting, cell.repeat, place)
                done.append(Record(*where, run))
                keep(done[-1])
        outcome.records += done
        outcome.cells += 1
        longest = max(longest, budget.used - started)


async def _run(arm: Arm, prompt: Prompt, params: SamplingParams, outcome: Outcome) -> BenchRun | None:
    """Get one reply; None if the arm is a peer that fails now or failed before."""
    if label(arm.name, arm.setting) in outcome.broken:
        return None
    try:
        return await arm.run(prompt.messages, params)
    except PromptError as error:
        raise PromptError(f"prompt {prompt.id}: {error}") from error
    except SpecstreamError:
        raise
    except Exception as error:
        if arm.name not in PEERS:
            raise
        outcome.drop(arm, error)
        return None


class Faults(logging.Handler):
    """Collects the errors that the engine logs: the engine goes on, but the figures may be off."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._seen: list[str] = []
        self._log = logging.getLogger("specstream.engine")
        self._log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Called by the logger."""
        self._seen.append(record.getMessage())

    def end(self) -> list[str]:
        """Stop collecting; return one line about all errors, or no line."""
        self._log.removeHandler(self)
        if not self._seen:
            return []
        times = counted(len(self._seen), "time")
        return [f"the engine reported an error {times}; the first: {self._seen[0]}"]
