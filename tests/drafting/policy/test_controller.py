"""The policy against every fixed choice, in a simulated world."""

import itertools
from collections.abc import Callable
from functools import cache

import pytest

from specstream.drafting.policy.costs import Costs, DraftCosts
from specstream.drafting.policy.policy import Policy
from specstream.drafting.policy.records import Candidate, Offer, Outlook, RoundOutcome, RoundTimes
from specstream.drafting.proposers.suffix import SUFFIX_LOOKUP, lookup_offer
from tests.drafting.policy.simulator import Fixed, Machine, Result, Text, serve, text

pytestmark = pytest.mark.slow


def costs(machine: Machine) -> Costs:
    made = Costs({n: machine.target(n) for n in (1, 2, 5, 9, 17, 33, 65)}, row_ms=machine.row)
    made.drafts["draft"] = DraftCosts(machine.step, machine.read)
    return made


def candidates(*names: str, stops: bool = True) -> list[Candidate]:
    draft = Candidate("draft", "the draft model", stops=stops)
    return [c for c in (draft, SUFFIX_LOOKUP) if c.name in names]


def policy(
    machine: Machine, *names: str, max_tokens: int = 12, stops: bool = True, known: Costs | None = None
) -> Policy:
    """With the candidates of these names; none: with all."""
    chosen = candidates(*(names or ("draft", "suffix")), stops=stops)
    return Policy(chosen, known or costs(machine), max_tokens=max_tokens)


def flat(tokens: int) -> float:
    return 2.8 + 0.035 * (tokens - 1)


def steep(tokens: int) -> float:
    """As on a CPU in float32: the second token costs a half, the next ones little, then more."""
    return 5.5 + 2.3 * min(tokens - 1, 1) + 0.05 * (tokens - 1) + 0.2 * max(tokens - 8, 0)


def seeds(count: int, drawing: int) -> range:
    """The seeds of a workload's texts in one of its drawings."""
    return range(1_000 * drawing, 1_000 * drawing + count)


def texts(count: int, length: int, acceptance: float, drawing: int = 0, **options: object) -> list[Text]:
    options.setdefault("prompt", 50)
    return [
        text(length, seed, acceptance=lambda _: acceptance, **options)  # type: ignore[arg-type]
        for seed in seeds(count, drawing)
    ]


def alternating(drawing: int = 0) -> list[Text]:
    """Easy and hard passages in turn."""
    return [
        text(240, seed, acceptance=lambda at: 0.95 if (at // 40) % 2 else 0.3, prompt=50)
        for seed in seeds(5, drawing)
    ]


# By number of the drawing. What a policy takes for one of them depends on the luck of a few tokens, so
# the tests go by the mean of three.
DRAWINGS = range(3)
WORKLOADS: dict[str, Callable[..., list[Text]]] = {
    "dialogue": lambda drawing=0: texts(20, 60, 0.75, drawing, prompt=80),
    "narration": lambda drawing=0: texts(6, 200, 0.95, drawing),
    "hard": lambda drawing=0: texts(8, 150, 0.25, drawing),
    "rewriting": lambda drawing=0: texts(8, 150, 0.5, drawing, repeats=0.7, run=20.0, prompt=200),
    "code": lambda drawing=0: texts(8, 150, 0.45, drawing, repeats=0.4, run=8.0),
    "alternating": alternating,
    "unsure": lambda drawing=0: texts(8, 150, 0.75, drawing, informative=False),
    "sampled": lambda drawing=0: texts(8, 150, 0.7, drawing, greedy=False),
}
MACHINES: dict[str, Callable[[], Machine]] = {
    "weight-bound": lambda: Machine(target=flat),
    "float32": lambda: Machine(target=steep, step=0.5),
    "slow draft": lambda: Machine(target=flat, step=1.2),
    "slow start": lambda: Machine(target=flat, step=0.4, start=0.5),
}
FIXED: list[tuple[str, int]] = [
    *(("draft", k) for k in range(1, 13)),
    *(("suffix", k) for k in (1, 2, 4, 8, 12)),
    ("off", 0),
]


@cache
def best_fixed(workload: str, machine: str, drawing: int = 0) -> float:
    """The time that the best fixed kind and number take."""
    made = WORKLOADS[workload](drawing)
    return min(serve(Fixed(*choice), made, MACHINES[machine]()).ms for choice in FIXED)


@cache
def served(workload: str, machine: str, interactive: bool, drawing: int = 0) -> tuple[Result, float]:
    made = MACHINES[machine]()
    chooser = policy(made, stops=interactive)
    result = serve(chooser, WORKLOADS[workload](drawing), made)
    return result, chooser.explain().predicted_speedup


everywhere = pytest.mark.parametrize(
    ("workload", "machine", "interactive"),
    [
        pytest.param(*case, id="-".join((*case[:2], "stoppable" if case[2] else "fixed length")))
        for case in itertools.product(WORKLOADS, MACHINES, (True, False))
    ],
)


@everywhere
def test_within_5_percent_of_the_best_fixed_choice(
    workload: str, machine: str, interactive: bool
) -> None:
    ratios = list[float]()
    for drawing in DRAWINGS:
        result, _ = served(workload, machine, interactive, drawing)
        ratios.append(result.ms / best_fixed(workload, machine, drawing))
    assert sum(ratios) <= 1.05 * len(ratios)
    assert max(ratios) <= 1.15


@everywhere
def test_predicts_the_speedup_within_10_percent(workload: str, machine: str, interactive: bool) -> None:
    result, predicted = served(workload, machine, interactive)
    assert predicted == pytest.approx(result.speedup, rel=0.1)


def test_stopping_by_confidence_beats_every_fixed_length() -> None:
    for workload in ("dialogue", "alternating", "sampled"):
        result, _ = served(workload, "weight-bound", True)
        assert result.ms < 0.97 * best_fixed(workload, "weight-bound")


def test_draft_and_lookup_together_beat_either() -> None:
    for workload in ("rewriting", "code"):
        result, _ = served(workload, "weight-bound", True)
        assert result.ms < 0.97 * best_fixed(workload, "weight-bound")
        assert {t.plan.proposer for t in result.rounds} >= {"draft", "suffix"}


def test_a_passage_that_lookup_repeats_does_not_make_the_draft_seem_dear_elsewhere() -> None:
    """Tokens come quickly there; where lookup finds nothing they don't, and a draft saves as many."""
    machine = Machine(target=flat, step=0.6)
    made = texts(8, 150, 0.7, repeats=0.6, run=30.0)
    rounds = serve(policy(machine), made, machine).rounds
    elsewhere = [t for t in rounds[20:] if made[t.request].offer[t.at] == (0, 0, 0)]
    assert sum(t.plan.proposer == "off" for t in elsewhere) < 0.2 * len(elsewhere)


def test_the_first_reply_already_speculates() -> None:
    machine = Machine(target=flat)
    result = serve(policy(machine), texts(1, 40, 0.75), machine)
    assert [t.plan.proposer for t in result.rounds[:2]] == ["draft", "draft"]
    assert result.speedup > 1.5


def test_the_second_request_starts_where_the_first_one_ended() -> None:
    machine = Machine(target=flat)
    chooser = policy(machine)
    good, bad = texts(2, 150, 0.9), texts(30, 100, 0.0, informative=False)
    serve(chooser, good, machine)
    sure = serve(chooser, texts(1, 12, 0.9), machine).rounds[0]
    assert sure.plan.proposer == "draft" and sure.drafted > 4
    serve(chooser, bad, machine)
    wary = serve(chooser, texts(1, 12, 0.0, informative=False), machine).rounds[0]
    assert wary.plan.proposer == "off"


def test_noise_and_stalls_do_not_upset_it() -> None:
    calm = MACHINES["weight-bound"]()
    made = WORKLOADS["dialogue"]()
    steady = serve(policy(calm), made, calm).ms
    off = list[float]()
    for seed in range(7, 13):
        rough = Machine(target=flat, noise=0.3, stalls=0.02, seed=seed)
        chooser = policy(rough)
        shaken = serve(chooser, made, rough)
        assert shaken.ms <= 1.03 * steady
        off.append(chooser.explain().predicted_speedup / shaken.speedup)
    assert sum(off) / len(off) == pytest.approx(1.0, abs=0.08)


def test_follows_a_machine_that_changes() -> None:
    """The draft's device slows down fivefold; the policy started from the old calibration."""
    machine = Machine(target=flat)
    chooser = policy(machine)
    serve(chooser, WORKLOADS["dialogue"](), machine)
    slowed = Machine(target=flat, step=5 * machine.step)
    serve(chooser, WORKLOADS["dialogue"](), slowed)
    settled = serve(chooser, WORKLOADS["dialogue"](), slowed)
    best = min(serve(Fixed(*choice), WORKLOADS["dialogue"](), slowed).ms for choice in FIXED)
    assert settled.ms <= 1.05 * best


def test_a_wrong_calibration_is_overcome() -> None:
    machine = Machine(target=flat)
    made = Costs({1: 2.0, 9: 3.6})  # too steep
    made.drafts["draft"] = DraftCosts(0.9)  # three times too slow
    chooser = policy(machine, known=made)
    workload = texts(12, 200, 0.85)
    serve(chooser, workload, machine)
    again = serve(chooser, workload, machine)
    best = min(serve(Fixed(*choice), workload, machine).ms for choice in FIXED)
    assert again.ms <= 1.05 * best


def test_a_draft_that_was_timed_on_a_busy_machine_is_soon_used() -> None:
    """Ten times too slow, and nothing else amiss: the first tries say so, and are believed."""
    machine = Machine(target=flat)
    made = Costs({width: flat(width) for width in (1, 2, 5, 9)})
    made.drafts["draft"] = DraftCosts(10 * machine.step)
    chooser = policy(machine, known=made)
    workload = texts(4, 120, 0.85)
    first = serve(chooser, workload, machine)
    best = min(serve(Fixed(*choice), workload, machine).ms for choice in FIXED)
    assert first.ms <= 1.3 * best


@pytest.mark.parametrize("times", [8, 25, 90])
def test_a_calibration_beside_other_work_is_overcome_in_short_replies(times: int) -> None:
    """Both models many times too slow, as where threads wait for cores; replies of 24 tokens."""
    machine = Machine(target=flat, start=0.1)
    made = Costs({width: 5.0 * flat(width) for width in (1, 2, 6, 9)})
    made.drafts["draft"] = DraftCosts(times * machine.step, read_ms=0.0)
    workload = texts(40, 24, 0.75, prompt=80)
    found = serve(policy(machine, known=made), workload, machine)
    best = min(serve(Fixed(*choice), workload, machine).ms for choice in FIXED)
    assert found.ms <= best


def test_no_draft_reads_a_long_prompt_for_a_short_reply() -> None:
    """It learns how long replies are, and whether they are worth the reading."""
    machine = Machine(target=flat, read=0.05)
    chooser = policy(machine)
    made = texts(60, 6, 0.75, prompt=600)
    serve(chooser, made[:40], machine)
    assert serve(chooser, made[40:], machine).speedup > 0.98


def test_proposals_keep_to_the_budget_and_the_offer() -> None:
    machine = Machine(target=flat)
    chooser = policy(machine)
    serve(chooser, texts(2, 60, 0.9, repeats=0.4), machine)
    for budget in range(5):
        for offer in range(4):
            lookup = lookup_offer(range(offer), min(offer, 1), 0)
            outlook = Outlook(99, True, budget, {"draft": Offer(budget), "suffix": lookup})
            plan = chooser.plan([outlook])[0]
            limit = min(budget, offer) if plan.proposer == "suffix" else budget
            assert plan.num_tokens <= limit
            assert (plan.num_tokens == 0) == (plan.proposer == "off")


def test_kinds_that_are_not_allowed_are_not_used() -> None:
    machine = Machine(target=flat)
    made = texts(3, 80, 0.9, repeats=0.4)
    for names in ("nobody", "suffix", "draft"):
        result = serve(policy(machine, names), made, machine)
        assert {t.plan.proposer for t in result.rounds} <= {names, "off"}


def test_a_draft_that_falls_silent_is_left_alone() -> None:
    machine = Machine(target=flat)
    chooser = policy(machine)
    kinds = []
    for _ in range(40):
        plan = chooser.plan([Outlook(1, True, 50, {"draft": Offer(50), "suffix": Offer(0)})])[0]
        kinds.append(plan.proposer)
        chooser.observe(machine.round(0, 0, 1, 1, False), [RoundOutcome(1, plan, 0, 0)])
    assert kinds.count("draft") == 3


def test_the_same_world_gives_the_same_plans() -> None:
    def run() -> list[tuple[str, int, int]]:
        machine = Machine(target=flat, noise=0.2, seed=3)
        result = serve(policy(machine), WORKLOADS["code"](), machine)
        return [(t.plan.proposer, t.plan.num_tokens, t.drafted) for t in result.rounds]

    assert run() == run()


def test_forgetting_keeps_nothing_of_a_request() -> None:
    machine = Machine(target=flat)
    chooser = policy(machine)
    serve(chooser, texts(5, 30, 0.7), machine)
    assert not chooser.requests
    chooser.forget(3)  # twice, or never seen: no matter
    chooser.observe(RoundTimes(0, 0, 0, 3, 1, 1, 1), [])
    assert chooser.plan([]) == []


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        policy(Machine(), max_tokens=0)
