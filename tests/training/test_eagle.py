"""Training an EAGLE head: what is learned is what the head computes in service."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specstream.model.attention.base import Batch as Rows
from specstream.model.forward import Extras, ForwardInput
from specstream.model.heads.eagle import EagleHead, load
from specstream.model.runner import ModelRunner
from specstream.training.batches import frequent_tokens
from specstream.training.eagle import EagleTrainee
from specstream.training.trainee import TrainingBatch
from tests.model.families import build
from tests.support.heads import batch_of, eagle_head, random_eagle
from tests.support.tiny import tiny_model

V, PROMPT, LENGTH = 60, 5, 16
MODEL = tiny_model(V, layers=4, seed=3)
RUNNER = ModelRunner(MODEL)
EVERY_OTHER = torch.arange(0, V, 2)
VARIANTS = [
    {},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True},
]


def ids(rows: int = 3) -> torch.Tensor:
    return torch.randint(0, V, (rows, LENGTH), generator=torch.Generator().manual_seed(1))


def batch(trainee: EagleTrainee, rows: int = 3) -> TrainingBatch:
    return batch_of(RUNNER, ids(rows), PROMPT, trainee.depths)


@torch.inference_mode()
def served(head: EagleHead, text: torch.Tensor, origin: int, steps: int) -> list[torch.Tensor]:
    """Logits of each draft step behind the true rows up to ``origin``, the text's tokens drafted."""
    item = ForwardInput(text, RUNNER.new_cache())
    (states,) = RUNNER.forward([item], Extras(head.depths)).states
    cache, features = head.new_cache(), head.fuse(states)[: origin + 1]
    found, tokens = list[torch.Tensor](), text[1 : origin + 2]
    for step in range(steps):
        count = tokens.shape[0]
        logits, features = head(tokens, features, Rows([cache], [count], [1]))[:2]
        found.append(logits[0])
        tokens = text[origin + 2 + step : origin + 3 + step]
    return found


@pytest.mark.parametrize("variants", VARIANTS, ids=str)
@pytest.mark.parametrize("vocabulary", [None, EVERY_OTHER], ids=["all tokens", "every other"])
def test_the_overlaps_told_are_those_of_the_head_in_service(
    variants: dict[str, bool], vocabulary: torch.Tensor | None
) -> None:
    """By draft position, sum min(p, q) over a reply: from the module, and from the head."""
    trainee = random_eagle(MODEL, vocabulary=vocabulary, variants=variants)
    trainee.steps = 3
    with torch.no_grad():
        told = trainee.losses(batch(trainee), acceptance=0.5)
    head = eagle_head(trainee, RUNNER)
    wanted, counted = [0.0] * 3, [0] * 3
    for text in ids():
        (logits,) = RUNNER.forward([ForwardInput(text, RUNNER.new_cache(), LENGTH)]).logits
        p = logits.float().softmax(-1)
        for origin in range(PROMPT - 2, LENGTH - 2):
            steps = min(3, LENGTH - 2 - origin)
            for step, row in enumerate(served(head, text, origin, steps)):
                q = torch.zeros(V)
                q[trainee.vocabulary.ids] = row.float().softmax(-1)
                wanted[step] += float(torch.minimum(p[origin + 1 + step], q).sum())
                counted[step] += 1
    assert list(told.counted) == counted
    assert list(told.accepted) == pytest.approx(wanted, abs=1e-4 * max(counted))


def test_the_layer_has_the_targets_activation() -> None:
    model = build("llama", hidden_act="gelu")
    module, x = EagleTrainee(model).module, torch.randn(3, 32)
    torch.testing.assert_close(module.midlayer.mlp(x), model.model.layers[-1].mlp(x))


def test_training_raises_the_acceptance_at_every_position() -> None:
    trainee = EagleTrainee(MODEL, steps=3)
    one = batch(trainee, 6)
    optimizer = torch.optim.AdamW(trainee.module.parameters(), lr=3e-3)
    first = last = trainee.losses(one, acceptance=0.5)
    for _ in range(30):
        last = trainee.losses(one, acceptance=0.5)
        last.loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    for before, after in zip(first.accepted, last.accepted, strict=True):
        assert after > 1.1 * before
    assert float(last.loss.detach()) < float(first.loss.detach())


def test_every_weight_is_learned() -> None:
    trainee = EagleTrainee(MODEL, steps=2, own_head=True, fc_norm=True)
    optimizer = torch.optim.SGD(trainee.module.parameters(), lr=1e-3)
    for _ in range(2):  # two taps and the embedding begin at zero: their norms are learned after them
        optimizer.zero_grad()
        trainee.losses(batch(trainee), acceptance=0.5).loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    still = [
        name
        for name, weight in trainee.module.named_parameters()
        if weight.grad is None or not bool(weight.grad.abs().sum() > 0)
    ]
    assert still == []


def test_losses_are_taken_in_replies_only() -> None:
    trainee = EagleTrainee(MODEL, steps=2)
    whole = batch(trainee)
    # A prompt's other tokens change what is attended to; padding changes nothing.
    pad = [torch.nn.functional.pad(one, (0, 3)) for one in (whole.token_ids, whole.replies)]
    states = torch.nn.functional.pad(whole.states, (0, 0, 0, 0, 0, 3))
    final = torch.nn.functional.pad(whole.final, (0, 0, 0, 3))
    padded = TrainingBatch(pad[0], pad[1], whole.tokens, states, final)
    with torch.no_grad():
        one, other = (trainee.losses(b, acceptance=0.5) for b in (whole, padded))
    assert list(one.counted) == [3 * (LENGTH - PROMPT), 3 * (LENGTH - PROMPT - 1)]
    assert list(one.counted) == list(other.counted)
    assert list(one.accepted) == pytest.approx(list(other.accepted), rel=1e-5)
    nothing = TrainingBatch(
        whole.token_ids, torch.zeros_like(whole.replies), whole.tokens, whole.states, whole.final
    )
    assert trainee.losses(nothing, acceptance=0.5).counted == []


def test_a_new_head_unrolls_more_draft_steps_as_the_training_goes_on() -> None:
    trainee = EagleTrainee(MODEL, steps=4, places=2)
    found = []
    for done in (0.0, 0.6, 0.9):
        trainee.unroll(done)
        found.append(list(trainee.losses(batch(trainee), acceptance=0.5).counted))
    assert [len(counted) for counted in found] == [1, 2, 4]
    assert [counted[0] for counted in found] == [3 * 8, 3 * 4, 3 * 2]  # the work stays about the same
    trainee.begun = True
    trainee.unroll(0.0)
    assert len(trainee.losses(batch(trainee), acceptance=0.5).counted) == 4


def test_a_step_learns_from_some_places_and_measures_all() -> None:
    trainee = EagleTrainee(MODEL, steps=1, places=4)
    assert trainee.losses(batch(trainee), acceptance=0.5).counted == [3 * 4]
    with torch.no_grad():
        assert trainee.losses(batch(trainee), acceptance=0.5).counted == [3 * (LENGTH - PROMPT)]


def test_a_saved_head_is_loaded_as_it_was(tmp_path: Path) -> None:
    trainee = random_eagle(MODEL, vocabulary=EVERY_OTHER)
    with torch.no_grad():
        for weight in trainee.module.parameters():
            weight.copy_(weight.bfloat16())
    trainee.save(tmp_path, {"target": "a tiny model", "steps": "none"})
    head, text = load(tmp_path, RUNNER), ids()[0]
    for ours, other in zip(
        served(head, text, 6, 2), served(eagle_head(trainee, RUNNER), text, 6, 2), strict=True
    ):
        torch.testing.assert_close(ours, other)
    assert head.depths == trainee.depths == (2, 2, 1)
    assert head.parameters == sum(one.numel() for one in trainee.module.parameters())
    assert "## target\n\na tiny model" in (tmp_path / "README.md").read_text(encoding="utf-8")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 2, 1]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 1, 0]
    saved = load_file(tmp_path / "model.safetensors")
    assert saved["t2d"].nonzero().squeeze(1).tolist() == EVERY_OTHER.tolist()
    assert "lm_head.weight" not in saved  # the target's rows, which the target brings


def test_the_vocabulary_is_that_of_the_replies() -> None:
    counts = torch.tensor([0, 0, 1, 0, 0, 3, 0, 2, 0, 0])
    assert frequent_tokens(counts, 2).tolist() == [5, 7]
    assert frequent_tokens(counts, 5).tolist() == [0, 1, 2, 5, 7]
