"""A deterministic tree on a CPU: the borders between ends and tokens are the rule's, to nine digits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from specstream.speculation import sequential as module
from specstream.speculation.sequential import verify_tree_sequentially
from specstream.speculation.tree_rules import tree_rule
from tests.exactness.tables import KINDS, random_table

V, EPSILON = 5, 1e-9
Tree = tuple[list[int], list[int], Tensor]


def trees(count: int = 6) -> Iterator[Tree]:
    """Tokens, parents, and the target's rows ``[K + 1, V]`` in float64. Siblings may repeat a token."""
    generator, choose = torch.Generator().manual_seed(5), random.Random(7)
    for kind in KINDS:
        table = random_table(kind, V, 1, 2 * (count + 1), generator)
        flat = torch.cat([level.reshape(-1, V) for level in table])
        for start in (0, count + 1):
            parents = [choose.randrange(-1, node) for node in range(count)]
            tokens = [choose.randrange(V) for _ in range(count)]
            yield tokens, parents, flat[start : start + count + 1]


def ended(tree: Tree, first: float, second: float = 0.5) -> tuple[int, int]:
    tokens, parents, rows = tree
    found = verify_tree_sequentially(tokens, parents, lambda row: rows[row], (first, second))
    assert found is not None
    return found


def test_ends_and_following_tokens_have_the_distribution_of_the_rule() -> None:
    seen = set()
    for number, tree in enumerate(trees()):
        tokens, parents, rows = tree
        found = tree_rule(torch.tensor(tokens), parents, rows)
        shares = (found.accepted / found.accepted.sum()).tolist()
        low = 0.0
        for row, share in enumerate(shares):
            if share > 4 * EPSILON:
                assert ended(tree, low + EPSILON)[0] == ended(tree, low + share - EPSILON)[0] == row
                weights = found.following[row]
                below = 0.0
                for token, above in enumerate((weights.cumsum(-1) / weights.sum()).tolist()):
                    if above - below > 4 * EPSILON:
                        for second in (below + EPSILON, above - EPSILON):
                            assert ended(tree, low + share / 2, second) == (row, token)
                        seen.add((number, row, token))
                    below = above
            low += share
    assert len(seen) > 60


def test_rows_are_computed_where_the_path_may_go_on_or_ends() -> None:
    rows = torch.full((6, V), 0.2, dtype=torch.float64)
    asked = list[int]()

    def target(row: int) -> Tensor:
        asked.append(row)
        return rows[row]

    # The root has the children 0 and 1, node 0 the child 2; rows 2 to 5 follow leaves.
    assert verify_tree_sequentially([0, 1, 3, 4, 2], [-1, -1, 0, 0, 1], target, (0.0, 0.5)) == (
        0,
        3,
    )
    assert asked == [0, 1, 2]


def test_what_is_no_number_is_left_to_the_rule() -> None:
    tokens, parents, rows = next(trees())
    broken = rows.clone()
    broken[0] = float("nan")
    ask: Callable[[int], Tensor] = broken.__getitem__
    assert verify_tree_sequentially(tokens, parents, ask, (0.5, 0.5)) is None


def test_the_comparison_sees_a_wrong_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_without", lambda own, tokens: own)  # children may follow
    with pytest.raises(AssertionError):
        test_ends_and_following_tokens_have_the_distribution_of_the_rule()
