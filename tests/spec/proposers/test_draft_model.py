"""The draft model: several in step as one by one, stops that keep what they saw, no needless waiting."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.bench.exactness.bugs import Meddling
from specstream.config import DraftProposerConfig
from specstream.model.runner import ForwardInput, ModelRunner
from specstream.model.sampling import draw, probabilities
from specstream.spec import verify
from specstream.spec.proposal import Proposal, Proposer, SpecRequest, Verdict
from specstream.spec.proposers.draft_model import Drafting, DraftModelProposer
from specstream.types import SamplingParams
from tests.choosers import Dice, proposer_with
from tests.tiny import ask, byte_tokenizer, make_core, noisy_copy, run_until_idle, tiny_model
from tests.transfers import transfers

V = 40
MODEL = tiny_model(V, seed=5, context=256)
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.1, top_p=0.95)
TOKENIZER = byte_tokenizer()


@dataclass
class Text:
    """A request as the draft sees it."""

    token_ids: list[int]
    id: int = 0
    slot: int = 0
    params: SamplingParams = GREEDY
    prompt_length: int = 1
    reference_ids: list[int] = field(default_factory=list)
    phrase_left: int | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)

    def process(self, logits: Tensor, drafted: list[int]) -> Tensor:
        return logits

    positions: list[int] = field(default_factory=list)

    def draw(self, probs: Tensor, position: int) -> Tensor:
        self.positions.append(position)
        return draw(probs, self.generator)


def texts(count: int = 6) -> list[Text]:
    """Greedy and sampled ones of many lengths."""
    rng = random.Random(3)
    made = []
    for number in range(count):
        ids = [rng.randrange(V) for _ in range(1 + number * 9)]
        params = SAMPLED if number % 2 else GREEDY
        generator = torch.Generator().manual_seed(number)
        made.append(Text(ids, number, number, params, generator=generator))
    return made


def draft(
    *, window: int = 256, context: int | None = None, eos: Sequence[int] = (), num_tokens: int = 8
) -> DraftModelProposer:
    runner = ModelRunner(MODEL, context_length=context)
    config = DraftProposerConfig(num_tokens=num_tokens, window=window)
    return DraftModelProposer(config, runner, frozenset(eos))


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def settle(proposer: DraftModelProposer, text: Text, proposal: Proposal, accepted: int) -> None:
    """The round is over: so many stand, and a token follows."""
    tokens = (*proposal.tokens[:accepted].tolist(), (text.token_ids[-1] * 7 + 3) % V)
    proposer.observe([text], [Verdict(accepted, tokens[-1], tuple(range(accepted)), tokens)])
    text.token_ids.extend(tokens)


@torch.inference_mode()
def rows_after(ids: Sequence[int], count: int) -> Tensor:
    """``[count, V]``: the last rows of the model over ``ids``, in one plain pass."""
    rows: Tensor = MODEL(input_ids=torch.tensor([list(ids)])).logits
    return rows[0, -count:]


def check_honest(text: Text, proposal: Proposal, start: int = 0) -> None:
    """Tokens and probabilities are what the model says in the place that each of them has."""
    drafted = proposal.tokens.tolist()
    rows = rows_after([*text.token_ids, *drafted[:-1]][start:], len(drafted))
    if text.params.greedy:
        assert proposal.probs is None
        assert drafted == rows.argmax(-1).tolist()
    else:
        assert proposal.probs is not None
        assert proposal.probs.shape == (len(drafted), V)
        assert torch.allclose(proposal.probs, probabilities(rows, text.params), atol=2e-4)
        assert all(proposal.probs[i, token] > 0 for i, token in enumerate(drafted))


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
            one, many = (
                single.proposal(alone._runner.device),
                chain.proposal(together._runner.device),
            )
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
    forward = proposer._runner.forward

    def spy(inputs: Sequence[ForwardInput]) -> list[Tensor]:
        sizes.append(len(inputs))
        return forward(inputs)

    proposer._runner.forward = spy  # type: ignore[method-assign]
    assert proposer.write([Drafting(t, n) for t, n in zip(texts(4), (1, 4, 2, 4))]) == 4
    assert sizes == [4, 3, 2, 2]


def test_each_draw_names_the_place_that_its_token_will_have() -> None:
    """In the reproducible mode the noise belongs to the place."""
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
def test_a_stop_keeps_the_token_that_it_saw(params: SamplingParams, stop_at: int) -> None:
    proposer, fixed = draft(), draft()
    asked: list[float] = []

    def go_on(q: float) -> bool:
        asked.append(q)
        return len(asked) < stop_at

    text = Text([3, 4, 5], params=params, generator=torch.Generator().manual_seed(1))
    chain = Drafting(text, 6, go_on)
    passes = proposer.write([chain])
    proposal = chain.proposal(proposer._runner.device)
    assert proposal.length == passes == len(asked) == min(stop_at, 6)
    assert chain.confidences == asked
    check_honest(text, proposal)
    # What was written is what would have been written without being asked.
    twin = Text([3, 4, 5], params=params, generator=torch.Generator().manual_seed(1))
    whole = Drafting(twin, 6)
    fixed.write([whole])
    full = whole.proposal(fixed._runner.device)
    assert full.tokens.tolist()[: proposal.length] == proposal.tokens.tolist()
    # And what was asked about is the draft's own probability of each token.
    rows = rows_after([*text.token_ids, *proposal.tokens.tolist()[:-1]], proposal.length)
    probs = rows.softmax(-1) if params.greedy else probabilities(rows, params)
    own = probs.gather(1, proposal.tokens.unsqueeze(1)).squeeze(1)
    assert chain.confidences == pytest.approx(own.tolist(), abs=1e-4)


def test_a_chain_that_stops_holds_up_no_other() -> None:
    proposer = draft()
    a, b, c = texts(3)
    chains = [Drafting(a, 5, lambda q: False), Drafting(b, 5), Drafting(c, 5, lambda q: True)]
    assert proposer.write(chains) == 5
    assert [len(chain.tokens) for chain in chains] == [1, 5, 5]
    for text, chain in zip((a, b, c), chains):
        check_honest(text, chain.proposal(proposer._runner.device))


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


# How much of a text the draft knows.


def test_a_window_is_read_and_the_rows_are_its_own() -> None:
    proposer = draft(window=16)
    text = Text([i * 5 % V for i in range(90)], params=SAMPLED)
    start = 90 - 16
    for accepted in (4, 0, 2, 1, 4, 4):
        assert proposer.behind(text) == (14 if len(text.token_ids) == 90 else 0)
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
        state = proposer._sequences[0]
        assert state.cache.length <= 24
        if proposal.length:
            check_honest(text, proposal, state.start)
        settle(proposer, text, proposal, min(2, proposal.length))
    assert drafted > 4 * 40
    assert proposer._sequences[0].start > 0


@pytest.mark.parametrize("context", [1, 2, 3, 5])
def test_next_to_no_context_is_enough_not_to_break(context: int) -> None:
    proposer = draft(context=context)
    text = Text([1, 2, 3])
    for _ in range(10):
        proposal = proposer.propose([text], [4])[0]
        assert proposal.length <= context
        assert proposer._sequences[0].cache.length <= context
        settle(proposer, text, proposal, proposal.length // 2)


def test_catching_up_in_parts_ends_where_one_read_does() -> None:
    whole, parts = draft(), draft()
    parts._prefill_chunk = 10
    a, b = (Text([i * 3 % V for i in range(47)], params=SAMPLED) for _ in range(2))
    b.generator.manual_seed(0)
    a.generator.manual_seed(0)
    reads = []
    for _ in range(4):  # 47 tokens: four parts of ten, and what is left with the first draft
        chain = Drafting(b, 3)
        assert parts.write([chain]) == 0
        assert not chain.proposal(parts._runner.device).length
        reads.append(chain.read)
        parts.observe([b], [Verdict(0, 1, (), (1,))])  # it wrote nothing: nothing is taken back
        assert len(parts._sequences[0].rows) == sum(reads)
    assert reads == [10] * 4
    chain, twin = Drafting(b, 3), Drafting(a, 3)
    assert parts.write([chain]) == whole.write([twin]) == 3
    assert (chain.read, twin.read) == (5, 45)  # beyond the one or two of any round
    one, other = (c.proposal(whole._runner.device) for c in (chain, twin))
    assert one.tokens.tolist() == other.tokens.tolist()
    check_honest(b, one)


def test_behind_says_what_is_read() -> None:
    proposer = draft(window=32)
    rng = random.Random(5)
    text, number = Text([1, 2, 3], params=SAMPLED), 0
    for _ in range(60):
        behind = proposer.behind(text)
        chain = Drafting(text, rng.randint(1, 4))
        if rng.random() < 0.7:
            proposer.write([chain])
            assert chain.read == behind
        proposal = chain.proposal(proposer._runner.device)
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
                check_honest(text, proposal, proposer._sequences[0].start)
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
    assert list(proposer._sequences) == [b.slot]
    proposer.observe([a], [Verdict(0, 1, (), (1,))])
    assert list(proposer._sequences) == [b.slot]


# A device that isn't looked at.


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_what_is_not_looked_at_comes_out_the_same(params: SamplingParams) -> None:
    looking, blind = draft(), draft()
    blind._looks = False
    for rounds in range(5):
        pair = [Text([2, 3, 4], params=params) for _ in range(2)]
        for text in pair:
            text.generator.manual_seed(rounds)
        one = looking.propose([pair[0]], [6])[0]
        with transfers() as counter:
            other = blind.propose([pair[1]], [6])[0]
        assert counter.where == []
        assert one.tokens.tolist() == other.tokens.tolist()
        assert (one.probs is None) == (other.probs is None) == params.greedy
        if one.probs is not None and other.probs is not None:
            assert torch.equal(one.probs, other.probs)


def test_the_count_has_teeth() -> None:
    """A draft that is looked at is seen to be, and so is one that is asked whether to go on."""
    proposer = draft()
    with transfers() as counter:
        proposer.propose([Text([2, 3, 4])], [3])
    assert counter.count == 2 * 3
    proposer._looks = False
    with transfers() as counter:
        proposer.write([Drafting(Text([2, 3, 4], 1), 3, lambda q: True)])
    assert counter.count == 2 * 3
    for read in (
        lambda t: t.item(),
        lambda t: float(t),
        lambda t: bool(t),
        lambda t: t.tolist(),
        lambda t: [1, 2][t],
        lambda t: torch.arange(3)[torch.arange(3) > t],
    ):
        with transfers() as counter:
            read(torch.tensor(1))
        assert counter.count == 1


@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_whole_round_waits_for_the_device_once(
    rule: str, temperature: float, count: int, adaptive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is in it, a round has one transfer: the verdicts'."""

    def as_on_a_gpu(rows: Tensor, sound: Tensor) -> Tensor:
        return rows.where(sound.unsqueeze(-1), 0.0)

    monkeypatch.setattr(verify, "_cleaned", as_on_a_gpu)  # asks first on a CPU, where that is free
    model = tiny_model(len(TOKENIZER), seed=2)
    runner = ModelRunner(noisy_copy(model, 0.1))
    proposer: Any
    if adaptive:
        dice = Dice(1, kinds=["draft", "ngram", "off"])
        dice.stops = lambda: None
        proposer = proposer_with(dice, runner)
        inner = proposer._draft
    else:
        inner = proposer = DraftModelProposer(DraftProposerConfig(), runner, frozenset())
    inner._looks = False
    core = make_core(model, TOKENIZER, proposer, eos_ids=(), rule=rule, max_running=count)
    params = SamplingParams(temperature=temperature, seed=4, top_p=0.9, top_k=30, max_tokens=60)
    asked = [ask(core, "abab" * (n + 1), params) for n in range(count)]
    drafted = rounds = 0
    core.step()
    while True:
        before = sum(request.stats.drafted for request, _ in asked)
        with transfers() as counter:
            if not core.step():
                break
        assert counter.where == ["tolist"]
        drafted += sum(request.stats.drafted for request, _ in asked) > before
        rounds += 1
    assert drafted > 5 and rounds > 10


def test_a_blind_draft_changes_no_token_of_a_reply() -> None:
    model = tiny_model(len(TOKENIZER), seed=2)
    for temperature in (0.0, 1.0):
        replies = []
        for looks in (True, False):
            runner = ModelRunner(noisy_copy(model, 0.1))
            inner = DraftModelProposer(DraftProposerConfig(), runner, frozenset())
            inner._looks = looks
            core = make_core(model, TOKENIZER, inner, eos_ids=())
            params = SamplingParams(temperature=temperature, seed=3, max_tokens=60)
            _, inbox = ask(core, "abab", params)
            run_until_idle(core)
            replies.append(inbox.token_ids)
        assert replies[0] == replies[1]


def test_processors_are_followed_even_where_nobody_looks() -> None:
    """A ban that leaves no token in sight is seen in time, and the draft follows the others."""
    model = tiny_model(len(TOKENIZER), seed=2)
    runner = ModelRunner(noisy_copy(model, 0.0))
    inner = DraftModelProposer(DraftProposerConfig(), runner, frozenset())
    inner._looks = False
    core = make_core(model, TOKENIZER, inner, eos_ids=())
    params = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.7, max_tokens=60)
    request, _ = ask(core, "abab", params)
    run_until_idle(core)
    # The same model under the same penalties: all that is drafted stands.
    assert request.stats.accepted == request.stats.drafted > 30


def nan_after(model: ModelRunner, passes: int) -> Callable[..., list[Tensor]]:
    forward, done = model.forward, [0]

    def broken(inputs: Sequence[ForwardInput]) -> list[Tensor]:
        done[0] += 1
        rows = forward(inputs)
        return [row * torch.nan for row in rows] if done[0] > passes else rows

    return broken


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_draft_that_loses_its_numbers_midway_keeps_what_it_had(params: SamplingParams) -> None:
    proposer = draft()
    proposer._runner.forward = nan_after(proposer._runner, 2)  # type: ignore[method-assign]
    text = Text([3, 4, 5], params=params)
    proposal = proposer.propose([text], [5])[0]
    assert proposal.length == 2
    check_honest(text, proposal)


class Listening(Meddling):
    """Keeps what was proposed."""

    def __init__(self, inner: Proposer) -> None:
        super().__init__(inner)
        self.made: list[Proposal] = []

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        made = self.inner.propose(requests, budget)
        self.made += made
        return made


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_blind_draft_without_numbers_names_no_token_that_there_is_not(
    rule: str, temperature: float
) -> None:
    """On a GPU, reading what is out of range is the end of the process; the reply is as without."""
    model = tiny_model(len(TOKENIZER), seed=2)
    params = SamplingParams(temperature=temperature, seed=4, max_tokens=20)
    for passes in (0, 2, 9):
        runner = ModelRunner(noisy_copy(model, 0.1))
        runner.forward = nan_after(runner, passes)  # type: ignore[method-assign]
        inner = DraftModelProposer(DraftProposerConfig(), runner, frozenset())
        inner._looks = False
        core = make_core(model, TOKENIZER, Listening(inner), eos_ids=(), rule=rule)
        request, inbox = ask(core, "abab", params)
        run_until_idle(core)
        proposals = core.proposer.made  # type: ignore[attr-defined]
        assert len(inbox.token_ids) == 20
        assert all(proposal.length for proposal in proposals) and len(proposals) > 3
        tokens = torch.cat([proposal.tokens for proposal in proposals])
        assert 0 <= int(tokens.min()) and int(tokens.max()) < len(TOKENIZER)
