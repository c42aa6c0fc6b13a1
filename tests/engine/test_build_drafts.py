"""How an engine takes drafts that lack tokens of the target, and heads that fail on the machine."""

from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from specstream.config import parse_config
from specstream.drafting.proposers import auto
from specstream.drafting.proposers.auto import AutoProposer
from specstream.engine import build
from specstream.errors import ModelUnsupported
from specstream.model.heads.eagle import EagleHead
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.support.tiny import answered, ask, byte_tokenizer, save_pair

CHAT = ("<|im_start|>", "<|im_end|>")


@pytest.mark.parametrize("proposer", ["draft", "auto"])
@pytest.mark.parametrize("own", [(), CHAT], ids=["of its own", "the target's"])
def test_a_draft_without_rows_for_the_targets_chat_tokens_drafts(
    tmp_path: Path, proposer: str, own: tuple[str, ...]
) -> None:
    """A base model, whose tokenizer may know of the chat tokens."""
    _, draft = save_pair(tmp_path)
    target, tokenizer = tmp_path / "chat", byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [*CHAT]})
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    )
    model = LlamaForCausalLM.from_pretrained(tmp_path / "target")
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    if own:
        tokenizer.save_pretrained(draft)
    config = {"target": str(target), "draft": str(draft), "proposer": {"kind": proposer}}
    core = build.build_engine(parse_config({**config, "threads": 1, "dtype": "float32"}))
    params = SamplingParams(max_tokens=30, min_tokens=30)
    request, inbox = ask(core, "one two one", params, proposer=proposer)
    _, other = answered(core, "one two one", params, proposer="off")
    chat = {tokenizer.convert_tokens_to_ids(token) for token in CHAT}
    assert chat <= set(request.token_ids[: request.prompt_length])
    assert inbox.token_ids == other.token_ids and not inbox.errors
    if proposer == "draft":
        assert request.stats.accepted > 0


def fails(*args: object) -> None:
    raise RuntimeError("CUDA error: no kernel image is available for execution on the device")


@pytest.mark.parametrize("where", ["loading", "drafting"])
@pytest.mark.parametrize("kind", ["eagle", "auto"])
def test_a_head_that_fails_on_the_machine_is_left_out_with_one_warning(
    kind: str, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine starts and answers; other methods still draft."""
    if where == "loading":
        monkeypatch.setattr(build, "load_head", fails)
    else:
        monkeypatch.setattr(EagleHead, "__call__", fails)
    values = {"draft": "bundled-eagle", "proposer": {"kind": kind}, "threads": 1}
    core = build.build_engine(parse_config(values))
    _, inbox = answered(core, "I need a taxi.", SamplingParams(max_tokens=5))
    assert len(inbox.token_ids) == 5 and not inbox.errors
    told = [one.getMessage() for one in caplog.records if "no kernel image" in one.getMessage()]
    assert len(told) == 1, told
    assert ("eagle" in told[0]) and isinstance(core.proposer, AutoProposer) == (kind == "auto")


def test_a_target_that_can_not_verify_trees_after_all_loses_them_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def differs(runner: ModelRunner) -> None:
        raise ModelUnsupported("its masks work in another way")

    monkeypatch.setattr(auto, "check_trees", differs)
    core = build.build_engine(parse_config({"draft": "bundled-eagle", "threads": 1}))
    assert not core.proposer.capabilities.trees
    assert "auto drafts without eagle, which fails here: its masks" in caplog.text
