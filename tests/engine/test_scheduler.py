from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from specstream.engine.scheduler import Scheduler
from specstream.errors import EngineBusy


@dataclass
class FakeDelivery:
    parked: bool = False


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
