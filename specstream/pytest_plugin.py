"""The pytest plugin: ``@pytest.mark.specstream_virtual_time`` runs an async test in virtual time.

It is found by pytest once specstream is installed, and does nothing to tests without the mark: it
imports nothing of specstream's before the first marked test runs, and sets no event loop policy. It
needs no other plugin, and comes before pytest-asyncio and anyio's where a test has their marks, too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Generator
from typing import Any

import pytest

MARK = "specstream_virtual_time"


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers",
        f"{MARK}: run this async test in virtual time, where waiting takes no real time (specstream)",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Turn a marked test into a plain function that runs it on a loop of virtual time."""
    if isinstance(item, pytest.Function) and item.get_closest_marker(MARK) is not None:
        work = item.obj
        if not inspect.iscoroutinefunction(work):
            pytest.fail(f"{MARK} is for async tests; {item.name} is none", pytrace=False)

        @functools.wraps(work)
        def test(*args: Any, **kwargs: Any) -> None:
            from specstream.testing.loop import run_virtual

            run_virtual(work(*args, **kwargs))

        del test.__wrapped__  # pytest would follow it and find that the test is async
        item.obj = test
        # Subclasses, such as pytest-asyncio's, would bring a loop of their own.
        setattr(item, "runtest", functools.partial(pytest.Function.runtest, item))  # noqa: B010
    return (yield)
