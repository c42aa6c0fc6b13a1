"""Why the policy plans what it plans, in figures and in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from specstream.speculation.policy.costs import Costs
from specstream.speculation.policy.records import Candidate, Explanation, Outcome

__all__ = ["Summary", "explain"]

_SELDOM = 0.25  # share of rounds with a proposal, below which the answer is "not speculating"
_MANY, _RARE = 64, 0.03  # rounds that tell who proposes seldom; the share of them
_SLOW = 0.3  # plain rounds: a draft pass that costs more is blamed first


class Summary:
    """Exponential averages over the latest ``memory`` rounds: who proposed, what it brought and cost.

    Attributes:
        share: Rounds by candidate that proposed, "off" included.
        first: How often a candidate's first token was accepted.
        tokens: Per round.
        cost: Of a round, in plain rounds.
        proposed: Tokens per round.
    """

    def __init__(self, names: Iterable[str], memory: int) -> None:
        self._newest = 1.0 / memory
        self._proposals = dict.fromkeys(names, 0)
        self.rounds, self._rows, self.probing = 0, 1.0, False
        self.first = dict.fromkeys(self._proposals, 0.0)
        self.share = {**self.first, "off": 0.0}
        self.tokens = self.cost = 1.0
        self.proposed = 0.0

    def learn(self, outcome: Outcome, cost: float, rows: int, probing: bool) -> None:
        """Count a round that cost so many plain rounds."""
        self.rounds += 1
        self.probing = probing
        part = max(1.0 / self.rounds, self._newest)
        self._rows += part * (rows - self._rows)
        name = outcome.plan.proposer if outcome.drafted else "off"
        for known in self.share:
            self.share[known] -= part * self.share[known]
        self.share[name] += part
        self.tokens += part * (outcome.accepted + 1.0 - self.tokens)
        self.cost += part * (cost - self.cost)
        self.proposed += part * (outcome.drafted - self.proposed)
        if outcome.drafted:
            self._proposals[name] += 1
            part = max(1.0 / self._proposals[name], self._newest)
            self.first[name] += part * ((outcome.accepted > 0) - self.first[name])

    @property
    def rows(self) -> int:
        """Requests a round."""
        return round(self._rows)

    def rare(self) -> set[str] | None:
        """Candidates that hardly ever propose; None before there were enough rounds to tell it from."""
        if self.rounds < _MANY:
            return None
        return {name for name in self.first if self.share[name] < _RARE}

    def kind(self) -> str:
        """The candidate that proposed most; "off" where proposals were rare."""
        if not self.first or 1.0 - self.share["off"] < _SELDOM:
            return "off"
        return max(self.first, key=lambda name: self.share[name])


def explain(summary: Summary, costs: Costs, candidates: Mapping[str, Candidate]) -> Explanation:
    """A summary in figures and words."""
    rows, count, kind = summary.rows, summary.proposed, summary.kind()
    plain = costs.plain(rows)
    drafters = [name for name, candidate in candidates.items() if candidate.passes != "none"]
    drafter = kind if kind in drafters else max(drafters, key=summary.share.__getitem__, default="")
    judged = kind if kind != "off" else drafter or next(iter(candidates), "")
    found = Explanation(
        words="",
        kind=kind,
        num_tokens=count,
        acceptance=summary.first.get(judged, 0.0),
        tau=summary.tokens,
        draft_cost=costs.draft(drafter).step_of(rows) / plain if drafter else 0.0,
        verify_cost=costs.verify(rows * (1.0 + count), rows) / plain,
        overhead=rows * costs.other(count > 0.0) / plain,
        predicted_speedup=summary.tokens / summary.cost,
        ceiling=(1.0 + count) / summary.cost,
    )
    if summary.rounds == 0:
        words = "no round yet that could speculate"
    elif kind != "off":
        words = _speculating(found, summary, candidates)
    else:
        words = f"not speculating: {_reason(found, summary, costs, candidates, drafter)}"
        words += "; probing" if summary.probing else ""
    return replace(found, words=words)


def _speculating(found: Explanation, summary: Summary, candidates: Mapping[str, Candidate]) -> str:
    active = sorted(candidates, key=lambda name: -summary.share[name])
    who = " and ".join(
        f"{candidates[name].title} ({summary.share[name]:.0%} of rounds)"
        for name in active
        if summary.share[name] > 0.1
    )
    return (
        f"speculating with {who}, about {found.num_tokens:.1f} tokens a round: "
        f"{found.acceptance:.0%} of first tokens stand, {found.tau:.1f} tokens for the time of "
        f"{summary.cost:.2f} plain rounds; predicted {found.predicted_speedup:.2f}x"
    )


def _reason(
    found: Explanation,
    summary: Summary,
    costs: Costs,
    candidates: Mapping[str, Candidate],
    drafter: str,
) -> str:
    if not candidates:
        return "nobody may propose"
    if not drafter:
        titles = " and ".join(candidate.title for candidate in candidates.values())
        return f"{titles} finds too little"
    rows, step, plain = summary.rows, found.draft_cost, costs.plain(summary.rows)
    title = candidates[drafter].title.removesuffix(" model")
    # One drafted token per request adds this share of a step, which the acceptance has to save.
    widening = costs.widening(rows, rows)[rows] / plain
    around = rows * max(costs.other(True) - costs.other(False), 0.0) / plain
    needed = step + costs.draft(drafter).start / plain + widening + around
    if rows > 1 and widening > max(step, _SLOW):
        return (
            f"the batch is saturated (one token more for each of {rows} requests makes a step "
            f"{widening:.0%} longer)"
        )
    if needed >= 1.0:
        return f"{title} is too slow (a draft pass costs {step:.0%} of a plain round)"
    if step > _SLOW:
        return (
            f"{title} is too slow (a draft pass costs {step:.0%} of a plain round; acceptance "
            f"would have to be over {needed:.0%})"
        )
    if found.acceptance < needed:
        return (
            f"acceptance is too low ({found.acceptance:.0%} of the draft's first tokens; "
            f"{needed:.0%} are needed)"
        )
    return f"proposals seldom pay ({1.0 - summary.share['off']:.0%} of rounds have one)"
