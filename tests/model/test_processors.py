"""Every parameter against transformers (or its formula), for every drafted position."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ForcedEOSTokenLogitsProcessor,
    LogitNormalization,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TopHLogitsWarper,
    TopKLogitsWarper,
)

from specstream.drafting.proposal import Proposal
from specstream.errors import SamplingError
from specstream.model.tokens.processors import PROCESSORS, LogitsPipeline, ModelFacts
from specstream.model.tokens.sampling import probabilities
from specstream.params import parameters
from specstream.types import Grammar, SamplingParams
from tests.support.tiny import EOS, byte_tokenizer

TOKENIZER = byte_tokenizer()
WIDTH = len(TOKENIZER) + 6  # padded, as many models are
LETTERS = [int(i) for i in TOKENIZER.encode("abc ")]
ENDS = frozenset({EOS, 7})

Oracle = Callable[[list[int], int, Tensor], Tensor]


def pipeline(params: SamplingParams, prompt: list[int]) -> LogitsPipeline:
    return LogitsPipeline(params, ModelFacts(TOKENIZER, prompt, WIDTH, ENDS, torch.device("cpu")))


def oracle(params: SamplingParams, context: list[int], prompt_length: int, row: Tensor) -> Tensor:
    """One row, by transformers' own processors in the promised order, from its whole context."""
    ids, scores = torch.LongTensor([context]), torch.FloatTensor(row.clone().unsqueeze(0))
    chain = LogitsProcessorList()
    if params.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.frequency_penalty or params.presence_penalty:
        chain.append(openai_penalties(params, prompt_length))
    if params.logit_bias:
        chain.append(SequenceBiasLogitsProcessor([[[i], b] for i, b in params.logit_bias.items()]))
    if params.bad_words:
        texts = [t for w in params.bad_words for t in (w, " " + w.lstrip())]
        banned = [TOKENIZER.encode(t, add_special_tokens=False) for t in texts]
        chain.append(_bad_words(banned))
    if params.min_tokens:
        ends = sorted(ENDS | set(params.stop_token_ids))
        chain.append(MinNewTokensLengthLogitsProcessor(prompt_length, params.min_tokens, ends))
    chain.extend(params.processors)
    out: Tensor = chain(ids, scores)
    return out[0]


def _bad_words(banned: list[list[int]]) -> Callable[[Tensor, Tensor], Tensor]:
    """transformers' rule, behind a token that no word has.

    In 5.17 a word that is one token longer than the context is left out.
    """
    rule = NoBadWordsLogitsProcessor(banned)

    def processor(ids: Tensor, scores: Tensor) -> Tensor:
        first = torch.full_like(ids[:, :1], WIDTH - 1)
        found: Tensor = rule(torch.cat([first, ids], 1), scores)
        return found

    return processor


def openai_penalties(params: SamplingParams, prompt_length: int) -> Callable[..., Tensor]:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, c counted over what was generated."""

    def processor(ids: Tensor, scores: Tensor) -> Tensor:
        for token, count in Counter(ids[0, prompt_length:].tolist()).items():
            scores[0, token] -= count * params.frequency_penalty + params.presence_penalty
        return scores

    return processor


def test_every_parameter_has_what_applies_it() -> None:
    """A field that is declared and not implemented fails here, and so does the opposite."""
    wanted = [name for name, parameter in parameters().items() if parameter.stage == "logits"]
    assert sorted(wanted) == sorted(PROCESSORS)
    assert list(parameters()) == [field.name for field in fields(SamplingParams)]


@pytest.mark.parametrize("name", parameters())
def test_an_example_is_another_value_and_is_applied(name: str) -> None:
    """Each example passes its own check, and changes the row it is meant for."""
    if name == "grammar":
        pytest.importorskip("llguidance")
    parameter, plain = parameters()[name], SamplingParams()
    params = SamplingParams(**{"temperature": 1.0, name: parameter.example})
    assert getattr(params, name) != getattr(plain, name)
    assert params.processing == ((name,) if parameter.stage == "logits" else ())
    row = torch.linspace(-2, 3, WIDTH)
    if parameter.stage == "logits":
        made = pipeline(params, LETTERS)
        assert not torch.equal(made.apply(row, LETTERS + LETTERS[:1], []), row)
    changed = probabilities(row, params) - probabilities(row, SamplingParams(1.0))
    assert bool(changed.any()) == (parameter.stage == "warper")


ALONE: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "repetition below one": {"repetition_penalty": 0.7},
    "frequency": {"frequency_penalty": 0.8},
    "presence": {"presence_penalty": 1.1},
    "negative penalties": {"frequency_penalty": -0.4, "presence_penalty": -0.9},
    "bias": {"logit_bias": {LETTERS[0]: -5.0, LETTERS[2]: 3.0, WIDTH - 1: 1e9}},
    "bad words": {"bad_words": ("a", "bc", " cab", "aaaa")},
    "min tokens": {"min_tokens": 6},
    "min tokens and stop ids": {"min_tokens": 9, "stop_token_ids": (LETTERS[1], 30)},
    "own": {"processors": (NoRepeatNGramLogitsProcessor(2), TopKLogitsWarper(40))},
}
ON_CONTEXT = [name for name in ALONE if name != "bias"]


def mixture(rng: random.Random) -> dict[str, Any]:
    mixed: dict[str, Any] = {}
    for values in rng.sample(list(ALONE.values()), k=rng.randint(2, 5)):
        mixed |= values
    return mixed


def compare(values: dict[str, Any], seed: int, apply: Callable[..., Tensor]) -> None:
    """One random world: prompt, reply, draft of up to 6 tokens; every row against the oracle."""
    rng = random.Random(seed)
    params = SamplingParams(max_tokens=50, **values)
    prompt = rng.choices(LETTERS, k=rng.randint(1, 5))
    reply = rng.choices(LETTERS, k=rng.randint(0, 5))
    drafted = rng.choices(LETTERS, k=rng.randint(1, 6))
    logits = torch.randn(len(drafted) + 1, WIDTH, generator=torch.Generator().manual_seed(seed)) * 4
    logits[:, -3:] = -torch.inf if "logit_bias" not in values else 0.0
    ours = apply(pipeline(params, prompt), logits, prompt + reply, drafted)
    for row in range(len(drafted) + 1):
        wanted = oracle(params, prompt + reply + drafted[:row], len(prompt), logits[row])
        torch.testing.assert_close(ours[row], wanted, atol=1e-5, rtol=1e-5)


def honest(made: LogitsPipeline, logits: Tensor, ids: list[int], drafted: list[int]) -> Tensor:
    paths = [range(j) for j in range(len(drafted) + 1)]
    rows = made.apply_rows(logits, ids, torch.tensor(drafted), paths).rows
    assert rows.amax(-1).isfinite().all()
    return rows


@pytest.mark.parametrize("name", ALONE)
def test_each_parameter_alone_is_that_of_transformers(name: str) -> None:
    for seed in range(60):
        compare(ALONE[name], seed, honest)


def test_mixtures_are_applied_in_the_promised_order() -> None:
    rng = random.Random(6)
    for seed in range(300):
        compare(mixture(rng), seed, honest)


@pytest.mark.parametrize("name", ON_CONTEXT)
@pytest.mark.parametrize("bug", ["no draft", "no last token", "whole draft"])
def test_a_wrong_context_is_seen(name: str, bug: str) -> None:
    """The oracle has teeth: rows judged without the accepted prefix differ from it."""

    def wrong(made: LogitsPipeline, logits: Tensor, ids: list[int], drafted: list[int]) -> Tensor:
        paths = [range(j) for j in range(len(drafted) + 1)]
        if bug == "no draft":
            paths = [range(0) for _ in paths]
        elif bug == "no last token":
            paths = [path[:-1] for path in paths]
        else:
            paths = [range(len(drafted)) for _ in paths]
        return made.apply_rows(logits, ids, torch.tensor(drafted), paths).rows

    seen = 0
    for seed in range(60):
        try:
            compare(ALONE[name], seed, wrong)
        except AssertionError:
            seen += 1
    assert seen > 5


def test_a_row_has_the_same_bits_alone_among_others_and_once_committed() -> None:
    rng = random.Random(1)
    for seed in range(80):
        params = SamplingParams(**mixture(rng))
        ids, drafted = rng.choices(LETTERS, k=6), rng.choices(LETTERS, k=4)
        made = pipeline(params, ids)
        logits = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(seed))
        kept = logits.clone()
        rows = honest(made, logits, ids, drafted)
        for row in range(5):
            assert torch.equal(rows[row], made.apply(logits[row], ids, drafted[:row]))
            later = pipeline(params, ids)
            assert torch.equal(rows[row], later.apply(logits[row], ids + drafted[:row], []))
        assert torch.equal(logits, kept)  # the model's own rows are left alone


def test_rows_of_a_tree_follow_their_own_path() -> None:
    params = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.5, bad_words=("ab",))
    a, b, c, _ = LETTERS
    tokens, parents = torch.tensor([a, b, c, b, a]), (-1, -1, 0, 0, 1)
    paths = Proposal(tokens, parents=parents).paths
    contexts = [[int(tokens[node]) for node in path] for path in paths]
    assert contexts == [[], [a], [b], [a, c], [a, b], [b, a]]
    assert Proposal(tokens[:2]).paths == [(), (0,), (0, 1)]
    made = pipeline(params, [c])
    logits = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0))
    rows = made.apply_rows(logits, [c, c], tokens, paths).rows
    for row, context in enumerate(contexts):
        wanted = oracle(params, [c, c, *context], 1, logits[row])
        torch.testing.assert_close(rows[row], wanted)


FOREIGN: dict[str, Any] = {
    "epsilon": EpsilonLogitsWarper(1e-3),
    "eta": EtaLogitsWarper(1e-3, device="cpu"),
    "forced end": ForcedEOSTokenLogitsProcessor(12, [EOS]),
    "minimum length": MinLengthLogitsProcessor(11, [EOS]),
    "n-grams": NoRepeatNGramLogitsProcessor(2),
    "normalised": LogitNormalization(),
    "prefix": PrefixConstrainedLogitsProcessor(lambda batch, ids: LETTERS[: len(ids) % 3 + 1], 1),
    "suppressed": SuppressTokensLogitsProcessor(LETTERS),
    "top h": TopHLogitsWarper(0.4),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_any_processor_of_transformers_works(name: str) -> None:
    for seed in range(10):
        compare({"processors": (FOREIGN[name],), "repetition_penalty": 1.2}, seed, honest)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"logit_bias": {WIDTH: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"bad_words": ("</s>",)}, "end of sequence"),
    ],
)
def test_what_the_model_can_not_honour_is_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(SamplingError, match=named):
        pipeline(SamplingParams(**values), LETTERS)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": True}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": True}, "seed"),
        ({"stop": "END"}, "stop"),
        ({"stop": ("",)}, "stop"),
        ({"stop_token_ids": (1.5,)}, "stop_token_ids"),
        ({"stop_token_ids": 3}, "stop_token_ids"),
        ({"stop_when": (3,)}, "stop_when"),
        ({"bad_words": (3,)}, "bad_words"),
        ({"processors": ("x",)}, "processors"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias"),
        ({"logit_bias": {3: "1"}}, "logit_bias"),
        ({"logit_bias": [3]}, "logit_bias"),
        ({"grammar": "{}"}, "grammar"),
    ],
)
def test_bad_values_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(SamplingError, match=named):
        SamplingParams(**values)


def test_a_grammar_needs_a_kind_and_a_text() -> None:
    with pytest.raises(SamplingError, match="json_schema, regex or lark"):
        Grammar("xml", "x")  # type: ignore[arg-type]
    with pytest.raises(SamplingError, match="not empty"):
        Grammar("regex", " ")
