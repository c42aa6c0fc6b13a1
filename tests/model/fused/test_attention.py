"""The fused attention agrees with attention written out, for chains and trees."""

from dataclasses import replace

import pytest
import torch

from tests.model.fused.cases import Appended, Pass, looping, make_pass, tree, written_out

# `cases` skips this module where Triton is missing.
from specstream.model.fused.attention import attend  # isort: skip

pytestmark = looping

CASES = {  # sequences, heads, key heads, size of a head
    "one query": ([Appended(n, 1) for n in (0, 6, 63, 200, 130)], 8, 2, 64),
    "two queries": ([Appended(70, 2), Appended(0, 1), Appended(130, 2)], 6, 2, 80),
    "small trees": ([Appended(140, 0, tree(5)), Appended(9, 1), Appended(30, 2, tree(3, 1))], 8, 1, 64),
    "trees and chains": (
        [Appended(61, 1, tree(8)), Appended(150, 9), Appended(0, 3), Appended(1, 1, tree(4, 2))],
        4,
        2,
        128,
    ),
    "17 queries": ([Appended(100, 1, tree(16)), Appended(290, 5), Appended(0, 17)], 8, 2, 64),
    "64 nodes": ([Appended(131, 0, tree(64)), Appended(40, 1), Appended(3, 0, tree(33))], 2, 1, 64),
    "prefill": ([Appended(0, 70), Appended(45, 70), Appended(300, 1)], 3, 1, 80),
    "prefill, no groups": ([Appended(0, 70), Appended(64, 66)], 2, 2, 128),
}
TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 0.02}


def worst(made: Pass, splits: int | None) -> float:
    found = attend(made.queries, made.keys, made.values, made.places, splits=splits)
    assert found.dtype == made.queries.dtype and found.is_contiguous()
    wrong = (found.double() - written_out(made)).abs().max()
    return float(wrong.nan_to_num(torch.inf))


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize("name", list(CASES))
def test_agrees_with_attention_written_out(name: str, dtype: torch.dtype, splits: int) -> None:
    assert worst(make_pass(*CASES[name], dtype), splits) < TOLERANCES[dtype]


@pytest.mark.parametrize("splits", [None, 3])
def test_any_number_of_splits(splits: int | None) -> None:
    made = make_pass(*CASES["small trees"], torch.float32)
    assert worst(made, splits) < 1e-5
    longest = replace(made.places, max_keys=100_000)  # as in a graph that serves all lengths
    assert worst(replace(made, places=longest), splits) < 1e-5


@pytest.mark.parametrize("splits", [1, 4])
def test_a_sequence_without_queries_is_left_out(splits: int) -> None:
    made = make_pass([Appended(70, 2), Appended(30, 2)], 4, 2, 64, torch.float32)
    p = made.places
    starts, counts = torch.tensor([0, 2, 2, 4, 4]), torch.tensor([72, 1, 32, 1])
    keys = torch.stack([p.key_starts[0], p.key_starts[2], p.key_starts[1], *[p.key_starts[2]] * 2])
    more = replace(p, query_starts=starts.int(), key_starts=keys, key_counts=counts.int())
    assert worst(replace(made, places=more), splits) < 1e-5


@pytest.mark.parametrize("splits", [1, 4])
def test_a_sequence_alone_gets_the_same_bits(splits: int) -> None:
    made = make_pass(*CASES["trees and chains"], torch.bfloat16)
    p = made.places
    assert p.nodes is not None
    found = attend(made.queries, made.keys, made.values, p, splits=splits)
    one = replace(
        p,
        query_starts=torch.tensor([0, 9], dtype=torch.int32),
        key_starts=p.key_starts[1:3],
        key_counts=p.key_counts[1:2],
        limits=p.limits[9:18],
        nodes=p.nodes[9:18],
    )
    alone = attend(made.queries[9:18], made.keys, made.values, one, splits=splits)
    assert torch.equal(found[9:18], alone)


def planted(made: Pass, error: str) -> Pass:
    """The pass with an error that a careless plan could make."""
    p = made.places
    assert p.nodes is not None
    wrong = {
        "one row less": replace(p, limits=p.limits - 1),
        "one row more": replace(p, limits=p.limits + (p.nodes == 0).int()),
        "another node": replace(p, nodes=p.nodes ^ (p.nodes != 0).long()),
        "next node": replace(p, nodes=p.nodes << 1),
        "next slot": replace(p, key_starts=p.key_starts + 1),
        "no trees": replace(p, nodes=None),
    }[error]
    return replace(made, places=wrong)


@pytest.mark.parametrize(
    "error", ["one row less", "one row more", "another node", "next node", "next slot", "no trees"]
)
@pytest.mark.filterwarnings("ignore:invalid value")  # some errors read NaN
def test_an_error_is_seen(error: str) -> None:
    made = make_pass(*CASES["trees and chains"], torch.bfloat16)
    bad = planted(made, error)
    found = attend(bad.queries, bad.keys, bad.values, bad.places, splits=2).double()
    wrong = (found - written_out(made)).abs().max().nan_to_num(torch.inf)
    assert wrong > 5 * TOLERANCES[torch.bfloat16]
