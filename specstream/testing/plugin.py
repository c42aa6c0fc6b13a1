"""The pytest plugin: ``@pytest.mark.specstream_virtual_time`` runs an async test in virtual time.

``@pytest.mark.specstream_virtual_time(charge_threads=True)`` charges work in threads to the clock. Where
that is not asked for and threads worked, a line of the summary says for how long.

It is found by pytest once specstream is installed, and does nothing to tests without the mark: it
imports nothing of specstream's before the first marked test runs, and sets no event loop policy. It
needs no other plugin, and comes before pytest-asyncio and anyio's where a test has their marks, too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

MARK = "specstream_virtual_time"
_UNCOUNTED = "specstream_uncounted_s"
_LEAST_S = 0.01  # of work in threads that is worth a line
_NAMED = 3  # tests in that line


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers",
        f"{MARK}(charge_threads=False): run this async test in virtual time, where waiting takes no "
        "real time; charge_threads: work in threads takes as long as it really does (specstream)",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Turn a marked test into a plain function that runs it on a loop of virtual time."""
    mark = item.get_closest_marker(MARK)
    if mark is None or not isinstance(item, pytest.Function):
        return (yield)
    work = item.obj
    if not inspect.iscoroutinefunction(work):
        pytest.fail(f"{MARK} is for async tests; {item.name} is none", pytrace=False)
    if mark.args or mark.kwargs.keys() - {"charge_threads"}:
        pytest.fail(f"{MARK} takes charge_threads=True or nothing", pytrace=False)
    item.obj = _plain(work, item, charge_threads=bool(mark.kwargs.get("charge_threads", False)))
    # Subclasses, such as pytest-asyncio's, would bring a loop of their own.
    setattr(item, "runtest", functools.partial(pytest.Function.runtest, item))  # noqa: B010
    try:
        return (yield)
    finally:
        item.obj = work  # so that a traceback begins in the test, not in the loop


def _plain(
    work: Callable[..., Coroutine[Any, Any, Any]], item: pytest.Item, *, charge_threads: bool
) -> Callable[..., None]:
    def tell(seconds: float) -> None:
        if seconds >= _LEAST_S:
            item.user_properties.append((_UNCOUNTED, seconds))

    @functools.wraps(work)
    def test(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        from specstream.testing.loop import run_virtual

        run_virtual(work(*args, **kwargs), charge_threads=charge_threads, tell_uncounted=tell)

    del test.__wrapped__  # pytest would follow it and find that the test is async
    return test


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which tests worked in threads while their clock stood still."""
    found: dict[str, float] = {}
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if getattr(report, "when", None) == "call":
            for name, value in report.user_properties:
                if name == _UNCOUNTED:
                    found[report.nodeid] = value
    if not found:
        return
    several, longest = len(found) > 1, sorted(found, key=lambda test: -found[test])
    names = ", ".join(longest[:_NAMED]) + (", …" if len(found) > _NAMED else "")
    terminalreporter.write_line(
        f"virtual time: {len(found)} test{'s' * several} worked {sum(found.values()):.2f} s in "
        f"threads, which {'their' if several else 'its'} clock did not count (charge_threads=True "
        f"does): {names}"
    )
