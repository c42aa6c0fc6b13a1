"""The whole step on a GPU that isn't there: devices, dtypes and shapes fit, and waits are counted."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.eagle import EagleProposer
from specstream.drafting.proposers.off import OffProposer
from specstream.drafting.proposers.suffix import SuffixProposer
from specstream.drafting.research.early_exit import EarlyExitProposer
from specstream.drafting.research.lookahead import LookaheadProposer
from specstream.drafting.research.medusa import MedusaProposer
from specstream.engine.core import step as step_module
from specstream.methods import (
    DraftProposerConfig,
    EagleProposerConfig,
    EarlyExitProposerConfig,
    LookaheadProposerConfig,
    MedusaProposerConfig,
    SuffixProposerConfig,
)
from specstream.model.heads.eagle import EagleHead
from specstream.model.heads.research.early_exit import EarlyExit
from specstream.model.heads.research.medusa import MedusaHead
from specstream.model.heads.tensors import Tensors
from specstream.model.runner import ModelRunner
from specstream.types import Grammar, SamplingParams
from tests.support.fake_cuda import CARD, Counts, fake_cuda, on_card
from tests.support.heads import random_eagle
from tests.support.medusas import random_medusa
from tests.support.tiny import EOS, ask, auto_proposer, byte_tokenizer, make_core, tiny_model

pytestmark = [pytest.mark.fake_cuda, pytest.mark.slow]

TOKENIZER = byte_tokenizer()
V = len(TOKENIZER)


class Watch:
    """A stopwatch without events: there is no stream."""

    def __init__(self, device: torch.device) -> None:
        self.marks = 0

    def mark(self) -> None:
        self.marks += 1

    def spans_ms(self) -> list[float]:
        return [1.0] * self.marks


def draft(target: ModelRunner, small: ModelRunner) -> Proposer:
    return DraftModelProposer(DraftProposerConfig(num_tokens=4), small, frozenset())


def eagle(target: ModelRunner, top_k: int) -> Proposer:
    shape, tensors = EAGLE
    head = EagleHead(shape, Tensors(Path(), tensors), target)
    config = EagleProposerConfig(depth=4, top_k=top_k, nodes=12)
    return EagleProposer(config, head, V)


def medusa(target: ModelRunner, small: ModelRunner) -> Proposer:
    shape, tensors = MEDUSA
    head = MedusaHead(shape, Tensors(Path(), tensors), target)
    return MedusaProposer(MedusaProposerConfig(top_k=3, depth=3, nodes=12), head)


def early(target: ModelRunner, small: ModelRunner) -> Proposer:
    config = EarlyExitProposerConfig(num_tokens=3)
    return EarlyExitProposer(config, target, EarlyExit(target, 1), frozenset())


METHODS: dict[str, Callable[[ModelRunner, ModelRunner], Proposer]] = {
    "off": lambda target, small: OffProposer(),
    "draft": draft,
    "suffix": lambda t, small: SuffixProposer(SuffixProposerConfig(num_tokens=4), t.device),
    "auto": lambda target, small: auto_proposer(small),
    "eagle chain": lambda target, small: eagle(target, 1),
    "eagle tree": lambda target, small: eagle(target, 3),
    "medusa": medusa,
    "early exit": early,
    "lookahead": lambda t, small: LookaheadProposer(LookaheadProposerConfig(), t.device),
}
TREES = ("eagle tree", "medusa", "lookahead")
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.9},
    "seeded": {"temperature": 0.8, "seed": 3},
    "processors": {
        "temperature": 0.8,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "logit_bias": {5: 1.0},
        "bad_words": ("ab",),
        "min_tokens": 9,
    },
}


def _heads() -> tuple[Any, Any]:
    """Random heads of a model like the target, each as shape and tensors."""
    model = tiny_model(V, seed=2, layers=4)
    first, second = random_eagle(model), random_medusa(ModelRunner(model))
    return (
        (first.module.shape, dict(first.module.state_dict())),
        (second.shape, dict(second.module.state_dict())),
    )


EAGLE, MEDUSA = _heads()


class Run:
    """Steps of an engine on fake tensors.

    Attributes:
        waits: For each of the last steps, what the host waited for.
        launches: Launches of the last step, and its uploads.
    """

    def __init__(
        self,
        method: str,
        params: SamplingParams,
        count: int,
        monkeypatch: pytest.MonkeyPatch,
        dtype: torch.dtype = torch.bfloat16,
        previews: bool = False,
        steps: int = 5,
        inside: list[int] | None = None,
    ) -> None:
        monkeypatch.setattr(step_module, "Stopwatch", Watch)
        real: list[Any] = [tiny_model(V, seed=s, layers=n) for s, n in ((2, 4), (5, 1))]
        for model in real:
            model.to(dtype)
        answer = int(TOKENIZER.encode("a")[0])
        with fake_cuda(0.0 if params.greedy else 0.5, answer) as counts:
            target, small = (ModelRunner(on_card(model)) for model in real)
            proposer = METHODS[method](target, small)
            core = make_core(
                target, TOKENIZER, proposer, eos_ids=(EOS,), max_running=count, max_waiting=64
            )
            asked = [ask(core, "hello " * 3, params, noise=4) for _ in range(count)]
            for _, inbox in asked:
                inbox.delivery.previews = previews
            self.waits = list[Counter[str]]()
            if inside is not None:
                for runner in (target, small):
                    monkeypatch.setattr(runner, "forward", _counted(runner.forward, counts, inside))
            for _ in range(steps):
                counts.reset()
                if inside is not None:
                    inside[0] = 0
                core.step()
                self.waits.append(counts.waits)
            self.counts: Counts = counts
            self.errors = [error for _, inbox in asked for error in inbox.errors]
            self.drafted = [request.stats.drafted for request, _ in asked]
            self.rounds = [request.stats.rounds for request, _ in asked]


def _counted(forward: Any, counts: Counts, inside: list[int]) -> Any:
    """``forward``, whose launches and uploads are added to ``inside``."""

    def run(*args: Any) -> Any:
        before = counts.launched - counts.uploads
        made = forward(*args)
        inside[0] += counts.launched - counts.uploads - before
        return made

    return run


def check(run: Run, method: str) -> None:
    for error in run.errors:
        raise error.__cause__ or error
    assert set(run.rounds) == {5}
    if method != "off" and method != "lookahead":
        assert all(run.drafted), run.drafted


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", METHODS)
def test_a_step_fits_a_gpu_and_waits_for_it_once(
    method: str, way: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees are grown level by level: at most five waits, however many requests there are."""
    run = Run(method, SamplingParams(max_tokens=60, **WAYS[way]), count, monkeypatch)
    check(run, method)
    most = 5 if method in TREES else 1
    for waits in run.waits[2:]:
        assert set(waits) == {"tolist"} and waits.total() <= most, (method, way, waits)


def test_float32_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("off", "draft", "suffix", "auto", "lookahead"):
        check(Run(method, SamplingParams(max_tokens=60), 2, monkeypatch, torch.float32), method)


def test_previews_are_read_once_for_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("draft", SamplingParams(max_tokens=60), 8, monkeypatch, previews=True)
    check(run, "draft")
    assert run.waits[-1] == {"tolist": 2}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize(
    ("method", "each"), [("off", 0), ("draft", 4), ("suffix", 1), ("eagle tree", 10), ("medusa", 1)]
)
def test_a_grammar_reads_the_tokens_that_it_has_to(
    method: str, each: int, count: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each request its proposal, and what the draft's own processing follows (``each`` in all)."""
    pytest.importorskip("llguidance")
    values: dict[str, Any] = {"max_tokens": 60, "grammar": Grammar("regex", "[a-z ]{300}")}
    run = Run(method, SamplingParams(temperature, **values), count, monkeypatch)
    for error in run.errors:
        raise error.__cause__ or error
    assert run.waits[-1].total() <= count * each + 5, run.waits[-1]


def test_reading_and_blocking_uploads_are_seen() -> None:
    with fake_cuda() as counts:
        rows = torch.empty(5, 3, device="cuda")
        rows[[1, 2]]
        rows[rows[:, 0] > 0]
        torch.tensor([1], device=CARD)
        int(rows[0, 0])
        rows[1:, 2].tolist()
        assert counts.waits == {
            "index by a list": 1,
            "index by a mask": 1,
            "torch.tensor(device)": 1,
            "item": 1,
            "tolist": 1,
        }
        counts.reset()
        rows.add_(1).sum()
        torch.arange(3).to(CARD)
        assert (counts.launched, counts.uploads) == (3, 1)
        with pytest.raises(RuntimeError, match="device"):
            rows + torch.ones(3)


@pytest.mark.parametrize(("way", "most"), [("greedy", 80), ("sampled", 200), ("seeded and top-p", 250)])
def test_a_step_of_thirty_two_launches_about_as_much_as_a_step_of_one(
    way: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside the passes of target and draft; drafts of four tokens."""
    values = WAYS.get(way, {"temperature": 0.8, "top_p": 0.9, "seed": 3})
    found = []
    for count in (1, 32):
        inside = [0]
        run = Run("draft", SamplingParams(max_tokens=60, **values), count, monkeypatch, inside=inside)
        check(run, "draft")
        found.append(run.counts.launched - run.counts.uploads - inside[0])
        assert run.counts.uploads <= 15
    assert found[1] <= most and found[1] - found[0] <= 8, found
