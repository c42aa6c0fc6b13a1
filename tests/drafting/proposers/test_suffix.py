import random

import torch

from specstream.drafting.proposers.suffix import SUFFIX_LOOKUP, SuffixProposer, lookup_offer
from specstream.drafting.proposers.suffix_index import ALIGNED, FOLLOWED, STORED, Lookup
from specstream.methods import SuffixProposerConfig
from tests.support.drafts import Text


def make(**options: object) -> SuffixProposer:
    config = SuffixProposerConfig.model_validate({"min_score": 0, **options})
    return SuffixProposer(config, torch.device("cpu"))


def propose(proposer: SuffixProposer, text: Text, budget: int = 8) -> list[int]:
    found: list[int] = proposer.propose([text], [budget])[0].tokens.tolist()
    return found


def look_up(text: list[int], **options: object) -> Lookup:
    return make(**options).look_up(Text(text), 8)


def by_brute_force(ids: list[int], shortest: int) -> tuple[list[int], int]:
    """Votes of all places, four times for each token more of the match; the latest of equals wins."""
    votes: dict[int, float] = {}
    places = []
    for end in range(len(ids) - 1, 0, -1):
        match = 0
        while match < min(16, end) and ids[end - 1 - match] == ids[-1 - match]:
            match += 1
        places.append((match, end))
    pairs = [place for place in places if place[0] > 1][:16]
    chosen = pairs or [place for place in places if place[0] > 0][:8]
    chosen = [place for place in chosen if place[0] >= shortest]
    for match, end in chosen:
        votes[ids[end]] = votes.get(ids[end], 0) + 4.0**match
    if not votes:
        return [], 0
    best = max(votes.values())
    token = next(ids[end] for _, end in chosen if votes[ids[end]] == best)
    match, end = max((p for p in chosen if ids[p[1]] == token), key=lambda p: p[0])
    return ids[end : end + 6], match


def test_the_continuation_is_that_of_a_vote_by_brute_force() -> None:
    rng = random.Random(6)
    hits = longer = 0
    for number in range(200):
        shortest = rng.randint(1, 2)
        proposer = make(min_match=shortest, num_tokens=6)
        text = Text([rng.randrange(4)], id=number)
        for _ in range(40):
            text.token_ids += rng.choices(range(4), k=rng.randint(1, 3))
            found = proposer.look_up(text, 8)
            assert (found.tokens, found.match) == by_brute_force(text.token_ids, shortest)
            hits += bool(found.tokens)
            longer += found.match > 3
    assert hits > 5000 and longer > 500


def test_many_short_matches_outvote_a_longer_one() -> None:
    most = [*([1, 2, 3, 0] * 5), 9, 1, 2, 4, 9, 1, 2]
    assert look_up(most).tokens[0] == 3
    few = [1, 2, 3, 0, 9, 1, 2, 4, 9, 1, 2]
    assert look_up(few).tokens[0] == 4


def test_the_budget_and_the_limit_are_kept() -> None:
    proposer = make(num_tokens=3)
    text = Text([1, 2, 3, 4, 5, 1, 2])
    assert propose(proposer, text) == [3, 4, 5]
    assert propose(proposer, text, budget=1) == [3]
    assert propose(proposer, text, budget=0) == []


def test_an_unlikely_draft_ends_early() -> None:
    text = [1, 2, 3, 4, 5, 1, 2]
    assert propose(make(), Text(text)) == [3, 4, 5, 1, 2]
    assert propose(make(min_score=0.25), Text(text)) == [3, 4, 5]
    assert propose(make(min_score=0.9), Text(text)) == []


def test_it_says_how_another_such_place_went_on() -> None:
    assert look_up([1, 2, 3, 9, 1, 2]) == ([3, 9, 1, 2], 2, 0, -1)  # there is none
    assert look_up([1, 2, 4, 1, 2, 3, 1, 2]) == ([3, 1, 2], 2, 1, -1)  # otherwise
    assert look_up([1, 2, 3, 7, 1, 2, 3, 1, 2]) == ([3, 1, 2], 2, 2, 1)  # alike, for a token
    assert look_up([1, 2, 3, 4, 7, 1, 2, 3, 4, 8, 1, 2]) == ([3, 4, 8, 1, 2], 2, 2, 2)
    assert look_up([9, 8, 7]) == ([], 0, 0, -1)


def test_of_very_many_places_the_latest_are_compared() -> None:
    """A search is bounded however often a pair of tokens comes."""
    text = [7, 3, 1, 5, *([3, 1, 0] * 400), 7, 3, 1]
    assert look_up(text)[:2] == ([0, 7, 3, 1], 2)
    assert look_up([7, 3, 1, 5, *([3, 1, 0] * 2), 7, 3, 1]).tokens[0] == 5


def test_a_reference_is_found_from_the_first_token_and_not_run_past() -> None:
    proposer = make()
    text = Text([7, 8, 9], prompt_length=3, reference_ids=[20, 21, 22])
    assert propose(proposer, text) == [20, 21, 22]
    text.token_ids.append(20)
    assert propose(proposer, text) == [21, 22]
    assert proposer.look_up(text, 8).support == FOLLOWED


def test_a_place_at_the_end_of_the_reference_is_none() -> None:
    proposer = make()
    text = Text([7, 20, 21, 30, 20, 21], prompt_length=1, reference_ids=[20, 21])
    assert propose(proposer, text) == [30, 20, 21]


def test_a_draft_from_a_reference_survives_edits() -> None:
    reference = [*range(20, 40), 11, *range(40, 60), 11, *range(60, 80)]

    def after(*reply: int) -> list[int]:
        return propose(make(), Text([7, *reply], reference_ids=reference), 3)

    assert after(*range(20, 25)) == [25, 26, 27]
    assert after(*range(20, 25), 90) == [26, 27, 28]  # a token replaced: guessed
    assert after(*range(20, 25), 90, 91) == []
    assert after(*range(20, 25), 90, 91, 26) == [27, 28, 29]  # found again
    assert after(*range(20, 25), 29) == [30, 31, 32]  # tokens left out
    # Of places that are alike, the one near the edit is followed, not the latest.
    assert after(*range(20, 39), 90, 11) == [40, 41, 42]
    assert after(*reference[:40], 90, 11) == [60, 61, 62]


def test_a_reference_costs_few_rounds_whatever_is_edited() -> None:
    rng = random.Random(3)
    old = [rng.randrange(100, 400) for _ in range(300)]
    reply, changes = [], 0
    for token in old:
        change = rng.random()
        changes += change < 0.06
        if change < 0.02:
            continue
        reply += [rng.randrange(500, 600)] * (change < 0.06)
        reply += [token] * (change >= 0.04)
    proposer, text, rounds = make(num_tokens=32), Text([7], reference_ids=old), 0
    while len(text.token_ids) <= len(reply):
        drafted, at, rounds = propose(proposer, text, 32), len(text.token_ids) - 1, rounds + 1
        same = 0
        while same < len(drafted) and drafted[same : same + 1] == reply[at + same : at + same + 1]:
            same += 1
        text.token_ids += reply[at : at + same + 1]
    assert rounds < 2.2 * changes + len(reply) / 32 < len(reply) / 4


def test_a_new_request_in_the_slot_starts_afresh() -> None:
    proposer = make(store_tokens=0)
    assert propose(proposer, Text([1, 2, 3, 1, 2])) == [3, 1, 2]
    assert propose(proposer, Text([5, 6, 1, 2], id=1)) == []
    proposer.release(0)
    proposer.release(0)
    assert not proposer.texts and not proposer.stores


def test_past_replies_of_a_conversation_are_drafted_from_until_it_ends() -> None:
    proposer = make()
    first = Text([1, 2, 50, 51], prompt_length=2)
    propose(proposer, first)
    first.token_ids += [52, 53]  # committed after the last look-up
    following = Text([9, 50, 51], id=1, prompt_length=1)
    assert proposer.look_up(following, 8) == ([52, 53], 2, STORED, -1)
    assert propose(proposer, Text([9, 50, 51], id=2, slot=1)) == []  # another conversation
    proposer.release(0)
    assert propose(proposer, Text([9, 50, 51], id=3)) == []


def test_a_shared_store_serves_every_conversation() -> None:
    proposer = make(store="engine")
    propose(proposer, Text([1, 50, 51, 52]))
    proposer.release(0)
    assert propose(proposer, Text([9, 50, 51], id=1, slot=1)) == [52]
    assert not proposer.stores
    # The prompt is nobody else's: only replies are kept.
    propose(proposer, Text([60, 61, 62, 3], prompt_length=3, id=2, slot=2))
    proposer.release(2)
    assert propose(proposer, Text([9, 60, 61], id=3, slot=3)) == []


def test_offers_class_tokens_by_what_is_known_of_them() -> None:
    chances = SUFFIX_LOOKUP.priors

    def believed(match: int, support: int = 0, agreed: int = -1) -> list[float]:
        return [chances[i] for i in lookup_offer([5, 6, 7], match, support, agreed).evidence]

    alone, agreed = believed(3), believed(3, 2, 3)
    assert all(one < both for one, both in zip(alone, agreed, strict=True))
    assert believed(3, 2, 2)[2] < believed(3, 2, 2)[1]  # where the two places part
    assert believed(2, FOLLOWED) > alone > believed(3, STORED) > believed(0, ALIGNED)
    highest = lookup_offer(range(32), 16, ALIGNED, 1).evidence
    assert max(highest) < len(chances)
