"""Shortens a conversation that the model's context no longer holds: the oldest turns leave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from specstream.engine.call_messages import texts_of
from specstream.params import Truncation
from specstream.types import Message

__all__ = ["fitting"]

_PER_MESSAGE = 8  # tokens that a chat template adds to a message, more than most do


def fitting(
    messages: Sequence[Message], count: Callable[[str], int], room: int, how: Truncation
) -> list[Message]:
    """Return the messages that stay, so that all of them are about ``room`` tokens or fewer.

    System messages at the beginning stay, and so does the last turn of the user with what follows. The
    rest begins with a turn of the user. Where the cut is depends on nothing but the messages: they are
    gone through from the first, and whenever those up to a reply had outgrown the room, the oldest left
    until ``how.retention_ratio`` of the room was filled. So the next prompts begin alike and their keys
    and values stay in the cache.

    Args:
        messages: A conversation.
        count: The tokens of a text.
        room: Tokens that the prompt may have.
        how: When and how much to cut.
    """
    sizes = [_PER_MESSAGE + sum(map(count, texts_of(message))) for message in messages]
    first = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    room -= sum(sizes[:first])
    if how.post_instructions is not None:
        room = min(room, how.post_instructions)
    before = [0, *accumulate(sizes)]  # tokens of the messages before each
    start = turn = first  # turn: the last one of the user so far
    for i, message in enumerate(messages[first:], first):
        turn = i if message["role"] == "user" else turn
        answered = i + 1 == len(messages) or messages[i + 1]["role"] == "assistant"
        if answered and before[i + 1] - before[start] > room:
            enough = before[i + 1] - how.retention_ratio * room
            turns = (j for j in range(start + 1, turn) if messages[j]["role"] == "user")
            start = next((j for j in turns if before[j] >= enough), turn)
    return [*messages[:first], *messages[start:]]
