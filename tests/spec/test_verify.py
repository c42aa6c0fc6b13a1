"""The judge has exactly the target's law, and the test sees it when it hasn't.

A round with K drafted tokens emits accepted + 1 tokens; here the target's rows don't depend on the
path, so every emitted position j must follow p_j whatever was proposed. N = 12,000 rounds a case: a
total variation of 0.05 at the first position is seen with power > 0.99 at p < 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from specstream.model.sampling import draw, probabilities
from specstream.spec.proposal import Proposal
from specstream.spec.verify import verify
from specstream.types import SamplingParams

N, K, V = 12_000, 3, 6
ROUND = SamplingParams(temperature=1.0)


def logits_of(seed: int) -> Tensor:
    return torch.randn(K + 1, V, generator=torch.Generator().manual_seed(seed)) * 1.5


def rounds(
    target: Tensor, propose: Callable[[torch.Generator], Proposal], params: SamplingParams = ROUND
) -> list[Tensor]:
    """Counts ``[V]`` of what was emitted at each position, over N rounds."""
    judge, draft = torch.Generator().manual_seed(11), torch.Generator().manual_seed(12)
    counts = [torch.zeros(V) for _ in range(K + 1)]
    for _ in range(N):
        proposal = propose(draft)
        verdict = verify(proposal, target, params, judge)
        emitted = [*proposal.tokens[: verdict.accepted].tolist(), verdict.next_token]
        for position, token in enumerate(emitted):
            counts[position][token] += 1
    return counts


def p_values(counts: list[Tensor], target: Tensor) -> list[float]:
    values = []
    for seen, row in zip(counts, target):
        support = row > 0
        assert seen[~support].sum() == 0
        if seen.sum() > 1000 and support.sum() > 1:
            expected = row[support].double()
            expected = expected / expected.sum() * seen.sum()
            values.append(float(stats.chisquare(seen[support].double(), expected).pvalue))
    assert values
    return values


def honest(logits: Tensor, params: SamplingParams = ROUND) -> Callable[[torch.Generator], Proposal]:
    q = probabilities(logits, params)[:K]
    return lambda generator: Proposal(draw(q, generator), q)


@pytest.mark.parametrize(
    "params",
    [ROUND, SamplingParams(0.7), SamplingParams(1.3, top_k=3), SamplingParams(1.0, top_p=0.6)],
    ids=["plain", "cool", "top-k", "top-p"],
)
def test_a_sampled_draft_leaves_the_target_distribution(params: SamplingParams) -> None:
    target = logits_of(0)
    counts = rounds(target, honest(logits_of(1), params), params)
    assert min(p_values(counts, probabilities(target, params))) > 1e-4


def test_a_deterministic_draft_leaves_the_target_distribution() -> None:
    target = logits_of(0)
    tokens = torch.tensor([2, 0, 5])
    counts = rounds(target, lambda generator: Proposal(tokens))
    assert min(p_values(counts, probabilities(target, ROUND))) > 1e-4


def test_disjoint_and_equal_supports() -> None:
    target = logits_of(0)
    target[:, 3:] = -torch.inf
    other = logits_of(1)
    other[:, :3] = -torch.inf
    counts = rounds(target, honest(other))
    assert counts[1].sum() == 0  # nothing can be accepted
    assert min(p_values(counts, probabilities(target, ROUND))) > 1e-4
    counts = rounds(target, honest(target.clone()))
    assert counts[K].sum() == N  # nothing can be rejected
    assert min(p_values(counts, probabilities(target, ROUND))) > 1e-4


def argmax_called_sampled(logits: Tensor) -> Callable[[torch.Generator], Proposal]:
    q = probabilities(logits, ROUND)[:K]
    return lambda generator: Proposal(q.argmax(-1), q)


def q_of_another_temperature(logits: Tensor) -> Callable[[torch.Generator], Proposal]:
    q, told = probabilities(logits, ROUND)[:K], probabilities(logits, SamplingParams(0.6))[:K]
    return lambda generator: Proposal(draw(q, generator), told)


def q_shifted_by_one(logits: Tensor) -> Callable[[torch.Generator], Proposal]:
    q = probabilities(logits, ROUND)[:K]
    return lambda generator: Proposal(draw(q, generator), q.roll(1, 0))


def sampled_called_deterministic(logits: Tensor) -> Callable[[torch.Generator], Proposal]:
    """Harmless by construction: any token may be proposed as a point mass."""
    q = probabilities(logits, ROUND)[:K]
    return lambda generator: Proposal(draw(q, generator))


@pytest.mark.parametrize("lie", [argmax_called_sampled, q_of_another_temperature, q_shifted_by_one])
def test_a_wrong_q_is_seen(lie: Callable[[Tensor], Callable[[torch.Generator], Proposal]]) -> None:
    target = logits_of(0)
    counts = rounds(target, lie(logits_of(1)))
    assert min(p_values(counts, probabilities(target, ROUND))) < 1e-6


def test_calling_a_draft_deterministic_takes_q_out_of_trust() -> None:
    target = logits_of(0)
    counts = rounds(target, sampled_called_deterministic(logits_of(1)))
    assert min(p_values(counts, probabilities(target, ROUND))) > 1e-4


def test_noise_shared_with_the_draft_is_seen() -> None:
    target, other = logits_of(0), logits_of(1)
    q = probabilities(other, ROUND)[:K]
    counts = [torch.zeros(V) for _ in range(K + 1)]
    for seed in range(N // 2):
        proposal = Proposal(draw(q, torch.Generator().manual_seed(seed)), q)
        verdict = verify(proposal, target, ROUND, torch.Generator().manual_seed(seed))
        for position, token in enumerate(
            [*proposal.tokens[: verdict.accepted].tolist(), verdict.next_token]
        ):
            counts[position][token] += 1
    assert min(p_values(counts, probabilities(target, ROUND))) < 1e-6


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
    with pytest.raises(ValueError, match="probs must be"):
        bad = Proposal(torch.tensor([1, 2]), torch.ones(2, V + 1))
        verify(bad, torch.zeros(3, V), ROUND, generator)
