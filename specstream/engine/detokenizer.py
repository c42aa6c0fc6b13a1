"""Token ids to text, one token at a time, whole characters only."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Decoder", "Detokenizer"]

_REPLACEMENT = "\ufffd"
_CONTEXT = 6  # tokens decoded along with a new one, so that joining rules see their left neighbour
_LONGEST_CHARACTER = 4  # bytes, so at most as many byte-level tokens


class Decoder(Protocol):
    """The part of a tokenizer that is needed (any transformers tokenizer has it)."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = ...) -> Any:
        """Text of the ids."""
        ...


class Detokenizer:
    """Incremental decoding of one reply.

    A character whose bytes are spread over several tokens comes out with the last of them. Bytes
    that can't become a character come out as U+FFFD as soon as that is certain. The texts of all
    calls, laid end to end, are the decoding of all ids. Each call decodes a bounded window.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._context: list[int] = []  # already given out; decoded again only as left neighbours
        self._pending: list[int] = []  # not given out yet: half a character

    def add(self, token_id: int) -> str:
        """The text that became certain with this token; may be empty."""
        self._pending.append(token_id)
        before, text = self._texts()
        if not text.endswith(_REPLACEMENT):
            self._settle(len(self._pending))
            return text
        # A replacement character at the very end may be the first half of a real one.
        if len(self._pending) < _LONGEST_CHARACTER:
            return ""
        # Too many tokens for one character: what stands before the half one can go.
        for kept in range(1, _LONGEST_CHARACTER):
            settled = self._decode(self._context + self._pending[:-kept])[len(before) :]
            if settled + _REPLACEMENT == text:
                self._settle(len(self._pending) - kept)
                return settled
        self._settle(len(self._pending))
        return text

    def finish(self) -> str:
        """The reply has ended: whatever is left, U+FFFD for half a character. Idempotent."""
        text = self._texts()[1] if self._pending else ""
        self._settle(len(self._pending))
        return text

    def _texts(self) -> tuple[str, str]:
        """The text of the context, and what the pending tokens add to it."""
        before = self._decode(self._context)
        return before, self._decode(self._context + self._pending)[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._decoder.decode(ids, skip_special_tokens=True)) if ids else ""

    def _settle(self, count: int) -> None:
        self._context = (self._context + self._pending[:count])[-_CONTEXT:]
        del self._pending[:count]
