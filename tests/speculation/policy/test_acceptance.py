"""What is learned of drafts and lookups, against worlds whose chances are known."""

from __future__ import annotations

import random

import pytest

from specstream.speculation.policy.draft_acceptance import DraftAcceptance, DraftHabits
from specstream.speculation.policy.lookup_acceptance import LookupAcceptance, LookupHabits


def judge(rng: random.Random, chances: list[float]) -> int:
    accepted = 0
    while accepted < len(chances) and rng.random() < chances[accepted]:
        accepted += 1
    return accepted


def test_only_what_was_judged_is_counted() -> None:
    """After a rejection nothing is known of the tokens behind it: they'd drag the chances down."""
    rng = random.Random(5)
    common = DraftAcceptance(greedy=True)
    for _ in range(300):
        habits = DraftHabits(common)
        accepted = judge(rng, [0.8] * 6)
        habits.observe(accepted, (), 6)
    for chance in (common.opening[0], *common.at_depth[:3]):
        assert chance.value == pytest.approx(0.8, abs=0.08)


@pytest.mark.parametrize("greedy", [True, False])
def test_confidence_is_calibrated(greedy: bool) -> None:
    """A draft that overstates itself: what it says with 0.9 stands six times in ten."""
    rng = random.Random(6)
    common = DraftAcceptance(greedy)
    for _ in range(400):
        habits = DraftHabits(common)
        for _ in range(3):
            says = [rng.choice((0.35, 0.92)) for _ in range(4)]
            accepted = judge(rng, [0.3 if q < 0.5 else 0.6 for q in says])
            habits.observe(accepted, tuple(says), 4)
    assert common.of_confidence[3].value == pytest.approx(0.3, abs=0.08)
    assert common.of_confidence[9].value == pytest.approx(0.6, abs=0.08)


def test_a_draft_that_just_failed_is_likelier_to_fail_again() -> None:
    """Easy and hard passages follow one another; how the last round went says which one this is."""
    rng = random.Random(12)
    common = DraftAcceptance(greedy=True)
    for _ in range(30):
        habits = DraftHabits(common)
        for passage in range(10):
            for _ in range(6):
                habits.observe(judge(rng, [0.95 if passage % 2 else 0.3] * 3), (), 3)
    assert common.opening[1].value + 0.2 < common.opening[3].value


def test_a_request_is_told_apart_from_the_others() -> None:
    rng = random.Random(7)
    common = DraftAcceptance(greedy=True)
    easy, hard = DraftHabits(common), DraftHabits(common)
    for _ in range(80):
        easy.observe(judge(rng, [0.9] * 4), (), 4)
        hard.observe(judge(rng, [0.35] * 4), (), 4)
    assert easy.first() > hard.first() + 0.15
    assert easy.lean.value > 0.3 > -0.3 > hard.lean.value
    assert hard.fixed(3)[0] == pytest.approx(hard.first(), abs=0.05)
    assert hard.fixed(3) == sorted(hard.fixed(3), reverse=True)


def test_a_broken_spell_leaves_what_was_learned() -> None:
    rng = random.Random(8)
    common = DraftAcceptance(greedy=True)
    habits = DraftHabits(common)
    for _ in range(100):
        habits.observe(judge(rng, [0.85] * 4), (), 4)
    sound = common.opening[3].value
    for _ in range(100):
        habits.observe(0, (), 2)
    assert habits.first() < 0.1
    assert common.opening[3].value > sound - 0.1
    for _ in range(3):
        habits.observe(2, (), 2)
    assert habits.first() > 0.5


def test_lengths_are_learned_and_cut_to_a_cap() -> None:
    habits = DraftHabits(DraftAcceptance(greedy=True))
    for _ in range(60):
        habits.observe(4, (), 6)
        habits.observe_length(4, 6)
    accepted, drafted = habits.free(12, 12)
    assert drafted == pytest.approx(6.0, abs=0.3)
    assert accepted == pytest.approx(4.0, abs=0.4)
    one = habits.free(1, 12)
    assert one[1] == 1.0 and one[0] == pytest.approx(habits.first())
    assert one[0] < habits.free(3, 12)[0] < accepted


@pytest.mark.parametrize("support", [0, 1, 2])
def test_lookup_learns_by_how_much_was_found_again(support: int) -> None:
    rng = random.Random(9)
    common = LookupAcceptance()
    for _ in range(200):
        habits = LookupHabits(common)
        for match, first in ((1, 0.2), (3, 0.9)):
            habits.observe(match, support, 3, judge(rng, [first, 0.9, 0.9]))
    assert common.first[support][0].value == pytest.approx(0.2, abs=0.08)
    assert common.first[support][2].value == pytest.approx(0.9, abs=0.08)
    assert common.later[2].value == pytest.approx(0.9, abs=0.08)
    fresh = LookupHabits(common)
    assert fresh.survival(1, support, 1)[0] < 0.25 < 0.6 < fresh.survival(3, support, 1)[0]


def test_lookup_learns_whether_another_place_went_on_the_same() -> None:
    """The same match, once with a second place that agrees, once with one that does not."""
    rng = random.Random(10)
    common = LookupAcceptance()
    for _ in range(200):
        habits = LookupHabits(common)
        habits.observe(2, 2, 2, judge(rng, [0.9, 0.8]))
        habits.observe(2, 1, 2, judge(rng, [0.3, 0.8]))
    agrees, differs = (LookupHabits(common).survival(2, support, 3) for support in (2, 1))
    assert agrees[0] > 2.0 * differs[0]
    assert agrees[1] / agrees[0] == pytest.approx(differs[1] / differs[0])  # from there on alike


def test_a_longer_offer_is_never_likelier_to_stand() -> None:
    habits = LookupHabits(LookupAcceptance())
    for match in (1, 2, 5, 30, 100):
        survival = habits.survival(match, 0, 40)
        assert len(survival) == 40 or survival[-1] < 0.003  # what is left out is next to nothing
        assert survival == sorted(survival, reverse=True)


def test_a_text_that_only_seems_to_repeat_itself() -> None:
    common = LookupAcceptance()
    habits = LookupHabits(common)
    for _ in range(12):
        habits.observe(3, 0, 1, 0)
    assert habits.survival(3, 0, 1)[0] < 0.1
    assert LookupHabits(common).survival(3, 0, 1)[0] > 0.2  # other texts may be different
