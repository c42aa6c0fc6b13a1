"""The adaptive proposer under the test of the whole engine, whatever is chosen.

The choices are made by dice, so that everything that a policy may do is done: any proposer in any
round, any length, chains that stop by the probability of the very token they saw, several requests
in one step. As in `test_engine` each cell is a G-test of the first four tokens' joint distribution;
seeds are fixed, so no run is lucky. A cell fails at p < 1e-3 / (number of cells).

Power: N = 1,000 finds a total variation of 0.15 with probability 0.99 (0.17 on the transformer, which
has more outcomes; asserted below). The planted bugs, which are what an adaptive proposer could
do wrong, are rejected at p < 1e-6; nightly, N = 54,000 finds 0.03.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from specstream.bench.exactness.enumeration import GTest, g_test
from specstream.bench.exactness.harness import sample
from specstream.drafting.chain import Drafting
from specstream.drafting.proposal import Proposal, SpecRequest
from specstream.drafting.proposers.auto import AutoProposer
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.engine.core.lifecycle import PrefillBudget
from tests.exactness.cells import LENGTH, PROMPT, Cell
from tests.support.choosers import Dice, Steady, proposer_with

pytestmark = pytest.mark.slow

ALPHA = 1e-3
N = 1000
RULES = ("ratio", "block")


def run(cell: Cell, proposer: AutoProposer, n: int = N, first_seed: int = 0) -> GTest:
    core = cell.core(proposer)
    seen = sample(core, PROMPT, cell.params, n, length=LENGTH, first_seed=first_seed)
    return g_test(seen, cell.exact())


def diced(cell: Cell, dice: Any) -> AutoProposer:
    return proposer_with(dice, cell.runner(draft=True), most=4, eos_ids=frozenset({0}))


CELLS = [
    *(Cell(rule=rule, warper=w, batch="8") for rule in RULES for w in ("T 1", "top-p")),
    *(Cell(rule=rule, proposer="bad draft", batch="1") for rule in RULES),
    Cell(rule="block", processor="penalties", batch="8"),
    Cell(rule="block", target="tiny", batch="8"),
    Cell(rule="reproducible", warper="top-p", batch="8"),
]


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads when follows the machine's pace, and the dice who asks: here always the same."""
    monkeypatch.setattr(PrefillBudget, "tokens", lambda self, most, proposed, **how: min(most, 64))


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_whatever_is_chosen_the_distribution_is_the_targets(cell: Cell) -> None:
    dice = Dice(1)
    result = run(cell, diced(cell, dice))
    assert result.p_value > ALPHA / len(CELLS), result
    assert result.detectable < (0.17 if cell.target == "tiny" else 0.15)
    outcomes = [outcome for _, told in dice.told for outcome in told]
    for kind in ("draft", "suffix"):
        accepted = [o.accepted for o in outcomes if o.plan.proposer == kind and o.drafted]
        assert len(accepted) > 200 and sum(accepted) > 20
    stopped = [o for o in outcomes if o.plan.go_on and 0 < o.drafted < o.plan.num_tokens]
    assert len(stopped) > 50


def stops(rule: Callable[[float], bool]) -> Dice:
    """Always the draft, four tokens at most, stopping by ``rule``."""
    dice = Dice(2, kinds=["draft"], most=4)
    dice.stops = lambda: rule
    return dice


STOPS: dict[str, Callable[[float], bool]] = {
    "unsure": lambda q: q > 0.4,
    "sure": lambda q: q < 0.4,
    "by the last digits": lambda q: int(q * 1e5) % 3 > 0,
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", STOPS)
def test_a_stop_by_the_token_that_was_drawn_is_free(name: str, rule: str) -> None:
    """The token is kept, so where the chain ends is known before anything beyond it is drawn."""
    cell = Cell(rule=rule, batch="32")
    result = run(cell, diced(cell, stops(STOPS[name])), first_seed=10_000)
    assert result.p_value > ALPHA / (len(STOPS) * len(RULES)), result


@pytest.mark.parametrize("rule", RULES)
def test_under_the_real_policy_the_distribution_is_the_targets(rule: str) -> None:
    cell = Cell(rule=rule, batch="8")
    result = run(cell, diced(cell, Steady()), first_seed=20_000)
    assert result.p_value > ALPHA / len(RULES), result


# Bugs, put in at the real seams.


class Dropping(DraftModelProposer):
    """Drops the token after which the chain was to stop: the draft that stands is a chosen one."""

    def write(self, chains: Sequence[Drafting]) -> int:
        """As the honest one, less the token that said no."""
        said: dict[int, bool] = {}
        for number, chain in enumerate(chains):
            if chain.go_on is not None:
                chain.go_on = self._noting(said, number, chain.go_on)
        passes = super().write(chains)
        for number, answer in said.items():
            if not answer:
                chains[number].tokens.pop()
                chains[number].probs.pop()
        return passes

    @staticmethod
    def _noting(
        said: dict[int, bool], number: int, go_on: Callable[[float], bool]
    ) -> Callable[[float], bool]:
        def answer(q: float) -> bool:
            said[number] = go_on(q)
            return said[number]

        return answer


class Editing(AutoProposer, ABC):
    """Changes each proposal with tokens after they are known; the base of the bugs below."""

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """The honest ones, edited."""
        made = super().propose(requests, budget)
        return [
            self.edit(*item) if item[2].length else item[2]
            for item in zip(requests, budget, made, strict=True)
        ]

    @abstractmethod
    def edit(self, request: SpecRequest, most: int, proposal: Proposal) -> Proposal:
        """What the engine gets to see."""


class Pretending(Editing):
    """Says of what lookup found that it was drawn, evenly from all there is."""

    def edit(self, request: SpecRequest, most: int, proposal: Proposal) -> Proposal:
        """Made-up rows."""
        even = torch.full((proposal.length, 5), 0.2)
        return replace(proposal, probs=even) if proposal.source == "suffix" else proposal


class Choosy(Editing):
    """Looks at the drawn chain and takes it only if its first token is a likely one; else nothing."""

    def likely(self, proposal: Proposal) -> bool:
        """By the token that was drawn."""
        assert proposal.probs is not None
        return float(proposal.probs[0, proposal.tokens[0]]) > 0.5

    def edit(self, request: SpecRequest, most: int, proposal: Proposal) -> Proposal:
        """All or nothing."""
        return proposal if self.likely(proposal) else Proposal.empty()


class ChoosyElseLookup(Choosy):
    """The same, but what lookup offers takes the place of a chain that isn't liked."""

    def edit(self, request: SpecRequest, most: int, proposal: Proposal) -> Proposal:
        """One or the other."""
        if self.likely(proposal):
            return proposal
        lookup: Any = self.candidates["suffix"]
        found = lookup.look_up(request, min(most, 3)).tokens
        return Proposal(torch.tensor(found, dtype=torch.int64), source="suffix")


class Foreseeing(Choosy):
    """Takes or leaves the chain by what was known before its first token was drawn."""

    def likely(self, proposal: Proposal) -> bool:
        """By the row that it was drawn from."""
        assert proposal.probs is not None
        return float(proposal.probs[0].max()) > 0.5


def edited(cell: Cell, kind: type[AutoProposer], dice: Dice) -> AutoProposer:
    honest: Any = diced(cell, dice)
    return kind(dice, list(honest.candidates.values()))  # type: ignore[arg-type]


def dropping(cell: Cell) -> AutoProposer:
    proposer: Any = diced(cell, stops(STOPS["unsure"]))
    proposer.candidates["draft"].__class__ = Dropping
    made: AutoProposer = proposer
    return made


def always_four() -> Dice:
    dice = Dice(2, kinds=["draft"], most=4)
    dice.stops = lambda: None
    return dice


BUGS: dict[str, Callable[[Cell], AutoProposer]] = {
    "the token that ends a chain is dropped": dropping,
    "lookup's tokens given as if drawn": lambda cell: edited(
        cell, Pretending, Dice(2, kinds=["suffix"])
    ),
    "a chain is taken only if its first token is likely": lambda cell: edited(
        cell, Choosy, always_four()
    ),
    "lookup in place of a chain that isn't liked": lambda cell: edited(
        cell, ChoosyElseLookup, always_four()
    ),
}
SIZES = {  # by the size of the deviation
    "lookup's tokens given as if drawn": 500,
    "the token that ends a chain is dropped": 2500,
    "a chain is taken only if its first token is likely": 3000,
    "lookup in place of a chain that isn't liked": 3000,
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_rejected(name: str, rule: str) -> None:
    cell = Cell(rule=rule, proposer="bad draft", batch="32")
    assert run(cell, BUGS[name](cell), SIZES.get(name, N)).p_value < 1e-6


@pytest.mark.parametrize("rule", RULES)
def test_to_choose_before_drawing_is_no_bug(rule: str) -> None:
    """The twin of the choosy ones: the same choice, made by what no drawn token has a say in."""
    cell = Cell(rule=rule, proposer="bad draft", batch="32")
    assert run(cell, edited(cell, Foreseeing, always_four()), 3000).p_value > ALPHA / len(RULES)


def first_token(p: torch.Tensor, q: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The exact distribution of a first token, if chains whose first token is ``kept`` are kept."""
    accept = (p / q).clamp_max(1)
    residual = (p - q).clamp_min(0)
    residual = residual / residual.sum() if residual.sum() > 0 else p
    used = q * kept
    rejected = (used * (1 - accept)).sum()
    return used * accept + rejected * residual + (1 - used.sum()) * p


def test_a_choice_by_the_drawn_token_is_biased_even_where_draft_and_target_agree() -> None:
    """Not a matter of bad drafts: the kept chains favour likely tokens, and plain draws don't make
    up for it. Only where all tokens are kept, or none, is the distribution the target's.
    """
    q = torch.tensor([0.6, 0.25, 0.15], dtype=torch.float64)
    for p in (q, torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)):
        biased = first_token(p, q, q > 0.5)
        assert float((biased - p).abs().sum()) / 2 > 0.05
        for kept in (torch.ones(3), torch.zeros(3)):
            assert torch.allclose(first_token(p, q, kept.double()), p)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_deep(cell: Cell) -> None:
    """Total variations of 0.03 and more would be found in any one of these with probability 0.99."""
    result = run(cell, diced(cell, Dice(3)), n=54_000, first_seed=10**6)
    assert result.p_value > ALPHA / len(CELLS), result
    assert result.detectable < 0.03
