from __future__ import annotations

import logging

import pytest

from specstream.model.graphs.progress import Progress


def test_each_package_is_told_with_its_number_and_what_the_rest_will_take(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The third one was kept from an earlier start: there is nothing to tell of it."""
    caplog.set_level(logging.INFO, logger="specstream.model")
    now = 0.0
    progress = Progress(12, clock=lambda: now)
    for seconds in (20, 40, None, 60, 10):
        progress.next()
        if seconds is not None:
            with progress.compiling("a pass"):
                now += seconds
    assert caplog.messages == [
        "compiling 1 of 12 (a pass); kept for later starts",
        "compiling 2 of 12 (a pass); about 4 min left",  # 11 of 20 s
        "compiling 4 of 12 (a pass); about 4 min left",  # 9 of 30 s
        "compiling 5 of 12 (a pass); about 5 min left",  # 8 of 40 s
    ]


def test_the_last_minute_is_told_in_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="specstream.model")
    now = 0.0
    progress = Progress(3, clock=lambda: now)
    for _ in range(3):
        progress.next()
        with progress.compiling("a chain"):
            now += 25.0
    assert [said.split("; ")[1] for said in caplog.messages[1:]] == [
        "about 50 s left",
        "about 25 s left",
    ]


def test_who_leaves_is_not_counted_and_nothing_more_is_compiled() -> None:
    def left() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        Progress(2, left).next()
