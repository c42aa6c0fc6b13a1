from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from specstream.config import NgramProposerConfig
from specstream.speculation.proposers.ngram import NgramProposer
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

    def process(self, logits: torch.Tensor, drafted: object) -> torch.Tensor:
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


def look_up(text: list[int], **options: int) -> tuple[list[int], int, int]:
    return tuple(make(**options).look_up(Text(text), 8))  # type: ignore[return-value]


def test_it_says_how_another_such_place_went_on() -> None:
    assert look_up([1, 2, 3, 9, 1, 2]) == ([3, 9, 1, 2], 2, 0)  # there is none
    assert look_up([1, 2, 4, 1, 2, 3, 1, 2]) == ([3, 1, 2], 2, 1)  # otherwise
    assert look_up([1, 2, 3, 7, 1, 2, 3, 1, 2]) == ([3, 1, 2], 2, 2)  # the same
    # The longest match isn't the latest place: the latest one is asked.
    assert look_up([5, 1, 2, 3, 6, 1, 2, 4, 5, 1, 2]) == ([3, 6, 1, 2, 4, 5, 1, 2], 3, 1)
    assert look_up([9, 8, 7]) == ([], 0, 0)


def test_of_very_many_places_the_latest_are_compared() -> None:
    """A search is bounded however often a token comes."""
    long_ago = [7, 1, 5]
    text = [*long_ago, *([1, 0] * 200), 7, 1]
    assert look_up(text, min_ngram=1)[:2] == ([0, 7, 1], 1)
    assert look_up([*long_ago, *([1, 0] * 20), 7, 1], min_ngram=1)[0][0] == 5


def test_a_place_at_the_end_of_the_reference_is_none() -> None:
    proposer = make()
    text = Text([7, 20, 21, 30, 20, 21], prompt_length=1, reference_ids=[20, 21])
    assert propose(proposer, text) == [30, 20, 21]
