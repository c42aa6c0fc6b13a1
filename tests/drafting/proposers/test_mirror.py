"""Drafting during the target's pass: hits and misses, the second thread, and exactness."""

import gc
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.drafting.candidate import EngineParts
from specstream.drafting.optional import StepTimes
from specstream.drafting.policy.costs import Costs
from specstream.drafting.proposers import build_proposer
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.research.mirror import MirrorProposer, one_thread
from specstream.drafting.research.mirroring import MirrorCounts, likely
from specstream.errors import ConfigError, ModelUnsupported, VocabularyMismatch
from specstream.methods import DraftProposerConfig, MirrorProposerConfig
from specstream.model.forward import ForwardInput
from specstream.model.heads.research.early_exit import EarlyExit
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, PROMPTS, TOKENIZER, AtOnce, check_greedy, mirror, plain_greedy
from tests.exactness.toy import EOS, TinyRunner, sampled_text
from tests.support.tiny import answered, ask, make_core, noisy_copy, run_until_idle

pytestmark = pytest.mark.slow


def threaded(pool: Executor | None = None, noise: float = 0.05) -> MirrorProposer:
    return mirror(MODEL, noise, frozenset(), pool or one_thread())


def test_the_likeliest_outcomes_come_first() -> None:
    probs = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
    # Drafted: 1, then 0. Rejected at once: .3 for token 2; later .6 * .3 for 1; all accepted: .3 * .6.
    found = likely(probs, [1, 0], 3)
    assert found[0] == (2,) and set(found[1:]) == {(1, 1), (1, 0, 2)}
    assert likely(probs[:1], [], 2) == [(1,), (2,)]
    assert likely(torch.full((2, 3), torch.nan), [1], 2) == []
    assert len(likely(probs, [1, 0], 16)) == 2 + 2 + 3


@pytest.mark.parametrize("most", [1, 2, 3, 7, 40])
def test_greedy_replies_are_the_plain_loops(most: int) -> None:
    proposer = mirror(MODEL, 0.02, frozenset())
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=(), max_running=4, prefill_chunk=5)
    check_greedy(core, most, None)


def test_a_foretold_outcome_is_drafted_for_and_costs_no_draft_pass() -> None:
    """With an exit that predicts the target exactly, the draft runs on the second thread only."""
    proposer = mirror(MODEL, 0.0, frozenset())
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=())
    knowing(proposer)
    (request,) = check_greedy(core, 60, None, PROMPTS[:1])
    counts, stats = proposer.counts, request.stats
    # In the first round the end of a run of one token is a near tie that rounding decides.
    assert counts.foretold >= counts.rounds - 1 > 5
    assert stats.accepted == stats.drafted  # the draft is the target
    assert counts.hidden == counts.drafted - 2 * 5
    report = request.report()
    assert "were foretold" in report.explanation
    assert report.predicted_speedup is not None and report.predicted_speedup > 0


def knowing(proposer: MirrorProposer) -> None:
    """Make the exit exact: it computes the target's logits, one pass for each token."""
    runner = ModelRunner(MODEL)

    def look(states: Tensor) -> Tensor:
        (one,) = proposer.rounds.values()
        ids = torch.tensor([*one.request.token_ids, *one.drafted])
        item = ForwardInput(ids, runner.new_cache(), states.shape[0])
        return runner.forward([item]).logits[0] * 100  # nearly all mass on the likeliest token

    proposer.exit.logits = look  # type: ignore[method-assign]


def test_the_same_proposals_as_the_draft_alone() -> None:
    """A branch's chain is the one that the draft would have written after the same text."""
    requests = []
    for kind in ("mirror", "draft"):
        runner = ModelRunner(noisy_copy(MODEL, 0.05))
        config = DraftProposerConfig(num_tokens=5)
        draft = DraftModelProposer(config, runner, frozenset())
        made = mirror(MODEL, 0.05, frozenset()) if kind == "mirror" else draft
        core = make_core(MODEL, TOKENIZER, made, eos_ids=())
        requests.append(ask(core, PROMPTS[3], SamplingParams(max_tokens=60))[0])
        run_until_idle(core)
    one, other = (request.report() for request in requests)
    assert (one.rounds, one.drafted, one.accepted) == (other.rounds, other.drafted, other.accepted)


@pytest.mark.parametrize("lie", ["random", "NaN", "error"])
@pytest.mark.broken_proposer
def test_an_exit_that_lies_or_breaks_costs_speed_only(lie: str) -> None:
    proposer = mirror(MODEL, 0.05, frozenset())
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=(), max_running=4)
    torch.manual_seed(0)

    def look(states: Tensor) -> Tensor:
        if lie == "error":
            raise RuntimeError("no exit")
        made = torch.randn(states.shape[0], len(TOKENIZER))
        return made * torch.nan if lie == "NaN" else made

    proposer.exit.logits = look  # type: ignore[method-assign]
    check_greedy(core, 30, None)


def test_processors_and_penalties_hold() -> None:
    params = SamplingParams(max_tokens=40, repetition_penalty=1.4, logit_bias={30: 2.0})
    replies = []
    for made in (mirror(MODEL, 0.05, frozenset()), None):
        core = make_core(MODEL, TOKENIZER, made or mirror(), eos_ids=())
        _, inbox = answered(core, PROMPTS[1], params, proposer="test" if made else "off")
        replies.append(inbox.token_ids)
    assert replies[0] == replies[1]


def test_a_seeded_reply_is_the_same_without_it() -> None:
    proposer = mirror(MODEL, 0.05, frozenset())
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=())
    params = SamplingParams(temperature=0.9, seed=5, max_tokens=50)
    replies = []
    for kind in ("test", "off"):
        _, inbox = answered(core, PROMPTS[2], params, proposer=kind)
        replies.append(inbox.token_ids)
    assert replies[0] == replies[1]
    assert proposer.counts.rounds > 5


@pytest.mark.parametrize(("temperature", "batch"), [(1.0, 1), (0.7, 4)])
def test_sampled_replies_have_the_exact_distribution(temperature: float, batch: int) -> None:
    proposers, ends = list[MirrorProposer](), frozenset({EOS})

    def made(runner: ModelRunner) -> MirrorProposer:
        draft = DraftModelProposer(DraftProposerConfig(num_tokens=2), TinyRunner(5, 1), ends)
        config = MirrorProposerConfig(num_tokens=2, branches=4)
        costs = Costs({1: 1.0, 2: 1.0})
        proposers.append(MirrorProposer(config, draft, EarlyExit(runner, 1), ends, AtOnce(), costs))
        return proposers[0]

    result = sampled_text(made, SamplingParams(temperature), batch)
    assert result.p_value > 1e-3 / 2, result
    assert proposers[0].counts.foretold > 100 and proposers[0].counts.hidden > 100


def test_a_second_thread_drafts_and_ends_with_the_engine() -> None:
    proposer = threaded()
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=(), max_running=4)
    check_greedy(core, 40, None)
    assert [t for t in threading.enumerate() if t.name.startswith("specstream-mirror")]
    core.close()
    core.close()
    del proposer, core
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name.startswith("specstream-mirror")]


def test_its_thread_computes_alone_and_the_engines_threads_stay_as_they_were() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        pool = one_thread()
        assert torch.get_num_threads() == 2
        assert pool.submit(torch.get_num_threads).result() == 1
        pool.shutdown()
    finally:
        torch.set_num_threads(before)


class Late(Future[Any]):
    """Work that begins only when it is waited for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work = work

    def result(self, timeout: float | None = None) -> Any:
        return self.work()


class Held(Executor):
    """Begins the work only when it is waited for."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return Late(lambda: work(*args, **options))


def test_work_that_has_not_begun_when_the_pass_ends_is_given_up() -> None:
    proposer = threaded(Held())
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=())
    check_greedy(core, 30, None, prompts=[PROMPTS[1]])
    assert proposer.counts.foretold == 0
    core.close()


def test_cancels_failed_passes_and_turns_leave_everything_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proposer = threaded()
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=(), max_sessions=1)
    logits = core.target.decoder.logits
    text = "one, two, one, two"
    for turn in range(4):
        _, inbox = ask(core, text, SamplingParams(max_tokens=40), session="s")
        for _ in range(4 + turn):
            core.step()
        if turn % 2:
            inbox.delivery.cancelled = True
        else:
            with monkeypatch.context() as patched:  # behind the middle of the pass

                def broken(hidden: Tensor) -> Tensor:
                    raise RuntimeError("in the head")

                patched.setattr(core.target.decoder, "logits", broken)
                core.step()
        run_until_idle(core)
        shown = inbox.token_ids
        assert shown and shown == plain_greedy(text, len(shown), None)
        text = text + ";" + str(turn)
    assert core.target.decoder.logits == logits
    core.slots.forget("s")
    assert not (proposer.rounds or proposer.ready or proposer.draft.sequences)
    core.close()


def test_a_proposer_that_is_replaced_ends_its_thread() -> None:
    pool = one_thread()
    core = make_core(MODEL, TOKENIZER, threaded(pool), eos_ids=())
    core.proposer = mirror(MODEL, 0.05, frozenset())
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(int)


def test_what_it_needs_is_told() -> None:
    target, ends = ModelRunner(MODEL), frozenset({EOS})
    parts = EngineParts(target, ends, TOKENIZER, ModelRunner(noisy_copy(MODEL, 0.1)))
    made = build_proposer(MirrorProposerConfig(), parts)
    assert isinstance(made, MirrorProposer) and made.midway_depth == 1
    made.close()
    with pytest.raises(ConfigError, match="needs a draft model"):
        build_proposer(MirrorProposerConfig(), replace(parts, draft=None))
    other_words: Any = object()
    with pytest.raises(VocabularyMismatch, match="--proposer draft takes any tokenizer"):
        build_proposer(MirrorProposerConfig(), replace(parts, translation=other_words))
    for other in (ModelRunner(MODEL, lean=False), ModelRunner(MODEL, fixed_width=8)):
        with pytest.raises(ModelUnsupported, match="LlamaForCausalLM"):
            build_proposer(MirrorProposerConfig(layers=1), replace(parts, target=other))


def test_words_of_no_rounds_are_sound() -> None:
    proposer = mirror()
    found = proposer.explain()
    assert found.kind == "off" and found.tau == 1.0 and "of 0 outcomes" in found.words
    proposals: Sequence[object] = proposer.propose([], [])
    assert proposals == []


def test_the_speedup_is_told_against_plain_steps() -> None:
    """Not against target passes, which are slower while the draft computes on the second thread."""
    counts = MirrorCounts(rounds=4, accepted=6, drafted=12)
    for _ in range(4):
        counts.clock(StepTimes(1.0, 3.0, 5.0, rows=1, tokens=4), plain_ms=2.0)
    counts.clock(StepTimes(0.0, 9.0, 9.0, rows=0, tokens=90), plain_ms=2.0)  # read a prompt
    found = counts.explain("mirror")
    assert (found.draft_cost, found.verify_cost, found.overhead) == (0.5, 1.5, 0.5)
    assert found.predicted_speedup == pytest.approx(2.5 / 2.5)
