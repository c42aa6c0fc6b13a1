"""Why the controller does what it does, in figures and in words."""

from __future__ import annotations

from specstream.spec.control.costs import Costs
from specstream.spec.control.records import Explanation, Kind, Outcome

__all__ = ["Digest", "explain"]

_KINDS: tuple[Kind, ...] = ("draft", "ngram", "off")
_NAMES: dict[Kind, str] = {"draft": "the draft model", "ngram": "prompt lookup", "off": "nobody"}


class Digest:
    """The latest ``memory`` rounds, condensed: who proposed, what came of it, what it cost."""

    __slots__ = (
        "_memory",
        "cost",
        "first",
        "proposals",
        "proposed",
        "rounds",
        "rows",
        "share",
        "probing",
        "tokens",
    )

    def __init__(self, memory: float) -> None:
        self._memory = 1.0 / memory
        self.rounds = 0
        self.proposals = 0
        self.rows = 1
        self.probing = False
        self.share: dict[Kind, float] = dict.fromkeys(_KINDS, 0.0)
        self.tokens = 1.0  # a round
        self.cost = 1.0  # of a round, in plain ones
        self.proposed = 0.0  # tokens a round
        self.first = 0.0  # how often the first proposed token stood

    def learn(self, outcome: Outcome, cost: float, rows: int, probing: bool) -> None:
        """Count a round: what came of it, and what it cost in plain rounds."""
        self.rounds += 1
        self.rows = rows
        self.probing = probing
        gain = max(1.0 / self.rounds, self._memory)
        drafted, share = outcome.drafted, self.share
        who = outcome.plan.proposer if drafted > 0 else "off"
        for kind in share:
            share[kind] *= 1.0 - gain
        share[who] += gain
        self.tokens += gain * (outcome.accepted + 1.0 - self.tokens)
        self.cost += gain * (cost - self.cost)
        self.proposed += gain * (drafted - self.proposed)
        if drafted > 0:
            self.proposals += 1
            hit = 1.0 if outcome.accepted > 0 else 0.0
            self.first += max(1.0 / self.proposals, self._memory) * (hit - self.first)

    def kind(self) -> Kind:
        """Who proposed most of late."""
        return max(_KINDS, key=lambda kind: self.share[kind])


def explain(digest: Digest, costs: Costs, kinds: frozenset[Kind]) -> Explanation:
    """Put a digest into figures and words."""
    rows = digest.rows
    plain = costs.plain(rows)
    count = digest.proposed
    found = Explanation(
        words="",
        kind=digest.kind(),
        num_tokens=count,
        acceptance=digest.first,
        tau=digest.tokens,
        draft_cost=costs.draft(1, rows) / plain if "draft" in kinds else 0.0,
        verify_cost=costs.verify(rows * (1.0 + count), rows) / plain,
        overhead=rows * costs.other(count > 0.0) / plain,
        predicted_speedup=digest.tokens / digest.cost,
        ceiling=(1.0 + count) / digest.cost,
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
    active = [k for k in _KINDS if k != "off" and digest.share[k] > 0.1]
    active.sort(key=lambda k: -digest.share[k])
    who = " and ".join(f"{_NAMES[k]} ({digest.share[k]:.0%} of rounds)" for k in active)
    if len(active) == 1:
        who = _NAMES[active[0]]
    return (
        f"speculating with {who}, about {found.num_tokens:.1f} tokens a round: "
        f"{found.acceptance:.0%} of first tokens stand, {found.tau:.1f} tokens for the time of "
        f"{digest.cost:.2f} plain rounds; predicted {found.predicted_speedup:.2f}x"
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
