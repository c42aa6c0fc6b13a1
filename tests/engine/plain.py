"""A tiny model, proposers for it, and the plain loop that the engine is compared with."""

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from specstream.drafting.policy.costs import Costs
from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.off import OffProposer
from specstream.drafting.proposers.suffix import SuffixProposer
from specstream.drafting.research.early_exit import EarlyExitProposer
from specstream.drafting.research.lookahead import LookaheadProposer
from specstream.drafting.research.mirror import MirrorProposer
from specstream.engine.core.request import Request
from specstream.engine.core.step import EngineCore
from specstream.methods import (
    DraftProposerConfig,
    EarlyExitProposerConfig,
    LookaheadProposerConfig,
    MirrorProposerConfig,
    SuffixProposerConfig,
)
from specstream.model.heads.research.early_exit import EarlyExit
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.support.blocks import block_proposer
from tests.support.heads import eagle_proposer
from tests.support.medusas import medusa_proposer
from tests.support.mtps import mtp_proposer
from tests.support.streams import streaming_proposer
from tests.support.tiny import (
    EOS,
    answered,
    ask,
    auto_proposer,
    byte_tokenizer,
    make_core,
    noisy_copy,
    run_until_idle,
    tiny_model,
)

T = TypeVar("T")

TOKENIZER = byte_tokenizer()
MODEL = tiny_model(len(TOKENIZER), seed=2)


def proposer(kind: str, model: PreTrainedModel = MODEL, noise: float = 0.15) -> Proposer:
    if kind == "draft":
        runner = ModelRunner(noisy_copy(model, noise))
        return DraftModelProposer(DraftProposerConfig(num_tokens=5), runner, frozenset({EOS}))
    if kind == "suffix":
        return SuffixProposer(SuffixProposerConfig(min_score=0), torch.device("cpu"))
    if kind == "lookahead":
        return LookaheadProposer(LookaheadProposerConfig(), torch.device("cpu"))
    if kind == "eagle":
        return eagle_proposer(model)
    if kind == "early-exit":
        runner = ModelRunner(model)
        config = EarlyExitProposerConfig(num_tokens=4)
        return EarlyExitProposer(config, runner, EarlyExit(runner, 1), frozenset({EOS}))
    if kind == "medusa":
        return medusa_proposer(model)
    if kind == "mirror":
        return mirror(model, noise)
    if kind == "mtp":
        return mtp_proposer(model)
    if kind == "block":
        return block_proposer(model)
    if kind == "streaming":
        return streaming_proposer(ModelRunner(model), 0.02)
    if kind == "auto":
        return auto_proposer(ModelRunner(noisy_copy(model, noise)))
    return OffProposer()


def mirror(
    model: PreTrainedModel = MODEL,
    noise: float = 0.15,
    eos_ids: frozenset[int] = frozenset({EOS}),
    pool: Executor | None = None,
) -> MirrorProposer:
    """Its second thread is by default the engine's own: every branch is finished, so rounds repeat."""
    draft = ModelRunner(noisy_copy(model, noise))
    proposer = DraftModelProposer(DraftProposerConfig(num_tokens=5), draft, eos_ids)
    config, leave = MirrorProposerConfig(num_tokens=5, branches=3), EarlyExit(ModelRunner(model), 1)
    costs = Costs({1: 1.0, 2: 1.0})
    return MirrorProposer(config, proposer, leave, eos_ids, pool or AtOnce(), costs)


class AtOnce(Executor):
    """Runs what is submitted in the call."""

    def submit(self, work: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*args, **options))
        except Exception as error:
            done.set_exception(error)
        return done


def plain_greedy(text: str, count: int, eos: int | None = EOS) -> list[int]:
    """The simplest loop there is: no cache, one token at a time."""
    return list(_plain_greedy(text, count, eos))


@functools.cache  # many tests ask for the same
@torch.inference_mode()
def _plain_greedy(text: str, count: int, eos: int | None) -> tuple[int, ...]:
    ids: list[int] = TOKENIZER.encode(text)
    out: list[int] = []
    while len(out) < count:
        token = int(MODEL(input_ids=torch.tensor([ids + out])).logits[0, -1].argmax())
        out.append(token)
        if token == eos:
            break
    return tuple(out)


PROMPTS = ["abab", "the cat sat on the mat, the cat", "zq", "日本 日本", "1, 2, 3, 4, 1, 2, 3,"]


def check_greedy(
    core: EngineCore, count: int, eos: int | None = EOS, prompts: Sequence[str] = PROMPTS
) -> list[Request]:
    """Ask for all prompts; each reply must be the plain loop's."""
    asked = [ask(core, prompt, SamplingParams(max_tokens=count)) for prompt in prompts]
    run_until_idle(core)
    for prompt, (_, inbox) in zip(prompts, asked, strict=True):
        assert inbox.token_ids == plain_greedy(prompt, count, eos)
    return [request for request, _ in asked]


def check_turns(proposer: Proposer) -> EngineCore:
    """Three turns of conversation "s", of which the second is cancelled; return the engine."""
    core = make_core(MODEL, TOKENIZER, proposer, max_sessions=1, eos_ids=(), prefill_chunk=3)
    _, one = answered(core, "abcdef", SamplingParams(max_tokens=10), session="s")
    longer = "abcdef" + one.text[:4] + "?"
    request, two = ask(core, longer, SamplingParams(max_tokens=400), session="s")
    for _ in range(8):
        core.step()
    assert request.stats.drafted > 0
    two.delivery.cancelled = True
    run_until_idle(core)
    _, three = answered(core, longer, SamplingParams(max_tokens=12), session="s")
    assert three.token_ids == plain_greedy(longer, 12, None)
    return core


def check_cancelled(core: EngineCore, kept: Mapping[int, object]) -> None:
    """What a proposer keeps by slot is there during a request, and gone once that is cancelled."""
    _, inbox = ask(core, PROMPTS[1], SamplingParams(max_tokens=200))
    for _ in range(12):
        core.step()
    assert kept
    inbox.delivery.cancelled = True
    run_until_idle(core)
    assert not kept
