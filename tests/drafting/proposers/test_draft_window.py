"""The window of a text that the draft's cache holds, through edits, rollbacks and failed rounds."""

import random
from collections.abc import Sequence
from typing import cast

import pytest

from specstream.drafting.chain import Drafting
from specstream.drafting.proposal import Proposal, Verdict
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from tests.support.drafts import SAMPLED, Text, V, check_honest, draft, settle, texts

pytestmark = pytest.mark.usefixtures("inference")


def test_a_window_is_read_and_the_rows_are_its_own() -> None:
    proposer = draft(window=16)
    text = Text([i * 5 % V for i in range(90)], params=SAMPLED)
    start = 90 - 16
    for accepted in (4, 0, 2, 1, 4, 4):
        assert proposer.offer(text, 8).behind == (14 if len(text.token_ids) == 90 else 0)
        proposal = proposer.propose([text], [4])[0]
        check_honest(text, proposal, start)
        settle(proposer, text, proposal, accepted)


def test_a_full_context_is_left_behind_for_a_window() -> None:
    proposer = draft(window=200, context=24)  # half of the context at most is read again
    text = Text([1, 2, 3], params=SAMPLED)
    drafted = 0
    for _ in range(40):
        proposal = proposer.propose([text], [6])[0]
        drafted += proposal.length
        state = proposer.sequences[0]
        assert state.cache.length <= 24
        if proposal.length:
            check_honest(text, proposal, state.start)
        settle(proposer, text, proposal, min(2, proposal.length))
    assert drafted > 4 * 40
    assert proposer.sequences[0].start > 0


@pytest.mark.parametrize("context", [1, 2, 3, 5])
def test_next_to_no_context_is_enough_not_to_break(context: int) -> None:
    proposer = draft(context=context)
    text = Text([1, 2, 3])
    for _ in range(10):
        proposal = proposer.propose([text], [4])[0]
        assert proposal.length <= context
        assert proposer.sequences[0].cache.length <= context
        settle(proposer, text, proposal, proposal.length // 2)


def test_catching_up_in_parts_ends_where_one_read_does() -> None:
    whole, parts = draft(), draft()
    parts.prefill_chunk = 10
    a, b = (Text([i * 3 % V for i in range(47)], params=SAMPLED) for _ in range(2))
    b.generator.manual_seed(0)
    a.generator.manual_seed(0)
    reads = []
    for _ in range(4):  # 47 tokens: four parts of ten, and what is left with the first draft
        chain = Drafting(b, 3)
        assert parts.write([chain]) == 0
        assert not chain.proposal(parts.runner.device).length
        reads.append(chain.read)
        parts.observe([b], [Verdict(0, 1, (), (1,))])  # nothing was drafted: no row is rolled back
        assert len(parts.sequences[0].rows) == sum(reads)
    assert reads == [10] * 4
    chain, twin = Drafting(b, 3), Drafting(a, 3)
    assert parts.write([chain]) == whole.write([twin]) == 3
    assert (chain.read, twin.read) == (5, 45)  # beyond the one or two of any round
    one, other = (c.proposal(whole.runner.device) for c in (chain, twin))
    assert one.tokens.tolist() == other.tokens.tolist()
    check_honest(b, one)


def test_newcomers_share_what_the_draft_reads_in_a_step() -> None:
    """A step in which several requests begin must not take as long as reading all their prompts."""
    proposer = draft()
    texts = [Text([i * k % V for i in range(110)], id=k, slot=k, params=SAMPLED) for k in (3, 5, 7)]
    reads, lengths = [], []
    for _ in range(3):
        chains = [Drafting(text, 2) for text in texts]
        proposer.write(chains)
        proposals = [chain.proposal(proposer.runner.device) for chain in chains]
        reads.append([chain.read for chain in chains])
        lengths.append([proposal.length for proposal in proposals])
        for text, proposal in zip(texts, proposals, strict=True):
            if proposal.length:
                check_honest(text, proposal)
            settle(proposer, text, proposal, proposal.length // 2)
    assert reads[0] == [108, 84, 0] and lengths[0] == [2, 0, 0]
    assert all(sum(step) <= 192 for step in reads)
    assert lengths[-1] == [2, 2, 2]


def test_who_has_next_to_nothing_to_read_does_not_wait_for_newcomers() -> None:
    """After two long prompts: a request that is under way, and one with a short prompt."""
    proposer = draft()
    old, new = Text([1, 2, 3] * 20, id=9, slot=9), Text([5, 4, 3] * 4, id=8, slot=8)
    settle(proposer, old, proposer.propose([old], [2])[0], 1)
    texts = [Text([i * k % V for i in range(120)], id=k, slot=k) for k in (3, 5)]
    chains = [Drafting(text, 3) for text in (*texts, old, new)]
    proposer.write(chains)
    assert [chain.read for chain in chains] == [118, 74, 0, 10]
    assert [len(chain.tokens) for chain in chains] == [3, 0, 3, 3]
    proposals = proposer.propose([old, new], [3, 3])
    for text, proposal in zip((old, new), proposals, strict=True):
        check_honest(text, proposal)


def test_a_prompt_that_comes_alone_is_read_at_once() -> None:
    proposer = draft(window=250, context=250)
    chain = Drafting(Text([i * 3 % V for i in range(240)]), 2)
    proposer.window = 250
    proposer.write([chain])
    assert chain.read == 238 and len(chain.tokens) == 2


@pytest.mark.parametrize("context", [48, 256])
def test_prompts_of_every_length_are_read_honestly_and_within_the_context(context: int) -> None:
    proposer = draft(context=context, window=200)
    runner, longest = cast(ModelRunner, proposer.runner), 0
    forward = runner.forward

    def spy(inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        nonlocal longest
        made = forward(inputs, extras)
        longest = max(longest, *(item.cache.length for item in inputs))
        return made

    runner.forward = spy  # type: ignore[method-assign]
    for length in range(1, 160):
        proposer.release(0)
        text = Text([i * 7 % V for i in range(length)], id=length, params=SAMPLED)
        proposal = proposer.propose([text], [3])[0]
        if proposal.length:
            check_honest(text, proposal, proposer.sequences[0].start)
        settle(proposer, text, proposal, length % (proposal.length + 1))
        text.token_ids.extend([3] * (length % 23))  # rounds without a draft
        again = proposer.propose([text], [3])[0]
        if again.length:
            check_honest(text, again, proposer.sequences[0].start)
    assert min(context, 150) - 8 < longest <= context


def test_behind_says_what_is_read() -> None:
    proposer = draft(window=32)
    rng = random.Random(5)
    text, number = Text([1, 2, 3], params=SAMPLED), 0
    for _ in range(60):
        behind = proposer.offer(text, 8).behind
        chain = Drafting(text, rng.randint(1, 4))
        if rng.random() < 0.7:
            proposer.write([chain])
            assert chain.read == behind
        proposal = chain.proposal(proposer.runner.device)
        settle(proposer, text, proposal, rng.randint(0, proposal.length))
        if rng.random() < 0.2:  # the next turn of the conversation, its history edited
            number += 1
            cut = rng.randrange(1, len(text.token_ids))
            kept = text.token_ids[:cut] if rng.random() < 0.5 else text.token_ids[cut:]
            text = Text([*kept, *rng.choices(range(V), k=rng.randint(0, 40))][-200:], number)
            text.params = SAMPLED


def test_after_anything_rows_are_the_texts_own() -> None:
    """Turns, edits, rounds without a draft, rounds that were cut short, a draft that broke."""
    proposer = draft(window=24, context=60)
    rng = random.Random(6)
    text, number, checked = Text([1, 2, 3], params=SAMPLED), 0, 0
    for _ in range(150):
        proposal = Proposal.empty()
        if rng.random() < 0.7:
            proposal = proposer.propose([text], [rng.randint(1, 5)])[0]
            if proposal.length:
                check_honest(text, proposal, proposer.sequences[0].start)
                checked += 1
        fate = rng.random()
        if fate < 0.75:
            settle(proposer, text, proposal, rng.randint(0, proposal.length))
        else:
            if fate < 0.9:  # the block was accepted, but the reply ended inside it
                drafted = proposal.tokens.tolist()
                verdict = Verdict(len(drafted), 1, tuple(range(len(drafted))), (*drafted, 1))
                proposer.observe([text], [verdict])
                text.token_ids.extend(drafted[: rng.randint(0, len(drafted))])
            # Else the round broke: no verdict ever came.
            number += 1
            ids = list(text.token_ids)
            if rng.random() < 0.5:
                ids[rng.randrange(len(ids))] = 11
            text = Text([*ids, *rng.choices(range(V), k=rng.randint(0, 4))], number)
            text.params = SAMPLED
    assert checked > 80


def test_a_slot_that_is_released_is_forgotten() -> None:
    proposer = draft()
    a, b = texts(2)
    proposer.propose([a, b], [3, 3])
    proposer.release(a.slot)
    proposer.release(a.slot)
    assert list(proposer.sequences) == [b.slot]
    proposer.observe([a], [Verdict(0, 1, (), (1,))])
    assert list(proposer.sequences) == [b.slot]
