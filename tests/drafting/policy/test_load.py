"""Whether drafts are made under load is decided by what steps with and without them have taken."""

from collections.abc import Callable
from random import Random

import pytest

from specstream.drafting.policy.costs import Load
from specstream.drafting.policy.records import Offer, Outlook, RoundPlan
from tests.drafting.policy.simulator import serve
from tests.drafting.policy.test_batch import gpu, roomy
from tests.drafting.policy.test_controller import policy, texts


def run(
    load: Load, steps: int, gain: Callable[[int], float], *, requests: int = 16, noise: float = 0.0
) -> list[bool]:
    """Which of so many steps have drafts, if those are ``gain`` times as fast as the others."""
    random, kinds = Random(1), list[bool]()
    for step in range(steps):
        drafts = load.drafts(requests)
        speed = (gain(step) if drafts else 1.0) * random.lognormvariate(0.0, noise)
        load.observe(requests, requests, 10.0 / speed, 10.0)
        kinds.append(drafts)
    return kinds


@pytest.mark.parametrize("noise", [0.0, 0.15])
@pytest.mark.parametrize(("gain", "drafts"), [(0.8, False), (0.9, False), (1.2, True)])
def test_the_better_kind_is_taken_for_nearly_all_steps(gain: float, drafts: bool, noise: float) -> None:
    kinds = run(Load(), 2000, lambda step: gain, noise=noise)
    assert kinds[500:].count(drafts) > 0.95 * 1500
    time = sum(1 / gain if kind else 1.0 for kind in kinds)
    assert time < 1.03 * 2000 * min(1.0, 1 / gain)


def test_few_requests_are_left_to_the_cost_model() -> None:
    for requests in (1, 2):
        assert all(run(Load(), 500, lambda step: 0.5, requests=requests))


@pytest.mark.parametrize("requests", [3, 4, 5, 8])
def test_some_requests_are_left_to_it_until_their_drafts_lose(requests: int) -> None:
    assert all(run(Load(), 500, lambda step: 1.0, requests=requests))
    assert all(run(Load(), 500, lambda step: 1.3, requests=requests, noise=0.1))
    kinds = run(Load(), 2000, lambda step: 0.8, requests=requests, noise=0.1)
    assert all(kinds[:6]) and kinds.count(True) < 0.1 * 2000
    kinds = run(Load(), 4000, lambda step: 0.8 if step < 1500 else 1.3, requests=requests)
    assert kinds[3000:].count(True) > 900


@pytest.mark.parametrize("begin", range(6, 60, 5))
def test_a_slow_machine_costs_some_requests_a_few_drafts_only(begin: int) -> None:
    load, kinds = Load(), list[bool]()
    for step in range(1000):
        kind = load.drafts(8)
        slow = 2.5 if begin <= step < begin + 120 else 1.0
        load.observe(8, 8, 10.0 * slow / (1.2 if kind else 1.0), 10.0)
        kinds.append(kind)
    assert kinds.count(True) > 0.85 * 1000


def test_a_change_is_found() -> None:
    kinds = run(Load(), 4000, lambda step: 0.8 if step < 1500 else 1.3)
    assert kinds[1000:1500].count(False) > 450
    assert kinds[3000:].count(True) > 900


@pytest.mark.parametrize("begin", range(600, 700, 7))
@pytest.mark.parametrize(("gain", "drafts"), [(0.85, False), (1.2, True)])
def test_a_machine_that_is_slow_for_a_while_changes_no_choice(
    begin: int, gain: float, drafts: bool
) -> None:
    """Other work slows steps of both kinds, from any moment on and for as long as it likes."""
    load, kinds = Load(), list[bool]()
    for step in range(1400):
        kind = load.drafts(16)
        slow = 2.5 if begin <= step < begin + 120 else 1.0
        load.observe(16, 16, 10.0 * slow / (gain if kind else 1.0), 10.0)
        kinds.append(kind)
    assert kinds[begin : begin + 400].count(drafts) > 0.85 * 400


def test_sizes_are_judged_apart() -> None:
    load = Load()
    run(load, 300, lambda step: 0.7, requests=16)
    assert not load.drafts(16)
    assert not load.drafts(31)
    assert load.drafts(15)
    assert load.drafts(32)


def test_a_step_that_took_no_time_is_no_sample() -> None:
    load = Load()
    for _ in range(100):
        load.observe(16, 16, 0.0, 10.0)
        load.observe(16, 16, 10.0, 0.0)
        assert load.drafts(16)


def test_a_plain_step_teaches_nothing_about_drafts() -> None:
    """What a few requests draft is the same before and after many steps of a crowd without drafts."""
    machine = gpu(roomy)
    chooser = policy(machine)
    serve(chooser, texts(16, 100, 0.8), machine, batch=4)

    def planned(first: int) -> list[RoundPlan]:
        ids = range(first, first + 4)
        offers = {"draft": Offer(50), "suffix": Offer(0)}
        plans = chooser.plan([Outlook(i, True, 50, offers) for i in ids])
        for i in ids:
            chooser.forget(i)
        return plans

    before = planned(100)
    for _ in range(300):
        times = machine.round(0, 0, 16, 16, False)
        chooser.observe_plain(times, dict.fromkeys(range(1000, 1016), True))
    said = chooser.explain(1000)
    assert "16" in said.words and (said.predicted_speedup or 1.0) == pytest.approx(1.0, abs=0.05)
    for i in range(1000, 1016):
        chooser.forget(i)
    after = planned(200)
    assert [plan.proposer for plan in after] == [plan.proposer for plan in before] == ["draft"] * 4
    assert [plan.num_tokens for plan in after] == [plan.num_tokens for plan in before]
