"""Texts and calls laid out as the chunks of a reply."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from specstream.types import Chunk, FinishReason, Span, ToolCall, ToolCallDelta

__all__ = ["chunks_of"]

_PIECE = re.compile(r"\s*\S{1,6}|\s+")


def chunks_of(
    text: str,
    sizes: Iterable[int] = (),
    *,
    calls: Sequence[ToolCall] = (),
    finish_reason: FinishReason = "stop",
) -> list[Chunk]:
    """Cut ``text`` into tokens of at most six visible characters and lay them out as chunks.

    ``sizes`` gives the number of tokens of each chunk in turn; the remaining tokens get a chunk each.
    The chunks carry exact spans, and the last one the ``finish_reason``. ``calls`` come after the text,
    their arguments in pieces; the finish reason ``"stop"`` then becomes ``"tool_calls"``.
    """
    pieces = _PIECE.findall(text)
    ends = list(accumulate(map(len, pieces), initial=0))  # of what is written before each token
    chunks: list[Chunk] = []
    at, wanted = 0, iter(sizes)
    while at < len(pieces):
        to = min(at + max(1, next(wanted, 1)), len(pieces))
        chunks.append(
            Chunk(
                text=text[ends[at] : ends[to]],
                token_ids=tuple(range(at, to)),
                tokens=Span(at, to),
                chars=Span(ends[at], ends[to]),
                ends=tuple(ends[at + 1 : to + 1]),
                round=len(chunks),
                drafted=to - at - 1,
                accepted=to - at - 1,
                t_ms=10.0 * len(chunks),
            )
        )
        at = to
    after = Span(len(text), len(text))
    for index, call in enumerate(calls):
        for delta in _deltas(index, call):
            aside: dict[str, Any] = {"reasoning_end": at + 1, "tool_calls": (delta,)}
            chunks.append(Chunk("", (at,), Span(at, at + 1), after, round=len(chunks), **aside))
            at += 1
    if calls and finish_reason == "stop":
        finish_reason = "tool_calls"
    nothing = ("", (), Span(at, at), after)
    return [*chunks, Chunk(*nothing, round=len(chunks), finish_reason=finish_reason)]


def _deltas(index: int, call: ToolCall) -> list[ToolCallDelta]:
    head = (index, call.id, call.name)
    pieces = [ToolCallDelta(*head, piece) for piece in _PIECE.findall(call.arguments)]
    return [ToolCallDelta(*head), *pieces, ToolCallDelta(*head, done=True, problem=call.problem)]
