from __future__ import annotations

import itertools

from specstream.speculation.policy.probing import Account, Schedule


def test_a_loss_that_goes_on_is_bounded_whatever_the_estimates_say() -> None:
    account = Account()
    spent = 0.0
    for _ in range(1000):
        lost = 0.4 if account.affords() else 0.0
        spent += lost
        account.enter(lost)
    assert spent < 100.0


def test_gains_are_kept_only_up_to_a_point() -> None:
    account = Account()
    for _ in range(1000):
        account.enter(-2.0)
    rounds = 0
    while account.affords():
        account.enter(0.5)
        rounds += 1
    assert 4 <= rounds <= 12


def test_a_balance_over_the_limit_is_forgotten_in_time() -> None:
    account = Account()
    account.enter(3.0)
    assert not account.affords()
    for _ in range(60):
        account.enter(0.0)
    assert account.affords()


def test_tries_that_fail_grow_apart_up_to_a_bound() -> None:
    schedule = Schedule()
    gaps = []
    since = 0
    for _ in range(200):
        schedule.wait(True)
        since += 1
        if schedule.due(True, 0.0, cost=0.1):
            gaps.append(since)
            since = 0
            schedule.tried(False)
    assert gaps[:4] == [2, 4, 8, 16]
    assert set(gaps[4:]) == {16}


def test_good_news_bring_the_next_try_at_once() -> None:
    schedule = Schedule(interval=16, idle=16)
    schedule.tried(True)
    schedule.wait(True)
    assert schedule.due(True, 0.0, cost=0.1)


def test_a_dear_try_comes_more_seldom() -> None:
    schedule = Schedule(interval=16, idle=16)
    assert schedule.due(True, 0.0, cost=0.3)
    assert not schedule.due(True, 0.0, cost=0.8)
    schedule.idle = 32
    assert schedule.due(True, 0.0, cost=0.8)


def test_no_try_where_it_would_forgo_much() -> None:
    schedule = Schedule(interval=8, idle=8)
    assert not schedule.due(True, elsewhere=3.0, cost=0.1)
    schedule.idle = 16
    assert schedule.due(True, elsewhere=3.0, cost=0.1)


def test_rounds_in_which_nothing_could_be_proposed_do_not_count() -> None:
    schedule = Schedule()
    for _ in range(100):
        schedule.wait(False)
    assert not schedule.due(True, 0.0, cost=0.1)


def test_whoever_can_joins_a_try_that_is_made_anyway() -> None:
    schedule = Schedule(interval=16, idle=9)
    assert not schedule.due(True, 0.0, cost=0.1)
    assert schedule.due(True, 0.0, cost=0.1, joining=True)


def test_no_try_is_due_before_its_turn() -> None:
    for interval, cost in itertools.product((1, 2, 4, 8, 16), (0.1, 0.4, 0.8, 1.5)):
        schedule = Schedule(interval)
        turns = []
        for _ in range(100):
            schedule.wait(True)
            if schedule.due(True, 0.0, cost=cost):
                assert schedule.turn() <= 0
                break
            turns.append(schedule.turn())
        assert turns == list(range(len(turns), 0, -1))  # it is foreseen to the round


def test_no_try_is_due_before_it_is_ripe() -> None:
    for given_up, joining, elsewhere in itertools.product((True, False), (True, False), (0.0, 3.0)):
        for interval, idle in itertools.product((1, 2, 4, 8, 16), range(40)):
            schedule = Schedule(interval, idle)
            if schedule.due(given_up, elsewhere, cost=0.01, joining=joining):
                assert schedule.ripe(given_up)
