"""Exact match with position-keyed noise: no draft can change what is emitted. Exhaustive."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specstream.bench.exactness.enumeration import enumerate_rule, joint
from specstream.drafting.proposal import Proposal
from specstream.drafting.rules import Acceptance
from specstream.drafting.verify import Case, verify_batch
from specstream.types import SamplingParams
from tests.exactness.tables import random_table

V, K = 3, 3
NO_NOISE = torch.Generator()


def case(
    table: Tensor, before: int, tokens: list[int], params: SamplingParams, key: tuple[int, int]
) -> Case:
    """A chain after ``before``, for a target whose next token depends on the last one only."""
    rows = table[[before, *tokens]]
    return Case(Proposal(torch.tensor(tokens, dtype=torch.int64)), rows, params, NO_NOISE, key)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.6, top_k=2),
        SamplingParams(temperature=1.3, top_p=0.8),
        SamplingParams(),
    ],
    ids=["plain", "top-k", "top-p", "greedy"],
)
def test_no_proposal_changes_the_tokens(params: SamplingParams) -> None:
    """All proposals of 0 to 3 tokens, 25 seeds, against the tokens drawn one by one."""
    table = torch.randn(V, V, generator=torch.Generator().manual_seed(3)) * 1.5
    chains = [list(c) for k in range(K + 1) for c in itertools.product(range(V), repeat=k)]
    for seed in range(25):
        alone: list[int] = []
        while len(alone) <= K:
            before = alone[-1] if alone else 0
            (verdict,) = verify_batch([case(table, before, [], params, (seed, len(alone) + 5))])
            alone.append(verdict.next_token)
        verdicts = verify_batch([case(table, 0, chain, params, (seed, 5)) for chain in chains])
        for chain, verdict in zip(chains, verdicts):
            n = 0
            while n < len(chain) and chain[n] == alone[n]:
                n += 1
            assert verdict.accepted == n
            assert list(verdict.tokens) == alone[: n + 1]
            assert verdict.path == tuple(range(n))


def test_the_noise_belongs_to_the_request_and_to_the_place() -> None:
    """A neighbour in the batch changes nothing; another seed or position changes the tokens."""
    table = torch.zeros(50, 50)
    params = SamplingParams(temperature=1.0)
    one = case(table, 0, [1, 2], params, (7, 3))
    alone = verify_batch([one])[0]
    beside = verify_batch([case(table, 4, [3], params, (8, 90)), one])[1]
    assert alone == beside
    keys = [(seed, at) for seed in range(9) for at in range(9)]
    firsts = {verify_batch([replace(one, key=key)])[0].tokens[0] for key in keys}
    assert len(firsts) > 30


def test_exact_match_with_independent_draws_is_exact_for_any_draft() -> None:
    """The rule by its definition: draw y from p at every position, accept while x equals y."""

    def exact_match(tokens: Tensor, draft: Tensor, target: Tensor) -> Acceptance:
        agree = target[..., :-1, :].gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        survived = torch.cat([torch.ones_like(agree[..., :1]), agree.cumprod(-1)], -1)
        ended = torch.cat([1 - agree, torch.ones_like(agree[..., :1])], -1)
        others = target[..., :-1, :].scatter(-1, tokens.unsqueeze(-1), 0)
        return Acceptance.of(survived * ended, torch.cat([others, target[..., -1:, :]], -2))

    generator = torch.Generator().manual_seed(8)
    for kind in ("dense", "zeros", "one-hot", "low"):
        target = random_table(kind, 4, 3, 60, generator)
        draft = random_table("dense", 4, 3, 60, generator)
        outcome = enumerate_rule(exact_match, target, draft, [-1, 0, 1])
        assert (outcome.joint - joint(target)).abs().max() < 1e-12
