"""Log probabilities in OpenAI's shapes."""

from __future__ import annotations

from collections import deque
from typing import Any

from specstream.types import Chunk, TokenLogprob as Entry

__all__ = ["Entry", "ReplyEntries", "text_of", "told_of"]


class ReplyEntries:
    """The log probabilities of the tokens that belong to a reply's text, as its chunks come.

    Not those of reasoning and calls, nor tokens at the reply's end that have no text: a stop string, or
    an end-of-sequence token (with ``tells_end`` that one is told). A token waits until some of its text
    is final, so that what is told doesn't depend on how many tokens a round had.

    Attributes:
        told: All that belong to the text so far.
        tells_end: Whether an end-of-sequence token is told.
    """

    def __init__(self) -> None:
        self.told: list[Entry] = []
        self.tells_end = False
        self._waiting = deque[tuple[int, Entry]]()  # with the character that the token begins at
        self._end = 0
        self._taken = 0

    def add(self, chunk: Chunk) -> None:
        """Take those of a reply's next chunk."""
        if not chunk.logprobs:
            return
        skipped = max(0, chunk.reasoning_end - chunk.tokens.start)
        starts = [self._end, *chunk.ends[:-1]]
        self._waiting += list(zip(starts, chunk.logprobs, strict=True))[skipped:]
        self._end = chunk.ends[-1]
        final = chunk.chars.end
        while self._waiting and self._waiting[0][0] < final:
            self.told.append(self._waiting.popleft()[1])
        if chunk.finish_reason not in (None, "stop", "tool_calls"):
            self.told += [entry for _, entry in self._waiting]
        elif chunk.finish_reason and self.tells_end:
            self.told += [entry for _, entry in self._waiting if not entry.piece][-1:]

    def take(self) -> list[Entry]:
        """Those that were not taken yet."""
        new, self._taken = self.told[self._taken :], len(self.told)
        return new


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
