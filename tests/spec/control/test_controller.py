"""The controller against fixed policies in a simulated world."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specstream.spec.control import Controller, Costs, Kind
from tests.spec.control.simulator import Fixed, Machine, Text, serve, text

ALL: frozenset[Kind] = frozenset({"draft", "ngram", "off"})


def costs(machine: Machine) -> Costs:
    made = Costs()
    made.seed(
        machine.step,
        {n: machine.target(n) for n in (1, 2, 5, 9, 17, 33, 65)},
        draft_read_ms=machine.read,
        other_ms=machine.other,
        other_plain_ms=machine.other_plain,
        row_ms=machine.row,
    )
    return made


def controller(
    machine: Machine,
    *,
    kinds: frozenset[Kind] = ALL,
    max_tokens: int = 12,
    interactive: bool = True,
) -> Controller:
    return Controller(
        kinds=kinds, max_tokens=max_tokens, interactive=interactive, costs=costs(machine)
    )


def flat(tokens: int) -> float:
    return 2.8 + 0.035 * (tokens - 1)


def steep(tokens: int) -> float:
    """As on a CPU in float32: the second token costs a half, the next ones little, then more."""
    return 5.5 + 2.3 * min(tokens - 1, 1) + 0.05 * (tokens - 1) + 0.2 * max(tokens - 8, 0)


def many(count: int, length: int, **options: object) -> list[Text]:
    return [text(length, seed, **options) for seed in range(count)]  # type: ignore[arg-type]


def alternating(at: int) -> float:
    return 0.95 if (at // 40) % 2 else 0.3


WORKLOADS: dict[str, Callable[[], list[Text]]] = {
    "dialogue": lambda: many(24, 60, acceptance=lambda _: 0.75, prompt=80),
    "narration": lambda: many(8, 200, acceptance=lambda _: 0.95, prompt=50),
    "hard": lambda: many(10, 150, acceptance=lambda _: 0.25, prompt=50),
    "rewriting": lambda: many(10, 150, acceptance=lambda _: 0.5, repeats=0.7, run=20, prompt=200),
    "code": lambda: many(10, 150, acceptance=lambda _: 0.45, repeats=0.4, run=8, prompt=40),
    "alternating": lambda: many(8, 240, acceptance=alternating, prompt=50),
    "unsure": lambda: many(10, 150, acceptance=lambda _: 0.75, informative=False, prompt=50),
    "sampled": lambda: many(10, 150, acceptance=lambda _: 0.7, greedy=False, prompt=50),
}
MACHINES = {
    "weight-bound": lambda: Machine(target=flat),
    "float32": lambda: Machine(target=steep, step=0.5),
    "slow-draft": lambda: Machine(target=flat, step=1.2),
}
FIXED: list[tuple[Kind, int]] = [
    *(("draft", k) for k in range(1, 13)),
    *(("ngram", k) for k in (1, 2, 4, 8, 12)),
    ("off", 0),
]


def best_fixed(texts: list[Text], machine: Machine) -> tuple[float, str]:
    return min((serve(Fixed(k, n), texts, machine).ms, f"{k} {n}") for k, n in FIXED)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_as_fast_as_the_best_fixed_choice(workload: str, machine: str) -> None:
    made = MACHINES[machine]()
    texts = WORKLOADS[workload]()
    fixed_ms, name = best_fixed(texts, made)
    for interactive in (True, False):
        ms = serve(controller(made, interactive=interactive), texts, made).ms
        assert ms <= 1.05 * fixed_ms, (interactive, name, ms / fixed_ms)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_predicts_its_speedup(workload: str, machine: str) -> None:
    made = MACHINES[machine]()
    for interactive in (True, False):
        control = controller(made, interactive=interactive)
        result = serve(control, WORKLOADS[workload](), made)
        predicted = control.explain().predicted_speedup
        assert predicted == pytest.approx(result.speedup, rel=0.1), control.explain()
