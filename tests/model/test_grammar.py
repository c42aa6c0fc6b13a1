"""Grammars through llguidance: masks per drafted position, ends, refusals, and whole replies."""

import json
import random
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llguidance")

from llguidance import LLMatcher
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from specstream import Engine, SamplingParams
from specstream.errors import SamplingError
from specstream.model.tokens import grammar as module
from specstream.model.tokens.grammar import GrammarState
from specstream.types import Grammar
from tests.support.tiny import EOS, byte_tokenizer

TOKENIZER = byte_tokenizer()
SIZE = len(TOKENIZER)
SECOND_END = SIZE - 1


def ids(text: str) -> list[int]:
    return [int(i) for i in TOKENIZER.encode(text, add_special_tokens=False)]


def state(kind: Any, text: str, *, width: int = SIZE, ends: tuple[int, ...] = (EOS,)) -> GrammarState:
    return GrammarState(Grammar(kind, text), TOKENIZER, width, frozenset(ends))


def allowed_text(grammar: GrammarState, drafted: str = "") -> str | None:
    """The characters that may follow, sorted; ``$`` is an end."""
    mask = grammar.allowed(ids(drafted))
    if mask is None:
        return None
    found = [int(i) for i in np.flatnonzero(mask)]
    return "".join(sorted("$" if i == EOS else str(TOKENIZER.decode([i])) for i in found))


def test_each_position_is_masked_in_its_own_context() -> None:
    grammar = state("regex", "ab?(cd)*")
    assert [allowed_text(grammar, text) for text in ("", "a", "ab", "ac", "abcd")] == [
        "a",
        "$bc",
        "$c",
        "d",
        "$c",
    ]
    assert allowed_text(grammar) == "a"  # looking ahead has moved nothing


def test_what_follows_a_forbidden_token_or_an_end_is_never_asked_for() -> None:
    grammar = state("regex", "ab*")
    assert allowed_text(grammar, "b") is None
    assert allowed_text(grammar, "abxb") is None
    assert grammar.allowed([*ids("a"), EOS]) is None
    assert grammar.allowed([*ids("a"), EOS, *ids("b")]) is None
    assert allowed_text(grammar, "ab") == "$b"


def test_a_finished_grammar_allows_ends_only_and_all_of_them() -> None:
    grammar = state("regex", "ab", ends=(EOS, SECOND_END))
    for token in ids("ab"):
        mask = grammar.allowed([])
        assert mask is not None and not mask[EOS] and not mask[SECOND_END]
        grammar.commit(token)
    mask = grammar.allowed([])
    assert mask is not None and set(np.flatnonzero(mask)) == {EOS, SECOND_END}
    grammar.commit(SECOND_END)
    assert grammar.allowed([EOS]) is None  # asked again after its end, it answers


def test_padding_and_special_ids_are_forbidden() -> None:
    grammar = state("regex", "(?s:.)*", width=SIZE + 11)
    mask = grammar.allowed([])
    assert mask is not None and mask.shape == (SIZE + 11,)
    assert not mask[SIZE:].any()
    assert not mask[0]  # <s>
    assert mask[EOS] and mask[ids("x")[0]]
    narrow = state("regex", "(?s:.)*", width=SIZE - 20)
    assert narrow.allowed([]).shape == (SIZE - 20,)  # type: ignore[union-attr]


SCHEMA = {
    "type": "object",
    "properties": {
        "who": {"enum": ["Ann", "Bo"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "likes": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "note": {"type": "string", "maxLength": 5},
    },
    "required": ["who", "age", "likes"],
    "additionalProperties": False,
}


def valid(text: str) -> bool:
    """Whether ``text`` is JSON of ``SCHEMA``; written out, so that no library marks its own work."""
    found = json.loads(text)
    return (
        {"who", "age", "likes"} <= found.keys() <= SCHEMA["properties"].keys()  # type: ignore[attr-defined]
        and found["who"] in ("Ann", "Bo")
        and type(found["age"]) is int
        and 0 <= found["age"] <= 99
        and len(found["likes"]) <= 3
        and all(type(like) is bool for like in found["likes"])
        and isinstance(found.get("note", ""), str)
        and len(found.get("note", "")) <= 5
    )


GRAMMARS = [
    ("json_schema", json.dumps(SCHEMA)),
    ("regex", r"[a-c]{2,6}(-\d{1,2})?(é|日本)*"),
    ("lark", 'start: "(" (item ("," item)*)? ")"\nitem: /[ab]{1,2}/ | start'),
]


_KEYS = {"a": {"type": "null"}, "n": {"type": "integer"}, "b": {"enum": ["x", True]}}
KEYS = {"type": "object", "properties": _KEYS, "additionalProperties": False}


@pytest.mark.parametrize(("kind", "text"), [*GRAMMARS, ("json_schema", json.dumps(KEYS))])
def test_looking_ahead_and_back_never_changes_a_mask(kind: Any, text: str) -> None:
    """1,500 random questions, commits among them, against a matcher that reads from the start."""
    rng = random.Random(5)
    vocabulary = module.vocabulary_of(TOKENIZER, SIZE, EOS)
    fresh = LLMatcher(vocabulary, module.compiled(Grammar(kind, text)))
    answers = 0
    for _ in range(20):
        grammar, committed = state(kind, text), list[int]()
        for _ in range(75):
            path = list[int]()
            mask = grammar.allowed(path)
            for _ in range(rng.randint(0, 5)):  # mostly legal drafts, as a draft model's are
                choices = [int(i) for i in np.flatnonzero(mask)] if mask is not None else []
                legal = bool(choices) and rng.random() < 0.9
                path.append(rng.choice(choices) if legal else rng.randrange(2, SIZE))
                mask = grammar.allowed(path)
                answers += 1
            if rng.random() < 0.5:
                path = path[: rng.randint(0, len(path))]
            got = grammar.allowed(path)
            fresh.reset()
            whole = committed + path
            if EOS in path or fresh.try_consume_tokens(whole) != len(whole):
                assert got is None
            else:
                packed = np.frombuffer(fresh.compute_bitmask(), np.uint8)
                wanted = np.unpackbits(packed, bitorder="little")[:SIZE].astype(bool)
                assert got is not None and np.array_equal(got, wanted)
            step = grammar.allowed([])
            assert step is not None and step.any()
            choices = [int(i) for i in np.flatnonzero(step) if i != EOS]
            if not choices:
                break
            # As a round does: some of the draft, or something else.
            following = path[0] if path and path[0] in choices else rng.choice(choices)
            grammar.commit(following)
            committed.append(following)
    assert answers > 250


def test_a_mask_is_not_that_of_another_position_that_was_looked_at() -> None:
    """llguidance's rollback leaves the mask behind ``"a":`` for the one behind ``"n":``."""
    grammar = state("json_schema", json.dumps(KEYS))
    for token in ids('{"'):
        grammar.commit(token)
    assert allowed_text(grammar, 'a":') == " n"
    assert allowed_text(grammar, 'a": ') == "n"
    assert allowed_text(grammar, 'n":') == " -0123456789"


def test_white_space_in_json_has_an_end() -> None:
    grammar = state("json_schema", json.dumps(SCHEMA))
    assert allowed_text(grammar, '{"who":') == ' "'
    assert allowed_text(grammar, '{"who": ') == '"'
    assert allowed_text(grammar, '{"who": "Bo"') == ","
    assert allowed_text(grammar, '{"who": "Bo", ') == '"'


@pytest.mark.parametrize(("kind", "text"), GRAMMARS)
def test_random_walks_end_in_what_the_grammar_means(kind: str, text: str) -> None:
    rng = random.Random(2)
    for _ in range(30):
        grammar, written = state(kind, text), list[int]()
        while True:
            mask = grammar.allowed([])
            assert mask is not None and mask.any()
            token = int(rng.choice(np.flatnonzero(mask)))
            if mask[EOS] and rng.random() < 0.6:
                token = EOS
            grammar.commit(token)
            if token == EOS:
                break
            written.append(token)
        reply = str(TOKENIZER.decode(written))
        if kind == "json_schema":
            assert valid(reply)
        elif kind == "regex":
            assert re.fullmatch(text, reply)
        else:
            assert re.fullmatch(r"\(\)", shrunk(reply))


def shrunk(reply: str) -> str:
    """Innermost lists made items, until only the outermost is left."""
    inner = re.compile(r"(?<=[(,])\((?:[ab]{1,2}(?:,[ab]{1,2})*)?\)")
    while inner.search(reply):
        reply = inner.sub("a", reply)
    return re.sub(r"^\([ab]{1,2}(,[ab]{1,2})*\)$", "()", reply)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "("),
        ("regex", "a(?=b)"),
        ("lark", "start: nothing"),
        ("lark", "x: /a/"),
        ("json_schema", "{"),
        ("json_schema", "[1]"),
        ("json_schema", "false"),
        ("json_schema", '{"type": "wat"}'),
        ("json_schema", '{"type": "array", "uniqueItems": true}'),
        ("json_schema", '{"$ref": "http://127.0.0.1/x"}'),
    ],
)
def test_a_wrong_grammar_is_refused_in_one_line(kind: str, text: str) -> None:
    with pytest.raises(SamplingError) as caught:
        state(kind, text)
    assert "\n" not in str(caught.value)
    assert kind.split("_")[-1] in str(caught.value)


def test_what_else_a_grammar_needs_is_named() -> None:
    with pytest.raises(SamplingError, match="end-of-sequence"):
        state("regex", "a", ends=())
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1, "</s>": 2}, unk_token="<unk>"))
    plain = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")  # type: ignore[no-untyped-call]
    with pytest.raises(SamplingError, match="tokenizer"):
        GrammarState(Grammar("regex", "a"), plain, 3, frozenset({2}))


def test_committing_what_is_forbidden_is_an_error_and_nothing_crashes_after_it() -> None:
    grammar = state("regex", "ab")
    with pytest.raises(SamplingError, match="forbids"):
        grammar.commit(ids("x")[0])
    assert allowed_text(grammar) == "a"


def test_a_matcher_that_gives_up_on_a_draft_leaves_what_is_certain() -> None:
    """A matcher in error allows an end wherever it is: that must never get out."""
    grammar = state("regex", "a[bc]d")
    grammar.commit(ids("a")[0])
    path = tuple(ids("b"))
    assert allowed_text(grammar, "b") == "d"
    assert not grammar.matchers[path].consume_token(ids("x")[0])  # as after a resource limit
    grammar.masks.clear()
    with pytest.raises(SamplingError, match="can't be followed"):
        grammar.allowed(path)
    assert allowed_text(grammar) == "bc"
    assert allowed_text(grammar, "c") == "d"


@pytest.mark.parametrize(
    ("kind", "text", "longest"),
    [
        ("regex", "(yes|no|perhaps)", 7),
        ("regex", "é?[0-9]", 3),
        ("json_schema", '{"enum": ["Ann", "Bo"]}', 5),
        ("regex", "[a-h ]{5,40}", 40),
        ("regex", ".*", None),
    ],
)
def test_how_long_a_reply_can_be_is_known(kind: str, text: str, longest: int | None) -> None:
    grammar = state(kind, text)
    before = allowed_text(grammar)
    assert grammar.can_last(longest or 10_000)
    assert longest is None or grammar.can_last(longest + 1) == (longest > 7)  # too many to look at
    assert allowed_text(grammar) == before


async def test_a_grammar_that_ends_too_early_is_refused_before_the_first_token() -> None:
    short = Grammar("regex", "(yes|no)")
    async with Engine.load(proposer="off") as engine:
        params = SamplingParams(grammar=short, min_tokens=30)
        async with engine.generate("Is it?", params) as chunks:
            with pytest.raises(SamplingError, match="min_tokens=30"):
                await anext(aiter(chunks))
        params = SamplingParams(grammar=Grammar("regex", "(yes|no){2}"), min_tokens=2)
        async with engine.generate("Is it?", params) as chunks:
            assert "".join([chunk.text async for chunk in chunks])


def test_a_schema_that_nothing_satisfies_is_told_in_words() -> None:
    grammar = state("json_schema", '{"$ref": "#"}')
    with pytest.raises(SamplingError, match="followed further: no text that goes on from here") as told:
        grammar.allowed([])
    assert "state" not in str(told.value)


def test_the_vocabulary_is_built_once_and_few_are_kept() -> None:
    module.vocabulary_of.cache_clear()
    for _ in range(3):
        state("regex", "a")
    assert module.vocabulary_of.cache_info().misses == 1
    for width in range(SIZE, SIZE + 9):
        state("regex", "a", width=width)
    assert module.vocabulary_of.cache_info().currsize <= 4


async def test_the_bundled_pair_keeps_a_schema_and_no_proposer_changes_the_reply() -> None:
    """A real vocabulary: tokens that hold several characters of JSON at once."""
    schema = Grammar("json_schema", json.dumps(SCHEMA))
    replies, accepted = [], 0
    for kind in ("off", "draft", "suffix"):
        async with Engine.load(proposer=kind, dtype="float32") as engine:
            params = SamplingParams(grammar=schema, max_tokens=120)
            async with engine.generate("Who is Ann, and what is she like?", params) as generation:
                async for _ in generation:
                    pass
            assert generation.report.finish_reason == "stop"
            replies.append(generation.report.text)
            accepted += generation.report.accepted
    assert len(set(replies)) == 1
    assert valid(replies[0])
    assert accepted > 5


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "string", "pattern": "a(?=b)"}, "look-around"),
        ({"type": "integer", "minimum": 10**20, "maximum": 10**20 + 5}, "imum 1000.* 53 bits"),
        ({"type": "integer", "minimum": 2**53 + 1}, "minimum 90071.* 53 bits"),
        ({"type": "number", "maximum": 2**60}, "maximum 1152.* has more than 53 bits"),
        ({"type": "integer", "maximum": 2**63}, "maximum 922.* has more than 53 bits"),
        ({"type": "integer", "exclusiveMaximum": 2**60}, "exclusiveMaximum 1152.* 53 bits"),
        ({"const": -(2**63)}, "const -922.* has more than 53 bits"),  # it ends the process
        ({"type": "number", "maximum": 2e30}, "maximum 2e.30 has more than 53 bits"),
        ({"properties": {"id": {"const": 2**53 + 1}}}, "const 90071.* 53 bits"),
        ({"enum": ["a", [{"b": 12345678901234567890}]]}, "enum 12345.* 53 bits"),
        ({"type": "string", "pattern": r"^[^\\]+$"}, r"pattern .* can't be kept"),
        ({"items": {"pattern": '^[^/:*?"<>|]{1,8}$'}}, r"pattern .* can't be kept"),
        ({"type": "object", "minProperties": 2}, "minProperties 2 can't be kept"),
        ({"properties": {"const": {"pattern": '[^"]'}}}, r"pattern .* can't be kept"),
        ({"type": "number", "exclusiveMinimum": 1e400}, "53 bits"),
        ({"enum": [10**400]}, "enum 1000.* 53 bits"),
        ({"type": "integer", "maximum": -(10**400)}, "maximum -1000.* 53 bits"),
        ({"type": "integer", "exclusiveMaximum": -123456789, "minimum": -123456789.499}, "nsatisf"),
        ({"minProperties": 2, "patternProperties": {"^[ab]$": {}}}, "minProperties 2 can't"),
    ],
)
def test_a_schema_that_cannot_be_followed_says_why(schema: dict[str, Any], told: str) -> None:
    with pytest.raises(SamplingError, match=told):
        module.check_grammar(Grammar("json_schema", json.dumps(schema)))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": r"^[^\n/]+\\[a-z\]]+$"},
        {"type": "object", "minProperties": 1},
        {"type": "object", "minProperties": 1, "required": ["a"], "properties": {"a": {}}},
        {"enum": [{"pattern": '[^"]', "exclusiveMinimum": 1}]},
        {"type": "string", "default": {"minProperties": 2, "pattern": '[^"]'}},
        {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
        {"enum": [2**60, 2**63 - 1, -(2**62)]},
        {"type": ["integer", "null"], "exclusiveMinimum": 1700000000000},
        {"type": ["integer", "null"], "maximum": 2**63 - 1},
        {"type": "number", "exclusiveMinimum": 1700000000000, "exclusiveMaximum": 1700000002000},
    ],
)
def test_what_can_be_kept_is_as_it_was(schema: dict[str, Any]) -> None:
    text = json.dumps(schema)
    assert module.kept_schema(text) == text
    module.check_grammar(Grammar("json_schema", text))


def test_the_bounds_of_int64_are_kept_but_for_its_lowest_numbers() -> None:
    schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    grammar = Grammar("json_schema", json.dumps(schema))
    module.check_grammar(grammar)
    vocabulary = module.vocabulary_of(TOKENIZER, SIZE, EOS)
    for number in (0, -5, 2**63 - 1, 2**63, 1024 - 2**63, -(2**63) - 1, 10**19, -(10**19)):
        matcher = module._matcher(vocabulary, grammar)
        tokens = vocabulary.tokenize_str(str(number))
        taken = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        assert taken == (-(2**63) <= number < 2**63), number


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"exclusiveMinimum": 1, "maximum": 1.5}, ["1.2", "1.5"], ["1", "1.0", "1.6"]),
        ({"exclusiveMinimum": 0, "maximum": 0.5}, ["0.3"], ["0", "-0", "0.0"]),
        ({"exclusiveMaximum": 0, "minimum": -0.5}, ["-0.3"], ["0", "-0"]),
        ({"exclusiveMinimum": -1.5, "exclusiveMaximum": -1}, ["-1.2"], ["-1", "-1.5", "-1.0"]),
        ({"exclusiveMinimum": 0}, ["1", "0.1", "20"], ["0", "-1"]),
        ({"minimum": 0, "exclusiveMaximum": 1}, ["0", "0.9", "0.99", "0.999"], ["1", "1.0"]),
        ({"minimum": 0, "exclusiveMaximum": 100}, ["99", "99.99"], ["100", "100.0"]),
        ({"exclusiveMinimum": -90, "exclusiveMaximum": 90}, ["89.99", "-89.99"], ["90", "-90"]),
        ({"exclusiveMinimum": 10**10, "maximum": 10**10 + 0.5}, ["10000000000.25"], ["10000000000"]),
        *(
            ({"exclusiveMinimum": low, "maximum": low + 0.5}, [f"{low}.25"], [str(low)])
            for low in range(123_456_700, 123_456_720)
        ),
    ],
)
def test_a_bound_that_is_exclusive_is_outside(
    bounds: dict[str, Any], inside: list[str], outside: list[str]
) -> None:
    vocabulary = module.vocabulary_of(TOKENIZER, SIZE, EOS)
    schema = {"type": "number", **bounds}
    for text in (*inside, *outside):
        matcher = module._matcher(vocabulary, Grammar("json_schema", json.dumps(schema)))
        tokens = vocabulary.tokenize_str(text)
        taken = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        assert taken == (text in inside), text


@pytest.mark.parametrize("text", ["(a{100}){100}{100}", "a{1000000}"])
async def test_a_huge_expression_is_followed_as_far_as_it_is_written(text: str) -> None:
    """Its states are not made ahead, which took seconds, and then failed after a token."""
    params = SamplingParams(max_tokens=12, grammar=Grammar("regex", text))
    async with Engine.load() as engine, engine.generate("x", params) as generation:
        async for _ in generation:
            pass
        report = generation.report
    assert report.finish_reason == "length" and set(report.text) == {"a"}
