"""Tokens to text: decoded as they come, and held back where a stop string may have begun."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Detokenizer", "Repeats", "StopMatcher", "TextDecoder", "decoder_of", "held_back"]

_REPLACEMENT = "\ufffd"
_LONGEST_CONTEXT = 4  # tokens decoded again before a new one; shortening them costs a decoding
_LONGEST_WINDOW = 8  # bound of these tokens where some have no text (skipped special tokens)
_LONGEST_CHARACTER = 4  # bytes of a UTF-8 character, so at most as many byte-level tokens


class TextDecoder(Protocol):
    """The part of a tokenizer that the detokenizer uses."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = ...) -> Any:
        """Return the text of the ids."""
        ...


def decoder_of(tokenizer: PreTrainedTokenizerBase) -> TextDecoder:
    """Return the tokenizer's Rust core (three times as fast) unless its Python class changes texts."""
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return tokenizer
    kind, usual = type(tokenizer), PreTrainedTokenizerFast
    changed = kind.decode is not usual.decode or kind._decode is not usual._decode
    changed = changed or not vars(tokenizer).keys().isdisjoint({"decode", "_decode"})
    if changed or tokenizer.clean_up_tokenization_spaces:
        return tokenizer
    core: TextDecoder = tokenizer.backend_tokenizer
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

    def __init__(self, decoder: TextDecoder) -> None:
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


_STOPS = tuple(".!?…。！？")
_SENTENCE_END = re.compile(r"[.!?…。！？](?=\s)|\n")
_WORD = re.compile(r"\w+")
_LEAST = 3  # words of a sentence that is counted: "No." may be said often


class StopMatcher:
    """Searches the text of one reply for stop strings.

    The text given out never contains a stop string, nor any part of the one that ended the reply.
    At most ``len(longest stop) - 1`` characters are held back at any time.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def add(self, text: str, *, searching: bool = True) -> str:
        """Add text; return the text that may be shown now. Sets ``stopped`` at a complete stop string.

        With ``searching=False``, a stop string completed by this text is treated as ordinary text.
        """
        if not self._stops:
            return text
        held, text = len(self._held), self._held + text
        # A match may begin in the text held back, but must end in the new text.
        found = (text.find(stop, max(0, held - len(stop) + 1)) for stop in self._stops)
        starts = [at for at in found if at >= 0] if searching else []
        if starts:
            self.stopped = True
            self._held = ""
            return text[: min(starts)]
        shown = len(text) - held_back(text, self._stops)
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """End the reply without a stop string; return the text held back. Idempotent."""
        held, self._held = self._held, ""
        return held


class Repeats:
    """Counts the sentences of one reply, whatever their case and marks.

    Attributes:
        looping: The sentence that was written ``most`` times; "" before that.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._at = 0  # of the reply; what is before it has been counted
        self._searched = 0  # up to here there is no further end of a sentence
        self.looping = ""

    def read(self, reply: str) -> None:
        """Count the sentences that have become complete in ``reply``, the whole text so far."""
        for end in _SENTENCE_END.finditer(reply, self._searched):
            sentence, self._at = reply[self._at : end.end()], end.end()
            words = tuple(_WORD.findall(sentence.lower()))
            self._counts[words] += len(words) >= _LEAST
            if self._counts[words] >= self._most:
                self.looping = self.looping or sentence.strip()
        self._searched = len(reply) - reply.endswith(_STOPS)  # white space may follow the last one


def held_back(text: str, marks: Iterable[str]) -> int:
    """Return how many of the last characters of ``text`` may be the beginning of one of ``marks``."""
    longest = 0
    for mark in marks:
        sizes = range(min(len(mark) - 1, len(text)), longest, -1)
        longest = next((size for size in sizes if text.endswith(mark[:size])), longest)
    return longest
