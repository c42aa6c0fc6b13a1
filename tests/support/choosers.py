"""Policies for tests (dice, a script, a steady machine), proposers under them, and an engine."""

import functools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specstream.config import EngineConfig
from specstream.drafting.checking import Explanation
from specstream.drafting.policy.costs import Costs, DraftCosts
from specstream.drafting.policy.policy import Policy
from specstream.drafting.policy.records import Candidate, Outlook, RoundOutcome, RoundPlan, RoundTimes
from specstream.drafting.proposers.auto import AutoProposer
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.suffix import SUFFIX_LOOKUP, SuffixProposer
from specstream.engine.core.step import EngineCore
from specstream.methods import DraftProposerConfig, SuffixProposerConfig
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.support.tiny import (
    EOS,
    ask,
    byte_tokenizer,
    make_core,
    noisy_copy,
    run_until_idle,
    tiny_model,
)

KINDS = ("draft", "suffix", "off")

TOKENIZER = byte_tokenizer()
MODEL = tiny_model(len(TOKENIZER), seed=2)
DRAFT = noisy_copy(MODEL, 0.12)
RUNNER = ModelRunner(MODEL)
PROMPTS = ["abab", "the cat sat on the mat, the cat", "zq", "1, 2, 3, 4, 1, 2, 3,", "aaaa", "xyzxy"]
SAMPLED = SamplingParams(temperature=1.0, max_tokens=40)

NOTHING = Explanation("by dice", "off", 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0)


class Dice:
    """Chooses at random, each round and request, who proposes, how many, and when a draft stops.

    It remembers what it was told, so that a test can compare.
    """

    def __init__(self, seed: int = 0, kinds: Sequence[str] = KINDS, most: int = 5) -> None:
        self.rng = random.Random(seed)
        self.kinds = kinds
        self.most = most
        self.rare: set[str] = set()
        self.stops: Callable[[], Callable[[float], bool] | None] = self._stop
        self.outlooks: list[Outlook] = []
        self.plans: list[RoundPlan] = []
        self.told: list[tuple[RoundTimes, list[RoundOutcome]]] = []
        self.aside: list[RoundTimes] = []
        self.plain: list[tuple[RoundTimes, dict[int, bool]]] = []
        self.known: set[int] = set()
        self.forgotten: list[int] = []
        self.resting = False  # steps have no drafts

    def drafts(self, requests: int) -> bool:
        return not self.resting

    def _stop(self) -> Callable[[float], bool] | None:
        """Go on while the token was likely enough, or unlikely enough, or by the count; or never ask."""
        rng = self.rng
        threshold = rng.random()
        rules: list[Callable[[float], bool] | None] = [
            None,
            lambda q: q > threshold,
            lambda q: q < threshold,
            lambda q: int(q * 1e6) % 2 == 0,
            lambda q: rng.random() < 0.5,
        ]
        return rng.choice(rules)

    def plan(self, outlooks: Sequence[Outlook]) -> list[RoundPlan]:
        self.outlooks = list(outlooks)
        self.known.update(outlook.id for outlook in outlooks)
        self.plans = [self._plan(outlook) for outlook in outlooks]
        return self.plans

    def _plan(self, outlook: Outlook) -> RoundPlan:
        kind = self.rng.choice(self.kinds)
        count = min(self.rng.randint(0, self.most), outlook.budget)
        if kind == "off" or count < 1:
            return RoundPlan("off", 0)
        return RoundPlan(kind, count, self.stops() if kind == "draft" else None)

    def observe(self, times: RoundTimes, outcomes: Sequence[RoundOutcome]) -> None:
        if outcomes:
            self.told.append((times, list(outcomes)))
        else:
            self.aside.append(times)

    def observe_plain(self, times: RoundTimes, requests: Mapping[int, bool]) -> None:
        self.plain.append((times, dict(requests)))
        self.known.update(requests)

    def forget(self, request_id: int) -> None:
        self.known.discard(request_id)
        self.forgotten.append(request_id)

    def explain(self, request_id: int | None = None) -> Explanation:
        return NOTHING


class Script(Dice):
    """Gives out written plans, one round after another, then nothing."""

    def __init__(self, *rounds: Sequence[RoundPlan]) -> None:
        super().__init__()
        self.rounds = list(rounds)

    def plan(self, outlooks: Sequence[Any]) -> list[RoundPlan]:
        self.outlooks = list(outlooks)
        self.plans = list(self.rounds.pop(0)) if self.rounds else [RoundPlan("off", 0)] * len(outlooks)
        return self.plans


class Steady(Policy):
    """The real one, on a machine of constant pace: a draft pass is a tenth of the target's."""

    def __init__(self) -> None:
        costs = Costs({1: 1.0, 2: 1.01, 5: 1.05, 9: 1.1}, row_ms=0.01)
        costs.drafts["draft"] = DraftCosts(0.1, read_ms=0.001)
        draft = Candidate("draft", "the draft model", stops=True)
        super().__init__([SUFFIX_LOOKUP, draft], costs, max_tokens=4)

    def observe(self, times: RoundTimes, outcomes: Sequence[RoundOutcome]) -> None:
        """Says what the pass would have taken there, whatever the test's machine was doing."""
        if not outcomes:
            return  # nothing to learn: the pace is constant
        draft_ms = 0.1 * times.draft_forwards + 0.001 * times.draft_read
        verify_ms = 1.0 + 0.0125 * (times.tokens - 1) + 0.01 * (times.rows - 1)
        other_ms = 0.4 * times.rows
        told = times._replace(draft_ms=draft_ms, verify_ms=verify_ms, other_ms=other_ms)
        super().observe(told, outcomes)


def proposer_with(
    policy: Any,
    draft: ModelRunner | None,
    *,
    most: int = 5,
    eos_ids: frozenset[int] = frozenset(),
    window: int = 256,
    prefill_chunk: int = 512,
    target: ModelRunner | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> AutoProposer:
    """An adaptive proposer under any policy."""
    runner = draft or target
    assert runner is not None
    lookup = SuffixProposer(SuffixProposerConfig(num_tokens=most, min_score=0), runner.device)
    if draft is None:
        return AutoProposer(policy, [lookup], now)
    config = DraftProposerConfig(window=window)
    inner = DraftModelProposer(config, draft, eos_ids, prefill_chunk)
    return AutoProposer(policy, [lookup, inner], now)


def core_under(policy: Any, **options: Any) -> EngineCore:
    """An engine whose proposer has this policy; nothing ends its replies."""
    return make_core(MODEL, TOKENIZER, proposer_with(policy, ModelRunner(DRAFT)), eos_ids=(), **options)


def greedy(count: int = 40) -> SamplingParams:
    return SamplingParams(max_tokens=count)


@functools.cache
def alone(text: str, count: int = 40, *, eos: bool = True) -> list[int]:
    """The greedy reply without drafts and neighbours; ``eos``: whether one may end it."""
    made = proposer_with(Dice(kinds=["off"]), None, target=RUNNER)
    core = make_core(MODEL, TOKENIZER, made, eos_ids=(EOS,) if eos else ())
    _, inbox = ask(core, text, greedy(count))
    run_until_idle(core)
    return inbox.token_ids


def diced(
    seed: int = 0, *, eos_ids: frozenset[int] = frozenset({EOS}), **options: Any
) -> tuple[EngineCore, Dice]:
    """An engine whose proposer is chosen by dice."""
    dice = Dice(seed)
    made = proposer_with(dice, ModelRunner(DRAFT), eos_ids=eos_ids)
    return make_core(MODEL, TOKENIZER, made, eos_ids=tuple(eos_ids), **options), dice


def small_config() -> EngineConfig:
    return EngineConfig(max_running=3, prefill_chunk=16)
