"""Greedy steps that are captured as one write what single steps write."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specstream.drafting.chain import Drafting
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.model.graphs import CapturePlan, Graphs
from specstream.model.graphs.chains import DraftedChain, GraphedChains
from specstream.model.graphs.passes import GraphedPasses
from specstream.model.runner import ModelRunner
from tests.model.families import decoder_of
from tests.support.drafts import MODEL, SAMPLED, Text, V, draft, settle

pytestmark = pytest.mark.usefixtures("inference")

PLAN = CapturePlan((), (), steps=3)


def captured(*eos: int) -> DraftModelProposer:
    """A draft with captured chains of three steps, whose graphs run their work directly instead."""

    def replayed(work: Callable[[], None]) -> Callable[[], None]:
        return work

    proposer = draft(eos=eos)
    decoder = decoder_of(MODEL, "pooled")
    runner: Any = proposer.runner
    runner.decoder = decoder
    passes = GraphedPasses(decoder, CapturePlan((1,)), replayed, 256, ())
    chains = GraphedChains(decoder, PLAN, V, replayed, 256, (1, 2))
    chains.record_all(lambda: None)
    runner.compiled = Graphs(passes, chains, 0)
    return proposer


def count_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the chains and the single passes that drafts run from here on."""
    calls = {"chain": 0, "forward": 0}
    chain, forward = ModelRunner.chains, ModelRunner.forward

    def counted_chain(self: ModelRunner, *args: object) -> object:
        found = chain(self, *args)  # type: ignore[arg-type]
        calls["chain"] += found is not None
        return found

    def counted_forward(self: ModelRunner, *args: object) -> object:
        calls["forward"] += 1
        return forward(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelRunner, "chains", counted_chain)
    monkeypatch.setattr(ModelRunner, "forward", counted_forward)
    return calls


@pytest.mark.parametrize("looked", [True, False])
def test_round_after_round_they_are_those_of_single_steps(looked: bool) -> None:
    """Whatever is accepted, and wherever the chain is told to end."""
    single, chained = draft(), captured()
    single.looks = chained.looks = looked
    left, right = (Text([5, 9, 2, 7, 7, 1]) for _ in range(2))
    rng = random.Random(1)
    for number in range(40):
        count, most = rng.randint(0, 8), rng.randint(1, 9)

        def stop(seen: list[float], most: int = most) -> Callable[[float], bool]:
            def go_on(confidence: float) -> bool:
                seen.append(confidence)
                return len(seen) < most

            return go_on

        told: list[list[float]] = [[], []]
        asked = looked and number % 3 > 0
        chains = [
            Drafting(text, count, stop(seen) if asked else None)
            for text, seen in zip((left, right), told, strict=True)
        ]
        single.write(chains[:1])
        chained.write(chains[1:])
        one, many = (chain.proposal(torch.device("cpu")) for chain in chains)
        assert many.tokens.tolist() == one.tokens.tolist()
        assert many.length == (min(count, most) if asked else count)
        assert chains[1].drafted == chains[0].drafted
        assert told[1] == pytest.approx(told[0], abs=1e-5)
        accepted = rng.randint(0, one.length)
        settle(single, left, one, accepted)
        settle(chained, right, many, accepted)


def test_as_many_steps_as_one_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer, text = captured(), Text([3, 4])
    calls = count_calls(monkeypatch)
    proposer.write([Drafting(text, 6)])
    assert calls == {"chain": 2, "forward": 0}
    proposer.write([Drafting(text, 1)])  # one token is a single step
    assert calls == {"chain": 2, "forward": 1}
    proposer.write([Drafting(text, 3), Drafting(Text([1, 2], slot=1), 3)])  # in step
    assert calls == {"chain": 3, "forward": 1}
    proposer.write([Drafting(Text([1, 2], slot=2, params=SAMPLED), 3)])  # draws by itself
    assert calls == {"chain": 3, "forward": 4}


def test_an_end_of_sequence_ends_the_chain() -> None:
    free = captured()
    first = Drafting(Text([3, 4]), 6)
    free.write([first])
    eos = first.drafted[1]
    proposer = captured(eos)
    chain = Drafting(Text([3, 4]), 6)
    proposer.write([chain])
    assert chain.drafted == first.drafted[: first.drafted.index(eos) + 1]


def test_what_is_no_number_ends_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = captured()
    right = GraphedChains.__call__

    def broken(self: GraphedChains, *args: Any) -> DraftedChain | None:
        found = right(self, *args)
        assert found is not None
        spoiled = found.confidences.index_fill(0, torch.tensor([1]), torch.nan)
        return found._replace(confidences=spoiled)

    monkeypatch.setattr(GraphedChains, "__call__", broken)
    chain = Drafting(Text([3, 4]), 6)
    proposer.write([chain])
    assert len(chain.drafted) == 1
