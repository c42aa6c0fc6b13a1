from __future__ import annotations

from specstream.speculation.policy import Candidate, Offer, Outcome, Plan
from specstream.speculation.policy.acceptance import Acceptance, RequestAcceptance
from specstream.speculation.policy.probing import LossLimit, Track

DRAFT = Candidate("draft", "the draft model")
OFFER = Offer(9)


def given_up(interval: int = 1, idle: int = 0) -> Track:
    track = Track(RequestAcceptance(Acceptance(DRAFT, greedy=True)))
    track.gain, track.interval, track.idle = -1.0, interval, idle
    return track


def due(track: Track, elsewhere: float = 0.0, cost: float = 0.1, joining: bool = False) -> bool:
    return track.due(elsewhere, cost, rows=1, all_idle=0, joining=joining)


def tried(track: Track, accepted: int) -> None:
    track.observe(Outcome(1, Plan("draft", 1), 1, accepted), OFFER, probing=True, longest=9)


def test_a_loss_that_goes_on_is_bounded_whatever_the_estimates_say() -> None:
    losses = LossLimit()
    spent = 0.0
    for _ in range(1000):
        lost = 0.4 if losses.allows() else 0.0
        spent += lost
        losses.enter(lost)
    assert spent < 100.0


def test_gains_are_kept_only_up_to_a_point() -> None:
    losses = LossLimit()
    for _ in range(1000):
        losses.enter(-2.0)
    rounds = 0
    while losses.allows():
        losses.enter(0.5)
        rounds += 1
    assert 4 <= rounds <= 12


def test_a_balance_over_the_limit_is_forgotten_in_time() -> None:
    losses = LossLimit()
    losses.enter(3.0)
    assert not losses.allows()
    for _ in range(60):
        losses.enter(0.0)
    assert losses.allows()


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


def test_good_news_bring_the_next_try_at_once() -> None:
    track = given_up(interval=16, idle=16)
    for _ in range(5):
        tried(track, accepted=0)  # so that a hit is news
    assert track.interval == 16
    tried(track, accepted=1)
    track.idle += 1
    assert track.interval == 1 and due(track)


def test_a_dear_try_comes_more_seldom() -> None:
    track = given_up(interval=16, idle=16)
    assert due(track, cost=0.3)
    assert not due(track, cost=0.8)
    track.idle = 32
    assert due(track, cost=0.8)


def test_a_try_that_would_be_too_dear_for_one_request_is_made_once_in_a_while() -> None:
    track = given_up(interval=16, idle=16)
    assert not track.due(0.0, cost=2.0, rows=8, all_idle=199, joining=False)
    assert track.due(0.0, cost=2.0, rows=8, all_idle=200, joining=False)


def test_no_try_where_it_would_forgo_much() -> None:
    track = given_up(interval=8, idle=8)
    assert not due(track, elsewhere=3.0)
    track.idle = 16
    assert due(track, elsewhere=3.0)


def test_requests_that_are_half_due_join_a_try_that_is_made_anyway() -> None:
    track = given_up(interval=16, idle=9)
    assert not due(track)
    assert due(track, joining=True)


def test_no_try_is_due_before_it_is_ripe() -> None:
    for interval in (1, 2, 4, 8, 16):
        for idle in range(40):
            for gain in (-1.0, 0.5):
                track = given_up(interval, idle)
                track.gain = gain
                if due(track, cost=0.01) or due(track, cost=0.01, joining=True):
                    assert track.ripe()


def test_a_candidate_that_is_silent_while_it_catches_up_is_not_mute() -> None:
    track = given_up()
    for _ in range(9):
        track.observe(Outcome(1, Plan("draft", 1), 0, 0), Offer(9, behind=200), False, 9)
    assert not track.mute
    for _ in range(3):
        track.observe(Outcome(1, Plan("draft", 1), 0, 0), OFFER, False, 9)
    assert track.mute
