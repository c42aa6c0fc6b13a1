"""Several requests in one step: they share the target's pass, and the draft's."""

from collections.abc import Callable

import pytest

from specstream.drafting.policy.records import Offer, Outlook
from tests.drafting.policy.simulator import Fixed, Machine, Result, Text, serve, text
from tests.drafting.policy.test_controller import DRAWINGS, FIXED, policy, seeds, texts

pytestmark = pytest.mark.slow


def roomy(tokens: int) -> float:
    return 8.0 + 0.02 * tokens


def knee(tokens: int) -> float:
    """Bound by weights up to 16 tokens, by arithmetic from there."""
    return 8.0 + 0.02 * tokens + 0.6 * max(tokens - 16, 0)


def linear(tokens: int) -> float:
    return 2.0 + 1.0 * tokens


def gpu(target: Callable[[int], float]) -> Machine:
    return Machine(target=target, step=1.0, row=0.05, other=0.1, other_plain=0.08)


def cpu() -> Machine:
    """Requests run one after the other: each adds a whole pass."""
    return Machine(target=lambda tokens: 2.8 + 0.035 * (tokens - 1), row=2.8)


def mixed(count: int, drawing: int = 0) -> list[Text]:
    """Easy, hard, hopeless and repetitive texts side by side."""
    return [
        text(
            100,
            seed,
            acceptance=lambda _, seed=seed: (0.85, 0.3, 0.0, 0.6)[seed % 4],  # type: ignore[misc]
            repeats=0.4 * (seed % 2),
            prompt=40,
        )
        for seed in seeds(count, drawing)
    ]


CASES: dict[str, tuple[Callable[[], Machine], int, Callable[[int], list[Text]]]] = {
    "roomy 4": (lambda: gpu(roomy), 4, lambda drawing: texts(16, 100, 0.75, drawing)),
    "roomy 8": (lambda: gpu(roomy), 8, lambda drawing: texts(24, 100, 0.75, drawing)),
    "roomy 8, mixed": (lambda: gpu(roomy), 8, lambda drawing: mixed(24, drawing)),
    "knee 4": (lambda: gpu(knee), 4, lambda drawing: texts(16, 100, 0.75, drawing)),
    "knee 8, mixed": (lambda: gpu(knee), 8, lambda drawing: mixed(24, drawing)),
    "knee 16": (lambda: gpu(knee), 16, lambda drawing: texts(32, 100, 0.75, drawing)),
    "linear 8": (lambda: gpu(linear), 8, lambda drawing: texts(24, 100, 0.75, drawing)),
    "cpu 4": (cpu, 4, lambda drawing: texts(16, 100, 0.75, drawing)),
    "cpu 4, mixed": (cpu, 4, lambda drawing: mixed(16, drawing)),
}


@pytest.mark.parametrize("interactive", [True, False], ids=["stoppable", "fixed length"])
@pytest.mark.parametrize("case", CASES)
def test_within_5_percent_of_the_best_fixed_choice(case: str, interactive: bool) -> None:
    machine, batch, workload = CASES[case]
    ratios = list[float]()
    for drawing in DRAWINGS:
        made = workload(drawing)
        best = min(serve(Fixed(*choice), made, machine(), batch=batch).ms for choice in FIXED)
        ms = serve(policy(machine(), stops=interactive), made, machine(), batch=batch).ms
        ratios.append(ms / best)
    assert sum(ratios) <= 1.05 * len(ratios)
    assert max(ratios) <= 1.15


def test_a_saturated_batch_decodes_plainly_and_says_so() -> None:
    machine = gpu(knee)
    chooser = policy(machine)
    result = serve(chooser, texts(48, 100, 0.75), machine, batch=24)
    full = [t for t in result.rounds if t.request < 24 and t.at < 40]
    assert sum(t.drafted > 0 for t in full) < 0.1 * len(full)
    assert "saturated" in chooser.explain().words


def drafted(result: Result, request: int) -> float:
    """The share of its rounds, but the first, in which a draft was tried."""
    rounds = [t for t in result.rounds if t.request == request][8:]
    return sum(t.plan.proposer == "draft" for t in rounds) / len(rounds)


def test_each_request_is_treated_as_it_deserves() -> None:
    machine = Machine(target=roomy, step=0.5, row=0.05, other=0.1, other_plain=0.08)
    result = serve(policy(machine), mixed(4), machine, batch=4)
    assert drafted(result, 0) > 0.9
    assert drafted(result, 2) < 0.3


def test_a_draft_that_just_about_pays_is_left_where_others_wait_for_it() -> None:
    """Three that gain nothing by it would have longer steps."""
    easy, *_ = mixed(1)
    hopeless = texts(3, 100, 0.0, informative=False)
    alone = serve(policy(gpu(roomy)), [easy], gpu(roomy), batch=1)
    assert drafted(alone, 0) > 0.9
    crowd = serve(policy(gpu(roomy)), [easy, *hopeless], gpu(roomy), batch=4)
    assert drafted(crowd, 0) < 0.6


def test_passes_are_shared_so_lengths_agree() -> None:
    """Without confidence, requests alike get lengths that differ little."""
    machine = gpu(roomy)
    chooser = policy(machine, stops=False)
    serve(chooser, texts(16, 100, 0.75), machine, batch=8)
    plans = chooser.plan(
        [Outlook(100 + i, True, 50, {"draft": Offer(50), "suffix": Offer(0)}) for i in range(8)]
    )
    lengths = [plan.num_tokens for plan in plans]
    assert min(lengths) >= 2 and max(lengths) - min(lengths) <= 1


def test_what_pays_only_with_a_very_good_draft_is_found_in_time() -> None:
    """Every token makes the pass longer, so that less than three in four accepted would be a loss."""
    machine = Machine(target=lambda tokens: 8.0 + 2.0 * tokens, step=3.0, row=0.0)
    chooser = policy(machine)
    serve(chooser, texts(48, 100, 0.95), machine, batch=8)
    made = texts(16, 100, 0.95)
    best = min(serve(Fixed(*choice), made, machine, batch=8).ms for choice in FIXED)
    assert serve(chooser, made, machine, batch=8).ms <= 1.06 * best
