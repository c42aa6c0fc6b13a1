"""Exits from the middle of a target: what they compute, how they are read, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.forward import Extras, ForwardInput
from specstream.model.heads.recognise import load_head
from specstream.model.heads.research.early_exit import EarlyExit
from specstream.model.runner import ModelRunner
from specstream.training.research.early_exit import EarlyExitTrainee
from tests.model.families import build, text


def saved(folder: Path, target: ModelRunner) -> EarlyExitTrainee:
    """A trainee with random weights, and the folder that it writes."""
    torch.manual_seed(4)
    trainee = EarlyExitTrainee(target, 1, 24)
    with torch.no_grad():
        for weight in trainee.module.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    folder.mkdir()
    trainee.save(folder, {"data": "none"})
    return trainee


def test_without_weights_it_is_the_targets_norm_and_head() -> None:
    runner = ModelRunner(build("llama"))
    leave = EarlyExit(runner, 1)
    states = torch.randn(3, 32)
    inner: Any = runner.model.model
    with torch.inference_mode():
        wanted = runner.model.lm_head(inner.norm(states.clone()))
        torch.testing.assert_close(leave.logits(states), wanted, rtol=1e-5, atol=1e-5)
    assert (leave.parameters, leave.nbytes) == (0, 0)


@torch.inference_mode()
def test_service_computes_what_training_computed(tmp_path: Path) -> None:
    runner = ModelRunner(build("llama"))
    trainee = saved(tmp_path / "head", runner)
    leave = load_head(tmp_path / "head", runner)
    assert isinstance(leave, EarlyExit) and leave.layers == 1
    assert leave.parameters == 2 * 24 * 32 + 64 and leave.nbytes == 4 * leave.parameters
    (states,) = runner.forward([ForwardInput(text(9), runner.new_cache())], Extras((1,))).states
    wanted = runner.model.lm_head(trainee.module(states[:, 0]))
    before = states.clone()
    torch.testing.assert_close(leave.logits(states[:, 0]), wanted, rtol=1e-4, atol=1e-4)
    assert torch.equal(states, before)


@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("logits", [True, False])
@torch.inference_mode()
def test_an_exit_of_any_width_drafts_for_a_bfloat16_target(
    tmp_path: Path, native: bool | None, logits: bool
) -> None:
    """Native passes without logits give float32 states; native code takes no matrix of 24 columns."""
    model: Any = build("llama")
    runner = ModelRunner(model.to(torch.bfloat16), native=native)
    trainee = saved(tmp_path / "head", runner)
    leave = load_head(tmp_path / "head", runner)
    assert isinstance(leave, EarlyExit)
    item = ForwardInput(text(9), runner.new_cache())
    (states,) = runner.forward([item], Extras((1,), logits=logits)).states
    wanted = trainee.module(states[:, 0].float()) @ runner.model.lm_head.weight.float().T
    found = leave.logits(states[:, 0]).float()
    assert (found - wanted).norm() < 0.05 * wanted.norm()


@pytest.mark.parametrize(
    ("key", "value", "error", "match"),
    [
        ("hidden_size", 64, ModelUnsupported, "states of size 64, and this target has 32"),
        ("vocab_size", 7, ModelUnsupported, "a vocabulary of 7"),
        ("num_hidden_layers", 30, ModelUnsupported, "many layers: 30"),
        ("layers", 2, ModelUnsupported, "1 to 1 of them, not 2"),
        ("layers", "1", ModelBroken, "a number 'layers'"),
        ("width", None, ModelBroken, "a number 'width'"),
        ("width", 25, ModelBroken, r"up.weight has shape \[24, 32\] and should have \[25, 32\]"),
    ],
)
def test_a_head_for_something_else_is_refused(
    tmp_path: Path, key: str, value: object, error: type[Exception], match: str
) -> None:
    runner, folder = ModelRunner(build("llama")), tmp_path / "head"
    saved(folder, runner)
    config = json.loads((folder / "config.json").read_text()) | {key: value}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(error, match=match):
        load_head(folder, runner)


def test_missing_and_mistyped_tensors_are_refused(tmp_path: Path) -> None:
    runner, folder = ModelRunner(build("llama")), tmp_path / "head"
    saved(folder, runner)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"norm.weight": torch.ones(32).int()}, folder / "model.safetensors")
    with pytest.raises(ModelBroken, match="not floats"):
        load_head(folder, runner)
    del tensors["down.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelBroken, match=r"down\.weight is missing"):
        load_head(folder, runner)


def test_a_target_that_can_not_be_left_is_refused_by_name() -> None:
    with pytest.raises(ModelUnsupported, match="LlamaForCausalLM"):
        EarlyExit(ModelRunner(build("llama"), lean=False), 1)
    with pytest.raises(ModelUnsupported, match="reproducible"):
        EarlyExit(ModelRunner(build("llama"), fixed_width=8, context_length=64), 1)
    for layers in (0, 2):
        with pytest.raises(ModelUnsupported, match="1 to 1"):
            EarlyExit(ModelRunner(build("llama")), layers)
