import itertools
import random
from itertools import accumulate

from specstream.drafting.policy.acceptance import (
    CandidateAcceptance,
    ChainStop,
    Lockstep,
    RequestAcceptance,
    stop_of,
)
from specstream.drafting.policy.records import Candidate, Offer

OFFER = Offer(10)

# A draft that is either sure or not, independently from token to token.
SURE, UNSURE = 0.96, 0.45
STANDS = {SURE: 0.95, UNSURE: 0.4}
SHARE = 0.7  # of sure tokens


def trained() -> RequestAcceptance:
    rng = random.Random(10)
    common = CandidateAcceptance(Candidate("draft", "the draft model", stops=True))
    for _ in range(600):
        acceptance = RequestAcceptance(common)
        says = [SURE if rng.random() < SHARE else UNSURE for _ in range(6)]
        accepted = 0
        while accepted < 6 and rng.random() < STANDS[says[accepted]]:
            accepted += 1
        acceptance.observe(Offer(6), accepted, 6, says)
    return RequestAcceptance(common)


def lockstep(pass_cost: float, *token_costs: float, chains: int = 1) -> Lockstep:
    """Tokens cost what is given; after that, as much as the last."""
    last = token_costs[-1] if token_costs else 0.0
    return Lockstep(pass_cost, 0.0, [0.0, *accumulate(token_costs + (last,) * 99)], chains)


def best_value(survival: float, depth: int, cost: float) -> float:
    """Of going on, by dynamic programming over all that may be said, 10 tokens ahead."""
    if depth == 10:
        return 0.0
    value = -cost
    for q, chance in ((SURE, SHARE), (UNSURE, 1.0 - SHARE)):
        stands = survival * STANDS[q]
        value += chance * (stands + max(0.0, best_value(stands, depth + 1, cost)))
    return value


def test_looking_one_token_ahead_is_as_good_as_looking_ten() -> None:
    """What it loses against the dynamic program, over everything that a draft may say."""
    acceptance = trained()
    for cost in (0.1, 0.25, 0.4, 0.6):
        optimal = best_value(1.0, 0, cost)
        reached = 0.0
        for says in itertools.product((SURE, UNSURE), repeat=10):
            go_on = ChainStop(acceptance, lockstep(cost), 99)
            weight, survival = 1.0, 1.0
            for q in says:
                weight *= SHARE if q == SURE else 1.0 - SHARE
            for q in says:
                survival *= STANDS[q]
                reached += weight * (survival - cost)
                if not go_on(q):
                    break
        assert reached >= 0.95 * optimal


def test_stops_sooner_where_tokens_cost_more() -> None:
    acceptance = trained()
    lengths = []
    for cost in (0.05, 0.2, 0.5, 0.9):
        go_on = ChainStop(acceptance, lockstep(cost), 99)
        lengths.append(next((k for k in range(60) if not go_on(SURE)), 60))
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]


def test_a_token_it_was_unsure_of_ends_it() -> None:
    go_on = ChainStop(trained(), lockstep(0.45), 99)
    assert go_on(SURE)
    assert not go_on(UNSURE)


def test_a_pass_is_paid_for_by_all_who_draft() -> None:
    """One request alone wouldn't make another pass; four would, and so do."""
    acceptance = trained()
    alone = ChainStop(acceptance, lockstep(1.5), 99)
    assert not alone(SURE)
    shared = lockstep(1.5, chains=4)
    together = [ChainStop(acceptance, shared, 99) for _ in range(4)]
    assert all(go_on(SURE) for go_on in together)


def test_when_the_others_have_stopped_it_stops_too() -> None:
    acceptance = trained()
    shared = lockstep(1.2, chains=3)
    steady, *others = [ChainStop(acceptance, shared, 99) for _ in range(3)]
    assert steady(SURE)
    for other in others:
        for _ in range(4):
            if not other(UNSURE):
                break
    assert not steady(SURE)


def test_a_pass_that_others_make_is_no_reason_to_draft_what_cannot_stand() -> None:
    acceptance = trained()
    shared = lockstep(0.1, 0.3, chains=2)
    sure, unsure = ChainStop(acceptance, shared, 99), ChainStop(acceptance, shared, 99)
    assert sure(SURE)
    assert not (unsure(UNSURE) and unsure(UNSURE))


def test_a_full_pass_makes_tokens_dear() -> None:
    """The target's pass is cheap up to a width, and dear beyond it."""
    acceptance = trained()
    shared = lockstep(0.0, 0.01, 0.01, 0.99, chains=5)
    asked = [ChainStop(acceptance, shared, 99) for _ in range(5)]
    assert [go_on(SURE) for go_on in asked] == [True, True, False, False, False]


def test_chains_at_their_longest_are_asked_once_more() -> None:
    """Two of three tokens each: four beyond the firsts are priced, and no chain asks for a fifth."""
    acceptance = trained()
    shared = Lockstep(0.0, 0.0, [0.0] * 6, 2)
    chains = [ChainStop(acceptance, shared, 3) for _ in range(2)]
    for more in (True, True, False):
        assert [go_on(SURE) for go_on in chains] == [more] * 2
    assert shared.tokens == 4


def test_a_lone_chain_tells_its_answers_beforehand() -> None:
    """As a rule that native code goes by: checked over random chains, also from their middle."""
    rng, acceptance, ended = random.Random(3), trained(), set[int]()
    for _ in range(600):
        room, costs = rng.randint(2, 9), [rng.uniform(0.0, 0.3) for _ in range(12)]
        go_on = ChainStop(acceptance, lockstep(rng.uniform(0.0, 0.5), *costs), room)
        says = [rng.choice((SURE, UNSURE, 0.999, rng.random())) for _ in range(room)]
        asked = rng.randint(0, min(2, room))
        if not all(go_on(q) for q in says[:asked]):
            continue
        rule = stop_of(go_on)
        assert rule is not None
        survival, step = rule.survival, 0
        for step, q in enumerate(says[asked:]):
            goes_on = go_on(q)
            chance = rule.chances[sum(edge <= q for edge in rule.edges)]
            survival *= chance
            if step == len(rule.prices):
                assert not goes_on  # there is room for no more
                break
            assert goes_on == (survival * min(chance, rule.ceiling) > rule.prices[step])
            if not goes_on:
                break
        ended.add(step)
    assert len(ended) > 5


def test_what_other_chains_decide_is_no_rule() -> None:
    acceptance = trained()
    assert stop_of(ChainStop(acceptance, lockstep(0.1, 0.1, chains=2), 5)) is None
    assert stop_of(lambda confidence: True) is None
