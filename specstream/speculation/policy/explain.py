"""Explanations of the policy's latest plans, in figures and in words."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from specstream.speculation.explanation import Explanation
from specstream.speculation.policy.costs import Costs
from specstream.speculation.policy.records import Candidate

__all__ = ["Recent", "Round", "explain"]

_SELDOM = 0.25  # share of rounds with a proposal below which the explanation is "not speculating"
_MANY, _RARE = 64, 0.03  # a candidate is rare with less than this share of at least so many rounds
_SLOW = 0.3  # a draft pass that costs more plain rounds is named as the reason first


class Round(NamedTuple):
    """Proposal, acceptance and cost of one request's round.

    Attributes:
        name: The candidate that proposed; "off": none.
        drafted: Number of proposed tokens.
        accepted: Number of accepted ones.
        cost: Duration in plain rounds.
        rows: Requests in the target pass.
        probing: Whether the proposal was a try.
    """

    name: str
    drafted: int
    accepted: int
    cost: float
    rows: int
    probing: bool


class Recent:
    """The latest ``memory`` rounds."""

    def __init__(self, memory: int) -> None:
        self.rounds = deque[Round](maxlen=memory)

    def shares(self, names: Iterable[str]) -> dict[str, float]:
        """Return the share of rounds in which each candidate proposed."""
        found = Counter(one.name for one in self.rounds)
        return {name: found[name] / max(len(self.rounds), 1) for name in names}

    def rare(self, names: Iterable[str]) -> set[str]:
        """Return the candidates that proposed in less than 3 % of rounds; none before 64 rounds."""
        if len(self.rounds) < _MANY:
            return set()
        return {name for name, share in self.shares(names).items() if share < _RARE}


def explain(recent: Recent, costs: Costs, candidates: Mapping[str, Candidate]) -> Explanation:
    """Explain the latest rounds in figures and words."""
    made = recent.rounds or [Round("off", 0, 0, 1.0, 1, False)]
    figures = [(one.drafted, one.accepted + 1.0, one.cost, one.rows) for one in made]
    drafted, tau, cost, width = (sum(column) / len(made) for column in zip(*figures, strict=True))
    rows, share = round(width), recent.shares(candidates)
    speculating = sum(share.values()) >= _SELDOM
    kind = max(share, key=share.__getitem__) if speculating else "off"
    drafters = [name for name, candidate in candidates.items() if candidate.passes != "none"]
    drafter = kind if kind in drafters else max(drafters, key=share.__getitem__, default="")
    judged = kind if kind != "off" else drafter or next(iter(candidates), "")
    firsts = [one.accepted > 0 for one in made if one.name == judged]
    first = sum(firsts) / max(len(firsts), 1)
    plain = costs.plain(rows)
    step = costs.draft(drafter).passes(1, rows) / plain if drafter else 0.0
    if not recent.rounds:
        words = "no round yet that could speculate"
    elif kind != "off":
        active = sorted((n for n in share if share[n] > 0.1), key=lambda name: -share[name])
        who = " and ".join(f"{candidates[n].title} ({share[n]:.0%} of rounds)" for n in active)
        words = (
            f"speculating with {who}, about {drafted:.1f} tokens a round: {first:.0%} of first tokens "
            f"stand, {tau:.1f} tokens for the time of {cost:.2f} plain rounds; predicted "
            f"{tau / cost:.2f}x"
        )
    elif not drafter:
        titles = " and ".join(candidate.title for candidate in candidates.values())
        why = f"{titles} finds too little" if titles else "nobody may propose"
        words = f"not speculating: {why}"
    else:
        title = candidates[drafter].title.removesuffix(" model")
        words = f"not speculating: {_reason(costs, rows, title, step, first)}"
    return Explanation(
        words=f"{words}; probing" if kind == "off" and made[-1].probing else words,
        kind=kind,
        num_tokens=drafted,
        acceptance=first,
        tau=tau,
        draft_cost=step,
        verify_cost=costs.verify(rows * (1.0 + drafted), rows) / plain,
        overhead=rows * costs.other(drafted > 0.0) / plain,
        predicted_speedup=tau / cost,
        ceiling=(1.0 + drafted) / cost,
    )


def _reason(costs: Costs, rows: int, title: str, step: float, first: float) -> str:
    """Return why a draft does not pay.

    Args:
        costs: The cost model.
        rows: Requests in a target pass.
        title: The draft's name.
        step: Cost of one of its passes, in plain rounds.
        first: Acceptance rate of its first tokens.
    """
    plain = costs.plain(rows)
    # The share of a step that one drafted token per request adds is the acceptance rate that is needed.
    widening = costs.widening(rows, (rows,))[0] / plain
    needed = step + widening + rows * (costs.other(True) - costs.other(False)) / plain
    if rows > 1 and widening > max(step, _SLOW):
        return (
            f"the batch is saturated (one token more for each of {rows} requests makes a step "
            f"{widening:.0%} longer)"
        )
    if step > _SLOW or needed >= 1.0:
        more = f"; acceptance would have to be over {needed:.0%}" if needed < 1.0 else ""
        return f"{title} is too slow (a draft pass costs {step:.0%} of a plain round{more})"
    if first < needed:
        needs = f"{needed:.0%} are needed"
        return f"acceptance is too low ({first:.0%} of the draft's first tokens; {needs})"
    return "proposals seldom pay"
