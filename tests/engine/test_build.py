"""How an engine is built: what is refused, in which order, and when it stops."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GemmaConfig, GemmaForCausalLM, PreTrainedTokenizerFast

from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET, EngineConfig, parse_config
from specstream.engine import build
from specstream.engine.core.worker import EngineWorker
from specstream.errors import (
    ConfigError,
    EngineClosed,
    ModelBroken,
    ModelUnsupported,
    SpecstreamError,
    VocabularyMismatch,
)
from specstream.methods import DraftProposerConfig, LookaheadProposerConfig
from specstream.model.forward import ForwardInput
from specstream.model.graphs import TARGET
from specstream.model.load import load_tokenizer
from specstream.model.native.library import library
from specstream.model.runner import ModelRunner
from specstream.model.tokens.vocabulary import find_draft
from specstream.types import SamplingParams
from tests.model import families
from tests.support.tiny import EOS, answered, ask, byte_tokenizer, save_pair, tiny_model


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"))


def config_of(target: Path, draft: Path, proposer: str = "draft") -> EngineConfig:
    values: dict[str, Any] = {"target": str(target), "draft": str(draft), "dtype": "float32"}
    return EngineConfig.model_validate(values | {"proposer": {"kind": proposer}, "compile": True})


def sliding(folder: Path) -> None:
    """Of a kind that can't be compiled."""
    tokenizer = byte_tokenizer()
    model = families.build("mistral", sliding_window=8, vocab_size=len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def short(folder: Path) -> None:
    """With fewer output rows than its tokenizer has tokens."""
    tokenizer = byte_tokenizer()
    tiny_model(len(tokenizer) - 1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def silent(folder: Path) -> None:
    """With another tokenizer, which can't write what it reads."""
    inner = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "[UNK]": 2, "a": 3}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="[UNK]"
    )
    tiny_model(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize("proposer", ["draft", "auto"])
@pytest.mark.parametrize(
    ("save", "error", "said"),
    [
        (sliding, ModelUnsupported, "MistralForCausalLM here is none; leave compile off"),
        (short, VocabularyMismatch, "output rows"),
        (silent, VocabularyMismatch, "can't decode what it encodes"),
    ],
)
def test_a_draft_that_will_not_do_is_refused(
    pair: tuple[Path, Path],
    tmp_path: Path,
    proposer: str,
    save: Any,
    error: type[SpecstreamError],
    said: str,
) -> None:
    save(tmp_path / "other")
    with pytest.raises(error, match=said):
        build.build_engine(config_of(pair[0], tmp_path / "other", proposer))
    # Who doesn't draft with a model doesn't read one.
    build.build_engine(config_of(pair[0], tmp_path / "other", "suffix"))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_without_a_draft_that_fits_lookup_drafts_alone_and_one_line_says_so(
    pair: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    core = build.build_engine(parse_config({"target": str(pair[0]), "threads": 1}))
    (line,) = told(caplog)
    assert "another tokenizer" in line and str(pair[0]) in line and "lookup" in line
    params = SamplingParams(max_tokens=30)
    request, inbox = answered(core, "one two one two one", params, proposer="auto")
    assert len(inbox.token_ids) == 30 and not inbox.errors
    assert set(request.stats.proposer_rounds) <= {"off", "suffix"}
    assert "draft" not in request.report().explanation
    explanation = core.proposing.explain()
    assert explanation is not None and explanation.kind in ("off", "suffix")


def test_a_bundled_draft_that_is_asked_for_and_does_not_fit_is_an_error(pair: tuple[Path, Path]) -> None:
    config = {"target": str(pair[0]), "threads": 1, "proposer": {"kind": "draft"}}
    with pytest.raises(VocabularyMismatch, match="--proposer suffix"):
        build.build_engine(parse_config(config))


def test_heads_alone_are_no_draft_model_and_the_bundled_one_is_named() -> None:
    config = {"draft": "bundled-eagle", "threads": 1, "proposer": "draft"}
    with pytest.raises(ConfigError, match="bundled-draft"):
        build.build_engine(parse_config(config))


@pytest.mark.parametrize("kind", ["draft", "auto"])
def test_a_named_draft_with_another_tokenizer_drafts(pair: tuple[Path, Path], kind: str) -> None:
    config = {"target": str(pair[0]), "draft": DEFAULT_DRAFT, "proposer": {"kind": kind}}
    core = build.build_engine(parse_config({**config, "threads": 1}))
    request, inbox = ask(core, "one two one", SamplingParams(max_tokens=12), proposer=kind)
    plain, other = answered(core, "one two one", SamplingParams(max_tokens=12), proposer="off")
    assert inbox.token_ids == other.token_ids and not inbox.errors
    if kind == "draft":
        assert request.stats.proposer_rounds["draft"] > 0


def test_a_draft_that_can_not_be_quantised_is_named_with_its_own_setting(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sliding(tmp_path / "other")
    values = config_of(pair[0], tmp_path / "other").model_dump() | {"compile": False}
    config = EngineConfig.model_validate(values | {"draft_quantize": "int8"})
    start = f"^draft {tmp_path / 'other'}: draft_quantize: "
    with pytest.raises(ModelUnsupported, match=start + ".*; leave draft_quantize off$"):
        build.build_engine(config)
    monkeypatch.setattr("specstream.model.native.library.native_library", lambda: "no compiler")
    with pytest.raises(ConfigError, match=start + "int8 takes native passes. no compiler"):
        build.build_engine(config)


def test_the_bundled_target_gets_the_bundled_draft_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(DEFAULT_TARGET)
    config = parse_config({"target": str(tmp_path / "here")})
    assert find_draft(config, load_tokenizer(config.target)) == DEFAULT_DRAFT


def test_an_end_that_the_model_has_no_row_for_is_none(tmp_path: Path) -> None:
    target, _ = save_pair(tmp_path)
    config = json.loads((target / "generation_config.json").read_text())
    (target / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": [EOS, 5, 9999]}))
    core = build.build_engine(
        parse_config({"target": str(target), "proposer": {"kind": "off"}, "threads": 1})
    )
    request, inbox = answered(core, "hello", SamplingParams(max_tokens=4, min_tokens=4))
    assert request.sequence.eos_ids == {EOS, 5} and len(inbox.token_ids) == 4


def test_an_end_that_is_no_id_is_refused_by_name(tmp_path: Path) -> None:
    target, _ = save_pair(tmp_path)
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": "</s>"}))
    with pytest.raises(ModelBroken, match="generation_config's eos_token_id is '</s>'; it must be"):
        build.build_engine(parse_config({"target": str(target), "proposer": {"kind": "off"}}))


@pytest.mark.parametrize("stop", [0, 1], ids=["at once", "behind the target"])
def test_a_start_that_nobody_waits_for_ends_before_the_next_model(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    config, ready = config_of(*pair), list[ModelRunner]()
    outcomes: list[SpecstreamError | None] = []
    ended: list[bool] = []

    def check() -> None:
        if len(ready) == stop:
            worker.close()
        worker.check()

    worker = EngineWorker(
        lambda: build.build_engine(config, check), outcomes.append, lambda: ended.append(True)
    )
    monkeypatch.setattr(build, "warm_up", lambda runner, most: ready.append(runner))
    worker.start()
    worker.join()
    assert [type(error) for error in outcomes] == [EngineClosed] and ended == [True]
    assert len(ready) == stop


def stored(folder: Path, dtype: torch.dtype, **changes: Any) -> EngineConfig:
    """A config for a small Llama that was saved in a dtype; nothing names the dtype."""
    tokenizer = byte_tokenizer()
    model: Any = families.build("llama", vocab_size=len(tokenizer), **changes)
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return parse_config({"target": str(folder), "proposer": {"kind": "suffix"}, "device": "cpu"})


def test_on_a_cpu_a_checkpoint_keeps_its_bfloat16_where_passes_are_native(tmp_path: Path) -> None:
    config = stored(tmp_path, torch.bfloat16)
    if library(None) is None:
        pytest.skip("no native passes here")
    core = build.build_engine(config)
    assert core.target.dtype is torch.bfloat16 and core.target.invariant


@pytest.mark.parametrize("why", ["stored so", "no native code", "odd sizes"])
def test_elsewhere_it_is_read_in_float32(why: str, tmp_path: Path) -> None:
    dtype = torch.float32 if why == "stored so" else torch.bfloat16
    config = stored(tmp_path, dtype, **({"intermediate_size": 60} if why == "odd sizes" else {}))
    if why == "no native code":
        config = config.model_copy(update={"compile": False})
    core = build.build_engine(config)
    assert core.target.dtype is torch.float32
    assert core.target.model.lm_head.weight.dtype is torch.float32


def test_a_draft_is_read_in_the_targets_dtype(tmp_path: Path) -> None:
    config = stored(tmp_path, torch.bfloat16)
    if library(None) is None:
        pytest.skip("no native passes here")
    _, draft = save_pair(tmp_path / "pair")  # in float32
    changes = {"draft": str(draft), "proposer": DraftProposerConfig()}
    core = build.build_engine(config.model_copy(update=changes))
    proposer: Any = core.proposer
    assert proposer.runner.dtype is core.target.dtype is torch.bfloat16


def test_trees_are_refused_for_a_target_that_sees_a_window_of_the_text(tmp_path: Path) -> None:
    """A tree's mask has no window: `lookahead` would change greedy text behind it."""
    sliding(tmp_path)
    values = {"target": str(tmp_path), "proposer": {"kind": "lookahead"}, "device": "cpu"}
    with pytest.raises(ModelUnsupported, match="sliding window"):
        build.build_engine(parse_config(values))
    whole = stored(tmp_path / "whole", torch.float32)
    build.build_engine(whole.model_copy(update={"proposer": LookaheadProposerConfig()}))


def test_what_a_model_computes_in_bfloat16_is_not_kept_for_float32(tmp_path: Path) -> None:
    """Gemma's scale of embeddings is the square root of the hidden size, rounded to its dtype."""
    tokenizer = byte_tokenizer()
    sizes = families.SIZES | {"vocab_size": len(tokenizer), "hidden_size": 48, "head_dim": 16}
    gemma: Any = GemmaForCausalLM(GemmaConfig(**sizes))
    gemma.to(torch.bfloat16).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    values = {"target": str(tmp_path), "proposer": {"kind": "off"}, "device": "cpu"}
    core, tokens = build.build_engine(parse_config(values)), torch.arange(3, 9)
    model = GemmaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.inference_mode():
        (found,) = core.target.forward([ForwardInput(tokens, core.target.new_cache(), keep=6)]).logits
        wanted = model(tokens.unsqueeze(0)).logits[0]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_native_passes_that_are_demanded_and_can_not_be_had_are_an_error(tmp_path: Path) -> None:
    if library(None) is None:
        pytest.skip("no native code here")
    config = stored(tmp_path, torch.float32, intermediate_size=60)
    with pytest.raises(ModelUnsupported, match="multiple of 32"):
        build.build_engine(config.model_copy(update={"compile": True}))


def test_a_quantised_target_verifies_trees_in_torchs_float32_passes() -> None:
    values = {"quantize": "int8", "compile": False, "dtype": "float32", "device": "cpu"}
    build.build_engine(parse_config(values | {"proposer": {"kind": "lookahead"}}))


@pytest.mark.parametrize(
    ("values", "captured"),
    [
        ({}, True),
        ({"compile": True}, True),
        ({"compile": False}, False),
        ({"mode": "reproducible"}, False),
        ({"learning": {"consent": True}}, False),
    ],
)
def test_passes_are_captured_unless_they_have_one_width_or_the_draft_learns(
    values: dict[str, Any], captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = list[Any]()

    class Stop(Exception):
        pass

    def runner(model: Any, **options: Any) -> Any:
        plans.append(options["captured"])
        raise Stop

    monkeypatch.setattr(build, "ModelRunner", runner)
    with pytest.raises(Stop):
        build.build_engine(parse_config({"proposer": "draft", **values}))
    assert plans == [TARGET if captured else None]
