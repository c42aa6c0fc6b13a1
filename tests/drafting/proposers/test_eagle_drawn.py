"""Drawn trees that stop where another child doesn't pay: the text's distribution stays the target's.

A head and a target of three tokens, tables by the token before. A G-test of N = 3,000 first pairs of
tokens finds a total variation of 0.06 with probability 0.99; it fails at p < 1e-4.
"""

import sys
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.bench.exactness.enumeration import g_test
from specstream.drafting.checking import checked
from specstream.drafting.proposal import Proposal
from specstream.drafting.proposers import eagle_drawn as module
from specstream.drafting.proposers.eagle_drawn import DrawnTree
from specstream.drafting.sequential import Rule
from specstream.drafting.verify import Case, verify_batch
from specstream.model.heads.base import Level
from specstream.model.tokens.sampling import draw
from specstream.types import SamplingParams
from tests.support.drafts import Text

pytestmark = pytest.mark.slow

V, N, ALPHA = 3, 3_000, 1e-4
PARAMS = SamplingParams(temperature=1.0)
CPU = torch.device("cpu")
NOTHING = torch.zeros(0, 0, dtype=torch.int64)
ROOT, AFTER = torch.tensor([0.9, 0.05, 0.05]), torch.tensor([[0.6, 0.3, 0.1]] * V)
TARGET_ROOT = torch.tensor([0.45, 0.35, 0.2])
TARGET = torch.tensor([[0.95, 0.03, 0.02], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]])


def looking(rows: Tensor) -> bool:
    """In the place of `free_to_look`: as on a device."""
    return False


def on_device() -> bool:
    return vars(module)["free_to_look"] is looking


def tree(request: Text, least: float) -> Proposal:
    """Two levels of two nodes, without those that don't pay."""
    grown = DrawnTree(
        request,
        2,
        ids=None,
        widened=lambda rows, rest: rows,
        ends=frozenset(),
        top_k=2,
        size=4,
        least=least,
    )

    def level(rows: Tensor) -> None:
        made, told = Level(rows.log(), torch.zeros(len(rows), 1), NOTHING, NOTHING), None
        if on_device():
            chances, ids = grown.ask(made)
            told = chances.tolist(), ids.tolist()
        grown.grow(made, told)

    level(ROOT.unsqueeze(0))
    if (read := grown.unread) is not None:
        level(AFTER[read])
    return grown.proposal(CPU, "eagle")


EXACT = {
    (a, b): float(TARGET_ROOT[a] * TARGET[a, b]) / float(TARGET_ROOT.sum() * TARGET[a].sum())
    for a in range(V)
    for b in range(V)
}


def pairs(least: float, rule: Rule) -> tuple[float, set[tuple[int, ...] | None]]:
    """The p-value of the first pairs of tokens; the shapes of the trees."""
    noise, request = torch.Generator().manual_seed(2), Text([0], params=PARAMS)
    request.generator.manual_seed(1)
    counts, shapes = Counter[tuple[int, int]](), set[tuple[int, ...] | None]()
    for _ in range(N):
        made = checked(tree(request, least), 2, V, CPU, trees=True)
        shapes.add(made.parents)
        nodes = made.tokens.tolist()
        rows = [TARGET[nodes[path[0]]] if len(path) == 1 else TARGET_ROOT for path in made.paths]
        case = Case(made, torch.stack(rows).log(), PARAMS, noise)
        (found,) = verify_batch([case], rule=rule)
        first, *others = found.tokens
        second = others[0] if others else int(draw(TARGET[first].unsqueeze(0), noise))
        counts[first, second] += 1
    return g_test(counts, EXACT).p_value, shapes


@pytest.fixture(params=["when its turn has come", "on the device"], autouse=True)
def drawing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are drawn one by one, or all at once on a device and revealed one by one."""
    if request.param == "on the device":
        source = Random(5)
        monkeypatch.setattr(module, "free_to_look", looking)
        monkeypatch.setattr("secrets.randbits", source.getrandbits)


@pytest.mark.parametrize(
    ("rule", "least"), [("block", 0.0), ("block", 0.12), ("ratio", 0.05), ("ratio", 0.3)]
)
def test_whatever_does_not_pay_the_text_is_the_targets(least: float, rule: Rule) -> None:
    assert pairs(least, rule)[0] > ALPHA


def test_a_tree_that_happens_to_be_a_chain_is_judged_as_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a node has a sibling depends on its token; a rule for chains would only see some."""
    shapes = pairs(0.12, "block")[1]
    assert {(-1, 0), (-1, -1, 0)} <= shapes

    right = checked

    def forgets(proposal: Proposal, *args: Any, **options: Any) -> Proposal:
        made = right(proposal, *args, **options)
        chain = made.parents == tuple(range(-1, made.length - 1))
        return replace(made, parents=None if chain else made.parents)

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "checked", forgets)
        assert pairs(0.12, "block")[0] < 1e-9
