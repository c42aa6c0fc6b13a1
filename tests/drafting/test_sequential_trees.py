"""Sequential verification of trees agrees with `tree_rule`, to nine digits."""

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from specstream.drafting import sequential as module
from specstream.drafting.rules import tree_rule
from specstream.drafting.sequential import verify_tree_sequentially
from tests.exactness.tables import KINDS, Kind, random_table

V, EPSILON = 5, 1e-9
Tree = tuple[list[int], list[int], Tensor, Tensor | None]


def rows_of(kind: Kind, count: int, generator: torch.Generator) -> Tensor:
    """``[count, V]`` float64."""
    table = random_table(kind, V, 1, count, generator)
    return torch.cat([level.reshape(-1, V) for level in table])[:count]


def trees(count: int = 6) -> Iterator[Tree]:
    """Tokens, parents, the target's rows ``[K + 1, V]`` in float64; siblings may repeat a token."""
    generator, choose = torch.Generator().manual_seed(5), random.Random(7)
    for kind in KINDS:
        for _ in range(2):
            parents = [choose.randrange(-1, node) for node in range(count)]
            tokens = [choose.randrange(V) for _ in range(count)]
            yield tokens, parents, rows_of(kind, count + 1, generator), None


def drawn_trees(count: int = 6) -> Iterator[Tree]:
    """The same, each child drawn without replacement: from its parent's row without earlier siblings.

    Every other tree has children that were drawn from a row of its own, with replacement.
    """
    generator, choose = torch.Generator().manual_seed(9), random.Random(8)
    for number, kind in enumerate(KINDS * len(KINDS)):
        parents = [choose.randrange(-1, node) for node in range(count)]
        left = rows_of(KINDS[number // len(KINDS)], count + 1, generator)
        tokens, draft = list[int](), list[Tensor]()
        for node, parent in enumerate(parents):
            row = left[parent + 1]
            if float(row.sum()) <= 0.0:  # nothing is left to draw: a token that is never accepted
                row = torch.full((V,), 1 / V, dtype=torch.float64)
            draft.append(row / row.sum())
            tokens.append(int(torch.multinomial(draft[node], 1, generator=generator)))
            if number % 2:
                left[parent + 1] = draft[node].index_fill(0, torch.tensor(tokens[node]), 0.0)
        yield tokens, parents, rows_of(kind, count + 1, generator), torch.stack(draft)


def ended(tree: Tree, first: float, second: float = 0.5) -> tuple[int, int]:
    tokens, parents, rows, draft = tree
    found = verify_tree_sequentially(tokens, parents, lambda row: rows[row], draft, (first, second))
    assert found is not None
    return found


@pytest.mark.parametrize(("made", "least"), [(trees, 60), (drawn_trees, 100)])
def test_ends_and_following_tokens_have_the_distribution_of_the_rule(
    made: Callable[[], Iterator[Tree]], least: int
) -> None:
    seen = set()
    for number, tree in enumerate(made()):
        tokens, parents, rows, draft = tree
        found = tree_rule(torch.tensor(tokens), parents, rows, draft)
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
    assert len(seen) > least


@pytest.mark.parametrize(
    ("first", "row", "rows_asked"), [(0.0, 0, [0]), (0.7, 1, [0, 1]), (0.999, 5, [0, 1, 2, 5])]
)
def test_rows_are_computed_up_to_the_end_where_they_have_children(
    first: float, row: int, rows_asked: list[int]
) -> None:
    rows = torch.full((6, V), 0.2, dtype=torch.float64)
    asked = list[int]()

    def target(row: int) -> Tensor:
        asked.append(row)
        return rows[row]

    # The root has the children 0 and 1, node 0 the children 2 and 3, node 1 the child 4.
    found = verify_tree_sequentially([0, 1, 3, 4, 2], [-1, -1, 0, 0, 1], target, None, (first, 0.5))
    assert found is not None and found[0] == row
    assert asked == rows_asked


@pytest.mark.parametrize("made", [trees, drawn_trees])
def test_what_is_no_number_is_left_to_the_rule(made: Callable[[], Iterator[Tree]]) -> None:
    tokens, parents, rows, draft = next(made())
    broken = rows.clone()
    broken[0] = float("nan")
    ask: Callable[[int], Tensor] = broken.__getitem__
    assert verify_tree_sequentially(tokens, parents, ask, draft, (0.5, 0.5)) is None


@pytest.mark.parametrize(
    ("part", "wrong", "made"),
    [
        ("without", lambda own, tokens: own, trees),  # children may follow
        ("residual", lambda own, drawn, weight: own, drawn_trees),  # nothing is taken off
        ("_normalised", lambda row, otherwise: row, drawn_trees),
    ],
)
def test_the_comparison_sees_a_wrong_implementation(
    part: str,
    wrong: Callable[..., Tensor],
    made: Callable[[], Iterator[Tree]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, part, wrong)
    with pytest.raises(AssertionError):
        test_ends_and_following_tokens_have_the_distribution_of_the_rule(made, 0)
