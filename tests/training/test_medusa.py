"""Training Medusa heads: they learn what the target says, and compute what is computed in service."""

from pathlib import Path
from typing import Any

import pytest
import torch

from specstream.errors import ConfigError
from specstream.model.heads.research.medusa import load
from specstream.model.runner import ModelRunner
from specstream.training.options import TrainOptions
from specstream.training.research.medusa import MedusaTrainee, trainee
from specstream.training.trainee import TrainingBatch
from tests.support.heads import batch_of, greedy_replies
from tests.support.medusas import medusa_head, random_medusa
from tests.support.tiny import byte_tokenizer, tiny_model

VOCAB = 30


def replies(runner: ModelRunner) -> TrainingBatch:
    torch.manual_seed(0)
    prompts = torch.randint(2, VOCAB, (3, 5)).tolist()
    return batch_of(runner, greedy_replies(runner, prompts, 15), 5, ())


def test_they_begin_as_the_targets_own_head() -> None:
    runner = ModelRunner(tiny_model(VOCAB))
    head = medusa_head(MedusaTrainee(runner, heads=2), runner)
    states = torch.randn(4, 32)
    wanted = runner.decoder.logits(states)
    for logits in head(states, 2):
        torch.testing.assert_close(logits, wanted)


def test_they_learn_and_change_no_weight_of_the_target() -> None:
    runner = ModelRunner(tiny_model(VOCAB))
    before = {name: value.clone() for name, value in runner.model.state_dict().items()}
    batch, trainee = replies(runner), MedusaTrainee(runner, heads=2)
    first = trainee.losses(batch, acceptance=0.0)
    # The state of the last prompt token comes first; the one of a sequence's end predicts nothing.
    assert first.counted == [3 * 14, 3 * 13]
    optimiser = torch.optim.Adam(trainee.module.parameters(), 0.01)
    for step in range(100):
        losses = trainee.losses(batch, acceptance=step / 100)
        optimiser.zero_grad()
        losses.loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    last = trainee.losses(batch, acceptance=0.0)
    assert last.loss.item() < 0.5 * first.loss.item()
    assert all(b > a + 3 for a, b in zip(first.accepted, last.accepted, strict=True))
    for name, value in runner.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_padding_and_prompts_have_no_part_in_it() -> None:
    runner = ModelRunner(tiny_model(VOCAB))
    batch, trainee = replies(runner), random_medusa(runner, 0.3)
    batch.replies[1, 12:] = False
    wanted = trainee.losses(batch, acceptance=0.5)
    batch.final[1, 12:], batch.final[:, :4] = 7.0, -3.0
    found = trainee.losses(batch, acceptance=0.5)
    assert found.loss.item() == wanted.loss.item() and found.accepted == wanted.accepted


@pytest.mark.parametrize("pruned", [False, True])
def test_the_acceptance_told_is_that_of_the_heads_in_service(pruned: bool) -> None:
    runner = ModelRunner(tiny_model(VOCAB))
    vocabulary = torch.tensor([3, 4, 8, 20, 29]) if pruned else None
    trainee, batch = random_medusa(runner, 0.3, vocabulary=vocabulary, layers=2), replies(runner)
    head, p = medusa_head(trainee, runner), runner.decoder.logits(batch.final).softmax(-1)
    with torch.no_grad():
        told = trainee.losses(batch, acceptance=0.0)
    for k in range(3):
        sums = 0.0
        for row in range(3):
            states = batch.final[row, 4 : 18 - k]
            q = head.whole(head(states, 3)[k]).softmax(-1)
            sums += float(torch.minimum(q, p[row, 5 + k : 19]).sum())
        assert told.accepted[k] == pytest.approx(sums, rel=1e-4)


@pytest.mark.parametrize("pruned", [False, True])
def test_a_folder_is_loaded_as_it_was_written(tmp_path: Path, pruned: bool) -> None:
    runner = ModelRunner(tiny_model(VOCAB))
    trainee = MedusaTrainee(runner, heads=3, prune=8 if pruned else 0)
    assert trainee.chooses == pruned
    trainee.choose(torch.arange(VOCAB))
    with torch.no_grad():
        for weight in trainee.module.parameters():
            weight.copy_((torch.randn_like(weight) * 0.3).bfloat16())
    trainee.save(tmp_path, {"title": "Heads", "Data": "three replies"})
    assert "three replies" in (tmp_path / "README.md").read_text()
    head, states = load(tmp_path, runner), torch.randn(2, 32)
    assert (head.ids is not None) == pruned
    if pruned:
        assert head.ids is not None and head.ids.tolist() == list(range(VOCAB - 8, VOCAB))
    assert torch.equal(head(states, 3), medusa_head(trainee, runner)(states, 3))


def asked_for(**given: Any) -> MedusaTrainee:
    options = TrainOptions(kind="medusa", out=Path("unused"), data=Path("unread"), **given)
    return trainee(ModelRunner(tiny_model(VOCAB)), byte_tokenizer(), options)


def test_settings_and_going_on_from_a_folder(tmp_path: Path) -> None:
    made = asked_for(settings={"heads": "2", "layers": "2", "vocabulary": "8"})
    assert (made.heads, made.shape.layers, made.shape.draft_vocab_size) == (2, 2, 8)
    made.choose(torch.arange(VOCAB))
    with torch.no_grad():
        for weight in made.module.parameters():
            weight.fill_(0.5)
    made.save(tmp_path, {})
    again = asked_for(init=tmp_path)
    assert not again.chooses and again.vocabulary.pruned and made.vocabulary.pruned
    assert torch.equal(again.vocabulary.ids, made.vocabulary.ids) and again.shape == made.shape
    for weight in again.module.parameters():
        assert bool((weight == 0.5).all())
    with pytest.raises(ConfigError, match="decides this"):
        asked_for(init=tmp_path, settings={"heads": "3"})
    with pytest.raises(ConfigError, match="no setting 'head'"):
        asked_for(settings={"head": "3"})
