"""Tree verification: exact by enumeration, for deterministic and for drawn siblings of both kinds."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specstream.bench.exactness.enumeration import enumerate_rule, joint
from specstream.drafting.proposal import Proposal
from specstream.drafting.rules import Acceptance, deterministic_rule, ratio_rule, sibling_rule, tree_rule
from specstream.drafting.verify import Case, verify_batch
from specstream.model.tree import Tree
from specstream.types import SamplingParams
from tests.exactness.tables import KINDS, random_table

TREES = [[-1, -1], [-1, -1, -1], [-1, -1, 0], [-1, 0, 0], [-1, 0, -1], [-1, -1, 0, 0], [-1, 0, -1, 2]]
PLAIN = SamplingParams(temperature=1.0)


def judged(parents: list[int], *, drawn: bool) -> Callable[[Tensor, Tensor, Tensor], Acceptance]:
    return lambda tokens, draft, target: tree_rule(tokens, parents, target, draft if drawn else None)


@pytest.mark.parametrize("way", ["deterministic", "with replacement", "without replacement"])
@pytest.mark.parametrize("parents", TREES, ids=str)
def test_a_tree_gives_back_the_targets_rule(parents: list[int], way: str) -> None:
    generator = torch.Generator().manual_seed(len(parents))
    vocab_size = 4 if len(parents) < 4 else 3
    depth = max(map(len, Tree(tuple(parents)).paths))
    count = 0
    for p_kind, q_kind in itertools.product(KINDS, KINDS):
        target = random_table(p_kind, vocab_size, depth, 10, generator)
        draft = random_table(q_kind, vocab_size, depth, 10, generator)
        replacement = way != "without replacement"
        if not replacement:
            # Siblings can only be drawn while the draft has tokens left.
            draft = [(level + 0.01) / (1 + 0.01 * vocab_size) for level in draft]
        for q in (draft, target) if replacement else (draft,):
            outcome = enumerate_rule(
                judged(parents, drawn=way != "deterministic"),
                target,
                q,
                parents,
                replacement=replacement,
            )
            assert (outcome.joint - joint(target)).abs().max() < 1e-12
        count += len(target[0])
    assert count >= 200


def test_a_chain_is_a_tree() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.rand(30, 7, 5, generator=generator, dtype=torch.float64)
    rows /= rows.sum(-1, keepdim=True)
    draft, target = rows[:, :3], rows[:, 3:]
    tokens = torch.randint(5, (30, 3), generator=generator)
    for ours, theirs in (
        (tree_rule(tokens, [-1, 0, 1], target, draft), ratio_rule(tokens, draft, target)),
        (tree_rule(tokens, [-1, 0, 1], target), deterministic_rule(tokens, target)),
    ):
        assert torch.allclose(ours.accepted, theirs.accepted, atol=1e-15)
        normal = [found.following / found.following.sum(-1, keepdim=True) for found in (ours, theirs)]
        assert (normal[0] - normal[1]).abs().max() < 1e-12


def test_more_siblings_are_accepted_more_often() -> None:
    generator = torch.Generator().manual_seed(2)
    target, draft = (random_table("dense", 4, 1, 50, generator) for _ in range(2))
    accepted = [
        enumerate_rule(
            judged(parents, drawn=True), target, draft, parents, replacement=replacement
        ).accepted
        for parents, replacement in (([-1], True), ([-1, -1], True), ([-1, -1], False))
    ]
    assert (accepted[1] > accepted[0]).all()
    assert (accepted[2] > accepted[1]).float().mean() > 0.9


def test_drawn_without_replacement_but_judged_as_with_is_seen() -> None:
    """Rows must be what each token was really drawn from; here each sibling gets the first one's."""
    generator = torch.Generator().manual_seed(3)
    target, draft = (random_table("dense", 4, 1, 20, generator) for _ in range(2))
    parents = [-1, -1]

    def lying(tokens: Tensor, rows: Tensor, target: Tensor) -> Acceptance:
        return tree_rule(tokens, parents, target, rows[..., :1, :].expand_as(rows))

    outcome = enumerate_rule(lying, target, draft, parents, replacement=False)
    assert ((outcome.joint - joint(target)).abs().amax(-1) > 1e-3).float().mean() > 0.8


def test_equal_distributions_reject_nothing() -> None:
    row = torch.tensor([0.5, 0.25, 0.25])
    found = sibling_rule(torch.tensor([1, 1]), row, row.expand(2, 3))
    assert found.taken.tolist() == [1, 0]
    assert found.none == 0
    assert found.following.isfinite().all()


def test_a_drawn_verdict_follows_the_rule() -> None:
    """`verify_batch` draws from `tree_rule`: frequencies of every (path, next) over 1,500 rounds."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(5, 4, generator=generator)
    q = torch.rand(4, 4, generator=generator).softmax(-1)
    parents, tokens = [-1, -1, 0, 0], torch.tensor([1, 2, 3, 0])
    case = Case(Proposal(tokens, q, tuple(parents)), logits, PLAIN, generator)
    found = tree_rule(tokens, parents, logits.softmax(-1), q)
    following = found.following / found.following.sum(-1, keepdim=True)
    wanted = (found.accepted.unsqueeze(-1) * following).double()
    seen, n = torch.zeros_like(wanted), 1500
    for _ in range(n):
        (verdict,) = verify_batch([case])
        end = verdict.path[-1] if verdict.path else -1
        assert verdict.path == [(), *Tree(tuple(parents)).paths][end + 1]
        assert verdict.accepted == len(verdict.path)
        assert verdict.tokens == (*tokens[list(verdict.path)].tolist(), verdict.next_token)
        seen[end + 1, verdict.next_token] += 1
    expected = wanted * n
    assert seen[expected == 0].sum() == 0
    there = expected > 0
    statistic = ((seen - expected)[there] ** 2 / expected[there]).sum()
    df = int(there.sum()) - 1
    assert torch.special.gammaincc(torch.tensor(df / 2), (statistic / 2).float()) > 1e-4


def tree_case(tokens: list[int], parents: list[int], table: Tensor, params: SamplingParams) -> Case:
    """A tree after context 0 of a target whose next token depends on the last one only."""
    rows = torch.stack([table[0], *(table[token] for token in tokens)])
    proposal = Proposal(torch.tensor(tokens), None, tuple(parents))
    return Case(proposal, rows, params, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("params", [PLAIN, SamplingParams()], ids=["coupled", "greedy"])
def test_no_tree_changes_a_position_keyed_token(params: SamplingParams) -> None:
    """Exhaustive: every tree of 3 nodes and every labelling, against the same tokens one by one."""
    table = torch.randn(3, 3, generator=torch.Generator().manual_seed(6)) * 2
    shapes = [[-1, -1, -1], [-1, -1, 0], [-1, -1, 1], [-1, 0, 0], [-1, 0, 1], [-1, 0, -1]]
    for seed in range(4):
        alone: list[int] = []
        while len(alone) < 4:
            at = alone[-1] if alone else 0
            key = seed, 7 + len(alone)
            empty = Case(Proposal.empty(), table[at : at + 1], params, torch.Generator(), key)
            alone.append(verify_batch([empty])[0].next_token)
        for parents, tokens in itertools.product(shapes, itertools.product(range(3), repeat=3)):
            case = tree_case(list(tokens), parents, table, params)
            (verdict,) = verify_batch([replace(case, key=(seed, 7))])
            assert list(verdict.tokens) == alone[: verdict.accepted + 1]
            if params.greedy:
                assert verify_batch([case]) == [verdict]


def test_a_child_before_its_parent_is_refused() -> None:
    with pytest.raises(ValueError, match="before its child"):
        tree_rule(torch.tensor([0, 1]), [1, -1], torch.ones(3, 2))
