"""Incremental detokenizer: token ids to text, one token at a time, in whole characters."""

from __future__ import annotations

from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

__all__ = ["Decoder", "Detokenizer", "decoder_of"]

_REPLACEMENT = "\ufffd"
_LONGEST_CONTEXT = 4  # tokens decoded again before a new one; shortening them costs a decoding
_LONGEST_WINDOW = 8  # bound of these tokens where some have no text (skipped special tokens)
_LONGEST_CHARACTER = 4  # bytes of a UTF-8 character, so at most as many byte-level tokens


class Decoder(Protocol):
    """The part of a tokenizer that the detokenizer uses."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = ...) -> Any:
        """Return the text of the ids."""
        ...


def decoder_of(tokenizer: PreTrainedTokenizerBase) -> Decoder:
    """Return the tokenizer's Rust core (three times as fast) unless its Python class changes texts."""
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
    concatenated are the decoding of all ids, except that characters which a later byte spoils stay as
    they were given out. Each call decodes a bounded window: the pending tokens and a few tokens before
    them, on which joining rules (such as leading spaces) depend. The window begins at a character
    border, since half a character would decode to U+FFFD.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._context: list[int] = []  # given out already; decoded again as left neighbours
        self._before = ""  # the text of the context, decoded on its own
        self._pending: list[int] = []  # not given out yet: an incomplete character
        self._spoilt = False  # whether the latest text was decoded without the context

    def fork(self) -> Detokenizer:
        """Return an independent copy that continues from the present state."""
        twin = Detokenizer(self._decoder)
        twin._context, twin._pending = list(self._context), list(self._pending)
        twin._before = self._before
        return twin

    def add(self, token_id: int) -> str:
        """Add a token; return the text that became final with it, which may be empty."""
        self._pending.append(token_id)
        text = self._text(self._pending)
        if not text.endswith(_REPLACEMENT):
            self._settle(len(self._pending), text)
            return text
        # A replacement character at the very end may be the first half of a real one.
        if len(self._pending) >= _LONGEST_CHARACTER:  # special tokens are not part of a character
            # Decoded twice, as a space at the beginning may be left out.
            self._pending = [token for token in self._pending if self._decode([token, token])]
        if len(self._pending) < _LONGEST_CHARACTER:
            return ""
        # Too many tokens for one character: give out the text before the incomplete one.
        for kept in range(1, _LONGEST_CHARACTER):
            settled = self._text(self._pending[:-kept])
            if settled + _REPLACEMENT == text:
                self._settle(len(self._pending) - kept, settled)
                return settled
        self._settle(len(self._pending), text)
        return text

    def finish(self) -> str:
        """End the reply; return the remaining text, U+FFFD for half a character. Idempotent."""
        text = self._text(self._pending) if self._pending else ""
        self._settle(len(self._pending), text)
        return text

    def _text(self, ids: list[int]) -> str:
        """Return the text that ``ids`` add to the text of the context.

        Where bytes are a fallback of words, one byte that fits no character spoils all bytes beside it,
        those of characters that were given out, too. Then ``ids`` are decoded without the context.
        """
        text, before = self._decode(self._context + ids), self._before
        self._spoilt = not text.startswith(before) and _REPLACEMENT in text[: len(before)] + before
        return self._decode(ids) if self._spoilt else text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._decoder.decode(ids, skip_special_tokens=True)) if ids else ""

    def _settle(self, count: int, text: str) -> None:
        """Move the first ``count`` pending tokens, given out as ``text``, to the context."""
        settled = self._pending[:count]
        del self._pending[:count]
        if not text and len(self._context) + count > _LONGEST_WINDOW:
            return  # tokens without text may stay as neighbours, but must not displace those with text
        self._context += settled
        self._before += text
        longest = _LONGEST_WINDOW if text.endswith(_REPLACEMENT) else _LONGEST_CONTEXT
        if text and (self._spoilt or len(self._context) > longest):
            self._context = settled
            self._before = self._decode(settled)
            self._spoilt = False
