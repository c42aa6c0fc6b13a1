"""Chains from marginals: what is drawn, when a chain ends, and that no drawn token is dropped."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specstream.drafting.candidate import Task, TaskProposal, stop_below
from specstream.drafting.policy.records import Offer
from specstream.drafting.rows import take_chain
from specstream.model.tokens.sampling import probabilities
from specstream.types import SamplingParams
from tests.support.drafts import GREEDY, SAMPLED, Text

ROWS = torch.randn(4, 7, generator=torch.Generator().manual_seed(0)) * 2


def take(
    text: Text, rows: Tensor = ROWS, go_on: Callable[[float], bool] | None = None, looks: bool = True
) -> TaskProposal:
    return take_chain(Task(text, 4, Offer(4), go_on), rows, looks=looks, source="marginals")


@pytest.mark.parametrize("looks", [True, False])
def test_a_greedy_chain_is_each_rows_likeliest(looks: bool) -> None:
    made = take(Text([1]), looks=looks).proposal
    assert made.tokens.tolist() == ROWS.argmax(-1).tolist()
    assert (made.probs, made.source) == (None, "marginals")


@pytest.mark.parametrize("looks", [True, False])
def test_a_sampled_chain_tells_the_rows_that_it_was_drawn_from(looks: bool) -> None:
    text = Text([1, 2, 3], params=SAMPLED)
    made = take(text, looks=looks).proposal
    assert made.probs is not None
    torch.testing.assert_close(made.probs, probabilities(ROWS, SAMPLED))
    assert bool((made.probs.gather(1, made.tokens.unsqueeze(1)) > 0).all())
    assert text.positions == [3, 4, 5, 6]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_the_token_that_ends_a_chain_is_kept_and_no_other_is_drawn(params: object) -> None:
    text = Text([1], params=params)  # type: ignore[arg-type]
    asked = list[float]()

    def go_on(confidence: float) -> bool:
        asked.append(confidence)
        return len(asked) < 2

    made = take(text, go_on=go_on)
    assert made.proposal.length == 2
    assert list(made.confidences) == asked
    assert len(text.positions) == (0 if params is GREEDY else 2)


def test_a_chain_is_cut_where_it_gets_unlikely() -> None:
    go_on = stop_below(0.3)
    assert go_on is not None
    assert [go_on(0.9), go_on(0.5), go_on(0.6)] == [True, True, False]
    assert stop_below(0.0) is None


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize("at", [0, 2])
def test_a_row_that_is_no_distribution_ends_the_chain_before_it(params: object, at: int) -> None:
    rows = ROWS.clone()
    rows[at, 3] = torch.nan
    made = take(Text([1], params=params), rows).proposal  # type: ignore[arg-type]
    assert made.tokens.tolist()[:at] == made.tokens.tolist()
    assert made.length == at


def test_processors_see_the_tokens_drafted_before() -> None:
    seen = list[list[int]]()

    class Watched(Text):
        def process(self, logits: Tensor, drafted: object) -> Tensor:
            seen.append(list(drafted))  # type: ignore[call-overload]
            logits = logits.clone()
            logits[[int(token) for token in seen[-1]]] = -torch.inf
            return logits

    made = take(Watched([1], params=SamplingParams(logit_bias={1: 0.5}))).proposal.tokens.tolist()
    assert [len(one) for one in seen] == [0, 1, 2, 3]
    assert seen[-1] == made[:3]
    assert len(set(made)) == 4
