"""The draft model: several in step as one by one, stops that keep what they saw."""

import random
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch

from specstream.drafting.chain import Drafting
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from specstream.model.tokens.sampling import probabilities
from specstream.types import SamplingParams
from tests.support.drafts import (
    GREEDY,
    SAMPLED,
    Text,
    check_honest,
    cooler,
    draft,
    nan_after,
    rows_after,
    settle,
    texts,
)

pytestmark = pytest.mark.usefixtures("inference")


def test_several_in_step_are_as_one_by_one() -> None:
    """The same tokens and probabilities, for as many passes as the longest chain has tokens."""
    together, alone = draft(), draft()
    left, right = texts(), texts()
    rng = random.Random(4)
    for _ in range(12):
        counts = [rng.randint(0, 6) for _ in left]
        chains = [Drafting(text, count) for text, count in zip(left, counts)]
        assert together.write(chains) == max(counts)
        for text, twin, chain, count in zip(left, right, chains, counts):
            single = Drafting(twin, count)
            assert alone.write([single]) == count
            one, many = (single.proposal(alone.runner.device), chain.proposal(together.runner.device))
            assert many.tokens.tolist() == one.tokens.tolist()
            assert many.length == count
            if many.probs is not None and one.probs is not None:
                assert torch.allclose(many.probs, one.probs, atol=1e-5)
            if count:
                check_honest(text, many)
                assert many.source == "draft"
            accepted = rng.randint(0, count)
            settle(together, text, many, accepted)
            settle(alone, twin, one, accepted)


def test_a_pass_serves_all_that_still_draft() -> None:
    proposer = draft()
    sizes: list[int] = []
    runner = cast(ModelRunner, proposer.runner)
    forward = runner.forward

    def spy(inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        sizes.append(len(inputs))
        return forward(inputs, extras)

    runner.forward = spy  # type: ignore[method-assign]
    assert proposer.write([Drafting(t, n) for t, n in zip(texts(4), (1, 4, 2, 4))]) == 4
    assert sizes == [4, 3, 2, 2]


def test_each_draw_names_the_place_that_its_token_will_have() -> None:
    """In reproducible mode the noise is keyed by the token's position."""
    proposer = draft()
    text = Text([1, 2, 3], params=SAMPLED)
    proposal = proposer.propose([text], [4])[0]
    assert text.positions == [3, 4, 5, 6]
    settle(proposer, text, proposal, 2)
    text.positions.clear()
    proposer.propose([text], [2])
    assert text.positions == [6, 7]


# Stopping.


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("stop_at", [1, 2, 5, 9])
@pytest.mark.usefixtures("single_steps")
def test_a_stop_keeps_the_token_that_it_saw(params: SamplingParams, stop_at: int) -> None:
    proposer, fixed = draft(), draft()
    asked: list[float] = []

    def go_on(q: float) -> bool:
        asked.append(q)
        return len(asked) < stop_at

    text = Text([3, 4, 5], params=params, generator=torch.Generator().manual_seed(1))
    chain = Drafting(text, 6, go_on)
    passes = proposer.write([chain])
    proposal = chain.proposal(proposer.runner.device)
    assert proposal.length == passes == len(asked) == min(stop_at, 6)
    assert chain.confidences == asked
    check_honest(text, proposal)
    # The tokens are those of a chain without go_on.
    twin = Text([3, 4, 5], params=params, generator=torch.Generator().manual_seed(1))
    whole = Drafting(twin, 6)
    fixed.write([whole])
    full = whole.proposal(fixed.runner.device)
    assert full.tokens.tolist()[: proposal.length] == proposal.tokens.tolist()
    # go_on was called with the draft's own probability of each token.
    rows = rows_after([*text.token_ids, *proposal.tokens.tolist()[:-1]], proposal.length)
    probs = rows.softmax(-1) if params.greedy else probabilities(rows, cooler(params))
    own = probs.gather(1, proposal.tokens.unsqueeze(1)).squeeze(1)
    assert chain.confidences == pytest.approx(own.tolist(), abs=1e-4)


def test_a_chain_that_stops_holds_up_no_other() -> None:
    proposer = draft()
    a, b, c = texts(3)
    chains = [Drafting(a, 5, lambda q: False), Drafting(b, 5), Drafting(c, 5, lambda q: True)]
    assert proposer.write(chains) == 5
    assert [len(chain.tokens) for chain in chains] == [1, 5, 5]
    for text, chain in zip((a, b, c), chains):
        check_honest(text, chain.proposal(proposer.runner.device))


def test_an_end_of_sequence_ends_the_chain_and_is_proposed() -> None:
    free = draft()
    text = Text([3, 4, 5])
    wanted = free.propose([text], [6])[0].tokens.tolist()
    proposer = draft(eos=[wanted[2]])
    at = wanted.index(wanted[2]) + 1
    assert proposer.propose([Text([3, 4, 5])], [6])[0].tokens.tolist() == wanted[:at]
    chain = Drafting(Text([3, 4, 5]), 6, lambda q: True)
    draft(eos=[wanted[2]]).write([chain])
    assert [int(token) for token in chain.tokens] == wanted[:at]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.usefixtures("single_steps")
def test_a_draft_that_loses_its_numbers_midway_keeps_what_it_had(params: SamplingParams) -> None:
    proposer = draft()
    runner: Any = proposer.runner
    runner.forward = nan_after(runner, 2)
    text = Text([3, 4, 5], params=params)
    proposal = proposer.propose([text], [5])[0]
    assert proposal.length == 2
    check_honest(text, proposal)


def test_parameters_of_a_request_are_cooled_once() -> None:
    proposer, text = draft(), Text([1, 2, 3], params=SAMPLED)
    used = list[SamplingParams]()
    for _ in range(2):
        chain = Drafting(text, 3)
        proposer.write([chain])
        used.append(chain.params)
        settle(proposer, text, chain.proposal(proposer.runner.device), 1)
    assert used[0] is used[1] and used[0].temperature < SAMPLED.temperature
