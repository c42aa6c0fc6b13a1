"""Why the controller does what it does, in figures and in words."""

from __future__ import annotations

from specstream.spec.control.costs import Costs
from specstream.spec.control.estimates import Average
from specstream.spec.control.options import Option
from specstream.spec.control.records import Explanation, Kind, Outcome

__all__ = ["Digest", "explain"]

_KINDS: tuple[Kind, ...] = ("draft", "ngram", "off")
_NAMES: dict[Kind, str] = {"draft": "the draft model", "ngram": "prompt lookup", "off": "nobody"}


class Digest:
    """The latest ``memory`` rounds, condensed: what was chosen, expected and paid."""

    def __init__(self, memory: float) -> None:
        self.rounds = 0
        self.rows = 1
        self.probing = False
        self.share: dict[Kind, Average] = {kind: Average(0.0, 0.0, memory) for kind in _KINDS}
        self.expected = Average(1.0, 0.0, memory)  # tokens a round, before it
        self.tokens = Average(1.0, 0.0, memory)  # tokens a round, after it
        self.cost = Average(1.0, 0.0, memory)  # plain rounds
        self.proposed = Average(0.0, 0.0, memory)
        self.first = Average(0.0, 0.0, memory)

    def learn(self, option: Option, outcome: Outcome, cost: float, rows: int) -> None:
        """Count a round: what was chosen for it, what came of it, what it cost in plain rounds."""
        self.rounds += 1
        self.rows = rows
        who = outcome.plan.proposer if outcome.drafted > 0 else "off"
        for kind, share in self.share.items():
            share.learn(float(who == kind))
        self.expected.learn(1.0 + option.accepted)
        self.tokens.learn(outcome.accepted + 1.0)
        self.cost.learn(cost)
        self.proposed.learn(float(outcome.drafted))
        if who != "off":
            self.first.learn(float(outcome.accepted > 0))

    def kind(self) -> Kind:
        """Who proposed most of late."""
        return max(_KINDS, key=lambda kind: self.share[kind].value)


def explain(digest: Digest, costs: Costs, kinds: frozenset[Kind]) -> Explanation:
    """Put a digest into figures and words."""
    rows = digest.rows
    plain = costs.plain(rows)
    count = digest.proposed.value
    found = Explanation(
        words="",
        kind=digest.kind(),
        num_tokens=count,
        acceptance=digest.first.value,
        tau=digest.tokens.value,
        draft_cost=costs.draft(1, rows) / plain if "draft" in kinds else 0.0,
        verify_cost=costs.verify(rows * (1.0 + count), rows) / plain,
        overhead=rows * costs.other(count > 0.0) / plain,
        predicted_speedup=digest.tokens.value / digest.cost.value,
        ceiling=(1.0 + count) / digest.cost.value,
    )
    return _with_words(found, digest, costs, kinds)


def _with_words(
    found: Explanation, digest: Digest, costs: Costs, kinds: frozenset[Kind]
) -> Explanation:
    if digest.rounds == 0:
        words = "no round yet that could speculate"
    elif found.kind != "off":
        words = _speculating(found, digest)
    else:
        words = "not speculating: " + _reason(found, digest, costs, kinds)
        words += "; probing" if digest.probing else ""
    values = {name: getattr(found, name) for name in Explanation.__slots__}
    return Explanation(**{**values, "words": words})


def _speculating(found: Explanation, digest: Digest) -> str:
    active = [k for k in _KINDS if k != "off" and digest.share[k].value > 0.1]
    active.sort(key=lambda k: -digest.share[k].value)
    who = " and ".join(f"{_NAMES[k]} ({digest.share[k].value:.0%} of rounds)" for k in active)
    if len(active) == 1:
        who = _NAMES[active[0]]
    return (
        f"speculating with {who}, about {found.num_tokens:.1f} tokens a round: "
        f"{found.acceptance:.0%} of first tokens stand, {found.tau:.1f} tokens for the time of "
        f"{digest.cost.value:.2f} plain rounds; predicted {found.predicted_speedup:.2f}x"
    )


def _reason(found: Explanation, digest: Digest, costs: Costs, kinds: frozenset[Kind]) -> str:
    rows = digest.rows
    plain = costs.plain(rows)
    if "draft" not in kinds:
        return "prompt lookup finds nothing that stands" if "ngram" in kinds else "switched off"
    widening = rows * costs.widening(rows, 8)[8] / 8 / plain
    # What one drafted token a request adds to a step, and how much of a step it has to save.
    needed = found.draft_cost + widening
    around = rows * (costs.other(True) - costs.other(False)) / plain
    needed += max(around, 0.0)
    if rows > 1 and widening > max(found.draft_cost, 0.3):
        return (
            f"the batch is saturated ({rows} requests: one more token each makes the target's pass "
            f"{widening:.0%} longer)"
        )
    if needed >= 1.0:
        return f"the draft is too slow (a draft pass costs {found.draft_cost:.0%} of a plain round)"
    if found.draft_cost > 0.3:
        return (
            f"the draft is too slow (a draft pass costs {found.draft_cost:.0%} of a plain round; "
            f"acceptance would have to be over {needed:.0%})"
        )
    return (
        f"acceptance is too low ({found.acceptance:.0%} of first tokens; {needed:.0%} are needed)"
    )
