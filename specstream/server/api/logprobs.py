"""Log probabilities in OpenAI's shapes."""

from __future__ import annotations

from typing import Any

from specstream.types import Chunk, TokenLogprob as Entry

__all__ = ["Entry", "entries_of", "text_of", "told_of"]


def entries_of(chunk: Chunk, *, ends: bool = False) -> list[Entry]:
    """Those of a chunk's tokens that belong to the reply's text.

    Not those of reasoning and calls, nor tokens at the reply's end that have no text: the end of a stop
    string, or an end-of-sequence token (with ``ends`` that one is told).
    """
    if not chunk.logprobs:
        return []
    skipped = max(0, chunk.reasoning_end - chunk.tokens.start)
    kept = list(chunk.logprobs[skipped:])
    if chunk.finish_reason in ("stop", "tool_calls"):
        length = chunk.chars.end
        before = [chunk.chars.start, *chunk.ends[:-1]]
        for start, end in zip(reversed(before), reversed(chunk.ends), strict=True):
            if not kept or not (start >= length or start == end) or (ends and not kept[-1].piece):
                break
            kept.pop()
    return kept


def text_of(entry: Entry) -> str:
    """A token's text; U+FFFD stands for part of a character."""
    return entry.piece.decode(errors="replace")


def told_of(entries: list[Entry]) -> dict[str, Any]:
    """The chat API's shape."""
    return {
        "content": [
            {**_one(entry), "top_logprobs": [_one(other) for other in entry.top]}
            for entry in entries
        ],
        "refusal": None,
    }


def _one(entry: Entry) -> dict[str, Any]:
    return {"token": text_of(entry), "logprob": entry.logprob, "bytes": list(entry.piece)}
