from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from specstream.engine.scheduler import Scheduler
from specstream.errors import EngineBusy


@dataclass
class FakeDelivery:
    parked: bool = False
    read: int = 0


@dataclass(eq=False)
class FakeRequest:
    session: str | None = None
    delivery: FakeDelivery = field(default_factory=FakeDelivery)


def test_places_go_to_the_oldest_and_the_line_is_bounded() -> None:
    scheduler: Scheduler[FakeRequest] = Scheduler(max_running=2, max_waiting=1)
    first, second, third = FakeRequest(), FakeRequest(), FakeRequest()
    for request in (first, second, third):
        scheduler.submit(request)
    with pytest.raises(EngineBusy, match="try again"):
        scheduler.submit(FakeRequest())
    assert scheduler.admit() == [first, second]
    assert scheduler.schedule() == [first, second]
    scheduler.retire(first)
    scheduler.retire(first)
    assert scheduler.admit() == [third]


def test_a_parked_request_keeps_its_place_but_costs_no_step() -> None:
    scheduler: Scheduler[FakeRequest] = Scheduler(2, 2)
    slow, quick = FakeRequest(), FakeRequest()
    scheduler.submit(slow)
    scheduler.submit(quick)
    scheduler.admit()
    slow.delivery.parked = True
    assert scheduler.schedule() == [quick]
    slow.delivery.parked = False
    assert scheduler.schedule() == [slow, quick]


def test_a_session_is_served_in_order_and_lets_others_pass() -> None:
    scheduler: Scheduler[FakeRequest] = Scheduler(3, 3)
    turn, next_turn, other = FakeRequest("a"), FakeRequest("a"), FakeRequest("b")
    for request in (turn, next_turn, other):
        scheduler.submit(request)
    assert scheduler.admit() == [turn, other]
    scheduler.retire(turn)
    assert scheduler.admit() == [next_turn]


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def crowd(clock: Clock, running: int, parked: int, waiting: int) -> Scheduler[FakeRequest]:
    """Two places, and two more for parked ones, for which nobody waits longer than 10 s."""
    scheduler: Scheduler[FakeRequest] = Scheduler(2, 8, 2, 10.0, clock)
    for _ in range(parked):
        slow = FakeRequest()
        scheduler.submit(slow)
        scheduler.admit()
        slow.delivery.parked = True
    for _ in range(running + waiting):
        scheduler.submit(FakeRequest())
    scheduler.admit()
    assert (len(scheduler.running), len(scheduler.waiting)) == (running + parked, waiting)
    return scheduler


def test_who_reads_nothing_is_in_the_way_after_a_while_the_longest_first() -> None:
    clock = Clock()
    scheduler = crowd(clock, 0, 4, 1)
    first, second, third, fourth = scheduler.running
    clock.seconds = 4.0
    first.delivery.read += 1  # and is parked again since
    scheduler.admit()
    assert scheduler.patience() == 6.0
    clock.seconds = 9.9
    assert scheduler.in_the_way() is None
    clock.seconds = 10.0
    assert scheduler.patience() == 0.0
    assert scheduler.in_the_way() is second
    scheduler.retire(second)
    assert len(scheduler.admit()) == 1  # one place is enough
    clock.seconds = 1000.0
    assert scheduler.in_the_way() is None and scheduler.patience() is None


@pytest.mark.parametrize(("running", "parked", "waiting"), [(0, 4, 0), (2, 2, 3), (2, 1, 3)])
def test_who_keeps_nobody_out_may_be_read_whenever_its_consumer_likes(
    running: int, parked: int, waiting: int
) -> None:
    """Nobody waits; or those who wait, wait for requests that are being answered."""
    clock = Clock()
    scheduler = crowd(clock, running, parked, waiting)
    clock.seconds = 1e6
    scheduler.admit()
    assert scheduler.in_the_way() is None and scheduler.patience() is None


def test_an_unread_turn_is_in_the_way_of_the_next_one_only() -> None:
    clock = Clock()
    scheduler: Scheduler[FakeRequest] = Scheduler(4, 8, 4, 10.0, clock)
    other, turn, next_turn = FakeRequest("b"), FakeRequest("a"), FakeRequest("a")
    for request in (other, turn, next_turn):
        scheduler.submit(request)
    scheduler.admit()
    other.delivery.parked = turn.delivery.parked = True
    scheduler.admit()
    assert scheduler.in_the_way() is None
    clock.seconds = 11.0
    assert scheduler.in_the_way() is turn
    scheduler.retire(turn)
    assert scheduler.admit() == [next_turn]
    assert scheduler.in_the_way() is None


def test_the_time_counts_from_when_the_consumer_fell_behind() -> None:
    clock = Clock()
    scheduler = crowd(clock, 0, 4, 1)
    late = scheduler.running[0]
    late.delivery.parked = False
    clock.seconds = 9.0
    scheduler.admit()
    late.delivery.parked = True
    clock.seconds = 9.5
    scheduler.admit()
    clock.seconds = 15.0
    for request in scheduler.running[1:]:
        request.delivery.read += 1
    scheduler.admit()
    assert scheduler.in_the_way() is None
    assert scheduler.patience() == 4.5
