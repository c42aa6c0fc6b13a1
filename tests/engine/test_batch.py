"""Many requests in one pass, each advancing by its own length: nobody's text, place or pace suffers."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.config import DraftProposerConfig, NgramProposerConfig
from specstream.engine.loop import EngineCore
from specstream.engine.reading import Pace
from specstream.engine.request import Request
from specstream.errors import EngineFailed, ModelBroken, RequestError, SamplingError
from specstream.model.runner import ForwardInput, ModelRunner
from specstream.spec.proposal import Proposer
from specstream.spec.proposers.draft_model import DraftModelProposer
from specstream.spec.proposers.ngram import NgramProposer
from specstream.spec.proposers.off import OffProposer
from specstream.types import SamplingParams
from tests.choosers import Dice, proposer_with
from tests.tiny import Inbox, ask, byte_tokenizer, make_core, noisy_copy, run_until_idle, tiny_model

TOKENIZER = byte_tokenizer()
MODEL = tiny_model(len(TOKENIZER), seed=2)
DRAFT = noisy_copy(MODEL, 0.1)
KINDS = ["auto", "draft", "ngram", "off"]
TEXTS = [
    *(
        "abab",
        "the cat sat on the mat, the cat",
        "zq",
        "日本 日本",
        "1, 2, 3, 4, 1, 2, 3,",
        "aaaaaa",
    ),
    *(
        "to be or not to be",
        "x",
        "(()())(",
        "ABC abc ABC",
        "0101010",
        "hello hello",
        "q" * 60,
        "?!",
    ),
    *("one two one two", "line\nline\n"),
]


def proposer(kind: str, seed: int = 0) -> Proposer:
    if kind == "auto":
        return proposer_with(Dice(seed), ModelRunner(DRAFT))
    if kind == "draft":
        return DraftModelProposer(
            DraftProposerConfig(num_tokens=5), ModelRunner(DRAFT), frozenset()
        )
    if kind == "ngram":
        return NgramProposer(NgramProposerConfig(min_ngram=1), torch.device("cpu"))
    return OffProposer()


def make(kind: str, **options: object) -> EngineCore:
    return make_core(MODEL, TOKENIZER, proposer(kind), eos_ids=(), **options)


@functools.cache
def alone(text: str, count: int = 30) -> list[int]:
    """The reply with nobody beside it and nothing drafted."""
    core = make("off")
    _, inbox = ask(core, text, greedy(count))
    run_until_idle(core)
    return inbox.token_ids


def greedy(count: int = 30) -> SamplingParams:
    return SamplingParams(max_tokens=count)


class Passes:
    """What every pass of the target was given: per sequence, whose it is and how many tokens."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.all: list[dict[int, int]] = []
        forward = core.target.forward

        def spy(inputs: Sequence[ForwardInput]) -> list[Tensor]:
            owners = {id(r.slot_state.cache): r for r in core.scheduler.running if r.slot_state}
            self.all.append({owners[id(i.cache)].id: i.token_ids.shape[0] for i in inputs})
            return forward(inputs)

        core.target.forward = spy  # type: ignore[method-assign]

    def of(self, request: Request) -> list[int]:
        """Tokens of the request in each pass that it was part of."""
        return [counts[request.id] for counts in self.all if request.id in counts]


# The same text as alone.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_every_row_is_as_alone_however_raggedly_they_advance(kind: str, count: int) -> None:
    core = make(kind, max_running=count)
    asked = [ask(core, text, greedy()) for text in TEXTS[:count]]
    advanced: set[int] = set()
    ragged = 0
    while core.step():
        latest = [
            len(inbox.chunks[-1].token_ids)
            for request, inbox in asked
            if request.finish_reason is None
        ]
        advanced.update(latest)
        ragged += len(set(latest)) > 1
    for text, (_, inbox) in zip(TEXTS, asked):
        assert inbox.token_ids == alone(text)
        assert not inbox.errors
    if count > 2 and kind != "off":
        assert len(advanced) >= 3 and ragged >= 5


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_sampled_rows_beside_greedy_ones_keep_their_own_noise(rule: str) -> None:
    """A fixed draft: then a seed fixes the tokens, whoever is in the pass and in whatever order."""

    def serve(order: list[int], at_once: int) -> dict[int, list[int]]:
        core = make("draft", max_running=at_once, rule=rule)
        asked = {}
        for number in order:
            params = SamplingParams(
                temperature=0.0 if number % 3 == 0 else 0.7 + 0.1 * number,
                top_p=0.9 if number % 2 else 1.0,
                repetition_penalty=1.2 if number % 4 == 1 else 1.0,
                seed=number,
                max_tokens=15 + number,
            )
            asked[number] = ask(core, TEXTS[number], params)[1]
        run_until_idle(core)
        return {number: inbox.token_ids for number, inbox in asked.items()}

    one_by_one = serve(list(range(10)), 1)
    assert serve(list(range(10)), 10) == one_by_one
    assert serve(list(reversed(range(10))), 4) == one_by_one


def test_more_requests_than_places_are_served_in_order() -> None:
    core = make("auto", max_running=3)
    asked = [ask(core, text, greedy(10)) for text in TEXTS]
    begun: list[int] = []
    while core.step():
        begun += [r.id for r in core.scheduler.running if r.id not in begun]
        assert len(core.scheduler.running) <= 3
    for text, (_, inbox) in zip(TEXTS, asked):
        assert inbox.token_ids == alone(text, 10)
    assert begun == sorted(begun)


# Each streams, waits and ends by itself.


def test_each_streams_by_itself_and_can_be_cancelled_among_others() -> None:
    core = make("auto", max_running=6)
    asked = [ask(core, text, greedy()) for text in TEXTS[:6]]
    gone: dict[int, int] = {}
    for step in range(1000):
        if step in (2, 4, 7):
            number = step // 2
            gone[number] = len(asked[number][1].token_ids)
            asked[number][1].delivery.cancelled = True
        if not core.step():
            break
    assert len(gone) == 3
    for number, (request, inbox) in enumerate(asked):
        if number in gone:
            assert inbox.token_ids == alone(TEXTS[number])[: gone[number]]
            assert inbox.chunks[-1].finish_reason == "cancelled"
            assert len([c for c in inbox.chunks if c.finish_reason]) == 1
        else:
            assert inbox.token_ids == alone(TEXTS[number])
            assert request.finish_reason == "length"
    assert core.slots.in_use == 0


def test_replies_of_all_lengths_end_when_they_do_and_make_room() -> None:
    core = make("auto", max_running=4)
    lengths = [1, 2, 3, 30, 1, 7, 19, 2]
    asked = [ask(core, text, greedy(n)) for text, n in zip(TEXTS, lengths)]
    run_until_idle(core)
    for text, n, (request, inbox) in zip(TEXTS, lengths, asked):
        assert inbox.token_ids == alone(text)[:n]
        assert request.finish_reason == "length"
        assert [c.finish_reason for c in inbox.chunks[:-1]] == [None] * (len(inbox.chunks) - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_parked_consumer_costs_the_target_nothing(kind: str) -> None:
    core = make(kind, max_running=3)
    passes = Passes(core)
    slow = Inbox(reading=False, limit=3)
    parked, _ = ask(core, TEXTS[0], greedy(), inbox=slow)
    others = [ask(core, text, greedy()) for text in TEXTS[1:3]]
    while not parked.delivery.parked:
        core.step()
    before, drafted = len(passes.of(parked)), parked.stats.drafted
    assert before == parked.stats.rounds == 3
    while core.step():
        if any(request.finish_reason is None for request, _ in others):
            assert len(passes.all[-1]) <= 2
    assert len(passes.of(parked)) == before  # not one token of it was read, drafted or judged
    assert parked.stats.drafted == drafted
    assert [inbox.token_ids for _, inbox in others] == [alone(t) for t in TEXTS[1:3]]
    idle = len(passes.all)
    for _ in range(5):
        assert not core.step()
    assert len(passes.all) == idle
    while parked.finish_reason is None:
        slow.read_all()
        run_until_idle(core)
    assert slow.token_ids == alone(TEXTS[0])


# Prompts beside rounds.


def newcomer_beside(
    kind: str, budget: int, monkeypatch: pytest.MonkeyPatch, prompt: str
) -> tuple[EngineCore, Passes, list[tuple[Request, Inbox]], tuple[Request, Inbox]]:
    monkeypatch.setattr(Pace, "budget", lambda self, most: min(most, budget))
    core = make(kind, max_running=5)
    passes = Passes(core)
    asked = [ask(core, text, greedy(150)) for text in TEXTS[:3]]
    for _ in range(3):
        core.step()
    return core, passes, asked, ask(core, prompt, greedy(10))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [4, 16, 50])
def test_a_long_prompt_is_read_beside_the_rounds_of_others(
    kind: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never more of it than the budget in one pass, and nobody is left out of any."""
    prompt = "long prompt. " * 7  # 91 tokens
    core, passes, asked, (late, inbox) = newcomer_beside(kind, budget, monkeypatch, prompt)
    steps = 0
    while late.stats.rounds == 0:
        chunks = [len(i.chunks) for _, i in asked]
        running = [request for request, _ in asked if request.finish_reason is None]
        at = len(passes.all)
        core.step()
        steps += 1
        assert len(passes.all) == at + 1  # one pass for all of them
        assert passes.all[-1][late.id] <= budget
        assert {r.id for r in running} | {late.id} == set(passes.all[-1])
        for before, (request, i) in zip(chunks, asked):
            assert len(i.chunks) == before + (request in running)
    assert sum(passes.of(late)) == late.prompt_length == 91
    assert steps == -(-91 // budget)
    assert late.report().target_forwards == steps
    run_until_idle(core)
    assert inbox.token_ids == alone(prompt, 10)
    assert [i.token_ids for _, i in asked] == [alone(t, 150) for t in TEXTS[:3]]


def test_several_newcomers_share_the_budget_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    core, passes, asked, first = newcomer_beside("auto", 20, monkeypatch, "a" * 50)
    second = ask(core, "b" * 30, greedy(10))
    fresh = {first[0].id, second[0].id}
    while second[0].stats.rounds == 0:
        prompts = {r.id for r, _ in (first, second) if r.stats.rounds == 0}
        core.step()
        read = {i: n for i, n in passes.all[-1].items() if i in fresh & prompts}
        assert sum(read.values()) <= 20
    assert passes.of(first[0])[:3] == [20, 20, 10]
    assert passes.of(second[0])[:2] == [10, 20]  # what the first one left, and then all of it
    run_until_idle(core)
    for text, (_, inbox) in zip(("a" * 50, "b" * 30), (first, second)):
        assert inbox.token_ids == alone(text, 10)


def test_nobody_waits_when_all_are_newcomers() -> None:
    """Prompts of several requests are read side by side, a chunk of each in a pass."""
    core = make("auto", max_running=4, prefill_chunk=16)
    passes = Passes(core)
    texts = ["a" * 40, "b" * 16, "c" * 17, "d" * 5]
    asked = [ask(core, text, greedy(10)) for text in texts]
    core.step()
    assert sorted(passes.all[0].values()) == [5, 16, 16, 16]
    assert [request.stats.rounds for request, _ in asked] == [0, 1, 0, 1]
    run_until_idle(core)
    for text, (_, inbox) in zip(texts, asked):
        assert inbox.token_ids == alone(text, 10)


def test_a_newcomer_may_be_cancelled_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    core, passes, asked, (late, inbox) = newcomer_beside("auto", 16, monkeypatch, "n" * 90)
    core.step()
    core.step()
    inbox.delivery.cancelled = True
    run_until_idle(core)
    assert passes.of(late) == [16, 16]
    assert inbox.chunks[-1].finish_reason == "cancelled" and not inbox.token_ids
    assert [i.token_ids for _, i in asked] == [alone(t, 150) for t in TEXTS[:3]]
    assert core.slots.in_use == 0


# Fairness.


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_is_ready_advances_in_every_step(kind: str) -> None:
    """Requests come, go and park at different times; a step serves all that are ready, in one pass."""
    core = make(kind, max_running=8)
    passes = Passes(core)
    inboxes = [Inbox(reading=number % 3 > 0, limit=4) for number in range(12)]
    asked: list[tuple[Request, Inbox]] = []
    for step in range(200):
        if step % 2 == 0 and len(asked) < 12:
            number = len(asked)
            params = greedy(10 + 5 * (number % 4))
            asked.append(ask(core, TEXTS[number], params, inbox=inboxes[number]))
        if step % 9 == 0:
            for inbox in inboxes:
                inbox.read_all()
        ready = [r for r in core.scheduler.running if r.stats.rounds and not r.delivery.parked]
        rounds = {r.id: r.stats.rounds for r in ready}
        tokens = {r.id: r.generated for r in ready}
        at = len(passes.all)
        core.step()
        assert len(passes.all) <= at + 1
        for request in ready:
            assert request.stats.rounds == rounds[request.id] + 1
            assert request.generated > tokens[request.id]
    assert all(request.finish_reason == "length" for request, _ in asked)
    for text, (request, inbox) in zip(TEXTS, asked):
        assert inbox.token_ids == alone(text)[: request.params.max_tokens]


# A fault of one row.


def spoil(core: EngineCore, victim: Request, row: int | None) -> None:
    """Put NaN into a row of the victim's logits in every pass (None: the last one)."""
    forward = core.target.forward

    def spoiled(inputs: Sequence[ForwardInput]) -> list[Tensor]:
        made = forward(inputs)
        for index, item in enumerate(inputs):
            if victim.slot_state is not None and item.cache is victim.slot_state.cache:
                made[index] = made[index].clone()
                made[index][-1 if row is None else row, 3] = torch.nan
        return made

    core.target.forward = spoiled  # type: ignore[method-assign]


class Bad:
    """A processor or criterion that breaks once the reply has so many tokens."""

    def __init__(self, after: int, prompt: int, error: type[BaseException] = ValueError) -> None:
        self.after, self.prompt, self.error = after, prompt, error

    def process(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] - self.prompt >= self.after:
            raise self.error("bad")
        return scores

    def ban_all(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] - self.prompt >= self.after:
            return torch.full_like(scores, -torch.inf)
        return scores

    def criterion(self, ids: list[int], text: str) -> bool:
        if len(ids) > self.after:
            raise self.error("bad")
        return False


_PROMPT = len(TOKENIZER.encode(TEXTS[1]))
_AFTER = 9
FAULTS: dict[str, tuple[Callable[[], dict[str, Any]], type[Exception]]] = {
    "processor": (lambda: {"processors": (Bad(_AFTER, _PROMPT).process,)}, RequestError),
    "processor, interrupted": (
        lambda: {"processors": (Bad(_AFTER, _PROMPT, KeyboardInterrupt).process,)},
        RequestError,
    ),
    "nothing left": (lambda: {"processors": (Bad(_AFTER, _PROMPT).ban_all,)}, SamplingError),
    "criterion": (lambda: {"stop_when": (Bad(_AFTER, _PROMPT).criterion,)}, RequestError),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_row_is_its_own(fault: str, kind: str, temperature: float) -> None:
    """What stands before it is given out; the others of the very same pass don't notice."""
    options, error = FAULTS[fault]
    core = make(kind, max_running=4)
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=30, **options())
    others = [TEXTS[0], TEXTS[2], TEXTS[5]]
    before = ask(core, others[0], greedy())
    _, victim = ask(core, TEXTS[1], params)
    after = [ask(core, text, greedy()) for text in others[1:]]
    run_until_idle(core)
    assert [type(e) for e in victim.errors] == [error]
    assert len(victim.token_ids) == _AFTER
    if temperature == 0.0:
        assert victim.token_ids == alone(TEXTS[1])[:_AFTER]
    for text, (request, inbox) in zip(others, [before, *after]):
        assert inbox.token_ids == alone(text)
        assert request.finish_reason == "length" and not inbox.errors
    assert core.slots.in_use == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", [0, None], ids=["first row", "last row"])
def test_numbers_lost_in_one_row_end_that_request_only(kind: str, row: int | None) -> None:
    core = make(kind, max_running=4)
    asked = [ask(core, text, greedy()) for text in TEXTS[:4]]
    for _ in range(3):
        core.step()
    victim, inbox = asked[2]
    had = len(inbox.token_ids)
    spoil(core, victim, row)
    run_until_idle(core)
    assert [type(e) for e in inbox.errors] == [ModelBroken]
    assert len(inbox.token_ids) >= had
    assert inbox.token_ids == alone(TEXTS[2])[: len(inbox.token_ids)]
    if row == 0:
        assert len(inbox.token_ids) == had
    for number in (0, 1, 3):
        assert asked[number][1].token_ids == alone(TEXTS[number])
        assert not asked[number][1].errors


def test_a_row_of_no_numbers_behind_a_rejected_token_is_nobodys_fault() -> None:
    """The last row of a block counts only if the reply comes that far."""
    core = make("draft", max_running=2)
    request, inbox = ask(core, TEXTS[0], greedy())
    ask(core, TEXTS[1], greedy())
    core.step()
    core.step()
    spoil(core, request, None)
    while core.step() and not inbox.errors:
        last = inbox.chunks[-1]
        assert last.accepted < last.drafted or request.finish_reason
    assert inbox.token_ids == alone(TEXTS[0])[: len(inbox.token_ids)]


def test_a_pass_that_breaks_ends_those_in_it_and_no_others() -> None:
    """A parked request and one in line go on as if nothing had been."""
    core = make("auto", max_running=2, max_parked=2)
    slow = Inbox(reading=False, limit=2)
    parked, _ = ask(core, TEXTS[0], greedy(), inbox=slow)
    while not parked.delivery.parked:
        core.step()
    hit = [ask(core, text, greedy()) for text in TEXTS[1:3]]
    _, waiting = ask(core, TEXTS[3], greedy())
    core.step()
    core.step()
    forward = core.target.forward

    def broken(inputs: Sequence[ForwardInput]) -> list[Tensor]:
        core.target.forward = forward  # type: ignore[method-assign]
        forward(inputs)
        raise RuntimeError("boom")

    core.target.forward = broken  # type: ignore[method-assign]
    core.step()
    assert [[type(e) for e in inbox.errors] for _, inbox in hit] == [[EngineFailed]] * 2
    run_until_idle(core)
    assert waiting.token_ids == alone(TEXTS[3])
    while parked.finish_reason is None:
        slow.read_all()
        run_until_idle(core)
    assert slow.token_ids == alone(TEXTS[0])


def test_a_report_of_each_counts_its_own_rounds_only() -> None:
    core = make("auto", max_running=5)
    passes = Passes(core)
    asked = [ask(core, text, greedy()) for text in TEXTS[:5]]
    run_until_idle(core)
    for request, inbox in asked:
        report = request.report()
        assert report.rounds == len(inbox.chunks) == len(passes.of(request))
        assert report.drafted == sum(chunk.drafted for chunk in inbox.chunks)
        assert report.accepted == sum(chunk.accepted for chunk in inbox.chunks)
        # Each pass read the last token and the drafted ones; the first one, the prompt.
        read = sum(passes.of(request))
        assert read == report.prompt_tokens + report.rounds - 1 + report.drafted
        kinds = Counter(report.proposer_rounds)
        assert sum(kinds.values()) == report.rounds
