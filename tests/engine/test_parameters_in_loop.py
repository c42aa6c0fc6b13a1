"""Every parameter under speculation: what a proposer drafts never changes what is written."""

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import NoRepeatNGramLogitsProcessor, TopKLogitsWarper

from specstream.config import EngineConfig
from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.off import OffProposer
from specstream.drafting.proposers.suffix import SuffixProposer
from specstream.engine.core.step import EngineCore
from specstream.errors import RequestError, SamplingError, SpecstreamError
from specstream.methods import DraftProposerConfig, SuffixProposerConfig
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import find_fixed_width
from specstream.model.tokens.processors import LogitsPipeline, Processed
from specstream.types import Grammar, SamplingParams
from tests.support.tiny import (
    EOS,
    Inbox,
    answered,
    ask,
    byte_tokenizer,
    noisy_copy,
    run_until_idle,
    tiny_model,
)

TOKENIZER = byte_tokenizer()
MODEL = tiny_model(len(TOKENIZER), seed=2, context=160)
TEXT = "the cat sat on the mat, the cat"
A, B = (int(i) for i in TOKENIZER.encode("ab"))
SCHEMA = {
    "type": "object",
    "properties": {
        "who": {"enum": ["Ann", "Bo"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "likes": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["who", "age", "likes"],
    "additionalProperties": False,
}
JSON = Grammar("json_schema", json.dumps(SCHEMA))


class Alternating:
    """A processor that looks at the length and the last token."""

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        shift = 7 * (ids.shape[1] % 3) + int(ids[0, -1]) % 5
        return scores + torch.roll(scores, shift, -1) * 0.5


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "top k": {"temperature": 1.2, "top_k": 5},
    "top p": {"temperature": 1.2, "top_p": 0.8},
    "min p": {"temperature": 1.5, "min_p": 0.1},
    "typical p": {"temperature": 1.5, "typical_p": 0.7},
    "repetition": {"repetition_penalty": 1.3},
    "frequency": {"frequency_penalty": 1.5},
    "presence": {"presence_penalty": 2.0},
    "negative penalties": {"frequency_penalty": -0.5, "presence_penalty": -1.0},
    "bias": {"logit_bias": {A: 6.0, B: -3.0}},
    "bad words": {"bad_words": ("P]P]P]", "P]\x1b", "the")},
    "min tokens": {"min_tokens": 30, "logit_bias": {EOS: 30.0}},
    "own processors": {"processors": (NoRepeatNGramLogitsProcessor(2), TopKLogitsWarper(50))},
    "own, on the context": {"processors": (Alternating(),)},
    "schema": {"grammar": JSON},
    "regex": {"grammar": Grammar("regex", "([a-e]{3}[0-9] ?){4,12}")},
    "lark": {
        "grammar": Grammar(
            "lark", 'start: "<" item ("," item)* ">"\nitem: /[a-h]{2,3}/ | "(" item "+" item ")"'
        )
    },
    "all penalties": {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.3,
        "bad_words": ("qu",),
    },
    "grammar and penalties": {
        "grammar": Grammar("regex", "[a-h ]{5,40}"),
        "repetition_penalty": 1.4,
        "logit_bias": {B: -9.0},
        "min_tokens": 8,
    },
    "everything": {
        "temperature": 0.9,
        "top_k": 60,
        "top_p": 0.95,
        "min_p": 0.01,
        "typical_p": 0.95,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
        "logit_bias": {A: 1.0},
        "bad_words": ("ab",),
        "min_tokens": 5,
        "grammar": Grammar("regex", r"[\x20-\x7e]{4,60}"),
        "processors": (Alternating(),),
        "stop": ("zz", " q"),
        "stop_when": (lambda ids, text: len(text) > 45,),
    },
}


def proposer(kind: str) -> Proposer:
    if kind == "draft":
        runner = ModelRunner(noisy_copy(MODEL, 0.1))
        return DraftModelProposer(DraftProposerConfig(num_tokens=5), runner, frozenset({EOS}))
    if kind == "suffix":
        return SuffixProposer(SuffixProposerConfig(min_score=0), torch.device("cpu"))
    return OffProposer()


@functools.cache
def width() -> int:
    return find_fixed_width(MODEL, EngineConfig())


def core_of(kind: str, *, reproducible: bool = False) -> EngineCore:
    config = EngineConfig(mode="reproducible" if reproducible else "default")
    runner = ModelRunner(MODEL, fixed_width=width() if reproducible else None)
    return EngineCore(config, runner, TOKENIZER, proposer(kind), frozenset({EOS}))


def reply(kind: str, params: SamplingParams, *, reproducible: bool = False) -> tuple[Any, ...]:
    """What a consumer has in the end, and how many drafted tokens were accepted."""
    if params.grammar is not None:
        pytest.importorskip("llguidance")
    core = core_of(kind, reproducible=reproducible)
    request, inbox = answered(core, TEXT, params)
    assert not inbox.errors
    return (inbox.text, inbox.token_ids, request.finish_reason), request.stats.accepted


@pytest.mark.parametrize("name", CASES)
def test_greedy_replies_are_those_of_plain_decoding(name: str) -> None:
    values = CASES[name] | {"temperature": 0.0}
    params = SamplingParams(max_tokens=48, **values)
    wanted, _ = reply("off", params)
    assert len(wanted[1]) > 3
    accepted = 0
    for kind in ("draft", "suffix"):
        got, count = reply(kind, params)
        assert got == wanted
        accepted += count
    assert accepted > 0


@pytest.mark.parametrize("name", CASES)
def test_sampled_replies_are_too_in_the_reproducible_mode(name: str) -> None:
    values = {"temperature": 0.8} | CASES[name]
    accepted = 0
    for seed in range(2):
        params = SamplingParams(max_tokens=32, seed=seed, **values)
        wanted, _ = reply("off", params, reproducible=True)
        for kind in ("draft", "suffix"):
            got, count = reply(kind, params, reproducible=True)
            assert got == wanted
            accepted += count
    assert accepted > 0


CONTEXTUAL = [
    "repetition",
    "frequency",
    "presence",
    "bad words",
    "min tokens",
    "own processors",
    "own, on the context",
    "schema",
    "regex",
    "lark",
]


@pytest.mark.parametrize("name", CONTEXTUAL)
def test_rows_judged_without_their_drafted_prefix_are_found_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison above has teeth: with the planted bug it fails."""
    params = SamplingParams(max_tokens=48, **CASES[name])
    wanted, _ = reply("off", params)
    honest = LogitsPipeline.apply_rows

    def no_draft(
        self: LogitsPipeline, logits: Tensor, ids: list[int], proposed: Tensor, paths: list[Any]
    ) -> Processed:
        return honest(self, logits, ids, proposed, [() for _ in paths])

    monkeypatch.setattr(LogitsPipeline, "apply_rows", no_draft)

    def survives(kind: str) -> bool:
        try:
            return bool(reply(kind, params)[0] == wanted)
        except AssertionError:
            return False

    assert not all(survives(kind) for kind in ("draft", "suffix"))


@pytest.mark.parametrize("kind", ["off", "draft", "suffix"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema_is_kept_whoever_drafts(kind: str, temperature: float) -> None:
    for seed in range(4):
        params = SamplingParams(temperature, seed=seed, grammar=JSON, max_tokens=150)
        (text, _, reason), _ = reply(kind, params)
        found = json.loads(text)
        assert reason == "stop"
        assert list(found) == ["who", "age", "likes"]
        assert found["who"] in ("Ann", "Bo") and 0 <= found["age"] <= 99
        assert len(found["likes"]) <= 2 and all(type(like) is bool for like in found["likes"])


def test_a_forbidden_draft_stays_in_the_proposal_and_is_rejected() -> None:
    """Lookup drafts the prompt's words; the grammar wants others."""
    params = SamplingParams(grammar=Grammar("regex", "(the dog|the pig|the cow){3}"), max_tokens=40)
    (text, _, _), _ = reply("suffix", params)
    assert re.fullmatch("(the (dog|pig|cow)){3}", text)
    core = core_of("suffix")
    _, inbox = answered(core, TEXT, params)
    assert any(chunk.drafted > chunk.accepted for chunk in inbox.chunks)


def raising(after: int) -> Callable[[Tensor, Tensor], Tensor]:
    prompt = len(TOKENIZER.encode(TEXT))

    def processor(ids: Tensor, scores: Tensor) -> Tensor:
        if ids.shape[1] - prompt >= after:
            raise ZeroDivisionError("boom")
        return scores

    return processor


def emptying(after: int) -> Callable[[Tensor, Tensor], Tensor]:
    prompt = len(TOKENIZER.encode(TEXT))

    def processor(ids: Tensor, scores: Tensor) -> Tensor:
        over = ids.shape[1] - prompt >= after
        return torch.full_like(scores, -torch.inf) if over else scores

    return processor


def deciding(after: int) -> Callable[[list[int], str], bool]:
    def criterion(ids: list[int], text: str) -> bool:
        return bool(1 // (after - len(ids)) < 0)  # breaks once ``after`` tokens are there

    return criterion


@pytest.mark.parametrize("kind", ["off", "draft", "suffix"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_grammar_that_has_come_to_its_end_ends_a_reply_before_min_tokens(
    kind: str, temperature: float
) -> None:
    params = SamplingParams(
        temperature,
        seed=3,
        max_tokens=30,
        min_tokens=8,
        grammar=Grammar("regex", "ab|[c-z]{9,30}"),
        logit_bias={A: 50.0},
    )
    assert reply(kind, params)[0] == ("ab", [A, B, EOS], "stop")


@pytest.mark.parametrize("kind", ["off", "draft", "suffix"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(
    ("values", "error", "given"),
    [
        ({"processors": (raising(7),)}, RequestError, 7),
        ({"processors": (raising(0),)}, RequestError, 0),
        ({"processors": (emptying(7),)}, SamplingError, 7),
        ({"processors": (emptying(0),)}, SamplingError, 0),
        ({"stop_when": (deciding(7),)}, RequestError, 6),
        ({"grammar": Grammar("regex", "abc"), "min_tokens": 9}, SamplingError, 0),
        ({"grammar": Grammar("regex", "abc"), "bad_words": ("c",)}, SamplingError, 2),
    ],
)
def test_a_fault_ends_its_own_request_where_plain_decoding_would(
    kind: str, temperature: float, values: dict[str, Any], error: type[SpecstreamError], given: int
) -> None:
    if "grammar" in values:
        pytest.importorskip("llguidance")
    core = core_of(kind)
    neighbours = [ask(core, TEXT, SamplingParams(max_tokens=30))[1]]
    params = SamplingParams(temperature, seed=3, max_tokens=30, **values)
    bad, inbox = ask(core, TEXT, params, session="s")
    neighbours.append(ask(core, TEXT, SamplingParams(max_tokens=30))[1])
    run_until_idle(core)
    assert [type(e) for e in inbox.errors] == [error]
    assert inbox.items[-1] is inbox.errors[0]
    assert len(inbox.token_ids) == given
    assert inbox.text == bad.text
    assert str(TOKENIZER.decode(inbox.token_ids)).startswith(bad.text)
    wanted, _ = reply("off", SamplingParams(max_tokens=30))
    assert [n.token_ids for n in neighbours] == [wanted[1]] * 2
    assert core.slots.in_use == 0
    # What the conversation keeps is what was read: its next turn is that of a fresh engine.
    texts = []
    for again in (core, core_of("off")):
        text = TEXT + bad.text[:3] + "?"
        _, after = answered(again, text, SamplingParams(max_tokens=20), session="s", inbox=Inbox())
        texts.append(after.text)
    assert texts[0] == texts[1]


def test_a_fault_on_a_path_that_is_not_taken_changes_nothing() -> None:
    """The processor breaks on contexts that plain decoding never sees; a draft may well try them."""
    free, _ = reply("off", SamplingParams(max_tokens=40))
    prompt = [int(i) for i in TOKENIZER.encode(TEXT)]
    tried = 0

    def picky(ids: Tensor, scores: Tensor) -> Tensor:
        nonlocal tried
        written = ids[0, len(prompt) :].tolist()
        if written != free[1][: len(written)]:
            tried += 1
            raise ValueError("not on the path")
        return scores

    for kind in ("draft", "suffix", "off"):
        got, _ = reply(kind, SamplingParams(max_tokens=40, processors=(picky,)))
        assert got == free
    assert tried > 0
