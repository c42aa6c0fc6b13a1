"""What is learned of drafts and lookups, against worlds whose chances are known."""

import random

import pytest

from specstream.drafting.policy.acceptance import (
    CandidateAcceptance,
    ChainStop,
    Lockstep,
    RequestAcceptance,
)
from specstream.drafting.policy.records import Candidate, Offer
from specstream.drafting.proposers.suffix import SUFFIX_LOOKUP, lookup_offer

DRAFT = Candidate("draft", "the draft model", stops=True)
OFFER = Offer(12)


def judge(rng: random.Random, chances: list[float]) -> int:
    accepted = 0
    while accepted < len(chances) and rng.random() < chances[accepted]:
        accepted += 1
    return accepted


def test_only_what_was_judged_is_counted() -> None:
    """After a rejection nothing is known of the tokens behind it: they'd drag the chances down."""
    rng = random.Random(5)
    common = CandidateAcceptance(DRAFT)
    for _ in range(300):
        habits = RequestAcceptance(common)
        accepted = judge(rng, [0.8] * 6)
        habits.observe(OFFER, accepted, 6)
    for chance in common.chances:
        assert chance.value == pytest.approx(0.8, abs=0.08)


def test_confidence_is_calibrated() -> None:
    """A draft that overstates itself: what it says with 0.9 stands six times in ten."""
    rng = random.Random(6)
    common = CandidateAcceptance(DRAFT)
    for _ in range(400):
        habits = RequestAcceptance(common)
        for _ in range(3):
            says = [rng.choice((0.35, 0.92)) for _ in range(4)]
            accepted = judge(rng, [0.3 if q < 0.5 else 0.6 for q in says])
            habits.observe(OFFER, accepted, 4, says)
    assert common.of_confidence[3].value == pytest.approx(0.3, abs=0.08)
    assert common.of_confidence[9].value == pytest.approx(0.6, abs=0.08)


def test_a_request_is_told_apart_from_the_others() -> None:
    rng = random.Random(7)
    common = CandidateAcceptance(DRAFT)
    easy, hard = RequestAcceptance(common), RequestAcceptance(common)
    for _ in range(80):
        easy.observe(OFFER, judge(rng, [0.9] * 4), 4)
        hard.observe(OFFER, judge(rng, [0.35] * 4), 4)
    assert easy.survival(OFFER, 1)[0] > hard.survival(OFFER, 1)[0] + 0.1
    assert hard.survival(OFFER, 3)[0] == pytest.approx(hard.survival(OFFER, 1)[0], abs=0.05)
    assert hard.first(OFFER) == pytest.approx(hard.survival(OFFER, 1)[0])
    assert hard.survival(OFFER, 3) == sorted(hard.survival(OFFER, 3), reverse=True)


def test_a_broken_spell_is_noticed_and_ends_with_hits() -> None:
    rng = random.Random(8)
    common = CandidateAcceptance(DRAFT)
    habits = RequestAcceptance(common)
    for _ in range(100):
        habits.observe(OFFER, judge(rng, [0.85] * 4), 4)
    for _ in range(8):
        habits.observe(OFFER, 0, 2)
    assert habits.survival(OFFER, 1)[0] < 0.1
    assert RequestAcceptance(common).survival(OFFER, 1)[0] > 0.7  # other requests may be different
    habits.observe(OFFER, 2, 2)
    assert habits.survival(OFFER, 1)[0] > 0.5


def test_second_tokens_are_drafted_again_after_three_misses() -> None:
    """A rate learned from few trials must not forbid what would correct it."""
    rng = random.Random(12)
    common = CandidateAcceptance(DRAFT)
    for _ in range(3):
        RequestAcceptance(common).observe(OFFER, 1, 2, (0.99, 0.99))
    for _ in range(100):
        RequestAcceptance(common).observe(OFFER, judge(rng, [0.95]), 1, (0.99,))
    go_on = ChainStop(RequestAcceptance(common), Lockstep(0.4, 0.0, [0.0] * 9, 1), 5)
    assert go_on(0.99)


def test_lengths_of_a_draft_that_is_free_to_stop_are_learned() -> None:
    habits = RequestAcceptance(CandidateAcceptance(DRAFT))
    for _ in range(60):
        habits.observe(OFFER, 4, 6, free=True)
    assert habits.free(OFFER, 60) == pytest.approx((4.0, 6.0), abs=0.4)
    made = [habits.free(OFFER, most) for most in (1, 2, 4, 60)]
    assert made == sorted(made)
    assert made[0] == pytest.approx((habits.first(OFFER), 1.0))
    for most, (accepted, drafted) in zip((1, 2, 4), made, strict=False):
        assert accepted < most and drafted <= most


@pytest.mark.parametrize("support", [0, 1, 2])
def test_lookup_learns_by_how_much_was_found_again(support: int) -> None:
    rng = random.Random(9)
    common = CandidateAcceptance(SUFFIX_LOOKUP)
    for _ in range(200):
        habits = RequestAcceptance(common)
        for match, first in ((1, 0.2), (3, 0.9)):
            offer = lookup_offer(range(3), match, support)
            habits.observe(offer, judge(rng, [first, 0.9, 0.9]), 3)
    assert common.chances[6 * support].value == pytest.approx(0.2, abs=0.08)
    assert common.chances[6 * support + 2].value == pytest.approx(0.9, abs=0.08)
    later = lookup_offer(range(3), 3, support).evidence[1]
    assert common.chances[later].value == pytest.approx(0.9, abs=0.08)
    fresh = RequestAcceptance(common)
    assert (
        fresh.survival(lookup_offer(range(1), 1, support), 1)[0]
        < 0.25
        < 0.6
        < fresh.survival(lookup_offer(range(1), 3, support), 1)[0]
    )


def test_lookup_learns_whether_another_place_went_on_the_same() -> None:
    """The same match, once with a second place that agrees, once with one that does not."""
    rng = random.Random(10)
    common = CandidateAcceptance(SUFFIX_LOOKUP)
    for _ in range(200):
        habits = RequestAcceptance(common)
        habits.observe(lookup_offer(range(2), 2, 2), judge(rng, [0.9, 0.8]), 2)
        habits.observe(lookup_offer(range(2), 2, 1), judge(rng, [0.3, 0.8]), 2)
    agrees, differs = (
        RequestAcceptance(common).survival(lookup_offer(range(3), 2, support), 3) for support in (2, 1)
    )
    assert agrees[0] > 2.0 * differs[0]
    assert agrees[1] / agrees[0] == pytest.approx(differs[1] / differs[0])  # from there on alike


def test_a_longer_offer_is_never_likelier_to_stand() -> None:
    habits = RequestAcceptance(CandidateAcceptance(SUFFIX_LOOKUP))
    for match in (1, 2, 5, 30, 100):
        survival = habits.survival(lookup_offer(range(40), match, 0), 40)
        assert survival == sorted(survival, reverse=True)


def test_a_text_that_only_seems_to_repeat_itself() -> None:
    common = CandidateAcceptance(SUFFIX_LOOKUP)
    habits = RequestAcceptance(common)
    for _ in range(12):
        habits.observe(lookup_offer(range(1), 3, 0), 0, 1)
    assert habits.survival(lookup_offer(range(1), 3, 0), 1)[0] < 0.1
    assert (
        RequestAcceptance(common).survival(lookup_offer(range(1), 3, 0), 1)[0] > 0.2
    )  # other texts may be different
