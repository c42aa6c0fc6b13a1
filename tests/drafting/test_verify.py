"""Drawn verdicts have the target's distribution, and the test sees it when they haven't.

`test_rules` enumerates the distributions; here the draws are tested, in both ways: sequentially, as on a
CPU, and in tensors, as on a device that must not be waited for. The target's rows don't depend on the
path, so every emitted position j must follow p_j whatever was proposed. N = 2,000 rounds a case: a
total variation of 0.09 at the first position is found with power 0.99 at p < 1e-6. The wrong q below
give p < 1e-30.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.bench.exactness.enumeration import g_test
from specstream.drafting import verify as module
from specstream.drafting.proposal import Proposal, Verdict
from specstream.drafting.verify import Case, Rule, verify_batch
from specstream.model.tokens.sampling import draw, probabilities
from specstream.types import SamplingParams

N, K, V, AT_ONCE = 2_000, 3, 6, 500
ROUND = SamplingParams(temperature=1.0)
Propose = Callable[[torch.Generator], Proposal]


@pytest.fixture(params=["looking", "at once"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "at once":
        at_once(monkeypatch)
    return str(request.param)


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify as on a GPU."""
    monkeypatch.setattr(module, "free_to_look", lambda rows: False)


def verify(
    proposal: Proposal,
    logits: Tensor,
    params: SamplingParams,
    generator: torch.Generator,
    rule: Rule = "block",
) -> Verdict:
    return verify_batch([Case(proposal, logits, params, generator)], rule=rule)[0]


def logits_of(seed: int) -> Tensor:
    return torch.randn(K + 1, V, generator=torch.Generator().manual_seed(seed)) * 1.5


def rounds(
    target: Tensor, propose: Propose, params: SamplingParams = ROUND, rule: Rule = "block"
) -> list[list[int]]:
    """Counts ``[V]`` of what was emitted at each position, over N rounds."""
    judge, draft = torch.Generator().manual_seed(11), torch.Generator().manual_seed(12)
    counts = [[0] * V for _ in range(K + 1)]
    for _ in range(N // AT_ONCE):
        cases = [Case(propose(draft), target, params, judge) for _ in range(AT_ONCE)]
        for verdict in verify_batch(cases, rule=rule):
            for position, token in enumerate(verdict.tokens):
                counts[position][token] += 1
    return counts


def smallest_p(counts: list[list[int]], target: Tensor) -> float:
    values = []
    for seen, row in zip(counts, target.double()):
        if sum(seen) > 300:
            exact = dict(enumerate((row / row.sum()).tolist()))
            values.append(g_test(dict(enumerate(seen)), exact).p_value)
    return min(values)


def honest(logits: Tensor, params: SamplingParams = ROUND) -> Propose:
    q = probabilities(logits, params)[:K]
    return lambda generator: Proposal(draw(q, generator), q)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize(
    "params",
    [ROUND, SamplingParams(0.7), SamplingParams(1.3, top_k=3), SamplingParams(1.0, top_p=0.6)],
    ids=["plain", "cool", "top-k", "top-p"],
)
def test_a_sampled_draft_leaves_the_target_distribution(params: SamplingParams, rule: Rule) -> None:
    target = logits_of(0)
    counts = rounds(target, honest(logits_of(1), params), params, rule)
    assert smallest_p(counts, probabilities(target, params)) > 1e-4


@pytest.mark.usefixtures("way")
def test_a_deterministic_draft_leaves_the_target_distribution() -> None:
    target = logits_of(0)
    tokens = torch.tensor([2, 0, 5])
    counts = rounds(target, lambda generator: Proposal(tokens))
    assert smallest_p(counts, probabilities(target, ROUND)) > 1e-4


@pytest.mark.usefixtures("way")
def test_disjoint_and_equal_supports() -> None:
    target = logits_of(0)
    target[:, 3:] = -torch.inf
    other = logits_of(1)
    other[:, :3] = -torch.inf
    counts = rounds(target, honest(other))
    assert sum(counts[1]) == 0  # nothing can be accepted
    assert smallest_p(counts, probabilities(target, ROUND)) > 1e-4
    counts = rounds(target, honest(target.clone()))
    assert sum(counts[K]) == N  # nothing can be rejected
    assert smallest_p(counts, probabilities(target, ROUND)) > 1e-4


def argmax_called_sampled(logits: Tensor) -> Propose:
    q = probabilities(logits, ROUND)[:K]
    return lambda generator: Proposal(q.argmax(-1), q)


def q_of_another_temperature(logits: Tensor) -> Propose:
    q, told = probabilities(logits, ROUND)[:K], probabilities(logits, SamplingParams(0.6))[:K]
    return lambda generator: Proposal(draw(q, generator), told)


def q_shifted_by_one(logits: Tensor) -> Propose:
    q = probabilities(logits, ROUND)[:K]
    return lambda generator: Proposal(draw(q, generator), q.roll(1, 0))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize("lie", [argmax_called_sampled, q_of_another_temperature, q_shifted_by_one])
def test_a_wrong_q_is_seen(lie: Callable[[Tensor], Propose], rule: Rule) -> None:
    target = logits_of(0)
    counts = rounds(target, lie(logits_of(1)), rule=rule)
    assert smallest_p(counts, probabilities(target, ROUND)) < 1e-6


@pytest.mark.usefixtures("way")
def test_calling_a_draft_deterministic_takes_q_out_of_trust() -> None:
    target, q = logits_of(0), probabilities(logits_of(1), ROUND)[:K]
    counts = rounds(target, lambda generator: Proposal(draw(q, generator)))
    assert smallest_p(counts, probabilities(target, ROUND)) > 1e-4


def mixed(number: int) -> Case:
    """Lengths 0 to 3, drawn, deterministic and greedy."""
    kinds = [(k, how) for k in range(K + 1) for how in ("drawn", "deterministic", "greedy")]
    k, how = kinds[number % len(kinds)]
    generator = torch.Generator().manual_seed(number)
    q = probabilities(logits_of(number + 100), ROUND)[:k]
    proposal = Proposal(draw(q, generator), q if how == "drawn" else None)
    params = SamplingParams() if how == "greedy" else SamplingParams(0.8, top_p=0.9)
    return Case(proposal, logits_of(number)[: k + 1], params, generator)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_verdict_does_not_depend_on_its_neighbours(rule: Rule) -> None:
    together = verify_batch([mixed(n) for n in range(200)], rule=rule)
    alone: list[Verdict] = [verify_batch([mixed(n)], rule=rule)[0] for n in range(200)]
    assert together == alone
    assert {0, 1, 2} <= {verdict.accepted for verdict in alone}


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_looking_and_at_once_give_the_same_verdicts(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways take the same noise: two uniforms a sampled case."""
    cases, twins = [mixed(n) for n in range(600)], [mixed(n) for n in range(600)]
    looking = verify_batch(cases, rule=rule)
    at_once(monkeypatch)
    assert looking == verify_batch(twins, rule=rule)
    for number, (case, twin) in enumerate(zip(cases, twins)):
        apart: Any = mixed(number).generator
        mine: Any = case.generator
        theirs: Any = twin.generator
        if not case.params.greedy:
            torch.rand(2, generator=apart, dtype=torch.float64)
        left = torch.rand(1, generator=apart)
        assert torch.rand(1, generator=mine) == left
        assert torch.rand(1, generator=theirs) == left


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("params", [SamplingParams(), ROUND], ids=["greedy", "sampled"])
def test_a_row_of_no_numbers_is_told_to_whoever_gets_there(
    params: SamplingParams, value: float, rule: Rule
) -> None:
    """The tokens before such a row still have the target's distribution."""
    target = logits_of(0)
    target[2, 1] = value
    counts = rounds(target, honest(logits_of(1)), params, rule) if not params.greedy else []
    if counts:
        assert smallest_p(counts[:2], probabilities(target[:2], params)) > 1e-4
    reached = 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        proposal = honest(logits_of(0) * 1.1)(generator)
        if params.greedy:
            proposal = Proposal(logits_of(0).argmax(-1)[:K])
        verdict = verify(proposal, target, params, generator, rule=rule)
        assert set(verdict.broken) <= {2}
        if verdict.accepted >= 2:
            reached += 1
            assert verdict.broken == (2,)
    assert reached > 5


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_q_of_no_numbers_ends_the_chain(rule: Rule) -> None:
    target, q = logits_of(0), probabilities(logits_of(1), ROUND)[:K]
    q[1] = torch.nan

    def half_broken(generator: torch.Generator) -> Proposal:
        return Proposal(draw(q, generator), q)

    counts = rounds(target, half_broken, rule=rule)
    assert smallest_p(counts, probabilities(target, ROUND)) > 1e-4
    assert sum(counts[1]) > 0 and sum(counts[2]) == 0


def test_greedy_takes_the_longest_agreeing_prefix() -> None:
    target = torch.eye(V)[[4, 2, 0, 1]]
    greedy = SamplingParams()
    generator = torch.Generator()
    for tokens, accepted, following in (
        ([4, 2, 0], 3, 1),
        ([4, 2, 1], 2, 0),
        ([4, 0, 0], 1, 2),
        ([0, 2, 0], 0, 4),
    ):
        verdict = verify(Proposal(torch.tensor(tokens)), target, greedy, generator)
        assert (verdict.accepted, verdict.next_token) == (accepted, following)
        assert verdict.path == tuple(range(accepted))


def test_shapes_that_do_not_fit_are_refused() -> None:
    generator = torch.Generator()
    with pytest.raises(ValueError, match="need 3 rows"):
        verify(Proposal(torch.tensor([1, 2])), torch.zeros(2, V), ROUND, generator)
    bad = Proposal(torch.tensor([1, 2]), torch.ones(2, V + 1))
    with pytest.raises(ValueError, match="probs must be"):
        verify(bad, torch.zeros(3, V), ROUND, generator)


def reached(verdict: Verdict) -> Verdict:
    """The verdict without `broken`, unless the reply gets to such a row: others may go unreported."""
    on_path = {0, *(node + 1 for node in verdict.path)}
    return verdict if on_path & {*verdict.broken} else replace(verdict, broken=())


@pytest.mark.parametrize("key", [None, (3, 7)], ids=["greedy", "by seed"])
def test_choices_are_the_same_looked_at_or_not(
    key: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ties and rows of NaN, the choices are the same on a CPU and in one transfer for all cases."""
    params = SamplingParams(temperature=0.0 if key is None else 1.0)
    rng, cases = random.Random(0), []
    for _ in range(300):
        count = rng.randint(0, 4)
        logits = torch.randint(0, 3, (count + 1, 6)).to(rng.choice((torch.float32, torch.bfloat16)))
        if rng.random() < 0.3:
            where = rng.randrange(count + 1), rng.randrange(6)
            logits[where] = rng.choice((torch.nan, torch.inf, -torch.inf))
        if rng.random() < 0.1:
            logits[rng.randrange(count + 1)] = -torch.inf
        parents = tuple(rng.randrange(-1, node) for node in range(count))
        choices = logits[[parent + 1 for parent in parents]].max(-1).indices
        tokens = torch.where(torch.rand(count) < 0.7, choices, torch.randint(6, (count,)))
        proposal = Proposal(tokens, None, rng.choice((None, parents)) if count else None)
        cases.append(Case(proposal, logits, params, torch.Generator(), key))
    looked = [reached(verdict) for verdict in verify_batch(cases)]
    with monkeypatch.context() as patch:
        at_once(patch)
        assert [reached(verdict) for verdict in verify_batch(cases)] == looked
    assert {verdict.accepted for verdict in looked} >= {0, 1, 2}
    assert any(verdict.broken for verdict in looked)
