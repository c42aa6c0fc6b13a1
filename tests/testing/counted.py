"""Work that is counted, not timed: callbacks that an event loop runs; and a scenario of short turns."""

import asyncio.events
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from specstream.testing import Scenario

WORDS = "Yes. Of course. Quite so. Good day to you. Not now.".split(". ")


@dataclass
class Count:
    callbacks: int = 0


@contextmanager
def counting() -> Iterator[Count]:
    """Count the callbacks of every event loop."""
    count, handle = Count(), asyncio.events.Handle
    run: Any = handle._run

    def counted(self: Any) -> Any:
        count.callbacks += 1
        return run(self)

    handle._run = counted  # type: ignore[method-assign]
    try:
        yield count
    finally:
        handle._run = run  # type: ignore[method-assign]


def short_turns(turns: int) -> Scenario:
    """Half of them spoken, one in four an interruption; replies of one to four words."""
    return Scenario.model_validate(
        {
            "name": "short turns",
            "network": {"delay_ms": 20, "jitter_ms": 30, "loss": 0.02},
            "listening": {"frame_ms": 40},
            "repeat": max(1, turns // 4),
            "turns": [
                {"user": "Hello?", "word_ms": 100, "reply": WORDS[3]},
                {"user": "Wait.", "word_ms": 100, "interrupts_after_ms": 200, "reply": WORDS[0]},
                {"user": "Thanks.", "typed": True, "reply": WORDS[1]},
                {"user": "Bye.", "typed": True, "reply": WORDS[2]},
            ],
        }
    )
