"""Why the controller does what it does, in figures and in words."""

from __future__ import annotations

from dataclasses import replace

from specstream.speculation.policy.costs import Costs
from specstream.speculation.policy.records import Explanation, Kind, Outcome

__all__ = ["Digest", "explain"]

_KINDS: tuple[Kind, ...] = ("draft", "ngram", "off")
_NAMES: dict[Kind, str] = {"draft": "the draft model", "ngram": "prompt lookup", "off": "nobody"}
_SELDOM = 0.25  # share of rounds with a proposal, below which one can't speak of speculating
_SLOW = 0.3  # plain rounds: a draft pass that costs more is the first thing to blame


class Digest:
    """The latest ``memory`` rounds, condensed: who proposed, what came of it, what it cost."""

    __slots__ = (
        "_newest",
        "_proposals",
        "cost",
        "first",
        "probing",
        "proposed",
        "rounds",
        "rows",
        "share",
        "tokens",
    )

    def __init__(self, memory: float) -> None:
        self._newest = 1.0 / memory
        self._proposals: dict[Kind, int] = dict.fromkeys(_KINDS, 0)
        self.rounds = 0
        self.rows = 1
        self.probing = False
        self.share: dict[Kind, float] = dict.fromkeys(_KINDS, 0.0)
        self.first: dict[Kind, float] = dict.fromkeys(_KINDS, 0.0)  # how often a first token stood
        self.tokens = 1.0  # a round
        self.cost = 1.0  # of a round, in plain ones
        self.proposed = 0.0  # tokens a round

    def learn(self, outcome: Outcome, cost: float, rows: int, probing: bool) -> None:
        """Count a round: what came of it, and what it cost in plain rounds."""
        self.rounds += 1
        self.rows = rows
        self.probing = probing
        part = max(1.0 / self.rounds, self._newest)
        drafted, share = outcome.drafted, self.share
        who = outcome.plan.proposer if drafted > 0 else "off"
        for kind in share:
            share[kind] *= 1.0 - part
        share[who] += part
        self.tokens += part * (outcome.accepted + 1.0 - self.tokens)
        self.cost += part * (cost - self.cost)
        self.proposed += part * (drafted - self.proposed)
        if drafted > 0:
            self._proposals[who] += 1
            hit = 1.0 if outcome.accepted > 0 else 0.0
            part = max(1.0 / self._proposals[who], self._newest)
            self.first[who] += part * (hit - self.first[who])

    def kind(self) -> Kind:
        """Who proposed most of late; "off" where proposals were rare."""
        if 1.0 - self.share["off"] < _SELDOM:
            return "off"
        return max(("draft", "ngram"), key=lambda kind: self.share[kind])


def explain(digest: Digest, costs: Costs, kinds: frozenset[Kind]) -> Explanation:
    """Put a digest into figures and words."""
    rows, count, kind = digest.rows, digest.proposed, digest.kind()
    plain = costs.plain(rows)
    judged: Kind = kind if kind != "off" else "draft" if "draft" in kinds else "ngram"
    found = Explanation(
        words="",
        kind=kind,
        num_tokens=count,
        acceptance=digest.first[judged],
        tau=digest.tokens,
        draft_cost=costs.draft_pass(rows) / plain if "draft" in kinds else 0.0,
        verify_cost=costs.verify(rows * (1.0 + count), rows) / plain,
        overhead=rows * costs.other(count > 0.0) / plain,
        predicted_speedup=digest.tokens / digest.cost,
        ceiling=(1.0 + count) / digest.cost,
    )
    if digest.rounds == 0:
        words = "no round yet that could speculate"
    elif kind != "off":
        words = _speculating(found, digest)
    else:
        words = f"not speculating: {_reason(found, digest, costs, kinds)}"
        words += "; probing" if digest.probing else ""
    return replace(found, words=words)


def _speculating(found: Explanation, digest: Digest) -> str:
    active = [kind for kind in _KINDS if kind != "off" and digest.share[kind] > 0.1]
    active.sort(key=lambda kind: -digest.share[kind])
    who = " and ".join(f"{_NAMES[kind]} ({digest.share[kind]:.0%} of rounds)" for kind in active)
    return (
        f"speculating with {who}, about {found.num_tokens:.1f} tokens a round: "
        f"{found.acceptance:.0%} of first tokens stand, {found.tau:.1f} tokens for the time of "
        f"{digest.cost:.2f} plain rounds; predicted {found.predicted_speedup:.2f}x"
    )


def _reason(found: Explanation, digest: Digest, costs: Costs, kinds: frozenset[Kind]) -> str:
    if "draft" not in kinds:
        return "prompt lookup finds too little" if "ngram" in kinds else "nobody may propose"
    rows, step = digest.rows, found.draft_cost
    plain = costs.plain(rows)
    # What one drafted token a request adds to a step is the part of a step that it has to save.
    widening = costs.widening(rows, rows)[rows] / plain
    around = rows * max(costs.other(True) - costs.other(False), 0.0) / plain
    needed = step + costs.draft_start() / plain + widening + around
    if rows > 1 and widening > max(step, _SLOW):
        return (
            f"the batch is saturated (one token more for each of {rows} requests makes a step "
            f"{widening:.0%} longer)"
        )
    if needed >= 1.0:
        return f"the draft is too slow (a draft pass costs {step:.0%} of a plain round)"
    if step > _SLOW:
        return (
            f"the draft is too slow (a draft pass costs {step:.0%} of a plain round; acceptance "
            f"would have to be over {needed:.0%})"
        )
    if found.acceptance < needed:
        return (
            f"acceptance is too low ({found.acceptance:.0%} of the draft's first tokens; "
            f"{needed:.0%} are needed)"
        )
    return f"proposals seldom pay ({1.0 - digest.share['off']:.0%} of rounds have one)"
