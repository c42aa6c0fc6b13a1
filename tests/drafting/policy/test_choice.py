"""The choice of length, against brute force; candidates of other kinds by the same interface."""

from collections.abc import Sequence

import pytest

from specstream.drafting.policy.acceptance import CandidateAcceptance, RequestAcceptance
from specstream.drafting.policy.choice import ChosenPlan, Step
from specstream.drafting.policy.costs import Costs, DraftCosts
from specstream.drafting.policy.policy import Policy
from specstream.drafting.policy.records import Candidate, Offer, Outlook, RoundOutcome, RoundTimes

BASE_MS, AROUND_MS = 3.0, 0.08
DRAFT = Candidate("draft", "the draft model")
SURVIVAL = [0.7**k for k in range(1, 13)]


class Known(RequestAcceptance):
    """Chances that are given."""

    def __init__(self, candidate: Candidate, chances: Sequence[float]) -> None:
        super().__init__(CandidateAcceptance(candidate))
        self.chances = chances

    def survival(self, offer: Offer, count: int) -> list[float]:
        return list(self.chances[:count])


def place(
    candidate: Candidate, chances: Sequence[float], nodes: Sequence[int] = (), number: int = 1
) -> ChosenPlan:
    offer = Offer(len(chances), nodes=nodes)
    outlook = Outlook(number, True, 50, {candidate.name: offer})
    return ChosenPlan(outlook, 50, {candidate.name: Known(candidate, chances)}, 1.0)


def best(
    candidate: Candidate,
    worth: float,
    *places: ChosenPlan,
    step: float = 0.3,
    token: float = 0.05,
    jump: float = 0.0,
    others: Sequence[ChosenPlan] = (),
) -> tuple[float, list[int]]:
    """What the candidate gains with the places in `step_of`, and by how many tokens of each."""
    made = step_of(candidate, worth, *places, step=step, token=token, jump=jump, others=others)
    gain, chosen = made.best(candidate, places)
    return gain, [round(passes) for _, passes in chosen]


def step_of(
    candidate: Candidate,
    worth: float,
    *places: ChosenPlan,
    step: float = 0.3,
    token: float = 0.05,
    jump: float = 0.0,
    others: Sequence[ChosenPlan] = (),
) -> Step:
    """On a machine where the k-th token beyond the first takes ``token``, the first ``jump`` more."""
    rows = len(places) + len(others)
    widths = (rows, rows + 1, rows + 40)
    costs = Costs(
        {1: BASE_MS} | {n: BASE_MS + (jump + token * (n - rows)) * (n > rows) for n in widths},
        row_ms=0.0,
    )
    costs.drafts[candidate.name] = DraftCosts(step)
    return Step([*places, *others], [candidate], costs, worth)


@pytest.mark.parametrize("jump", [0.0, 1.5])
@pytest.mark.parametrize("worth", [0.3, 0.5, 1.0])
def test_the_length_is_the_best_of_all(worth: float, jump: float) -> None:
    gains = [sum(SURVIVAL[:k]) - worth * (k * 0.35 + jump + AROUND_MS) for k in range(1, 13)]
    gain, tokens = best(DRAFT, worth, place(DRAFT, SURVIVAL), jump=jump)
    assert tokens == [gains.index(max(gains)) + 1]
    assert gain == pytest.approx(max(gains))


def test_the_best_gain_at_the_best_rate_is_the_best_rate() -> None:
    """Renewal reward: with the worth at the best ratio, largest gain and best ratio agree."""

    def ratio(k: int) -> float:
        return (1.0 + sum(SURVIVAL[:k])) / (BASE_MS + (k * 0.35 + AROUND_MS if k else 0.0))

    length = max(range(13), key=ratio)
    gain, tokens = best(DRAFT, ratio(length), place(DRAFT, SURVIVAL))
    assert tokens == [length]
    assert gain == pytest.approx(ratio(length) * BASE_MS - 1.0)


def test_a_lookup_pays_for_its_place_in_the_pass_only() -> None:
    lookup = Candidate("suffix", "suffix lookup", "none", priors=(0.5,))
    gain, _ = best(lookup, 0.5, place(lookup, SURVIVAL), step=0.0)
    assert gain == pytest.approx(best(DRAFT, 0.5, place(DRAFT, SURVIVAL), step=0.0)[0])
    assert best(DRAFT, 0.5, place(DRAFT, SURVIVAL), step=99.0)[0] < 0.0 < gain
    costs = Costs({1: 3.0, 2: 3.1})
    Policy([lookup], costs, max_tokens=4)
    assert costs.draft("suffix").passes(3) == 0.0


def test_a_tree_pays_for_its_nodes_and_heads_for_one_pass() -> None:
    heads = Candidate("heads", "the heads", "one")
    tree = place(heads, [0.9, 0.8, 0.7], nodes=(4, 8, 12))
    gain, tokens = best(heads, 0.2, tree, step=1.0)
    assert tokens == [3]
    assert gain == pytest.approx(2.4 - 0.2 * (1.0 + 12 * 0.05 + AROUND_MS))
    assert best(heads, 0.2, tree, token=1.1)[1] == [1]


def test_a_plan_for_a_tree_names_what_a_node_costs() -> None:
    """And a chain's none; a level that may be stopped at is priced with all of its nodes."""
    heads = Candidate("heads", "the heads", stops=True)
    for nodes, least in (((2, 4, 6), 0.2 * 0.05), ((), 0.0)):
        one = place(heads, [0.9, 0.8, 0.7], nodes=nodes)
        step = step_of(heads, 0.2, one)
        step.choose()
        (plan,) = step.plans()
        assert plan.least == pytest.approx(least)
        assert plan.go_on is not None
        lockstep = plan.go_on.lockstep  # type: ignore[attr-defined]
        assert lockstep.price(1) == pytest.approx(0.2 * 0.05 * (2 if nodes else 1))


def padded_step(worth: float, *places: ChosenPlan) -> Step:
    costs = Costs({1: 3.0, 2: 3.1, 64: 3.0 + 0.1 * 63}, row_ms=0.0, padded=True)
    costs.drafts["draft"] = DraftCosts(0.4)
    lookup = Candidate("suffix", "suffix lookup", "none", priors=(0.5,))
    costs.drafts["suffix"] = DraftCosts(0.0)
    return Step(places, [lookup, DRAFT], costs, worth)


def test_where_requests_are_padded_to_the_widest_one_a_lone_long_proposal_pays_for_all() -> None:
    """Four requests; one could propose four tokens, the others hardly any."""
    good, bad = [0.9, 0.8, 0.7, 0.6], [0.2, 0.05]
    lengths = []
    for worth in (0.5, 1.5, 5.0):
        places = [place(DRAFT, good), *(place(DRAFT, bad) for _ in range(3))]
        padded_step(worth, *places).choose()
        lengths.append(places[0].tokens)
        width = max(one.nodes for one in places)
        paid = worth * (0.4 * width + (4 * width) * 0.1)
        assert sum(one.gain for one in places) >= paid or width == 0
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]
    assert lengths[-1] == 0


def test_in_a_padded_pass_one_candidate_proposes_for_all() -> None:
    lookup = Candidate("suffix", "suffix lookup", "none", priors=(0.5,))
    both = [place(DRAFT, [0.9, 0.8, 0.7]) for _ in range(3)]
    other = place(lookup, [0.95, 0.9, 0.9])
    padded_step(0.3, *both, other).choose()
    assert [one.candidate for one in (*both, other)] == ["draft"] * 3 + ["off"]
    costs = Costs({1: 3.0, 2: 3.1}, padded=True)
    assert costs.tokens(4, [3, 0, 1, 0]) == 16
    assert Costs({1: 3.0, 2: 3.1}).tokens(4, [3, 0, 1, 0]) == 8


def test_requests_that_draft_share_the_passes() -> None:
    """Each alone would lose, two together gain; and a third that hardly stands joins for one token."""
    chances = [0.9, 0.8, 0.1]
    assert best(DRAFT, 1.0, place(DRAFT, chances), step=1.2)[0] < 0.0
    group = [place(DRAFT, chances, number=n) for n in (1, 2)]
    gain, tokens = best(DRAFT, 1.0, *group, place(DRAFT, [0.2, 0.01]), step=1.2)
    assert tokens == [2, 2, 1]
    assert gain == pytest.approx(2 * 1.7 + 0.2 - 2 * 1.2 - 5 * 0.05 - 3 * AROUND_MS)


def test_the_time_of_those_who_wait_is_in_the_rate() -> None:
    """One of four drafts: its passes are priced at what all four would have gained meanwhile."""
    others = [place(DRAFT, [0.0], number=n) for n in (2, 3, 4)]
    gain, _ = best(DRAFT, 1.0, place(DRAFT, [0.9, 0.8]), step=0.4, others=others)
    assert gain == pytest.approx(1.7 - 2 * 0.4 - 2 * 0.05 - AROUND_MS)


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
        policy.observe(times, [RoundOutcome(1, plan, nodes, accepted, depth=tree)])
    return chosen


@pytest.mark.parametrize("better", ["draft", "heads"])
def test_any_number_of_candidates_trees_included(better: str) -> None:
    costs = Costs({1: 3.0, 5: 3.1, 13: 3.3})
    costs.drafts = {"draft": DraftCosts(0.3), "heads": DraftCosts(0.5)}
    heads = Candidate("heads", "the heads", "one")
    policy = Policy([DRAFT, heads], costs, max_tokens=4)
    chosen = serve(policy, {better: 4}, 200)
    assert chosen[50:].count(better) > 0.85 * len(chosen[50:])
    title = {"draft": "the draft model", "heads": "the heads"}[better]
    assert policy.explain().words.startswith(f"speculating with {title} (")


def test_a_new_candidate_changes_its_mind_when_the_text_does() -> None:
    costs = Costs({1: 3.0, 5: 3.1, 13: 3.3})
    costs.drafts = {"draft": DraftCosts(0.3), "heads": DraftCosts(0.5)}
    heads = Candidate("heads", "the heads", "one")
    policy = Policy([DRAFT, heads], costs, max_tokens=4)
    serve(policy, {"draft": 4}, 100)
    chosen = serve(policy, {"heads": 2}, 120)
    assert chosen[-40:].count("heads") > 30
