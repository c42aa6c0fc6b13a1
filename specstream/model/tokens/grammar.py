"""Grammar-constrained decoding through llguidance (optional extra ``grammar``).

A drafted token that the grammar forbids stays in its proposal; the verifier rejects it, because the
target gives it probability 0. Removing the token would falsify `Proposal.probs`, the distribution that
it was drawn from.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specstream.checks import first_line
from specstream.errors import SamplingError
from specstream.types import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["COMPACT", "GrammarState", "check_grammar", "compiled", "vocabulary_of"]

_LOOKS = 256  # grammar states that `can_last` tries before it assumes yes

COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""JSON options: with flexible white space a model may write blanks forever. Separators are regexes."""


class GrammarState:
    """The position of one reply in its grammar.

    There is a matcher for each drafted token that was asked about, copied from the one before it, so
    that a round costs one matcher step per position. Matchers are not rolled back, because llguidance
    (1.9) then may return the mask of another position. A matcher never reads an end-of-sequence id:
    such ids are allowed where the grammar may end, and they end the reply.

    Attributes:
        matchers: By the tokens after the committed ones, the matcher that has read them.
        masks: Likewise, which tokens may follow; None: none, as one of them is forbidden.
    """

    def __init__(
        self, grammar: Grammar, tokenizer: Any, vocab_size: int, end_ids: frozenset[int]
    ) -> None:
        """Compile the grammar.

        Args:
            grammar: The grammar that the reply must follow.
            tokenizer: The target's; a fast one.
            vocab_size: Width of the logits; ids that the tokenizer doesn't have are forbidden.
            end_ids: The model's own end-of-sequence ids.

        Raises:
            SamplingError: llguidance is missing or can't compile the grammar, the tokenizer can't be
                used with llguidance, or the model has no end-of-sequence token.
        """
        if not end_ids:
            raise SamplingError("a grammar needs a model with an end-of-sequence token")
        self._end_ids = sorted(end_ids)
        self._vocab_size = vocab_size
        self._vocabulary = vocabulary_of(tokenizer, vocab_size, self._end_ids[0])
        matcher = _matcher(self._vocabulary, grammar)
        _check(matcher, f"the {grammar.kind} grammar can't be used")
        self.matchers: dict[tuple[int, ...], LLMatcher] = {(): matcher}
        self.masks: dict[tuple[int, ...], NDArray[np.bool_] | None] = {}

    def commit(self, token: int) -> None:
        """Append a final token of the reply.

        Raises:
            SamplingError: the grammar forbids it.
        """
        self.masks.clear()
        if token in self._end_ids:
            return
        if self._behind((token,)) is None:
            raise SamplingError(f"the grammar forbids token {token}, which was committed")
        read = self.matchers.items()
        self.matchers = {path[1:]: matcher for path, matcher in read if path[:1] == (token,)}

    def allowed(self, drafted: Sequence[int]) -> NDArray[np.bool_] | None:
        """Return which tokens may follow the committed and the ``drafted`` ones: ``[V]``.

        None if ``drafted`` holds a forbidden or an end-of-sequence token: no token after it is used.

        Raises:
            SamplingError: the grammar has become too complex for the matcher.
        """
        path = tuple(drafted)
        if path not in self.masks:  # often asked twice: by the draft and by the verifier
            matcher = self._behind(path)
            self.masks[path] = None if matcher is None else self._mask(matcher)
        return self.masks[path]

    def can_last(self, tokens: int) -> bool:
        """Whether the grammar has a reply of at least ``tokens`` tokens before its end.

        A depth-first search, to be called before the first token; gives up with True after `_LOOKS`
        states. Replies of one-byte tokens are the longest, so other tokens are tried only where no
        one-byte token is allowed.

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
            matcher = self._behind(path)
            if matcher is None:
                continue
            allowed = self._mask(matcher)
            allowed[self._end_ids] = False
            short = allowed & bytewise
            paths += [(*path, int(i)) for i in np.flatnonzero(short if short.any() else allowed)]
        return True

    def _mask(self, matcher: LLMatcher) -> NDArray[np.bool_]:
        packed = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        _check(matcher, "the grammar can't be followed further")
        mask = np.unpackbits(packed, bitorder="little")[: self._vocab_size].astype(np.bool_)
        mask[self._end_ids] = mask[self._end_ids[0]]  # the matcher knows only the first end id
        return mask

    def _behind(self, path: tuple[int, ...]) -> LLMatcher | None:
        """Return the matcher that has read ``path`` after the committed tokens.

        None if the grammar forbids a token of ``path`` or one is an end-of-sequence id.
        """
        read = len(path)
        while path[:read] not in self.matchers:
            read -= 1
        matcher = self.matchers[path[:read]]
        for end in range(read + 1, len(path) + 1):
            token = path[end - 1]
            matcher = matcher.deep_copy()
            legal = token not in self._end_ids and matcher.try_consume_tokens([token])
            _check(matcher, "the grammar can't be followed further")
            if not legal:
                return None
            self.matchers[path[:end]] = matcher
        return matcher


def _check(matcher: LLMatcher, what: str) -> None:
    """Raise SamplingError if a matcher is in its error state, in which it allows an end everywhere."""
    if matcher.is_error():
        raise SamplingError(f"{what}: {_reason(matcher.get_error())}")


def _matcher(vocabulary: LLTokenizer, grammar: Grammar) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    # Done ahead, the states of a huge expression would hold up all requests for seconds.
    limits = LLParserLimits(precompute_large_lexemes=False)
    return LLMatcher(vocabulary, compiled(grammar), log_level=0, limits=limits)


def check_grammar(grammar: Grammar) -> None:
    """Refuse a grammar that llguidance can't compile. Needs neither a model nor torch.

    Raises:
        SamplingError: llguidance is missing, or the grammar is invalid.
    """
    try:
        from llguidance import LLMatcher
    except ImportError:
        raise _missing() from None
    reason = LLMatcher.validate_grammar(compiled(grammar))
    if reason:
        raise SamplingError(f"the {grammar.kind} grammar can't be used: {_reason(reason)}")


def _reason(told: str) -> str:
    """What is wrong, in one line: of an expression that can't be read, the first line says no more."""
    told = " ".join(told.partition("<state>")[0].split())  # behind it is for llguidance's authors
    if told.startswith("NoExtension"):
        return "no text that goes on from here satisfies it"
    return shorten(told, 400, placeholder=" …")


def _missing() -> SamplingError:
    return SamplingError('grammars need llguidance: pip install "llguidance>=1.3,<2"')


def compiled(grammar: Grammar) -> str:
    """The grammar as llguidance takes it."""
    from llguidance import LLMatcher

    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.text)
    try:
        schema = kept_schema(grammar.text)
        return LLMatcher.grammar_from_json_schema(schema, defaults=COMPACT)  # type: ignore[arg-type]
    except ValueError as error:
        raise SamplingError(f"the JSON schema can't be read: {first_line(error)}") from None


_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_DATA = {"const", "enum", "default", "examples"}  # their values are no schemas
_NAMED = {"properties", "patternProperties", "$defs", "definitions"}  # their keys are no keywords
_EXACT = 2**53  # llguidance keeps numbers as doubles
_LEAST = 1e-9  # by which a bound moves, as a share of what lies between the bounds
_NEGATED = re.compile(r"\\.|\[\^((?:\\.|[^\]\\])+)\]", re.DOTALL)


def kept_schema(schema: str) -> str:
    """Return a JSON schema of which llguidance keeps everything, but for int64's 1,024 lowest numbers.

    Raises:
        SamplingError: names what can't be kept: numbers beyond 53 bits, which become others; classes of
            a pattern that exclude a quote or a backslash, which come as escapes; a least number of
            properties where a key may come twice.
    """
    try:
        whole = json.loads(schema)
    except (ValueError, RecursionError):
        return schema  # llguidance says what is wrong
    changed = False
    for name, part in _parts(whole):
        if isinstance(part, dict) and name not in _DATA:
            _check_pattern(part.get("pattern"))
            _check_least(part)
            if _of_whole(part) and part.get("minimum") == -(2**63):  # int64: but for the lowest 1,024
                part["minimum"], changed = -(2**63) + 1024, True
            for key in _BOUNDS & part.keys():
                among_whole = _of_whole(part) and not key.startswith("exclusive")
                if not _is_kept(part[key], whole=among_whole):
                    raise _inexact(key, part[key])
            changed |= _open_bounds(part)
        elif isinstance(part, int) and name in {"const", "enum"} and not _is_kept(part, whole=True):
            raise _inexact(name, part)
    return json.dumps(whole) if changed else schema


def _parts(whole: Any) -> Iterator[tuple[str, Any]]:
    """All parts of a schema, each with the keyword that it belongs to."""
    parts: list[tuple[str, Any]] = [("", whole)]
    while parts:
        name, part = parts.pop()
        yield name, part
        inner = name if name in _DATA else ""
        if isinstance(part, dict):
            free = inner or name in _NAMED
            parts += [(inner if free else key, value) for key, value in part.items()]
        elif isinstance(part, list):
            parts += [(inner, value) for value in part]


def _of_whole(part: dict[str, Any]) -> bool:
    """Whether the numbers of a schema are whole ones."""
    types = part.get("type")
    types = types if isinstance(types, list) else [types]
    return "integer" in types and "number" not in types


def _is_kept(number: Any, *, whole: bool) -> bool:
    """Whether llguidance keeps a number; ``whole``: among whole ones, which it ends at 63 bits."""
    if not isinstance(number, int | float) or -_EXACT <= number <= _EXACT:
        return True
    if not (whole and isinstance(number, int) and -(2**63) < number < 2**63):
        return False
    return number == 2**63 - 1 or int(float(number)) == number


def _inexact(name: str, number: float) -> SamplingError:
    return SamplingError(f"the JSON schema's {name} {number!r:.40} has more than 53 bits")


def _open_bounds(part: dict[str, Any]) -> bool:
    """Move an exclusive whole bound by as good as nothing where llguidance takes the bound itself.

    llguidance 1.9 does so for the bound nearer to 0, if the other one is less than 1 away.
    """
    low: float | None = max(_numbers(part, "minimum", "exclusiveMinimum"), default=None)
    high: float | None = min(_numbers(part, "maximum", "exclusiveMaximum"), default=None)
    if low is None or high is None or not 0 < high - low < 1:
        return False
    name, closed, bound, sign = ("exclusiveMinimum", "minimum", low, 1.0)
    if high <= 0:
        name, closed, bound, sign = ("exclusiveMaximum", "maximum", high, -1.0)
    if part.get(name) != bound or bound != int(bound) or _of_whole(part):
        return False
    del part[name]
    part[closed] = bound + sign * max(_LEAST * (high - low), 2 * math.ulp(bound))
    return True


def _numbers(part: dict[str, Any], *names: str) -> list[float]:
    values = [part.get(name) for name in names]
    return [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]


def _check_pattern(pattern: Any) -> None:
    for found in _NEGATED.finditer(pattern) if isinstance(pattern, str) else ():
        if found[1] and ('"' in found[1] or "\\\\" in found[1]):
            raise SamplingError(
                f"the JSON schema's pattern {pattern!r:.80} can't be kept: what {found[0]!r:.40} "
                "excludes may come as an escape; leave quote and backslash out of it, and look at the "
                "text yourself"
            )


def _check_least(part: dict[str, Any]) -> None:
    least, required = part.get("minProperties"), part.get("required")
    if not isinstance(least, int) or least < 2:
        return
    closed = part.get("additionalProperties") is False and not part.get("patternProperties")
    if not closed and not (isinstance(required, list) and len(required) >= least):
        raise SamplingError(
            f"the JSON schema's minProperties {least} can't be kept where keys are free: one may come "
            "twice; name the properties as required"
        )


@lru_cache(maxsize=4)
def vocabulary_of(tokenizer: Any, vocab_size: int, end_id: int) -> LLTokenizer:
    """The tokenizer in llguidance's form; cached, because making it takes up to a second."""
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
        from llguidance.hf import from_tokenizer
    except ImportError:
        raise _missing() from None
    width = max(vocab_size, len(tokenizer))
    try:
        plain = from_tokenizer(tokenizer, n_vocab=width, eos_token=end_id)
        encoder = TokenizerWrapper(_Encoder(plain, width))
        return LLTokenizer(encoder, n_vocab=width, eos_token=plain.eos_token)
    except Exception as error:
        raise SamplingError(
            f"this model's tokenizer can't be used with a grammar: {first_line(error)}"
        ) from error


class _Encoder:
    """What `TokenizerWrapper` takes: the tokens' bytes, and an encoder that reads no text as a marker.

    Markers are special tokens, and added ones that look like a tag (``<tool_call>``). The matcher takes
    one only where the grammar names the token itself, but it offers what the encoder makes of the text
    that the grammar forces; a tokenizer's own encoder makes markers of text that spells them.
    """

    bos_token_id = None

    def __init__(self, vocabulary: LLTokenizer, width: int) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = vocabulary.eos_token
        self.special_token_ids = [i for i in range(width) if vocabulary.is_special_token(i)]
        self.tokens = [vocabulary.decode_bytes([i]) for i in range(width)]
        for number in set(range(width)).difference(self.special_token_ids):
            if self.tokens[number] == b"<[%d]>" % number:  # so it spells an id without a token
                self.tokens[number] = b""
        self._markers = frozenset(self.special_token_ids)

    def __call__(self, text: bytes) -> list[int]:
        """Return tokens of the text; those of a word that spells a marker are the longest that fit."""
        found: list[int] = []
        for number in self._vocabulary.tokenize_bytes(text):
            if number in self._markers:
                found += self._vocabulary.greedy_tokenize(self.tokens[number].decode())
            else:
                found.append(number)
        # A marker may have swallowed the white space beside it.
        whole = b"".join(self.tokens[number] for number in found) == text
        return found if whole else self._vocabulary.greedy_tokenize(text.decode())
