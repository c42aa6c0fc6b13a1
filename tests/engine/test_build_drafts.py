"""How an engine takes a draft that lacks tokens of the target."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from specstream.config import parse_config
from specstream.engine import build
from specstream.types import SamplingParams
from tests.tiny import answered, ask, byte_tokenizer, save_pair

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
