"""Many requests in one engine: prompts, proposers, replies alone, and what each pass was given."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.off import OffProposer
from specstream.drafting.proposers.suffix import SuffixProposer
from specstream.drafting.research.early_exit import EarlyExitProposer
from specstream.drafting.research.lookahead import LookaheadProposer
from specstream.engine.core.request import Request
from specstream.engine.core.step import EngineCore
from specstream.methods import (
    DraftProposerConfig,
    EarlyExitProposerConfig,
    LookaheadProposerConfig,
    SuffixProposerConfig,
)
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.heads.research.early_exit import EarlyExit
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import mirror
from tests.support.blocks import block_proposer
from tests.support.choosers import Dice, proposer_with
from tests.support.heads import eagle_proposer
from tests.support.medusas import medusa_proposer
from tests.support.mtps import mtp_proposer
from tests.support.streams import streaming_proposer
from tests.support.tiny import ask, byte_tokenizer, make_core, noisy_copy, run_until_idle, tiny_model

TOKENIZER = byte_tokenizer()
MODEL = tiny_model(len(TOKENIZER), seed=2)
DRAFT = noisy_copy(MODEL, 0.1)
KINDS = [
    *("auto", "block", "draft", "eagle", "early-exit", "lookahead", "medusa", "mirror", "mtp"),
    *("off", "streaming", "suffix"),
]
TEXTS = [
    *("abab", "the cat sat on the mat, the cat", "zq", "日本 日本", "1, 2, 3, 4, 1, 2, 3,", "aaaaaa"),
    *("to be or not to be", "x", "(()())(", "ABC abc ABC", "0101010", "hello hello", "q" * 60, "?!"),
    *("one two one two", "line\nline\n"),
]


def proposer(kind: str, seed: int = 0) -> Proposer:
    if kind == "auto":
        return proposer_with(Dice(seed), ModelRunner(DRAFT))
    if kind == "block":
        return block_proposer(MODEL)
    if kind == "streaming":
        return streaming_proposer(ModelRunner(MODEL))
    if kind == "draft":
        return DraftModelProposer(DraftProposerConfig(num_tokens=5), ModelRunner(DRAFT), frozenset())
    if kind == "suffix":
        return SuffixProposer(SuffixProposerConfig(min_score=0), torch.device("cpu"))
    if kind == "eagle":
        return eagle_proposer(MODEL, depth=3, top_k=2, nodes=5)
    if kind == "early-exit":
        runner = ModelRunner(MODEL)
        config = EarlyExitProposerConfig(num_tokens=4)
        return EarlyExitProposer(config, runner, EarlyExit(runner, 1), frozenset())
    if kind == "medusa":
        return medusa_proposer(MODEL, depth=3, top_k=2, nodes=5)
    if kind == "mtp":
        return mtp_proposer(MODEL)
    if kind == "mirror":
        return mirror(MODEL, 0.1, frozenset())
    if kind == "lookahead":
        return LookaheadProposer(LookaheadProposerConfig(), torch.device("cpu"))
    return OffProposer()


def make(kind: str, **options: Any) -> EngineCore:
    return make_core(MODEL, TOKENIZER, proposer(kind), eos_ids=(), **options)


@functools.cache
def alone(text: str, count: int = 30) -> list[int]:
    """The reply with nobody beside it and nothing drafted."""
    core = make("off")
    _, inbox = ask(core, text, greedy(count))
    run_until_idle(core)
    return inbox.token_ids


def greedy(count: int = 30) -> SamplingParams:
    return SamplingParams(max_tokens=count)


def spied_on(
    runner: ModelRunner, spy: Callable[[Sequence[ForwardInput], list[Tensor]], list[Tensor]]
) -> None:
    """Let ``spy`` see, and change, what the passes of a runner give."""
    forward = runner.forward

    def spied(inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        made = forward(inputs, extras)
        return replace(made, logits=spy(inputs, made.logits)) if extras.logits else made

    runner.forward = spied  # type: ignore[method-assign]


class Passes:
    """What every pass of the target was given: per sequence, whose it is and how many tokens."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.all: list[dict[int, int]] = []
        spied_on(core.target, self._seen)

    def _seen(self, inputs: Sequence[ForwardInput], logits: list[Tensor]) -> list[Tensor]:
        owners = {id(r.sequence.cache): r for r in self.core.scheduler.running}
        self.all.append({owners[id(i.cache)].id: i.token_ids.shape[0] for i in inputs})
        return logits

    def of(self, request: Request) -> list[int]:
        """Tokens of the request in each pass that it was part of."""
        return [counts[request.id] for counts in self.all if request.id in counts]
