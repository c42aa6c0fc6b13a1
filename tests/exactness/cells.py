"""The cells of the whole-engine test: who drafts, who judges, how it samples, how it is served."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from specstream.bench.exactness.enumeration import GTest, g_test
from specstream.bench.exactness.harness import Varying, sample
from specstream.drafting.checking import Explanation
from specstream.drafting.policy.records import Outlook, RoundOutcome, RoundPlan, RoundTimes
from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers.auto import AutoProposer
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.off import OffProposer
from specstream.drafting.proposers.suffix import SuffixProposer
from specstream.engine.core.step import EngineCore
from specstream.methods import DraftProposerConfig, SuffixProposerConfig
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.exactness.toy import (
    EOS,
    Letters,
    PairRunner,
    TinyRunner,
    exact_joint,
    make_core,
    random_logits,
)

__all__ = ["FACTORS", "SURE", "Cell", "covering_cells", "every_cell", "run_cell"]

VOCAB, LENGTH, PROMPT = 5, 4, "bcdbc"
_ENDS = frozenset({EOS})
_K = {"fixed": 3, "varying": 4, "one": 1}
SURE = 0.4
"""The draft under ``proposer="auto"`` goes on after a token that it gave more than this."""


class _Unsure:
    """In place of a policy: always the draft, which goes on while it is sure."""

    def __init__(self, tokens: int) -> None:
        self._plan = RoundPlan("draft", tokens, lambda q: q > SURE)

    def drafts(self, requests: int) -> bool:
        """Always."""
        return True

    def plan(self, outlooks: Sequence[Outlook]) -> list[RoundPlan]:
        """The same for each."""
        return [self._plan for _ in outlooks]

    def observe(self, times: RoundTimes, outcomes: Sequence[RoundOutcome]) -> None:
        """Nothing to learn."""

    def forget(self, request_id: int) -> None:
        """Nothing is kept."""

    def explain(self, request_id: int | None = None) -> Explanation:
        """No reasons."""
        return Explanation("always the draft", "draft", 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0)


def _coin(heads: float) -> Tensor:
    """``[V, V, V]``: a toss of two tokens, whatever came before."""
    row = torch.full((VOCAB,), -30.0)
    row[-2:] = torch.tensor([heads, 1 - heads]).log()
    return row.expand(VOCAB, VOCAB, VOCAB)


def alternating(ids: Tensor, scores: Tensor) -> Tensor:
    """A little automaton, as a grammar would be one: after an even token comes an odd one or the end.

    It depends on the last token, so a drafted position that is judged in the wrong context shows.
    """
    last = int(ids[0, -1])
    if last % 2:
        return scores
    scores = scores.clone()
    scores[:, 2::2] = -torch.inf
    return scores


WARPERS: Mapping[str, SamplingParams] = {
    "T 0.5": SamplingParams(0.5),
    "T 1": SamplingParams(1.0),
    "T 1.5": SamplingParams(1.5),
    "top-k": SamplingParams(1.0, top_k=3),
    "top-p": SamplingParams(1.2, top_p=0.8),
    "min-p": SamplingParams(1.2, min_p=0.1),
    "typical-p": SamplingParams(1.0, typical_p=0.85),
}
PROCESSORS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.6, "presence_penalty": 0.4},
    "bias": {"logit_bias": {1: 1.5, 3: -2.0}},
    "automaton": {"processors": (alternating,)},
    "min tokens": {"min_tokens": 3},
}
FACTORS: Mapping[str, tuple[str, ...]] = {
    "proposer": ("draft", "bad draft", "suffix", "off"),
    "rule": ("ratio", "block", "reproducible"),
    "warper": tuple(WARPERS),
    "processor": tuple(PROCESSORS),
    "k": ("fixed", "varying"),
    "batch": ("1", "4"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination; the names are keys of ``FACTORS``."""

    proposer: str = "draft"
    rule: str = "block"
    warper: str = "T 1"
    processor: str = "none"
    k: str = "fixed"
    batch: str = "1"
    target: str = "table"
    device: str = "cpu"

    def __str__(self) -> str:
        parts = [self.proposer, self.rule, self.warper, self.processor, f"K {self.k}"]
        return ", ".join([*parts, f"batch {self.batch}", self.target])

    @property
    def params(self) -> SamplingParams:
        """How the cell samples. One more token than is looked at, so that K is not cut short."""
        settings = dict(PROCESSORS[self.processor])
        return replace(WARPERS[self.warper], max_tokens=LENGTH + 1, **settings)

    def runner(self, *, draft: bool = False) -> ModelRunner:
        """The cell's target, or its draft."""
        if self.target == "tiny":
            return TinyRunner(VOCAB, 1 if draft else 0, self.device)
        if self.target == "coins":  # where a draft's reused noise shows most, by search
            return PairRunner(_coin(0.35 if draft else 0.53).to(self.device))
        table = random_logits(VOCAB, 0)
        if draft:
            other = random_logits(VOCAB, 1)
            table = table + 0.6 * other if self.proposer == "draft" else other * 1.5
        return PairRunner(table.to(self.device))

    def _suffix(self) -> SuffixProposer:
        return SuffixProposer(SuffixProposerConfig(min_score=0), torch.device(self.device))

    def proposer_object(self) -> Proposer:
        """The cell's proposer."""
        made: Proposer = OffProposer()
        if self.proposer.endswith("draft"):
            config = DraftProposerConfig(num_tokens=_K[self.k])
            made = DraftModelProposer(config, self.runner(draft=True), _ENDS)
        elif self.proposer == "auto":
            draft = DraftModelProposer(DraftProposerConfig(), self.runner(draft=True), _ENDS)
            lookup = self._suffix()
            made = AutoProposer(cast(Any, _Unsure(_K[self.k])), [lookup, draft])
        elif self.proposer == "suffix":
            made = self._suffix()
        return Varying(made) if self.k == "varying" else made

    def core(self, proposer: Proposer | None = None) -> EngineCore:
        """The cell's engine, around its own proposer or another."""
        mode = "reproducible" if self.rule == "reproducible" else "default"
        return make_core(
            self.runner(),
            Letters(),
            proposer or self.proposer_object(),
            _ENDS,
            mode=mode,
            rule="block" if mode == "reproducible" else self.rule,
            max_running=int(self.batch),
        )

    def exact(self) -> Mapping[tuple[int, ...], float]:
        """The exact distribution of the first ``LENGTH`` tokens, by the independent reference."""
        runner: Any = self.runner()
        prompt = Letters().encode(PROMPT)
        return exact_joint(runner.logits_after, self.params, prompt, LENGTH, _ENDS)


def run_cell(cell: Cell, n: int, *, proposer: Proposer | None = None, first_seed: int = 0) -> GTest:
    """Run the engine ``n`` times and compare with the exact distribution."""
    core = cell.core(proposer)
    seen = sample(core, PROMPT, cell.params, n, length=LENGTH, first_seed=first_seed)
    return g_test(seen, cell.exact())


def every_cell() -> Iterator[Cell]:
    """All combinations (1,680)."""
    for values in itertools.product(*FACTORS.values()):
        yield Cell(*values)


def covering_cells(seed: int = 0) -> list[Cell]:
    """Few cells in which every pair of values of any two factors occurs at least once."""
    names = list(FACTORS)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(range(len(names)), 2)
        for x in FACTORS[names[a]]
        for y in FACTORS[names[b]]
    }
    rng = random.Random(seed)
    chosen = []
    while missing:
        (a, x), (b, y) = rng.choice(sorted(missing))  # one new pair, whatever else comes with it
        tries = []
        for _ in range(60):
            values = [rng.choice(FACTORS[name]) for name in names]
            values[a], values[b] = x, y
            tries.append(values)
        best = max(tries, key=lambda values: len(missing & _pairs(values)))
        chosen.append(Cell(*best))
        missing -= _pairs(best)
    return chosen


def _pairs(values: list[str]) -> set[tuple[tuple[int, str], tuple[int, str]]]:
    return set(itertools.combinations(enumerate(values), 2))
