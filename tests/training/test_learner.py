"""What is kept, how a round of learning goes, and what becomes of a bad one."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.config import LearningConfig, parse_config
from specstream.drafting.candidate import EngineParts
from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.forward import PLAIN, Extras, ForwardInput
from specstream.model.runner import ModelRunner
from specstream.training import learner as module
from specstream.training.draft import DraftTrainee
from specstream.training.learner import Buffer, Learner, Weights
from specstream.training.learning import build_learner
from tests.support.tiny import byte_tokenizer, noisy_copy, tiny_model

TOKENIZER = byte_tokenizer()
TARGET = tiny_model(len(TOKENIZER), seed=3, scale=6.0)


class Service:
    """A draft in service that writes down what it was given."""

    def __init__(self) -> None:
        self.adopted: list[Weights] = []

    def adopt(self, weights: Weights) -> None:
        self.adopted.append(weights)


def learner(
    clock: Callable[[], float] = lambda: 0.0, **options: Any
) -> tuple[Learner, DraftTrainee, Service]:
    runner = ModelRunner(TARGET)
    draft: Any = noisy_copy(TARGET, 0.8)
    trainee, service = DraftTrainee(draft, runner, TOKENIZER), Service()
    config = LearningConfig(consent=True, **options)
    return Learner(config, runner, trainee, service, clock), trainee, service


def replies(count: int, prompt: int = 6, length: int = 24, seed: int = 0) -> Iterator[list[int]]:
    """What the target says at temperature 1."""
    noise = torch.Generator().manual_seed(seed)
    runner = ModelRunner(TARGET)
    for _ in range(count):
        ids = torch.randint(2, len(TOKENIZER), (prompt,), generator=noise).tolist()
        cache, unread = runner.new_cache(), list(ids)
        for _ in range(length):
            with torch.inference_mode():
                (rows,) = runner.forward([ForwardInput(torch.tensor(unread), cache)]).logits
            unread = torch.multinomial(rows[-1].softmax(-1), 1, generator=noise).tolist()
            ids += unread
        yield ids


def learn(one: Learner, count: int, seed: int = 0, limit: int = 10_000) -> int:
    """Give it replies and let it do what it wants; the number of steps."""
    for ids in replies(count, seed=seed):
        one.keep(ids, 6)
    return next(n for n in range(limit) if not one.step())


def weights(trainee: DraftTrainee) -> Weights:
    return {name: value.clone() for name, value in trainee.module.state_dict().items()}


def equal(a: Weights, b: Weights) -> bool:
    return all(torch.equal(value, b[name]) for name, value in a.items())


def test_consent_is_given_in_so_many_words() -> None:
    for given in ({}, {"consent": False}, {"consent": 1}, {"consent": "yes"}):
        with pytest.raises(ConfigError, match=r"learning\.consent: learning keeps the tokens of"):
            parse_config({"learning": given})
    assert parse_config({}).learning is None
    assert parse_config({"learning": {"consent": True}}).learning == LearningConfig(consent=True)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"proposer": {"kind": "medusa"}}, "proposer medusa can't learn"),
        ({"compile": True}, "captured passes"),
        ({"mode": "reproducible"}, "no hidden states"),
        ({"draft_quantize": "int8"}, "rounded weights"),
        ({"draft_quantize": "int4"}, "rounded weights"),
        ({"learning": {"consent": True, "evry": 3}}, "learning.evry: .* did you mean every"),
        ({"learning": {"consent": True, "longest": 99, "max_tokens": 64}}, "longest"),
    ],
)
def test_what_cannot_learn_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config({"learning": {"consent": True}} | values)


def test_a_draft_that_cannot_learn_is_refused_by_name(tmp_path: Any) -> None:
    config = parse_config({"learning": {"consent": True, "out": str(tmp_path)}})
    target, other = ModelRunner(TARGET), ModelRunner(tiny_model(300))
    with pytest.raises(ConfigError, match="exists"):
        build_learner(config, EngineParts(target, frozenset(), TOKENIZER, target), ())
    config = parse_config({"learning": {"consent": True}})
    with pytest.raises(ModelUnsupported, match="300 output rows and the target 258"):
        build_learner(config, EngineParts(target, frozenset(), TOKENIZER, other), ())
    translated: Any = object()
    with pytest.raises(ModelUnsupported, match="another tokenizer"):
        build_learner(config, EngineParts(target, frozenset(), TOKENIZER, other, translated), ())
    with pytest.raises(ConfigError, match="needs a draft model or an EAGLE head"):
        build_learner(config, EngineParts(target, frozenset(), TOKENIZER), ())


def test_the_buffer_is_bounded_and_cuts_replies_into_windows() -> None:
    buffer = Buffer(replies=3, tokens=50, longest=20)
    assert not buffer.add([1, 2, 3], 3)  # no reply in it
    assert buffer.add(range(30), 12)
    assert not buffer.add(range(30), 12)  # the same again
    assert [(kept.ids, kept.prompt) for kept in buffer] == [([*range(10, 30)], 2)]
    for first in range(40, 100):
        buffer.add(range(first, first + 18), 10)
        assert len(buffer) <= 3 and buffer.tokens == sum(len(k.ids) for k in buffer) <= 50
    assert [kept.ids[0] for kept in buffer] == [98, 99]
    assert [kept.held for kept in buffer] == [True, False]  # a fourth of them is held out
    (kept, _) = buffer
    kept.states = torch.arange(18)[:, None, None]
    windows = [(w.states[0].item(), w.prompt, len(w.ids)) for w in kept.windows(4)]
    assert windows == [(8, 2, 4), (10, 2, 4), (12, 2, 4), (14, 2, 4)]
    assert [w.ids[0].item() for w in kept.windows(4)] == [106, 108, 110, 112]


def test_acceptance_rises_and_steps_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    one, trainee, service = learner(every=12, passes=6, lr=3e-3, step_tokens=64)
    read, learnt = list[int](), list[int]()
    forward, losses = ModelRunner.forward, trainee.losses

    def reading(self: ModelRunner, inputs: list[ForwardInput], extras: Extras = PLAIN) -> Any:
        if extras is not PLAIN:  # else a reply is written here
            read.append(sum(item.token_ids.shape[0] for item in inputs))
        return forward(self, inputs, extras)

    def learning(batch: Any, **options: Any) -> Any:
        learnt.append(batch.token_ids.numel())
        return losses(batch, **options)

    monkeypatch.setattr(ModelRunner, "forward", reading)
    monkeypatch.setattr(trainee, "losses", learning)
    assert learn(one, 11) == 0
    per_step = list[int]()
    for ids in replies(1, length=90, seed=9):
        one.keep(ids, 6)
    while one.step():
        per_step.append(len(read) + len(learnt))
    report = one.report
    assert max(b - a for a, b in itertools.pairwise([0, *per_step])) == 1  # one pass a step
    assert max(*read, *learnt) == 64 and report.steps == len(per_step)
    assert report.before is not None and report.after is not None
    assert report.after > report.before + 0.05
    assert (report.rounds, report.improved, report.replies) == (1, 1, 12)
    assert len(service.adopted) == 1 and equal(service.adopted[0], trainee.module.state_dict())


def test_a_bad_round_is_rolled_back_and_waits_longer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, trainee, service = learner(every=4, passes=1, lr=0.03, max_replies=8)
    before, losses = weights(trainee), trainee.losses

    def of_wrong_sign(*args: Any, **options: Any) -> Any:
        made = losses(*args, **options)
        return replace(made, loss=-made.loss)

    monkeypatch.setattr(trainee, "losses", of_wrong_sign)
    waits = list[int]()
    for number in range(1, 190):
        one.keep(random.Random(number).choices(range(2, 258), k=12), 4)
        if one.step():
            waits.append(number)
        while one.step():
            pass
    assert waits == [4, 12, 28, 60, 124, 188]  # never more than 16 times as many
    report = one.report
    assert report.improved == 0 and report.rolled_back == report.rounds == len(waits)
    assert report.before == report.after
    assert not service.adopted and equal(before, trainee.module.state_dict())
    assert "rolled back; the next round waits for 64 replies" in caplog.text and report.says


def test_the_weights_that_were_loaded_come_back_if_they_do_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, trainee, service = learner(every=4, passes=1, lr=1e-9)
    loaded, losses, rising = weights(trainee), trainee.losses, itertools.count()

    def spoiling(*args: Any, **options: Any) -> Any:
        for parameter in trainee.module.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
        return losses(*args, **options)

    def better(*args: Any) -> Any:
        return SimpleNamespace(positions=(next(rising) * 1e-3,), tokens=1.0)

    with monkeypatch.context() as patch:
        patch.setattr(trainee, "losses", spoiling)
        patch.setattr(module, "measure", better)
        learn(one, 4)
    assert len(service.adopted) == 1 and not equal(service.adopted[0], loaded)
    learn(one, 4, seed=1)
    assert equal(service.adopted[1], loaded)


def test_a_round_that_breaks_costs_what_it_has_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    one, trainee, service = learner(every=4)
    before, calls, losses = weights(trainee), itertools.count(), trainee.losses

    def breaking(*args: Any, **options: Any) -> Any:
        if next(calls) == 6:
            raise torch.OutOfMemoryError("planted")
        return losses(*args, **options)

    monkeypatch.setattr(trainee, "losses", breaking)
    assert learn(one, 4) > 6  # in the middle of the lessons
    assert one.report.broken == 1 and "planted" in one.report.says
    assert not service.adopted and equal(before, trainee.module.state_dict())
    assert not one.step() and learn(one, 8, seed=1) and one.report.rounds == 2


@pytest.mark.slow
def test_long_steps_make_passes_shorter() -> None:
    now = [0.0, 0.4]

    def clock() -> float:
        now[0] += now[1]
        return now[0]

    # Weights that stay as they are: a round that is rolled back would make the next one wait.
    one, _, _ = learner(clock, every=4, step_tokens=256, step_ms=300, passes=1, lr=1e-12)
    for number, (seconds, width) in enumerate(
        [(0.4, 128), (0.4, 64), (0.4, 64), (0.1, 64), (0.01, 128)]
    ):
        now[1] = seconds
        for seed in range(4):
            one.keep(random.Random(10 * number + seed).choices(range(2, 258), k=150), 4)
        while one.step():
            pass
        assert one.width == width
    assert one.report.broken == 0 and one.report.longest_step_ms == pytest.approx(400)


@torch.inference_mode()
def logits(runner: ModelRunner) -> Tensor:
    (rows,) = runner.forward([ForwardInput(torch.arange(2, 9), runner.new_cache(), 7)]).logits
    return rows


def test_a_runner_takes_new_weights() -> None:
    runner, other = ModelRunner(noisy_copy(TARGET, 0.3)), noisy_copy(TARGET, 0.1)
    assert runner.lean
    before = logits(runner)
    with torch.inference_mode():
        runner.adopt(other.state_dict())
        wanted = other(input_ids=torch.arange(2, 9).unsqueeze(0)).logits[0]
    assert torch.allclose(logits(runner), wanted, atol=1e-4)
    assert not torch.allclose(before, wanted, atol=1e-1)
    with pytest.raises(ModelUnsupported, match="can't be changed"):
        ModelRunner(other, quantize="int8").adopt(other.state_dict())
