"""Turns of the user that follow each other, as an interrupted reply leaves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from specstream.types import Message

__all__ = ["render_turns"]

T = TypeVar("T")


def render_turns(render: Callable[[list[Message]], T], messages: list[Message]) -> T:
    """``render(messages)``; if it refuses them, with consecutive turns of the user joined by a newline.

    Some chat templates insist that roles alternate. Those that don't get what was said, turn by turn.

    Raises:
        Exception: whatever ``render`` raises about the messages as they are.
    """
    try:
        return render(messages)
    except Exception:
        joined = _joined(messages)
        if len(joined) == len(messages):
            raise
        try:
            return render(joined)
        except Exception:
            pass  # then that wasn't what is wrong with them
        raise


def _joined(messages: list[Message]) -> list[Message]:
    out: list[Message] = []
    for message in messages:
        if out and out[-1]["role"] == message["role"] == "user":
            text = f"{out[-1]['content']}\n{message['content']}"
            out[-1] = {"role": "user", "content": text}
        else:
            out.append(message)
    return out
