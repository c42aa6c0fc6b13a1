"""Many requests in one pass, each advancing by its own length: nobody's text, place or pace suffers."""

from collections import Counter

import pytest

from specstream.engine.core.request import Request
from specstream.types import SamplingParams
from tests.support.batches import KINDS, TEXTS, Passes, alone, greedy, make
from tests.support.tiny import Inbox, ask, run_until_idle

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
            len(inbox.chunks[-1].token_ids) for request, inbox in asked if request.finish_reason is None
        ]
        advanced.update(latest)
        ragged += len(set(latest)) > 1
    for text, (_, inbox) in zip(TEXTS, asked):
        assert inbox.token_ids == alone(text)
        assert not inbox.errors
    if count > 2 and kind != "off":
        # A prediction module that a test trains in a second seldom gets far.
        assert len(advanced) >= (2 if kind == "mtp" else 3) and ragged >= 5


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_sampled_rows_beside_greedy_ones_keep_their_own_noise(rule: str) -> None:
    """A fixed draft: then its noise fixes the tokens, whoever is in the pass and in whatever order."""

    def serve(order: list[int], at_once: int) -> dict[int, list[int]]:
        core = make("draft", max_running=at_once, rule=rule)
        asked = {}
        for number in order:
            params = SamplingParams(
                temperature=0.0 if number % 3 == 0 else 0.7 + 0.1 * number,
                top_p=0.9 if number % 2 else 1.0,
                repetition_penalty=1.2 if number % 4 == 1 else 1.0,
                max_tokens=15 + number,
            )
            asked[number] = ask(core, TEXTS[number], params, noise=number)[1]
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
        tokens = {r.id: r.sequence.generated for r in ready}
        at = len(passes.all)
        core.step()
        assert len(passes.all) <= at + 1
        for request in ready:
            assert request.stats.rounds == rounds[request.id] + 1
            assert request.sequence.generated > tokens[request.id]
    assert all(request.finish_reason == "length" for request, _ in asked)
    for text, (request, inbox) in zip(TEXTS, asked):
        assert inbox.token_ids == alone(text)[: request.params.max_tokens]


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
        assert kinds == Counter(chunk.proposer or "off" for chunk in inbox.chunks)
        assert sum(kinds.values()) == report.rounds
