import time
from collections.abc import Callable
from random import Random

import pytest

from specstream.config import EngineConfig
from specstream.engine.core.request import Delivery, Request
from specstream.engine.core.scheduler import Scheduler
from specstream.errors import EngineBusy
from specstream.types import SamplingParams


def asked(session: str | None = None) -> Request:
    return Request([], SamplingParams(), Delivery(lambda item: None, 1), session=session)


def park(request: Request, parked: bool = True) -> None:
    request.delivery.sent = request.delivery.read + parked


def scheduling(
    running: int, waiting: int, parked: int = 0, now: Callable[[], float] = time.monotonic
) -> Scheduler:
    config = EngineConfig(max_running=running, max_waiting=waiting, max_parked=parked, max_parked_s=10.0)
    return Scheduler(config, now)


def admit(scheduler: Scheduler) -> list[Request]:
    """Start all that can start."""
    started = []
    while (request := scheduler.next()) is not None:
        scheduler.start(request)
        started.append(request)
    return started


def test_places_go_to_the_oldest_and_the_line_is_bounded() -> None:
    scheduler = scheduling(2, 1)
    first, second, third = asked(), asked(), asked()
    for request in (first, second, third):
        scheduler.submit(request)
    with pytest.raises(EngineBusy, match="try again"):
        scheduler.submit(asked())
    assert admit(scheduler) == [first, second]
    assert scheduler.ready() == [first, second]
    scheduler.retire(first)
    scheduler.retire(first)
    assert admit(scheduler) == [third]


def test_a_parked_request_keeps_its_place_but_costs_no_step() -> None:
    scheduler = scheduling(2, 2)
    slow, quick = asked(), asked()
    scheduler.submit(slow)
    scheduler.submit(quick)
    admit(scheduler)
    park(slow)
    assert scheduler.ready() == [quick]
    park(slow, False)
    assert scheduler.ready() == [slow, quick]


def test_a_session_is_served_in_order_and_lets_others_pass() -> None:
    scheduler = scheduling(3, 3)
    turn, next_turn, other = asked("a"), asked("a"), asked("b")
    for request in (turn, next_turn, other):
        scheduler.submit(request)
    assert admit(scheduler) == [turn, other]
    scheduler.retire(turn)
    assert admit(scheduler) == [next_turn]


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def crowd(clock: Clock, running: int, parked: int, waiting: int) -> Scheduler:
    """Two places, and two more for parked ones, for which nobody waits longer than 10 s."""
    scheduler = scheduling(2, 8, 2, clock)
    for _ in range(parked):
        slow = asked()
        scheduler.submit(slow)
        admit(scheduler)
        park(slow)
    for _ in range(running + waiting):
        scheduler.submit(asked())
    admit(scheduler)
    assert (len(scheduler.running), len(scheduler.waiting)) == (running + parked, waiting)
    return scheduler


def test_a_request_that_nobody_reads_is_stalled_after_a_while_the_longest_unread_first() -> None:
    clock = Clock()
    scheduler = crowd(clock, 0, 4, 1)
    first, second, third, fourth = scheduler.running
    clock.seconds = 4.0
    first.delivery.read += 1
    park(first)  # and is parked again since
    admit(scheduler)
    assert scheduler.patience() == 6.0
    clock.seconds = 9.9
    assert scheduler.stalled() is None
    clock.seconds = 10.0
    assert scheduler.patience() == 0.0
    assert scheduler.stalled() is second
    scheduler.retire(second)
    assert len(admit(scheduler)) == 1  # one place is enough
    clock.seconds = 1000.0
    assert scheduler.stalled() is None and scheduler.patience() is None


@pytest.mark.parametrize(("running", "parked", "waiting"), [(0, 4, 0), (2, 2, 3), (2, 1, 3)])
def test_who_keeps_nobody_out_may_be_read_whenever_its_consumer_likes(
    running: int, parked: int, waiting: int
) -> None:
    """Nobody waits; or those who wait, wait for requests that are being answered."""
    clock = Clock()
    scheduler = crowd(clock, running, parked, waiting)
    clock.seconds = 1e6
    admit(scheduler)
    assert scheduler.stalled() is None and scheduler.patience() is None


def test_an_unread_turn_holds_up_the_next_one_only() -> None:
    clock = Clock()
    scheduler = scheduling(4, 8, 4, clock)
    other, turn, next_turn = asked("b"), asked("a"), asked("a")
    for request in (other, turn, next_turn):
        scheduler.submit(request)
    admit(scheduler)
    park(other)
    park(turn)
    admit(scheduler)
    assert scheduler.stalled() is None
    clock.seconds = 11.0
    assert scheduler.stalled() is turn
    scheduler.retire(turn)
    assert admit(scheduler) == [next_turn]
    assert scheduler.stalled() is None


def test_the_time_counts_from_when_the_consumer_fell_behind() -> None:
    clock = Clock()
    scheduler = crowd(clock, 0, 4, 1)
    late = scheduler.running[0]
    park(late, False)
    clock.seconds = 9.0
    admit(scheduler)
    park(late)
    clock.seconds = 9.5
    admit(scheduler)
    clock.seconds = 15.0
    for request in scheduler.running[1:]:
        request.delivery.read += 1
        park(request)
    admit(scheduler)
    assert scheduler.stalled() is None
    assert scheduler.patience() == 4.5


def listening(request: Request, needed_by: float, heard: bool = True) -> Request:
    request.delivery.heard, request.delivery.needed_by = heard, needed_by
    return request


def talking(places: int, *needed_by: float, clock: Clock) -> tuple[Scheduler, list[Request]]:
    scheduler = scheduling(places, 16, 16, clock)
    for moment in needed_by:
        scheduler.submit(asked())
        for request in admit(scheduler):
            listening(request, moment)
    return scheduler, list(scheduler.running)


def test_a_listener_with_much_to_hear_leaves_the_step_to_others_and_comes_back() -> None:
    clock = Clock()
    scheduler, (full, soon, sooner) = talking(4, 9.0, 0.8, 0.3, clock=clock)
    reader = asked()  # nobody listens to it
    scheduler.submit(reader)
    admit(scheduler)
    assert scheduler.ready() == [reader, sooner, soon]
    listening(soon, 12.0)
    listening(sooner, 11.0)
    assert scheduler.ready() == [reader, full, soon, sooner], "nobody is in need: all go on"
    clock.seconds = 8.7
    assert scheduler.ready() == [reader, full]


def test_a_listener_with_much_to_hear_keeps_no_newcomer_waiting() -> None:
    clock = Clock()
    scheduler, (full,) = talking(1, 9.0, clock=clock)
    scheduler.submit(asked())
    (new,) = admit(scheduler)
    listening(new, 0.5, heard=False)
    assert scheduler.ready() == [new]
    scheduler.submit(asked())
    assert not admit(scheduler), "the one place is taken now"
    scheduler.retire(new)
    assert len(admit(scheduler)) == 1


def test_no_more_start_than_may_be_under_way_however_much_they_have_to_hear() -> None:
    clock = Clock()
    scheduler, running = talking(2, *[9.0] * 30, clock=clock)
    assert len(running) == 2 + 16 and len(scheduler.waiting) == 12


def test_silence_inside_a_reply_is_worse_than_a_later_beginning() -> None:
    clock = Clock()
    scheduler, (first, second, begun) = talking(2, 9.0, 9.0, 9.0, clock=clock)
    clock.seconds = 20.0
    listening(first, 15.0, heard=False)
    listening(second, 16.0, heard=False)
    listening(begun, 20.7)
    assert scheduler.ready() == [begun, first]
    listening(begun, 20.9)
    assert scheduler.ready() == [first, second]


def test_who_has_heard_nothing_but_will_soon_is_served_when_alone() -> None:
    """Its first phrase is long and on its way: the listener needs nothing for nine seconds."""
    scheduler, (only,) = talking(4, 9.0, clock=Clock())
    listening(only, 9.0, heard=False)
    assert scheduler.ready() == [only]
    other = asked()
    scheduler.submit(other)
    assert admit(scheduler) == [other]
    listening(other, 0.2, heard=False)
    assert scheduler.ready() == [other], "who waits for a first phrase goes first"


def test_a_step_is_never_empty_while_a_request_could_use_one() -> None:
    """The engine sleeps after an empty step, and what listeners need later wakes nobody."""
    random, clock = Random(7), Clock()
    scheduler, running = talking(3, *[9.0] * 6, clock=clock)
    for _ in range(5_000):
        clock.seconds = random.uniform(0, 10)
        for request in running:
            park(request, random.random() < 0.3)
            listening(request, random.uniform(0, 20), heard=random.random() < 0.5)
            if random.random() < 0.1:
                request.delivery.needed_by = None
        able = [request for request in running if not request.delivery.parked]
        assert bool(scheduler.ready()) is bool(able)


def test_a_long_step_is_for_listeners_who_do_not_notice() -> None:
    clock = Clock()
    scheduler, (one, other) = talking(2, 0.9, 0.9, clock=clock)
    assert scheduler.patient([one, other])
    listening(other, 0.3)
    assert not scheduler.patient([one, other])
    listening(other, 0.3, heard=False)
    assert scheduler.patient([one, other])
    assert not scheduler.patient([one, other, asked()]), "a reader sees every gap"
