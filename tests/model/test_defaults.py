"""A model's generation_config is followed as transformers' generate follows it, drafts or not."""

import copy
import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    GenerationConfig,
    NoRepeatNGramLogitsProcessor,
)

from specstream.config import parse_config
from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.off import OffProposer
from specstream.drafting.proposers.suffix import SuffixProposer
from specstream.engine.build import build_engine
from specstream.errors import ModelBroken, SamplingError
from specstream.methods import DraftProposerConfig, SuffixProposerConfig
from specstream.model.defaults import HONOURED, ModelDefaults, _NoRepeatNgrams, manner_of
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.support.tiny import (
    EOS,
    answered,
    byte_tokenizer,
    make_core,
    noisy_copy,
    save_pair,
    tiny_model,
)
from tests.support.transfers import transfers

TOKENIZER = byte_tokenizer()
MODEL: Any = tiny_model(len(TOKENIZER), seed=2, context=160)
TEXT = "the cat sat on the mat, the cat"
TOKENS = 40


def greedy(asked: dict[str, Any], text: str = TEXT) -> list[int]:
    """Transformers' own reply."""
    model = copy.deepcopy(MODEL)
    model.generation_config = new_config(**asked)
    prompt = torch.tensor([TOKENIZER.encode(text)])
    options = {"attention_mask": torch.ones_like(prompt), "pad_token_id": EOS}
    found = model.generate(prompt, max_new_tokens=TOKENS, do_sample=False, **options)
    reply: list[int] = found[0, prompt.shape[1] :].tolist()
    return reply


def new_config(**asked: Any) -> GenerationConfig:
    factory: Any = GenerationConfig
    made: GenerationConfig = factory(eos_token_id=EOS, **asked)
    return made


def proposer(kind: str) -> Proposer:
    if kind == "draft":
        draft = ModelRunner(noisy_copy(MODEL, 0.1))
        return DraftModelProposer(DraftProposerConfig(num_tokens=4), draft, frozenset({EOS}))
    if kind == "suffix":
        return SuffixProposer(SuffixProposerConfig(min_score=0), torch.device("cpu"))
    return OffProposer()


def reply(
    asked: dict[str, Any], kind: str, params: SamplingParams, text: str = TEXT, **options: Any
) -> list[int]:
    model = copy.deepcopy(MODEL)
    model.generation_config = new_config(**asked)
    core = make_core(model, TOKENIZER, proposer(kind), **options)
    _, inbox = answered(core, text, params)
    if inbox.errors:
        raise inbox.errors[0]
    return inbox.token_ids


PLAIN = greedy({})
FIRST, SECOND = PLAIN[:2]
ASKED: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.4},
    "sequence_bias": {"sequence_bias": [[[FIRST], -20.0]], "repetition_penalty": 1.2},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5, "repetition_penalty": 1.1},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {
        "encoder_no_repeat_ngram_size": 2,
        "sequence_bias": [[TOKENIZER.encode("t"), 9.0], [TOKENIZER.encode("h"), 9.0]],
    },
    "bad_words_ids": {"bad_words_ids": [[FIRST, SECOND], [SECOND]]},
    "min_length": {"min_length": 66, "sequence_bias": [[[EOS], 60.0]]},
    "min_new_tokens": {"min_new_tokens": 12, "sequence_bias": [[[EOS], 60.0]]},
    "forced_bos_token_id": {"forced_bos_token_id": 9, "no_repeat_ngram_size": 3},
    "forced_eos_token_id": {"forced_eos_token_id": EOS},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (5, 1.9)},
    "suppress_tokens": {"suppress_tokens": [FIRST, SECOND]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [FIRST]},
}


@pytest.mark.parametrize("kind", ["off", "draft", "suffix"])
@pytest.mark.parametrize("name", sorted(HONOURED))
def test_the_reply_is_that_of_generate(name: str, kind: str) -> None:
    text = "t" if name == "forced_bos_token_id" else TEXT  # which is about the second token of all
    wanted = greedy(ASKED[name], text)
    assert wanted != greedy({k: v for k, v in ASKED[name].items() if k != name}, text)
    assert reply(ASKED[name], kind, SamplingParams(max_tokens=TOKENS), text) == wanted


@pytest.mark.parametrize("size", [1, 2, 3])
def test_banned_ngrams_are_those_of_transformers(size: int) -> None:
    """At every length, among the text's own n-grams or among another text's; and nothing is read."""
    generator = torch.Generator().manual_seed(size)
    text = torch.randint(4, (1, 40), generator=generator)
    other: Any = torch.randint(4, (1, 15), generator=generator)
    theirs: list[Any] = [
        NoRepeatNGramLogitsProcessor(size),
        EncoderNoRepeatNGramLogitsProcessor(size, other),
    ]
    ours = [_NoRepeatNgrams(size), _NoRepeatNgrams(size, other)]
    for length, (wanted, made) in itertools.product(range(1, 41), zip(theirs, ours)):
        scores = torch.randn(1, 6, generator=generator)
        with transfers() as counter:
            got = made(text[:, :length], scores)
        assert not counter.where
        assert torch.equal(got, wanted(text[:, :length], scores.clone()))


def test_it_can_be_switched_off_and_a_request_has_its_own_penalty() -> None:
    asked = ASKED["repetition_penalty"]
    params = SamplingParams(max_tokens=TOKENS)
    assert reply(asked, "off", params, model_defaults=False) == PLAIN
    own = SamplingParams(max_tokens=TOKENS, repetition_penalty=1.1)
    assert reply(asked, "suffix", own) == greedy({"repetition_penalty": 1.1})


def test_what_leaves_no_token_names_the_default() -> None:
    everything = {"suppress_tokens": list(range(len(TOKENIZER)))}
    with pytest.raises(SamplingError, match="suppress_tokens of the model's generation_config"):
        reply(everything, "off", SamplingParams(max_tokens=4))


def test_without_an_end_what_is_about_ends_is_left_out() -> None:
    defaults = ModelDefaults.of(new_config(min_length=9, suppress_tokens=[3]))
    params = defaults.applied(SamplingParams(), [5], frozenset(), torch.device("cpu"))
    assert [repr(p).split()[0] for p in params.processors] == ["suppress_tokens"]


def test_nothing_is_asked_for_by_an_empty_config() -> None:
    params = SamplingParams()
    for config in (None, new_config(), new_config(repetition_penalty=1.0, temperature=0.7)):
        found = ModelDefaults.of(config).applied(params, [5], frozenset({EOS}), torch.device("cpu"))
        assert found == params and found.plain_logits


def test_what_is_asked_for_in_vain_is_told_and_what_is_recommended_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="specstream.model")
    target, _ = save_pair(tmp_path)
    asked = new_config(num_beams=4, do_sample=True, temperature=0.6, top_p=0.9)
    asked.save_pretrained(target)
    config = parse_config({"target": str(target), "proposer": {"kind": "off"}, "threads": 1})
    build_engine(config)
    warned, noted = (one for one in caplog.records if one.name == "specstream.model")
    assert (warned.levelno, noted.levelno) == (logging.WARNING, logging.INFO)
    assert "num_beams=4; not supported" in warned.getMessage()
    assert "temperature=0.6, top_p=0.9; replies are greedy" in noted.getMessage()
    caplog.clear()
    build_engine(config.model_copy(update={"model_defaults": False}))
    assert not [one for one in caplog.records if one.name == "specstream.model"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 0.001),
        ("min_length", -3),
        ("exponential_decay_length_penalty", 5),
        ("suppress_tokens", "x"),
    ],
)
def test_a_setting_of_a_wrong_value_is_refused_with_the_remedy(name: str, value: object) -> None:
    model = copy.deepcopy(MODEL)
    setattr(model.generation_config, name, value)
    core = make_core(model, TOKENIZER, OffProposer())
    _, inbox = answered(core, TEXT, SamplingParams(max_tokens=4))
    (error,) = inbox.errors
    assert isinstance(error, SamplingError)
    told = str(error)
    assert f"{name} of the model's generation_config" in told and "model_defaults = false" in told


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sequence_bias", [[[99999], 1.0]]),
        ("forced_eos_token_id", 99999),
        ("forced_bos_token_id", 99999),
        ("encoder_no_repeat_ngram_size", 1.5),
        ("min_length", -3),
    ],
)
def test_a_setting_of_a_wrong_value_is_refused_when_the_model_is_loaded(
    tmp_path: Path, name: str, value: object
) -> None:
    """Some of them would break only at the first token of a reply, others at its last."""
    target, _ = save_pair(tmp_path)
    path = target / "generation_config.json"
    path.write_text(json.dumps({name: value}))
    config = parse_config({"target": str(target), "proposer": {"kind": "off"}, "threads": 1})
    with pytest.raises(ModelBroken, match=f"{name} of the model's generation_config") as caught:
        build_engine(config)
    assert str(caught.value).startswith(f"{target}: ")
    build_engine(config.model_copy(update={"model_defaults": False}))


def test_the_manner_is_the_models_own_else_a_mild_one() -> None:
    mild = manner_of(new_config())
    assert 0 < mild.params.temperature < 1
    assert mild.params.repetition_penalty > 1
    assert mild.system is not None
    assert "voice" in mild.system
    own = manner_of(new_config(do_sample=True, temperature=0.2, top_k=7)).params
    assert (own.temperature, own.top_k, own.repetition_penalty) == (0.2, 7, 1.0)
    greedy = manner_of(new_config(do_sample=False))
    assert greedy.params.greedy
    assert greedy.system is None
    assert manner_of(None).params == mild.params
    assert {m.params.max_repeats for m in (mild, greedy)} == {3}


def test_a_recommendation_that_cannot_be_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert manner_of(new_config(do_sample=True, temperature=-1.0)).params == manner_of(None).params
    assert "temperature" in caplog.text
