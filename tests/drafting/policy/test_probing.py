from specstream.drafting.policy.acceptance import CandidateAcceptance, RequestAcceptance
from specstream.drafting.policy.choice import ChosenPlan, Tries
from specstream.drafting.policy.records import Candidate, Offer, Outlook, RoundOutcome, RoundPlan

DRAFT = Candidate("draft", "the draft model")
OFFER = Offer(9)


def given_up(interval: int = 1, idle: int = 0) -> RequestAcceptance:
    track = RequestAcceptance(CandidateAcceptance(DRAFT))
    track.interval, track.idle = interval, idle
    return track


def tried(track: RequestAcceptance, accepted: int) -> None:
    track.judge(RoundOutcome(1, RoundPlan("draft", 1), 1, accepted), OFFER, probing=True, longest=9)


def due(track: RequestAcceptance) -> bool:
    place = ChosenPlan(Outlook(1, True, 9, {"draft": OFFER}), 9, {"draft": track}, 1.0)
    return place.due("draft")


def spent(cost: float, rounds: int) -> float:
    """What tries of one price cost if they are made whenever they may be."""
    tries, paid = Tries(), 0.0
    for _ in range(rounds):
        paid += cost * tries.pay(cost)
        tries.enter()
    return paid


def test_tries_take_a_bounded_share_of_the_time() -> None:
    for cost in (0.1, 0.5, 2.0, 2.9):
        assert 0.015 * 2000 < spent(cost, 2000) < 0.035 * 2000


def test_a_try_that_is_far_too_dear_is_never_made() -> None:
    assert spent(9.0, 2000) == 0.0


def test_a_price_that_nobody_measured_forbids_no_try() -> None:
    tries = Tries()
    assert not tries.pay(50.0)
    assert tries.pay(50.0, sure=False)
    assert not tries.pay(0.1)  # what there was is spent


def test_tries_that_fail_grow_apart_up_to_a_bound() -> None:
    track = given_up()
    gaps, since = list[int](), 0
    for _ in range(200):
        track.idle += 1
        since += 1
        if due(track):
            gaps.append(since)
            since = 0
            tried(track, accepted=0)
    assert gaps[:5] == [1, 2, 4, 8, 16]
    assert set(gaps[5:]) == {16}


def test_a_try_that_succeeds_brings_the_next_one_soon() -> None:
    track = given_up(interval=16, idle=16)
    tried(track, accepted=0)
    assert track.interval == 16
    tried(track, accepted=1)
    track.idle += 2
    assert track.interval == 2 and due(track)


def test_a_candidate_that_is_silent_while_it_catches_up_is_not_mute() -> None:
    track = given_up()
    for _ in range(9):
        track.judge(RoundOutcome(1, RoundPlan("draft", 1), 0, 0), Offer(9, behind=200), False, 9)
    assert not track.mute
    for _ in range(3):
        track.judge(RoundOutcome(1, RoundPlan("draft", 1), 0, 0), OFFER, False, 9)
    assert track.mute
