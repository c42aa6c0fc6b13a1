"""Training an early exit: it learns what the target says, and leaves the target alone."""

from pathlib import Path

import pytest
import torch

from specstream.errors import ModelUnsupported
from specstream.model.runner import ModelRunner
from specstream.training.options import TrainOptions
from specstream.training.research.early_exit import EarlyExitTrainee, trainee
from specstream.training.trainee import TrainingBatch
from tests.support.heads import batch_of
from tests.support.tiny import byte_tokenizer, tiny_model

VOCAB = 30


def some_batch(runner: ModelRunner) -> TrainingBatch:
    """Two sequences, the second one shorter; the first tokens are no reply."""
    torch.manual_seed(0)
    batch = batch_of(runner, torch.randint(VOCAB, (2, 24)), 5, (1,))
    batch.replies[1, 16:] = False
    return batch


def test_it_learns_the_targets_choices_and_changes_no_weight_of_it() -> None:
    runner = ModelRunner(tiny_model(VOCAB, layers=3))
    before = {name: value.clone() for name, value in runner.model.state_dict().items()}
    batch, trainee = some_batch(runner), EarlyExitTrainee(runner, 1, 64)
    first = trainee.losses(batch, acceptance=0.0)
    assert first.counted == [19 + 11]
    optimiser = torch.optim.Adam(trainee.module.parameters(), 0.01)
    for step in range(120):
        losses = trainee.losses(batch, acceptance=step / 120)
        optimiser.zero_grad()
        losses.loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    last = trainee.losses(batch, acceptance=0.0)
    assert last.loss.item() < 0.5 * first.loss.item()
    assert last.accepted[0] > first.accepted[0] + 5
    for name, value in runner.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_padding_has_no_part_in_it() -> None:
    runner = ModelRunner(tiny_model(VOCAB, layers=3))
    batch, trainee = some_batch(runner), EarlyExitTrainee(runner, 1)
    wanted = trainee.losses(batch, acceptance=0.5)
    batch.states[1, 16:], batch.final[1, 16:] = 7.0, -3.0
    found = trainee.losses(batch, acceptance=0.5)
    assert found.loss.item() == wanted.loss.item() and found.accepted == wanted.accepted


def test_the_folder_tells_what_it_is_for(tmp_path: Path) -> None:
    runner = ModelRunner(tiny_model(VOCAB, layers=3))
    EarlyExitTrainee(runner, 2).save(tmp_path, {"Data": "two replies"})
    assert "two replies" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "model.safetensors").stat().st_size < 20_000


def test_a_target_without_an_inner_layer_is_refused() -> None:
    options = TrainOptions(kind="early-exit", out=Path("unused"), data=Path("unread"))
    target = ModelRunner(tiny_model(VOCAB, layers=1))
    with pytest.raises(ModelUnsupported, match="two layers at least"):
        trainee(target, byte_tokenizer(), options)
