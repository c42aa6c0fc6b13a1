"""Consumers that read nothing: they keep their place while nobody needs it, and starve nobody."""

import pytest

from specstream.drafting.proposers.off import OffProposer
from specstream.engine.core.step import EngineCore
from specstream.errors import ConsumerStalled, EngineError
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, TOKENIZER, plain_greedy
from tests.support.tiny import Inbox, answered, ask, make_core, run_until_idle


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def crowded(clock: Clock) -> tuple[EngineCore, list[Inbox]]:
    """Three places, each of them taken by a reply that nobody reads."""
    core = make_core(MODEL, TOKENIZER, OffProposer(), eos_ids=(), now=clock, max_running=1, max_parked=2)
    slow = [Inbox(reading=False, limit=3) for _ in range(3)]
    for inbox in slow:
        answered(core, "abab", SamplingParams(max_tokens=9), inbox=inbox)
        clock.seconds += 1.0
    return core, slow


def test_twenty_replies_that_nobody_reads_do_not_starve_the_next() -> None:
    clock = Clock()
    core, slow = crowded(clock)
    _, served = answered(core, "abab", SamplingParams(max_tokens=9))
    assert not served.items
    assert core.scheduler.patience() == pytest.approx(27.0)
    clock.seconds += 27.0
    run_until_idle(core)
    assert served.token_ids == plain_greedy("abab", 9, eos=None)
    ended, *others = slow
    assert [type(error) for error in ended.errors] == [ConsumerStalled]
    assert isinstance(ended.errors[0], EngineError) and "leave its block" in str(ended.errors[0])
    assert ended.items[-1] is ended.errors[0]
    assert ended.token_ids == plain_greedy("abab", 3, eos=None)  # what was written can be read
    assert core.slots.in_use == 2
    clock.seconds += 1e6  # nobody waits any more: the others lose nothing
    for inbox in others:
        for _ in range(9):
            inbox.read_all()
            run_until_idle(core)
        assert inbox.token_ids == plain_greedy("abab", 9, eos=None)


def test_who_reads_now_and_then_is_never_in_the_way() -> None:
    clock = Clock()
    core, slow = crowded(clock)
    _, served = ask(core, "abab", SamplingParams(max_tokens=2))
    while not served.items:
        clock.seconds += 20.0
        for inbox in slow:
            inbox.delivery.read += 1
        run_until_idle(core)
    assert not any(inbox.errors for inbox in slow)
