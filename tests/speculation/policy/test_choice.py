"""The choice of length, against brute force; candidates of other kinds by the same interface."""

from __future__ import annotations

import pytest

from specstream.speculation.policy import (
    Candidate,
    Costs,
    Offer,
    Outcome,
    Outlook,
    Policy,
    RoundTimes,
)
from specstream.speculation.policy.choice import Prices, best_length
from specstream.speculation.policy.costs import DraftCosts

BASE_MS = 3.0
DRAFT = Candidate("draft", "the draft model")
SURVIVAL = [0.7**k for k in range(1, 13)]


def prices(worth: float, step: float = 0.3, token: float = 0.05, jump: float = 0.0) -> Prices:
    return Prices(worth, step, 0.08, [0.0, *(jump + token * k for k in range(1, 13))])


@pytest.mark.parametrize("jump", [0.0, 1.5])
@pytest.mark.parametrize("worth", [0.3, 0.5, 1.0])
def test_the_length_is_the_best_of_all(worth: float, jump: float) -> None:
    price = prices(worth, jump=jump)
    gains = [sum(SURVIVAL[:k]) - worth * (k * 0.35 + jump + 0.08) for k in range(1, 13)]
    option = best_length(SURVIVAL, DRAFT, Offer(12), price)
    assert option.tokens == gains.index(max(gains)) + 1
    assert option.gain == pytest.approx(max(gains))


def test_the_best_gain_at_the_best_rate_is_the_best_rate() -> None:
    """Renewal reward: with the worth at the best ratio, largest gain and best ratio agree."""

    def ratio(k: int) -> float:
        return (1.0 + sum(SURVIVAL[:k])) / (BASE_MS + (k * 0.35 + 0.08 if k else 0.0))

    best = max(range(13), key=ratio)
    option = best_length(SURVIVAL, DRAFT, Offer(12), prices(ratio(best)))
    assert option.tokens == best
    assert option.gain == pytest.approx(ratio(best) * BASE_MS - 1.0)


def test_a_lookup_pays_for_its_place_in_the_pass_only() -> None:
    lookup = Candidate("ngram", "prompt lookup", "none")
    price = prices(0.5, step=99.0)
    gain = best_length(SURVIVAL, lookup, Offer(12), price).gain
    assert gain == pytest.approx(
        best_length(SURVIVAL, DRAFT, Offer(12), prices(0.5, step=0.0)).gain
    )
    assert best_length(SURVIVAL, DRAFT, Offer(12), price).gain < 0.0 < gain


def test_a_tree_pays_for_its_nodes_and_heads_for_one_pass() -> None:
    heads = Candidate("heads", "the heads", "one")
    nodes = (4, 8, 12)
    option = best_length([0.9, 0.8, 0.7], heads, Offer(3, nodes=nodes), prices(0.2, step=1.0))
    assert option.tokens == 3 and option.drafted == 12
    assert option.gain == pytest.approx(2.4 - 0.2 * (1.0 + 12 * 0.05 + 0.08))
    assert (
        best_length([0.9, 0.8, 0.7], heads, Offer(3, nodes=nodes), prices(0.2, token=1.0)).tokens
        == 1
    )


def serve(policy: Policy, accepts: dict[str, int], rounds: int) -> list[str]:
    """Three candidates for one request: who proposes, by how many tokens of each are accepted."""
    costs_ms = {"draft": 0.3, "heads": 0.5, "off": 0.0}
    chosen = []
    for _ in range(rounds):
        offers = {"draft": Offer(4), "heads": Offer(2, nodes=(4, 12))}
        (plan,) = policy.plan([Outlook(1, True, 50, offers)])
        name, depth = plan.proposer, plan.num_tokens
        chosen.append(name)
        nodes = offers[name].nodes[depth - 1] if name == "heads" else depth
        passes = {"draft": depth, "heads": 1, "off": 0}[name]
        accepted = min(accepts.get(name, 0), depth)
        draft_ms, verify_ms = passes * costs_ms[name], 3.0 + 0.02 * nodes
        times = RoundTimes(draft_ms, passes, 0, verify_ms, 1, 1 + nodes, 0.4)
        tree = depth if name == "heads" else None
        policy.observe(times, [Outcome(1, plan, nodes, accepted, depth=tree)])
    return chosen


@pytest.mark.parametrize("better", ["draft", "heads"])
def test_any_number_of_candidates_trees_included(better: str) -> None:
    costs = Costs({1: 3.0, 5: 3.1, 13: 3.3}, other_ms=0.4)
    costs.drafts = {"draft": DraftCosts(0.3), "heads": DraftCosts(0.5)}
    heads = Candidate("heads", "the heads", "one")
    policy = Policy([DRAFT, heads], costs, max_tokens=4)
    chosen = serve(policy, {better: 4}, 200)
    assert chosen[50:].count(better) > 0.85 * len(chosen[50:])
    title = {"draft": "the draft model", "heads": "the heads"}[better]
    assert policy.explain().words.startswith(f"speculating with {title} (")


def test_a_new_candidate_changes_its_mind_when_the_text_does() -> None:
    costs = Costs({1: 3.0, 5: 3.1, 13: 3.3}, other_ms=0.4)
    costs.drafts = {"draft": DraftCosts(0.3), "heads": DraftCosts(0.5)}
    heads = Candidate("heads", "the heads", "one")
    policy = Policy([DRAFT, heads], costs, max_tokens=4)
    serve(policy, {"draft": 4}, 100)
    chosen = serve(policy, {"heads": 2}, 120)
    assert chosen[-40:].count("heads") > 30
