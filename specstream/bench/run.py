"""The experiment: warms the arms up, then runs the cells until they or the budget are used up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from specstream.bench.arms.base import PEERS, Arm, Ask, label
from specstream.bench.prompts import Prompt, PromptSet
from specstream.bench.records import Record, Run
from specstream.bench.schedule import Budget, Cell, turned
from specstream.errors import PromptError, SpecstreamError

__all__ = ["Outcome", "run_cells", "warm_up"]

WARM_UP_TOKENS = 32
Tell = Callable[[int, int], None]  # steps done, steps in all
_SEED_STEP = 7919  # between repeats, so that sampled repeats differ


@dataclass(slots=True)
class Outcome:
    """What came of it.

    Attributes:
        records: Those of complete cells only: every arm that still runs is in each.
        cells: How many were completed.
        cut_short: Why not all cells were run; empty if they were.
        broken: Peers that failed, by label, and how; none of their records is kept.
    """

    records: list[Record] = field(default_factory=list)
    cells: int = 0
    cut_short: str = ""
    broken: dict[str, str] = field(default_factory=dict)

    def works(self, arm: Arm) -> bool:
        """Whether the arm has not failed."""
        return label(arm.name, arm.setting) not in self.broken

    def drop(self, arm: Arm, error: Exception) -> None:
        """Leave an arm out from now on, and what it did before."""
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        self.broken[label(arm.name, arm.setting)] = first
        self.records = [r for r in self.records if (r.arm, r.setting) != (arm.name, arm.setting)]

    def broken_lines(self) -> list[str]:
        """In words: which arms were left out, and why."""
        return [f"{arm} broke and was left out: {how}" for arm, how in self.broken.items()]


async def warm_up(
    arms: Sequence[Arm],
    prompts: PromptSet,
    ask: Ask,
    outcome: Outcome,
    *,
    thorough: bool = False,
    tell: Tell = lambda done, total: None,
) -> None:
    """Let every arm answer the first prompt of every other domain; nothing of it is kept.

    ``thorough`` asks for whole replies, the longest prompt first and then every domain twice: passes
    are compiled when they first run, and for the largest cache seen so far.

    Raises:
        PromptError: a prompt that no model could take; names it.
    """
    short = ask if thorough else replace(ask, max_tokens=min(ask.max_tokens, WARM_UP_TOKENS))
    domains = prompts.domains * 2 if thorough else prompts.domains[::2]
    firsts = [prompts.of(domain)[0] for domain in domains]
    if thorough:
        firsts.insert(0, max(prompts.prompts, key=_length))
    steps = [(prompt, arm) for prompt in firsts for arm in arms]
    for number, (prompt, arm) in enumerate(steps):
        tell(number, len(steps))
        if outcome.works(arm):
            await _run(arm, prompt, short, outcome)


def _length(prompt: Prompt) -> int:
    return sum(len(message["content"]) for message in prompt.messages)


async def run_cells(
    arms: Sequence[Arm],
    cells: Sequence[Cell],
    ask: Ask,
    budget: Budget,
    outcome: Outcome,
    *,
    tell: Tell = lambda done, total: None,
    keep: Callable[[Record], None] = lambda record: None,
) -> None:
    """Run cell after cell into ``outcome``, which holds what there is even when this is cancelled.

    A cell begins only if one like those before it fits the budget; but the first cell of a domain
    always runs, so that no domain is left without a figure. ``keep`` is given each record at once,
    ``tell`` how many cells are behind before each one.

    Raises:
        PromptError: a prompt that doesn't fit the model; names it.
    """
    longest = 0.0
    for number, cell in enumerate(cells):
        tell(number, len(cells))
        if cell.visit and not budget.allows(longest):
            outcome.cut_short = "the time budget was used up"
            continue  # not break: a domain's first cell may still be to come
        started = budget.used
        done: list[Record] = []
        for place, arm in enumerate(turned(arms, cell.visit)):
            if not outcome.works(arm):
                continue
            # With a seed our arms judge by exact match; without, by the usual rule.
            seeded = ask
            if ask.seed is not None:
                seeded = replace(ask, seed=ask.seed + _SEED_STEP * cell.repeat)
            run = await _run(arm, cell.prompt, seeded, outcome)
            if run is not None:
                done.append(_record(cell, arm, place, run))
                keep(done[-1])
        outcome.records += done
        outcome.cells += 1
        longest = max(longest, budget.used - started)


async def _run(arm: Arm, prompt: Prompt, ask: Ask, outcome: Outcome) -> Run | None:
    """One reply; None if a peer failed, which is its own affair."""
    try:
        return await arm.run(replace(ask, messages=prompt.messages))
    except PromptError as error:
        raise PromptError(f"prompt {prompt.id}: {error}") from error
    except SpecstreamError:
        raise
    except Exception as error:
        if arm.name not in PEERS:
            raise
        outcome.drop(arm, error)
        return None


def _record(cell: Cell, arm: Arm, place: int, run: Run) -> Record:
    prompt = cell.prompt
    return Record(prompt.domain, prompt.id, arm.name, arm.setting, cell.repeat, place, run)
