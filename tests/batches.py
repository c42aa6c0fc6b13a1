"""Many requests in one engine: prompts, proposers, replies alone, and what each pass was given."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specstream.config import DraftProposerConfig, NgramProposerConfig
from specstream.engine.request import Request
from specstream.engine.step import EngineCore
from specstream.model.rider import Rider
from specstream.model.runner import ForwardInput, ModelRunner
from specstream.speculation.proposal import Proposer
from specstream.speculation.proposers.draft_model import DraftModelProposer
from specstream.speculation.proposers.ngram import NgramProposer
from specstream.speculation.proposers.off import OffProposer
from specstream.types import SamplingParams
from tests.blocks import block_proposer
from tests.choosers import Dice, proposer_with
from tests.streams import streaming_proposer
from tests.tiny import ask, byte_tokenizer, make_core, noisy_copy, run_until_idle, tiny_model

TOKENIZER = byte_tokenizer()
MODEL = tiny_model(len(TOKENIZER), seed=2)
DRAFT = noisy_copy(MODEL, 0.1)
KINDS = ["auto", "block", "draft", "ngram", "off", "streaming"]
TEXTS = [
    *(
        "abab",
        "the cat sat on the mat, the cat",
        "zq",
        "日本 日本",
        "1, 2, 3, 4, 1, 2, 3,",
        "aaaaaa",
    ),
    *(
        "to be or not to be",
        "x",
        "(()())(",
        "ABC abc ABC",
        "0101010",
        "hello hello",
        "q" * 60,
        "?!",
    ),
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
        return DraftModelProposer(
            DraftProposerConfig(num_tokens=5), ModelRunner(DRAFT), frozenset()
        )
    if kind == "ngram":
        return NgramProposer(NgramProposerConfig(min_ngram=1), torch.device("cpu"))
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


class Passes:
    """What every pass of the target was given: per sequence, whose it is and how many tokens."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.all: list[dict[int, int]] = []
        forward, with_states = core.target.forward, core.target.forward_with_states
        with_rider = core.target.forward_with_rider

        def note(inputs: Sequence[ForwardInput]) -> None:
            owners = {id(r.sequence.cache): r for r in core.scheduler.running}
            self.all.append({owners[id(i.cache)].id: i.token_ids.shape[0] for i in inputs})

        def spy(inputs: Sequence[ForwardInput]) -> list[Tensor]:
            note(inputs)
            return forward(inputs)

        def spy_rider(inputs: Sequence[ForwardInput], rider: Rider) -> list[Tensor]:
            note(inputs)
            return with_rider(inputs, rider)

        def spy_states(
            inputs: Sequence[ForwardInput], depths: Sequence[int]
        ) -> list[tuple[Tensor, Tensor]]:
            note(inputs)
            return with_states(inputs, depths)

        core.target.forward = spy  # type: ignore[method-assign]
        core.target.forward_with_states = spy_states  # type: ignore[method-assign]
        core.target.forward_with_rider = spy_rider  # type: ignore[method-assign]

    def of(self, request: Request) -> list[int]:
        """Tokens of the request in each pass that it was part of."""
        return [counts[request.id] for counts in self.all if request.id in counts]
