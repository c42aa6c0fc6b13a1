"""A draft or a lookup that is always wrong costs next to nothing, and is noticed when it gets better."""

from collections.abc import Callable

import pytest

from specstream.drafting.policy.choice import Step
from specstream.drafting.policy.policy import Policy
from tests.drafting.policy.simulator import Machine, Text, Tried, serve, text
from tests.drafting.policy.test_controller import flat, policy, steep, texts

MACHINES: dict[str, Callable[[], Machine]] = {
    "weight-bound": lambda: Machine(target=flat),
    "float32": lambda: Machine(target=steep, step=0.5),
    "slow draft": lambda: Machine(target=flat, step=1.4),
    "draft slower than the target": lambda: Machine(target=flat, step=4.0),
}
LENGTH = 390


def hostile(lookup: bool, seed: int) -> Text:
    return text(
        LENGTH,
        seed,
        acceptance=lambda _: 0.0,
        informative=False,  # and its confidence says nothing
        hostile_lookup=lookup,
        prompt=50,
    )


def loss(rounds: list[Tried], machine: Machine, start: int, end: int) -> float:
    """Time for the tokens from ``start`` to ``end``, beyond plain decoding's; 0.05 is 5 %."""
    part = [t for t in rounds if start <= t.at < end]
    tokens = sum(t.accepted + 1 for t in part)
    return sum(t.ms for t in part) / (tokens * machine.plain_ms()) - 1.0


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "after good texts"])
@pytest.mark.parametrize("interactive", [True, False], ids=["stoppable", "fixed length"])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", ["draft", "suffix"])
def test_a_hostile_proposer_costs_at_most_5_percent(
    kind: str, machine: str, interactive: bool, warm: bool
) -> None:
    made = MACHINES[machine]()
    chooser = policy(made, kind, stops=interactive)
    if warm:
        serve(chooser, texts(3, 100, 0.8, repeats=0.5), made)
    rounds = serve(chooser, [hostile(kind == "suffix", 9)], made).rounds
    assert loss(rounds, made, 0, 32) <= 0.13
    assert loss(rounds, made, 32, LENGTH) <= 0.035
    assert loss(rounds, made, 0, LENGTH) <= 0.05


def test_many_short_replies_cost_no_more() -> None:
    """Nothing is tried anew with every request."""
    made = MACHINES["weight-bound"]()
    short = texts(60, 20, 0.0, informative=False, hostile_lookup=True)
    result = serve(policy(made), short, made)
    assert result.ms <= 1.05 * result.plain_ms


def returning(seed: int) -> Text:
    """Good, then hostile, then good again."""
    return text(900, seed, acceptance=lambda at: 0.0 if 200 <= at < 500 else 0.9, prompt=50)


def recovery(chooser: Policy, machine: Machine) -> int:
    """Rounds from the return of acceptance until the draft is in steady use."""
    after = [t for t in serve(chooser, [returning(5)], machine).rounds if t.at >= 500]
    for index in range(len(after) - 5):
        if all(t.plan.proposer == "draft" for t in after[index : index + 5]):
            return index
    return len(after)


@pytest.mark.parametrize("interactive", [True, False], ids=["stoppable", "fixed length"])
@pytest.mark.parametrize("machine", ["weight-bound", "float32"])
def test_returning_acceptance_is_noticed_within_32_rounds(machine: str, interactive: bool) -> None:
    made = MACHINES[machine]()
    assert recovery(policy(made, stops=interactive), made) <= 32


def test_a_controller_that_never_tries_again_would_fail_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "probe", lambda *_: None)
    made = MACHINES["weight-bound"]()
    assert recovery(policy(made), made) > 32


def test_a_sudden_failure_in_a_good_text_is_contained() -> None:
    made = MACHINES["weight-bound"]()
    rounds = serve(policy(made), [returning(5)], made).rounds
    assert loss(rounds, made, 200, 500) <= 0.05


def test_tries_are_spaced_and_bounded() -> None:
    made = MACHINES["weight-bound"]()
    rounds = serve(policy(made, "draft"), [hostile(False, 3)], made).rounds
    tried = [index for index, t in enumerate(rounds) if t.drafted and index > 100]
    gaps = [b - a for a, b in zip(tried, tried[1:])]
    assert tried and min(gaps) >= 8 and max(gaps) <= 32
    assert all(rounds[index].drafted <= 2 for index in tried)


def test_a_wrong_lookup_needs_no_tries() -> None:
    """What lookup would have said is compared with the text whether or not it was asked."""
    made = MACHINES["weight-bound"]()
    chooser = policy(made, "suffix")
    rounds = serve(chooser, [hostile(True, 3)], made).rounds
    assert all(t.plan.proposer == "off" for t in rounds[100:])
    good = texts(2, 200, 0.0, repeats=0.7, run=20.0)
    assert serve(chooser, good, made).speedup > 1.5
