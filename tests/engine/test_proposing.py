"""What a proposer hands over is checked at the door, and who reads how much of its prompt in a step."""

import random
from collections import UserList
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from specstream.drafting.proposal import Proposal, SpecRequest
from specstream.engine.core.proposing import plan_step
from specstream.model.forward import PLAIN
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, TOKENIZER, plain_greedy, proposer
from tests.support.drafts import no_looking
from tests.support.tiny import answered, ask, make_core, run_until_idle
from tests.support.transfers import transfers

V = len(TOKENIZER)


def probs_of(proposal: Proposal) -> Tensor:
    """Its own rows, or some that fit."""
    if proposal.probs is not None:
        return proposal.probs
    return torch.full((proposal.length, V), 1 / V)


def with_id(value: int) -> Callable[[Proposal], Any]:
    def edit(proposal: Proposal) -> Proposal:
        tokens = proposal.tokens.clone()
        tokens[-1] = value
        return replace(proposal, tokens=tokens)

    return edit


def with_probs(change: Callable[[Tensor], Any]) -> Callable[[Proposal], Any]:
    return lambda proposal: replace(proposal, probs=change(probs_of(proposal).clone()))


def spoilt(value: float) -> Callable[[Tensor], Tensor]:
    def change(rows: Tensor) -> Tensor:
        rows[0, 5] = value
        return rows

    return change


def negative(rows: Tensor) -> Tensor:
    rows[0, 5] -= 2.0
    rows[0, 6] += 2.0
    return rows


VALUES: dict[str, Callable[[Proposal], Any]] = {  # what only a look at the numbers shows
    "an id too large": with_id(V),
    "an id far too large": with_id(2**62),
    "a negative id": with_id(-1),
    "probs with NaN": with_probs(spoilt(torch.nan)),
    "probs with infinity": with_probs(spoilt(torch.inf)),
    "probs not normalised": with_probs(lambda rows: rows * 1.5),
    "a negative probability": with_probs(negative),
}
SHAPES: dict[str, Callable[[Proposal], Any]] = {
    "no proposal": lambda proposal: None,
    "a list": lambda proposal: proposal.tokens.tolist(),
    "tokens as a list": lambda p: replace(p, tokens=cast(Any, p.tokens.tolist())),
    "tokens of another dtype": lambda p: replace(p, tokens=p.tokens.int()),
    "tokens as floats": lambda p: replace(p, tokens=p.tokens.float()),
    "tokens of two dimensions": lambda p: replace(p, tokens=p.tokens.unsqueeze(0)),
    "a lone token": lambda p: replace(p, tokens=p.tokens[0]),
    "tokens elsewhere": lambda p: replace(p, tokens=p.tokens.to("meta")),
    "too many tokens": lambda p: Proposal(p.tokens[:1].expand(500)),
    "too few rows": with_probs(lambda rows: rows[:-1]),
    "rows too short": with_probs(lambda rows: rows[:, 1:]),
    "one row for all": with_probs(lambda rows: rows[0]),
    "rows of another dtype": with_probs(lambda rows: rows.double()),
    "rows as numbers": with_probs(lambda rows: rows.tolist()),
    "rows elsewhere": with_probs(lambda rows: rows.to("meta")),
    "sparse rows": with_probs(lambda rows: rows.to_sparse()),
    "siblings": lambda p: replace(p, parents=(-1,) * p.length),
    "a tree": lambda p: replace(p, parents=(-1, *[0] * (p.length - 1))),
    "parents elsewhere": lambda p: replace(p, parents=tuple(range(p.length + 1))),
    "parents as a tensor": lambda p: replace(p, parents=cast(Any, torch.arange(p.length))),
    "parents as text": lambda p: replace(p, parents=cast(Any, "chain")),
}


class Spoiling:
    """Passes on what another proposer made; one request's is spoilt, from its second on."""

    name = "spoiling"

    def __init__(self, edit: Callable[[Proposal], Any], victim: str = "") -> None:
        self.inner = proposer("draft")
        self.capabilities = self.inner.capabilities
        self.edit = edit
        self.victim = TOKENIZER.encode(victim)
        self.sound = self.spoilt = 0

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Any]:
        made: list[Any] = self.inner.propose(requests, budget)
        for index, request in enumerate(requests):
            if request.token_ids[: len(self.victim)] != self.victim:
                continue
            if self.sound and made[index].length > 2:
                made[index] = self.edit(made[index])
                self.spoilt += 1
            else:
                self.sound += made[index].length > 0
        return made

    def observe(self, *args: Any) -> None:
        self.inner.observe(*args)

    def release(self, slot: int) -> None:
        self.inner.release(slot)


@pytest.mark.parametrize("name", [*VALUES, *SHAPES])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.broken_proposer
def test_a_malformed_proposal_costs_its_own_help_only(
    name: str, temperature: float, caplog: pytest.LogCaptureFixture
) -> None:
    made = Spoiling((VALUES | SHAPES)[name], victim="abab")
    core = make_core(MODEL, TOKENIZER, made, eos_ids=())
    _, inbox = ask(core, "abab", SamplingParams(temperature, max_tokens=30))
    other, beside = answered(core, "the cat", SamplingParams(max_tokens=30))
    assert made.spoilt > 2
    assert not inbox.errors and not beside.errors
    assert len(inbox.token_ids) == 30
    if temperature == 0.0:
        assert inbox.token_ids == plain_greedy("abab", 30, eos=None)
    assert beside.token_ids == plain_greedy("the cat", 30, eos=None)
    assert other.stats.accepted > 0 and other.stats.rounds < 30  # its help went on
    assert sum(chunk.drafted > 0 for chunk in inbox.chunks) == made.sound
    assert [r.levelname for r in caplog.records if r.levelname == "ERROR"] == ["ERROR"]
    assert "goes on without its help" in caplog.text


@pytest.mark.parametrize("change", [-1, +1])
@pytest.mark.broken_proposer
def test_a_wrong_number_of_proposals_costs_the_round(
    change: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Miscounting(Spoiling):
        def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Any]:
            made = super().propose(requests, budget)
            return made[:-1] if change < 0 else [*made, made[0]]

    core = make_core(MODEL, TOKENIZER, Miscounting(lambda proposal: proposal), eos_ids=())
    asked = [ask(core, text, SamplingParams(max_tokens=20)) for text in ("abab", "the cat")]
    run_until_idle(core)
    for text, (_, inbox) in zip(("abab", "the cat"), asked):
        assert inbox.token_ids == plain_greedy(text, 20, eos=None)
    assert "proposals were made for" in caplog.text


class Lazy(UserList[Any]):
    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("planted")


class Shorter(UserList[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Unreadable(Proposal):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("planted")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda made: None,
        lambda made: iter(made),
        lambda made: dict(enumerate(made)),
        Lazy,
        Shorter,
        lambda made: [object.__new__(Unreadable) for _ in made],
    ],
)
@pytest.mark.broken_proposer
def test_what_is_no_list_of_proposals_costs_the_round(
    wrong: Callable[[list[Proposal]], Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(Spoiling):
        def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Any]:
            return cast(list[Any], wrong(super().propose(requests, budget)))

    core = make_core(MODEL, TOKENIZER, Wrong(lambda proposal: proposal), eos_ids=())
    _, inbox = answered(core, "abab", SamplingParams(max_tokens=20))
    assert inbox.token_ids == plain_greedy("abab", 20, eos=None)
    assert "goes on without its help" in caplog.text


@pytest.mark.broken_proposer
@pytest.mark.parametrize("call", ["propose", "observe", "release"])
def test_a_default_device_that_a_proposer_leaves_is_put_back(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(MODEL, TOKENIZER, proposer("suffix"), eos_ids=())
    inner = getattr(core.proposer, call)

    def leaves(*args: Any) -> Any:
        done = inner(*args)
        torch.set_default_device("meta")
        return done

    monkeypatch.setattr(core.proposer, call, leaves)
    try:
        _, inbox = answered(core, "abab", SamplingParams(max_tokens=20))
        assert torch.get_default_device() == torch.device("cpu")
    finally:
        torch.set_default_device(None)
    assert inbox.token_ids == plain_greedy("abab", 20, eos=None)


@pytest.mark.parametrize("mode", ["default", "reproducible"])
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.broken_proposer
def test_where_looking_is_a_wait_numbers_are_checked_without_one(
    name: str,
    temperature: float,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As on a GPU: no id reaches the target that names no token, and a round has one transfer."""
    no_looking(monkeypatch)
    made = Spoiling(VALUES[name])
    made.inner.looks = False  # type: ignore[attr-defined]
    core = make_core(MODEL, TOKENIZER, made, eos_ids=(), mode=mode)
    forward = core.target.forward

    def watched(inputs: Any, extras: Any = PLAIN) -> Any:
        read = torch.cat([item.token_ids for item in inputs])
        assert 0 <= int(read.min()) and int(read.max()) < V
        return forward(inputs, extras)

    request, inbox = ask(core, "abab", SamplingParams(temperature, max_tokens=40))
    core.step()
    for _ in range(3):
        with transfers() as counter:
            core.step()
        assert counter.where == ["tolist"]
    core.target.forward = watched  # type: ignore[method-assign]
    run_until_idle(core)
    assert made.spoilt > 2 and not inbox.errors and len(inbox.token_ids) == 40
    if temperature == 0.0:
        assert inbox.token_ids == plain_greedy("abab", 40, eos=None)
    judged_by_q = temperature > 0.0 and mode == "default"
    if judged_by_q and name.startswith("prob"):
        assert request.stats.accepted_at[0] <= made.sound  # nothing stands where the first q is none
    if judged_by_q or "id" in name.split():
        assert "out of range" in caplog.text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_parents_that_tell_of_a_chain_change_nothing(temperature: float) -> None:
    params = SamplingParams(temperature, max_tokens=30)
    replies = []
    for edit in (
        lambda proposal: proposal,
        lambda proposal: replace(proposal, parents=tuple(range(-1, proposal.length - 1))),
    ):
        core = make_core(MODEL, TOKENIZER, Spoiling(edit), eos_ids=())
        request, inbox = answered(core, "abab", params, noise=4)
        assert request.stats.accepted > 0
        replies.append(inbox.token_ids)
    assert replies[0] == replies[1]


class Fake:
    """A request of which the plan looks at rounds and unread tokens only."""

    def __init__(self, unread: int, rounds: int = 0) -> None:
        self.stats = SimpleNamespace(rounds=rounds)
        self.sequence = SimpleNamespace(unread=unread)


def plan(batch: list[Any], chunk: int, budget: int) -> tuple[list[Any], list[tuple[Any, int]]]:
    """Who takes a first round, and who reads how many tokens beside."""
    proposals = [Proposal.empty() for request in batch if request.stats.rounds]
    parts: list[Any] = plan_step(batch, proposals, chunk=chunk, budget=budget, empty=Proposal.empty())
    rounds = [part.request for part in parts if part.proposal is not None]
    assert rounds[: len(proposals)] == [request for request in batch if request.stats.rounds]
    reading = [(part.request, part.tokens) for part in parts[len(rounds) :]]
    return rounds[len(proposals) :], reading


def counts(reading: list[tuple[Any, int]]) -> list[int]:
    return [count for _, count in reading]


def test_requests_that_decode_take_part_whatever_the_budget() -> None:
    fresh, reading = plan([Fake(1, 3), Fake(50), Fake(1, 3)], chunk=16, budget=1)
    assert fresh == []
    assert counts(reading) == [1]


def test_a_prompt_that_fits_is_read_at_once() -> None:
    batch = [Fake(16), Fake(17)]
    assert plan(batch, chunk=16, budget=100) == ([batch[0]], [(batch[1], 16)])


def test_the_oldest_reads_first_and_what_it_leaves_goes_to_the_next() -> None:
    batch = [Fake(10), Fake(40), Fake(40), Fake(3)]
    fresh, reading = plan(batch, chunk=20, budget=36)
    assert fresh == [batch[0]]
    assert reading == [(batch[1], 20), (batch[2], 6)]  # nothing is left for the youngest


def test_nobody_is_answered_before_its_whole_prompt_fits_in_the_step() -> None:
    batch = [Fake(30), Fake(7)]
    fresh, reading = plan(batch, chunk=512, budget=36)
    assert fresh == [batch[0]]
    assert counts(reading) == [6]


def test_in_any_step_the_budget_holds_and_somebody_gets_on() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        batch = [
            Fake(rng.randint(1, 60)) if rng.random() < 0.6 else Fake(1, 3)
            for _ in range(rng.randint(1, 12))
        ]
        chunk, budget = rng.randint(1, 40), rng.randint(1, 80)
        fresh, reading = plan(batch, chunk, budget)
        assert sum(r.sequence.unread for r in fresh) + sum(counts(reading)) <= budget
        assert all(0 < count <= chunk and count < r.sequence.unread for r, count in reading)
        assert not any(r.stats.rounds for r in (*fresh, *(r for r, _ in reading)))
        assert fresh or reading or all(r.stats.rounds for r in batch)
        # Order of arrival: a request that gets nothing is followed by none that gets anything.
        served = [id(r) for r in (*fresh, *(r for r, _ in reading))]
        got = [id(r) in served for r in batch if r.stats.rounds == 0]
        assert got == sorted(got, reverse=True)


def test_prompts_are_read_to_their_end_in_the_least_number_of_steps() -> None:
    batch = [Fake(100), Fake(35), Fake(64)]
    steps = 0
    while any(r.stats.rounds == 0 for r in batch):
        fresh, reading = plan(batch, chunk=64, budget=48)
        for request, count in reading:
            request.sequence.unread -= count
        for request in fresh:
            request.stats.rounds, request.sequence.unread = 1, 1
        steps += 1
    assert steps == 5  # 199 tokens, 48 a step
