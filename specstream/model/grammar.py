"""Grammar-constrained decoding through llguidance (optional extra ``grammar``).

A drafted token that the grammar forbids stays in its proposal and is rejected, as the target gives it
probability 0. Dropping it would make `Proposal.probs` untrue.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specstream.errors import SamplingError
from specstream.types import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["GrammarState", "check_grammar"]

_LOOKS = 256  # Maximum states that `can_last` tries.

# With free white space a model may write it without end. The separators are patterns.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}


class GrammarState:
    """The state of one reply in its grammar.

    The matcher runs ahead along drafted tokens and is rolled back only as far as the next question
    needs, so that a round costs one step per position. It is never fed an end-of-sequence id: those are
    allowed where the grammar may end, and end the reply.
    """

    def __init__(
        self, grammar: Grammar, tokenizer: Any, vocab_size: int, end_ids: frozenset[int]
    ) -> None:
        """Compile the grammar.

        Args:
            grammar: What the reply must look like.
            tokenizer: A fast tokenizer, the target's.
            vocab_size: Width of the logits; ids that the tokenizer doesn't have are forbidden.
            end_ids: The model's own end-of-sequence ids.

        Raises:
            SamplingError: llguidance is missing or can't compile the grammar, or the tokenizer or the
                model don't support grammars.
        """
        if not end_ids:
            raise SamplingError("a grammar needs a model with an end-of-sequence token")
        self._end_ids = sorted(end_ids)
        self._vocab_size = vocab_size
        self._vocabulary = _vocabulary(tokenizer, vocab_size, self._end_ids[0])
        self._grammar = _compiled(grammar)
        self._committed: list[int] = []
        self._ahead: list[int] = []  # read by the matcher after the committed tokens
        self._known: dict[tuple[int, ...], NDArray[np.bool_] | None] = {}
        self._matcher = self._at_start()
        self._check(f"the {grammar.kind} grammar can't be used")

    def commit(self, token: int) -> None:
        """A token of the reply is final.

        Raises:
            SamplingError: the grammar forbids it.
        """
        self._known.clear()
        if token in self._end_ids:
            return
        if self._ahead[:1] == [token]:
            del self._ahead[0]
        elif not self._move_to([token]):
            raise SamplingError(f"the grammar forbids token {token}, which was committed")
        else:
            self._ahead.clear()
        self._committed.append(token)

    def allowed(self, drafted: Sequence[int]) -> NDArray[np.bool_] | None:
        """Which tokens may follow the committed and ``drafted`` ones: ``[V]``.

        None if ``drafted`` holds a forbidden token or an end: what follows them is never used.

        Raises:
            SamplingError: the grammar has become too complex for the matcher.
        """
        path = tuple(drafted)
        if path not in self._known:  # often asked twice: by the draft, by the verifier
            self._known[path] = self._mask() if self._move_to(list(path)) else None
        return self._known[path]

    def can_last(self, tokens: int) -> bool:
        """Whether a reply may have so many tokens before its end; True after `_LOOKS` states.

        Called before the first token. The longest replies consist of one-byte tokens, so others are
        tried only where no one-byte token may follow.

        Raises:
            SamplingError: the grammar has become too complex for the matcher.
        """
        bytewise = np.zeros(self._vocab_size, dtype=np.bool_)
        for byte in range(256):
            ids = self._vocabulary.tokenize_bytes(bytes([byte]))
            if len(ids) == 1 and ids[0] < self._vocab_size:
                bytewise[ids[0]] = True
        paths: list[tuple[int, ...]] = [()]
        for _ in range(_LOOKS):
            if not paths:
                return False
            path = paths.pop()
            if len(path) >= tokens:
                return True
            if not self._move_to(list(path)):
                continue
            allowed = self._mask()
            allowed[self._end_ids] = False
            short = allowed & bytewise
            paths += [(*path, int(i)) for i in np.flatnonzero(short if short.any() else allowed)]
        return True

    def _mask(self) -> NDArray[np.bool_]:
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check("the grammar can't be followed further")
        mask = np.unpackbits(packed, bitorder="little")[: self._vocab_size].astype(np.bool_)
        mask[self._end_ids] = mask[self._end_ids[0]]  # the matcher knows one end, the model several
        return mask

    def _move_to(self, path: list[int]) -> bool:
        """Move the matcher to ``path`` after the committed tokens; False if the grammar forbids it."""
        same = 0
        while same < min(len(path), len(self._ahead)) and path[same] == self._ahead[same]:
            same += 1
        self._matcher.rollback(len(self._ahead) - same)
        rest = path[same:]
        legal = 0 if any(token in self._end_ids for token in rest) else len(rest)
        read = self._matcher.try_consume_tokens(rest) if legal else 0
        self._ahead = path[: same + read]
        self._check("the grammar can't be followed further")
        return read == len(rest)

    def _at_start(self) -> LLMatcher:
        from llguidance import LLMatcher

        return LLMatcher(self._vocabulary, self._grammar, log_level=0)

    def _check(self, what: str) -> None:
        """Replace a matcher in error, which allows an end everywhere and never recovers, and raise."""
        if not self._matcher.is_error():
            return
        reason = _first_line(self._matcher.get_error())
        # The error may concern a draft that is rejected: start again from the committed tokens.
        self._matcher, self._ahead = self._at_start(), []
        self._matcher.consume_tokens(self._committed)
        raise SamplingError(f"{what}: {reason}")


def check_grammar(grammar: Grammar) -> None:
    """Refuse a grammar that no model can follow. Needs neither a model nor torch.

    Raises:
        SamplingError: llguidance is missing, or the grammar is wrong.
    """
    try:
        from llguidance import LLMatcher
    except ImportError:
        raise _missing() from None
    reason = LLMatcher.validate_grammar(_compiled(grammar))
    if reason:
        raise SamplingError(f"the {grammar.kind} grammar can't be used: {_first_line(reason)}")


def _missing() -> SamplingError:
    return SamplingError('grammars need llguidance: pip install "llguidance>=1.3,<2"')


def _compiled(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.text)
    try:
        return LLMatcher.grammar_from_json_schema(grammar.text, defaults=_COMPACT)  # type: ignore[arg-type]
    except ValueError as error:
        raise SamplingError(f"the JSON schema can't be read: {_first_line(error)}") from None


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Any, vocab_size: int, end_id: int) -> LLTokenizer:
    """Llguidance's view of the tokenizer, cached as it takes up to a second to build."""
    try:
        from llguidance.hf import from_tokenizer
    except ImportError:
        raise _missing() from None
    width = max(vocab_size, len(tokenizer))
    try:
        return from_tokenizer(tokenizer, n_vocab=width, eos_token=end_id)
    except Exception as error:
        raise SamplingError(
            f"this model's tokenizer can't be used with a grammar: {_first_line(error)}"
        ) from error


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or ["unknown"])[0][:200]
