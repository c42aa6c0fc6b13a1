"""The experiment: warms the arms up, then runs the cells until they or the budget are used up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from specstream.bench.arms.base import Arm, Ask, label
from specstream.bench.prompts import Prompt, PromptSet
from specstream.bench.records import Record, Run
from specstream.bench.schedule import Budget, Cell, turned
from specstream.errors import PromptError

__all__ = ["Outcome", "run_cells", "warm_up"]

WARM_UP_TOKENS = 32


@dataclass(slots=True)
class Outcome:
    """What came of it. ``records`` are those of complete cells only: every arm is in each.

    ``cut_short`` says why not all cells were run; empty if they were.
    """

    records: list[Record] = field(default_factory=list)
    cells: int = 0
    cut_short: str = ""


async def warm_up(
    arms: Sequence[Arm], prompts: PromptSet, ask: Ask, *, tokens: int = WARM_UP_TOKENS
) -> None:
    """Let every arm answer the first prompt of every other domain; nothing of it is kept.

    Raises:
        PromptError: a prompt that no model could take; names it.
    """
    short = replace(ask, max_tokens=min(ask.max_tokens, tokens))
    for domain in prompts.domains[::2]:
        for arm in arms:
            await _run(arm, prompts.of(domain)[0], short)


async def run_cells(
    arms: Sequence[Arm],
    cells: Iterable[Cell],
    ask: Ask,
    budget: Budget,
    outcome: Outcome,
    *,
    tell: Callable[[str], None] = lambda line: None,
    keep: Callable[[Record], None] = lambda record: None,
) -> None:
    """Run cell after cell into ``outcome``, which holds what there is even when this is cancelled.

    A cell begins only if one like those before it fits the budget; but the first cell of a domain
    always runs, so that no domain is left without a figure. ``keep`` is given each record at once.

    Raises:
        PromptError: a prompt that doesn't fit the model; names it.
    """
    longest = 0.0
    for cell in cells:
        if cell.visit and not budget.allows(longest):
            outcome.cut_short = "the time budget was used up"
            continue  # not break: a domain's first cell may still be to come
        started = budget.used
        done: list[Record] = []
        for place, arm in enumerate(turned(arms, cell.visit)):
            seeded = replace(ask, seed=ask.seed + 7919 * cell.repeat)
            run = await _run(arm, cell.prompt, seeded)
            record = Record(
                cell.prompt.domain, cell.prompt.id, arm.name, arm.setting, cell.repeat, place, run
            )
            done.append(record)
            keep(record)
        outcome.records += done
        outcome.cells += 1
        longest = max(longest, budget.used - started)
        tell(_progress(cell, done))


async def _run(arm: Arm, prompt: Prompt, ask: Ask) -> Run:
    try:
        return await arm.run(replace(ask, messages=prompt.messages))
    except PromptError as error:
        raise PromptError(f"prompt {prompt.id}: {error}") from error


def _progress(cell: Cell, done: Sequence[Record]) -> str:
    speeds = [
        f"{label(r.arm, r.setting)} {r.run.decode_tokens / r.run.decode_ms * 1e3:.0f}"
        for r in sorted(done, key=lambda r: (r.arm, r.setting))
        if r.run.decode_ms > 0
    ]
    return f"{cell.prompt.id} ({cell.repeat + 1}): {', '.join(speeds)} tokens/s"
