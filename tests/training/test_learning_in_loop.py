"""Learning with the engine around it: what it keeps, whom it makes wait, and what it never changes."""

import copy
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from specstream import Engine, LearningConfig, SamplingParams
from specstream.bench.exactness.enumeration import GTest, g_test
from specstream.bench.exactness.harness import sample
from specstream.config import EngineConfig
from specstream.drafting.proposal import Proposal, SpecRequest
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.eagle import EagleProposer
from specstream.engine.build import build_engine
from specstream.engine.core.step import EngineCore
from specstream.engine.core.worker import EngineWorker
from specstream.methods import DraftProposerConfig, EagleProposerConfig
from specstream.model.heads.recognise import told_acceptance
from specstream.model.runner import ModelRunner
from specstream.model.tokens.sampling import probabilities
from specstream.training.draft import DraftTrainee
from specstream.training.learner import Learner
from tests.engine.plain import MODEL, TOKENIZER, plain_greedy
from tests.exactness.cells import LENGTH, PROMPT, VOCAB, Cell
from tests.exactness.toy import tiny_llama
from tests.support.heads import eagle_head, trained_eagle
from tests.support.tiny import answered, ask, make_core, noisy_copy, run_until_idle, save_pair

STATES = torch.ones(1, 3, 32)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=24)


def learning_core(noise: float = 0.5, **options: Any) -> tuple[EngineCore, ModelRunner, Learner]:
    """An engine whose draft is off by ``noise`` and learns."""
    draft: Any = noisy_copy(MODEL, noise)
    runner = ModelRunner(noisy_copy(MODEL, noise))
    proposer = DraftModelProposer(DraftProposerConfig(num_tokens=4), runner, frozenset())
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=())
    trainee = DraftTrainee(draft, core.target, TOKENIZER)
    core.learner = Learner(LearningConfig(consent=True, **options), core.target, trainee, runner)
    return core, runner, core.learner


def rest(core: EngineCore, limit: int = 20_000) -> int:
    """Serve and learn until there is nothing to do; the number of steps of learning."""
    run_until_idle(core)
    return next(n for n in range(limit) if not core.learn())


def accepted(core: EngineCore, count: int = 12) -> float:
    """Of drafted tokens, in replies that are not learnt from."""
    learner, core.learner = core.learner, None
    made = [ask(core, f"topic {n} again", SAMPLED, noise=900 + n)[0] for n in range(count)]
    run_until_idle(core)
    core.learner = learner
    return sum(r.stats.accepted for r in made) / sum(r.stats.drafted for r in made)


def test_a_repeating_topic_is_drafted_better_after_twenty_replies() -> None:
    core, _, learner = learning_core(every=20, passes=3, lr=3e-3)
    before = accepted(core)
    for n in range(20):
        ask(core, f"topic {n}", SAMPLED, noise=n)
        rest(core)
    assert learner.report.improved == 1
    assert accepted(core) > before + 0.1


def test_greedy_text_stays_while_the_draft_learns_in_mid_reply() -> None:
    core, runner, learner = learning_core(every=4, passes=2, lr=3e-3)
    adopted: list[int] = []
    adopt = runner.adopt

    def counting(weights: Any) -> None:
        adopted.append(len(request.token_ids))
        adopt(weights)

    runner.adopt = counting  # type: ignore[method-assign]
    for n in range(4):
        answered(core, f"topic {n}", SAMPLED, noise=n)
    params = SamplingParams(max_tokens=60)
    request, inbox = ask(core, "topic 3", params, session="kept")
    while core.step():
        for _ in range(4):
            learner.step()
    assert len(adopted) == 1 and request.prompt_length < adopted[0] < len(request.token_ids)
    assert inbox.token_ids == plain_greedy("topic 3", 60, eos=None)
    # The cache that was made with the old weights goes on to serve the conversation.
    request, inbox = answered(core, "topic 3 and more", params, session="kept")
    assert inbox.token_ids == plain_greedy("topic 3 and more", 60, eos=None)
    assert request.stats.accepted > 0


class Swapping(DraftModelProposer):
    """Between any two rounds the draft's weights change; with ``lie``, q is told by the next ones."""

    def __init__(self, runner: ModelRunner, *, lie: bool) -> None:
        super().__init__(DraftProposerConfig(num_tokens=3), runner, frozenset())
        self._drafts = [tiny_llama(VOCAB, seed, spread=40.0) for seed in (1, 2, 3)]
        self._rounds, self._lie = 0, lie

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        self._rounds += 1
        draft = self._drafts[self._rounds % 3]
        cast(ModelRunner, self.runner).adopt(draft.state_dict())
        made = super().propose(requests, budget)
        if not self._lie:
            return made
        following = self._drafts[(self._rounds + 1) % 3]
        for n, (request, proposal) in enumerate(zip(requests, made, strict=True)):
            if proposal.length:
                ids = torch.tensor([[*request.token_ids, *proposal.tokens.tolist()]])
                rows = following(input_ids=ids).logits[0, -1 - proposal.length : -1]
                made[n] = replace(proposal, probs=probabilities(rows, request.params))
        return made


def test_samples_keep_the_law_while_weights_are_swapped_in() -> None:
    """A lie about q, told by the weights that come next, is rejected by fewer samples."""
    cell = Cell(target="tiny", batch="4")

    def run(count: int, *, lie: bool) -> GTest:
        core = cell.core(Swapping(cell.runner(draft=True), lie=lie))
        return g_test(sample(core, PROMPT, cell.params, count, length=LENGTH), cell.exact())

    assert run(150, lie=False).p_value > 1e-3
    assert run(80, lie=True).p_value < 1e-6


def test_only_whole_replies_that_may_be_learnt_from_are_kept() -> None:
    core, _, learner = learning_core()
    one, _ = ask(core, "opted out", SAMPLED)
    one.learn = False
    two, _ = ask(core, "cancelled", SAMPLED)
    three, _ = ask(core, "failed", replace(SAMPLED, stop_when=(lambda ids, text: 1 / 0 > 0,)))
    core.step()
    two.delivery.cancelled = True
    run_until_idle(core)
    assert (one.finish_reason, two.finish_reason, three.finish_reason) == ("length", "cancelled", None)
    assert learner.report.replies == 0
    answered(core, "kept", SAMPLED)
    (kept,) = learner.buffer
    assert kept.ids[: kept.prompt] == TOKENIZER.encode("kept") and len(kept.ids) > 24


class Busy:
    """A learner that has a hundred steps to do; the third brings a request."""

    def __init__(self, arrive: Callable[[], None], done: threading.Event) -> None:
        self.log, self._arrive, self._done = list[str](), arrive, done

    def keep(self, token_ids: Sequence[int], prompt_length: int) -> None:
        self.log.append("keep")

    def step(self) -> bool:
        self.log.append("learn")
        if len(self.log) == 3:
            self._arrive()
        if len(self.log) >= 100:
            self._done.set()
        return not self._done.is_set()

    def close(self) -> None:
        self.log.append("close")


def test_a_request_waits_for_one_step_of_learning_at_most() -> None:
    core, _, _ = learning_core()
    step = core.step

    def logged() -> bool:
        moved = step()
        busy.log += ["round"] if moved else []
        return moved

    def arrive() -> None:
        source = make_core(MODEL, TOKENIZER, core.proposer, eos_ids=())
        request, inbox = ask(source, "hello", SamplingParams(max_tokens=30))
        inboxes.append(inbox)
        worker.submit(request)

    def ready(error: object) -> None:
        assert error is None

    core.step = logged  # type: ignore[method-assign]
    inboxes: list[Any] = []
    done = threading.Event()
    busy: Any = Busy(arrive, done)
    core.learner = busy
    worker = EngineWorker(lambda: core, ready, lambda: None)
    worker.start()
    worker.wake()
    assert done.wait(60)
    worker.close()
    worker.join()
    log = busy.log[: busy.log.index("keep")]
    assert log[:3] == ["learn"] * 3 and set(log[3:]) == {"round"}  # no step of learning between rounds
    assert inboxes[0].token_ids == plain_greedy("hello", 30, eos=None)
    assert busy.log[-1] == "close"


def test_an_eagle_head_learns_too() -> None:
    trainee: Any = copy.deepcopy(trained_eagle(MODEL))
    target = ModelRunner(MODEL)
    head = eagle_head(trainee, target)
    size = target.vocab_size
    core = make_core(MODEL, TOKENIZER, EagleProposer(EagleProposerConfig(), head, size), eos_ids=())
    config = LearningConfig(consent=True, every=4, passes=2, lr=3e-3)
    core.learner = learner = Learner(config, core.target, trainee, head)
    for n in range(4):
        ask(core, f"topic {n}", SAMPLED, noise=n)
    rest(core)
    report = learner.report
    assert report.improved == 1 and report.before is not None and report.after is not None
    assert report.after > report.before
    assert torch.equal(head.fuse(STATES), eagle_head(trainee, target).fuse(STATES))
    assert not torch.equal(head.fuse(STATES), eagle_head(trained_eagle(MODEL), target).fuse(STATES))
    _, inbox = answered(core, "topic 2", SamplingParams(max_tokens=40))
    assert inbox.token_ids == plain_greedy("topic 2", 40, eos=None)


async def test_an_engine_learns_and_writes_a_folder_at_its_end(tmp_path: Path) -> None:
    target, draft = map(str, save_pair(tmp_path, noise=0.6, scale=4.0, eos=False))
    out = tmp_path / "learnt"
    given = {"consent": True, "every": 8, "passes": 2, "lr": 3e-3, "out": str(out)}
    engine = Engine.load(target, draft, proposer="draft", learning=given, dtype="float32")
    async with engine:
        for n in range(9):
            params = SamplingParams(temperature=1.0, seed=n, max_tokens=24)
            async with engine.generate(f"topic {n}", params, learn=n != 4) as generation:
                async for _ in generation:
                    pass
        for _ in range(5_000):  # each question goes between two steps of learning
            report = await engine.learning()
            assert report is not None
            if report.improved or report.rolled_back:
                break
        assert report is not None
        assert (report.replies, report.rounds, report.improved) == (8, 1, 1)
        assert not out.exists()
    assert sorted(os.listdir(tmp_path)) == ["draft", "learnt", "target"]
    config = EngineConfig(target=target, draft=str(out), proposer=DraftProposerConfig())
    core = build_engine(config)
    assert report.after is not None
    (told,) = told_acceptance(json.loads((out / "config.json").read_text(encoding="utf-8")))
    assert told == pytest.approx(report.after, abs=5e-4)  # `auto` begins there
    assert core.learner is None and core.draft_weights.parameters > 0
