"""Explanations of the policy's latest plans, in figures and in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import fmean
from typing import NamedTuple

from specstream.speculation.explanation import Explanation
from specstream.speculation.policy.costs import Costs
from specstream.speculation.policy.records import Candidate

__all__ = ["Round", "explain", "share"]

_SELDOM = 0.25  # share of rounds with a proposal below which the explanation is "not speculating"
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


def share(rounds: Collection[Round], name: str) -> float:
    """Return the share of rounds in which a candidate proposed; 0 if there are none."""
    return sum(one.name == name for one in rounds) / max(len(rounds), 1)


def explain(
    rounds: Collection[Round], costs: Costs, candidates: Mapping[str, Candidate]
) -> Explanation:
    """Explain the latest rounds in figures and words."""
    made = list(rounds) or [Round("off", 0, 0, 1.0, 1, False)]
    drafted, tau = fmean(one.drafted for one in made), 1.0 + fmean(one.accepted for one in made)
    cost, rows = fmean(one.cost for one in made), round(fmean(one.rows for one in made))
    shares = {name: share(made, name) for name in candidates}
    ranked = sorted(candidates, key=lambda name: -shares[name])
    speculating = sum(shares.values()) >= _SELDOM
    drafter = next((name for name in ranked if candidates[name].passes != "none"), "")
    judged = drafter if drafter and not speculating else next(iter(ranked), "")
    firsts = [one.accepted > 0 for one in made if one.name == judged]
    first, plain = fmean(firsts or [0.0]), costs.plain(rows)
    step = costs.draft(drafter).passes(1, rows) / plain if drafter else 0.0
    if not rounds:
        words = "no round yet that could speculate"
    elif speculating:
        active = [name for name in ranked if shares[name] > 0.1]
        who = " and ".join(f"{candidates[n].title} ({shares[n]:.0%} of rounds)" for n in active)
        words = (
            f"speculating with {who}, about {drafted:.1f} tokens a round: {first:.0%} of first tokens "
            f"stand, {tau:.1f} tokens for the time of {cost:.2f} plain rounds; predicted "
            f"{tau / cost:.2f}x"
        )
        words += f" with {rows} requests in each pass" if rows > 1 else ""
    elif drafter:
        title = candidates[drafter].title.removesuffix(" model")
        words = f"not speculating: {_reason(costs, rows, title, step, first)}"
    else:
        titles = " and ".join(candidate.title for candidate in candidates.values())
        why = f"{titles} finds too little" if titles else "nobody may propose"
        words = f"not speculating: {why}"
    return Explanation(
        words=f"{words}; probing" if made[-1].probing and not speculating else words,
        kind=judged if speculating else "off",
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
