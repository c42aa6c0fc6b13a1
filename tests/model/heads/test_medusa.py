"""Folders of Medusa heads in the published layouts, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.heads.recognise import kind_of
from specstream.model.heads.research.medusa import load
from specstream.model.runner import ModelRunner
from tests.support.tiny import tiny_model

VOCAB, HIDDEN = 30, 32
RUNNER = ModelRunner(tiny_model(VOCAB))
ORIGINAL: dict[str, Any] = {
    "medusa_num_heads": 2,
    "medusa_num_layers": 1,
    "base_model_name_or_path": "x",
}
VLLM: dict[str, Any] = {
    "architectures": ["MedusaModel"],
    "model_type": "medusa",
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB,
    "num_heads": 2,
    "num_hidden_layers": 1,
}


def tensors(block: str, out: str, *, bias: bool = True, rows: int = VOCAB) -> dict[str, Tensor]:
    """Two heads at random; ``{}`` in the names is the head's number."""
    torch.manual_seed(4)
    made = dict[str, Tensor]()
    for head in range(2):
        made[block.format(head) + ".weight"] = torch.randn(HIDDEN, HIDDEN) * 0.2
        if bias:
            made[block.format(head) + ".bias"] = torch.randn(HIDDEN) * 0.2
        if out:
            made[out.format(head) + ".weight"] = torch.randn(rows, HIDDEN)
    return made


def write(
    folder: Path, config: dict[str, Any], weights: dict[str, Tensor], pickled: bool = False
) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(weights, folder / "medusa_lm_head.pt")
    else:
        save_file(weights, folder / "medusa_lm_head.safetensors")
    return folder


@pytest.mark.parametrize(
    ("config", "block", "out", "bias", "pickled"),
    [
        (ORIGINAL, "{}.0.linear", "{}.1", True, True),
        (ORIGINAL, "{}.0.linear", "{}.1", True, False),
        (ORIGINAL, "medusa_head.{}.0.linear", "medusa_head.{}.1", True, False),
        (VLLM, "blocks.{}.layers.0", "lm_heads.{}", False, False),
        (VLLM, "medusa_heads.blocks.{}.layers.0", "medusa_heads.lm_heads.{}", True, False),
    ],
)
def test_published_layouts(
    tmp_path: Path, config: dict[str, Any], block: str, out: str, bias: bool, pickled: bool
) -> None:
    weights = tensors(block, out, bias=bias)
    assert kind_of(config) == "medusa"
    head = load(write(tmp_path, config, weights, pickled), RUNNER)
    assert head.heads == 2 and head.parameters == sum(one.numel() for one in weights.values())
    x = torch.randn(3, HIDDEN)
    for number, found in enumerate(head(x, 2)):
        name = block.format(number)
        inner = F.linear(x, weights[name + ".weight"], weights.get(name + ".bias"))
        wanted = F.linear(x + F.silu(inner), weights[out.format(number) + ".weight"])
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_pruned_vocabulary_takes_the_rows_that_it_names(tmp_path: Path) -> None:
    weights = tensors("blocks.{}.layers.0", "lm_heads.{}")
    weights["token_map"] = torch.tensor([2, 5, 7, 11])
    config = VLLM | {"truncated_vocab_size": 4}
    head, x = load(write(tmp_path, config, weights), RUNNER), torch.randn(1, HIDDEN)
    logits = head(x, 1)
    assert logits.shape == (1, 1, 4)
    whole = head.whole(logits)[0, 0]
    assert whole.isfinite().nonzero().flatten().tolist() == [2, 5, 7, 11]


def test_fewer_rows_than_the_target_has_tokens(tmp_path: Path) -> None:
    """Targets pad their vocabularies; published heads don't."""
    head = load(write(tmp_path, ORIGINAL, tensors("{}.0.linear", "{}.1", rows=28)), RUNNER)
    whole = head.whole(head(torch.randn(1, HIDDEN), 2))
    assert whole.shape == (2, 1, VOCAB) and bool((whole[..., 28:] == -torch.inf).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 64}, "another target"),
        ({"vocab_size": 99}, "another target"),
        ({"num_hidden_layers": "two"}, "should have a number"),
        ({"num_hidden_layers": 2}, "missing"),
        ({"truncated_vocab_size": 31}, "more than"),
    ],
)
def test_configs_that_dont_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = write(tmp_path, VLLM | change, tensors("blocks.{}.layers.0", "lm_heads.{}"))
    with pytest.raises((ModelBroken, ModelUnsupported), match=message):
        load(folder, RUNNER)


@pytest.mark.parametrize("key", ["posterior_threshold", "posterior_alpha", "typical_acceptance"])
def test_typical_acceptance_is_refused_by_name(key: str, tmp_path: Path) -> None:
    folder = write(tmp_path, ORIGINAL | {key: 0.09}, tensors("{}.0.linear", "{}.1"))
    with pytest.raises(ModelUnsupported, match="typical acceptance"):
        load(folder, RUNNER)


def test_tensors_that_dont_fit(tmp_path: Path) -> None:
    good = tensors("blocks.{}.layers.0", "lm_heads.{}")

    def refused(message: str, config: dict[str, Any] = VLLM, **changed: Tensor | None) -> None:
        given = {name.replace("__", "."): one for name, one in changed.items()}
        weights = {name: one for name, one in (good | given).items() if one is not None}
        with pytest.raises(ModelBroken, match=message):
            load(write(tmp_path, config, weights), RUNNER)

    refused("missing", lm_heads__1__weight=None)
    refused("shape", blocks__1__layers__0__weight=torch.zeros(4, 4))
    refused("not floats", blocks__0__layers__0__weight=torch.zeros(HIDDEN, HIDDEN, dtype=torch.int64))
    refused("40 rows", lm_heads__0__weight=torch.zeros(40, HIDDEN))
    refused("no known head", other=torch.zeros(2))
    refused("names 3", VLLM | {"num_heads": 3})
    pruned = VLLM | {"truncated_vocab_size": 2}
    refused("outside", pruned, token_map=torch.tensor([1, 30]))
    refused("twice", pruned, token_map=torch.tensor([1, 1]))
    refused("no ids", pruned, token_map=torch.tensor([1.0, 2.0]))


def test_a_target_without_hidden_states_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, VLLM, tensors("blocks.{}.layers.0", "lm_heads.{}"))
    with pytest.raises(ModelUnsupported):
        load(folder, ModelRunner(tiny_model(VOCAB), lean=False))
