from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from specstream.config import NgramProposerConfig
from specstream.spec.proposers.ngram import NgramProposer
from specstream.types import SamplingParams


@dataclass
class Text:
    """A request as a proposer sees it."""

    token_ids: list[int]
    prompt_length: int = 1
    reference_ids: list[int] = field(default_factory=list)
    id: int = 0
    slot: int = 0
    phrase_left: int | None = None
    params: SamplingParams = field(default_factory=SamplingParams)

    def process(self, logits: torch.Tensor, drafted: list[int]) -> torch.Tensor:
        return logits

    def draw(self, probs: torch.Tensor, position: int) -> torch.Tensor:
        return probs.argmax(-1)


def make(**options: int) -> NgramProposer:
    return NgramProposer(NgramProposerConfig.model_validate(options), torch.device("cpu"))


def propose(proposer: NgramProposer, text: Text, budget: int = 8) -> list[int]:
    found: list[int] = proposer.propose([text], [budget])[0].tokens.tolist()
    return found


def brute_force(ids: list[int], shortest: int, longest: int, count: int) -> list[int]:
    for n in range(longest, shortest - 1, -1):
        for at in range(len(ids) - 1, n - 1, -1):
            if len(ids) >= n and ids[at - n : at] == ids[-n:]:
                return ids[at : at + count]
    return []


def test_longest_and_latest_match_as_by_brute_force() -> None:
    rng = random.Random(6)
    hits = 0
    for number in range(300):
        proposer = make(min_ngram=rng.randint(1, 2), max_ngram=rng.randint(2, 4), num_tokens=6)
        config = proposer._config
        text = Text([rng.randrange(4)], id=number)
        for _ in range(40):
            text.token_ids += rng.choices(range(4), k=rng.randint(1, 3))
            expected = brute_force(text.token_ids, config.min_ngram, config.max_ngram, 6)
            assert propose(proposer, text) == expected
            hits += bool(expected)
    assert hits > 5000


def test_the_budget_and_the_limit_are_kept() -> None:
    proposer = make(num_tokens=3)
    text = Text([1, 2, 3, 4, 5, 1, 2])
    assert propose(proposer, text) == [3, 4, 5]
    assert propose(proposer, text, budget=1) == [3]
    assert propose(proposer, text, budget=0) == []


def test_a_reference_is_found_from_the_first_token_and_not_run_past() -> None:
    proposer = make()
    text = Text([7, 8, 9], prompt_length=3, reference_ids=[20, 21, 22])
    text.token_ids.append(20)
    assert propose(proposer, text) == [21, 22]


def test_a_new_request_in_the_slot_starts_afresh() -> None:
    proposer = make()
    assert propose(proposer, Text([1, 2, 3, 1, 2])) == [3, 1, 2]
    assert propose(proposer, Text([5, 6, 1, 2], id=1)) == []
    proposer.release(0)
    proposer.release(0)
    assert not proposer._indexes
