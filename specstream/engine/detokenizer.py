"""Token ids to text, one token at a time, whole characters only."""

from __future__ import annotations

from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

__all__ = ["Decoder", "Detokenizer", "decoder_of"]

_REPLACEMENT = "\ufffd"
_LONGEST_CONTEXT = 4  # tokens decoded along with a new one; cutting them off is a decoding more
_LONGEST_WINDOW = 8  # the same, where some of them aren't shown
_LONGEST_CHARACTER = 4  # bytes, so at most as many byte-level tokens


class Decoder(Protocol):
    """What the detokenizer needs of a tokenizer."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = ...) -> Any:
        """Text of the ids."""
        ...


def decoder_of(tokenizer: PreTrainedTokenizerBase) -> Decoder:
    """The tokenizer's Rust core, three times as fast, unless its class changes the text."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return tokenizer
    kind, usual = type(tokenizer), PreTrainedTokenizerFast
    changed = kind.decode is not usual.decode or kind._decode is not usual._decode
    changed = changed or not vars(tokenizer).keys().isdisjoint({"decode", "_decode"})
    if changed or tokenizer.clean_up_tokenization_spaces:
        return tokenizer
    core: Decoder = tokenizer.backend_tokenizer
    return core


class Detokenizer:
    """Incremental decoding of one reply.

    A character whose bytes are spread over several tokens comes out with the last of them; bytes that
    can't become a character come out as U+FFFD as soon as that is certain. The texts of all calls
    concatenated are the decoding of all ids. Each call decodes a bounded window: the pending tokens and
    the tokens before them, which rules for joining look at. The window begins where whole characters
    begin: half a character would decode to U+FFFD.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._context: list[int] = []  # already given out; decoded again only as left neighbours
        self._before = ""  # their text, as it is without anything before them
        self._pending: list[int] = []  # not given out yet: half a character

    def fork(self) -> Detokenizer:
        """A second one that goes on from here by itself."""
        twin = Detokenizer(self._decoder)
        twin._context, twin._pending = list(self._context), list(self._pending)
        twin._before = self._before
        return twin

    def add(self, token_id: int) -> str:
        """The text that became certain with this token; may be empty."""
        self._pending.append(token_id)
        text = self._text(self._pending)
        if not text.endswith(_REPLACEMENT):
            self._settle(len(self._pending), text)
            return text
        # A replacement character at the very end may be the first half of a real one.
        if len(self._pending) >= _LONGEST_CHARACTER:  # special tokens are no part of it
            self._pending = [token for token in self._pending if self._decode([token])]
        if len(self._pending) < _LONGEST_CHARACTER:
            return ""
        # Too many tokens for one character: what stands before the half one can go.
        for kept in range(1, _LONGEST_CHARACTER):
            settled = self._text(self._pending[:-kept])
            if settled + _REPLACEMENT == text:
                self._settle(len(self._pending) - kept, settled)
                return settled
        self._settle(len(self._pending), text)
        return text

    def finish(self) -> str:
        """The reply has ended: whatever is left, U+FFFD for half a character. Idempotent."""
        text = self._text(self._pending) if self._pending else ""
        self._settle(len(self._pending), text)
        return text

    def _text(self, ids: list[int]) -> str:
        """What ``ids`` add to the text of the context."""
        return self._decode(self._context + ids)[len(self._before) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._decoder.decode(ids, skip_special_tokens=True)) if ids else ""

    def _settle(self, count: int, text: str) -> None:
        """The first pending tokens were given out as ``text``."""
        settled = self._pending[:count]
        del self._pending[:count]
        if not text and len(self._context) + count > _LONGEST_WINDOW:
            return  # what isn't shown may tell its neighbours apart, but not crowd them out
        self._context += settled
        self._before += text
        if text and len(self._context) > _LONGEST_CONTEXT:
            self._context = settled
            self._before = self._decode(settled)
