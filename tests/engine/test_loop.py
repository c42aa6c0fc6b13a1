"""The engine's step against a plain reference loop, on tiny models."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from specstream.drafting.proposers import KINDS
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.off import OffProposer
from specstream.errors import EngineBusy, PromptError
from specstream.methods import DraftProposerConfig
from specstream.model.decoder import Decoder
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, PROMPTS, TOKENIZER, check_greedy, plain_greedy, proposer
from tests.support.choosers import Steady, proposer_with
from tests.support.tiny import (
    EOS,
    Inbox,
    answered,
    ask,
    make_core,
    noisy_copy,
    run_until_idle,
    tiny_model,
)

OURS = sorted(KINDS.keys() - {"own"})  # a user's own proposer: tests/engine/test_own.py


def test_every_kind_is_tested_here() -> None:
    names = "auto block draft eagle early-exit lookahead medusa mirror mtp off streaming suffix"
    assert names.split() == OURS


@pytest.mark.parametrize("kind", OURS)
def test_greedy_output_is_that_of_the_plain_loop(kind: str) -> None:
    accepted = 0
    for text in PROMPTS:
        core = make_core(MODEL, TOKENIZER, proposer(kind), prefill_chunk=7)
        request, inbox = answered(core, text, SamplingParams(max_tokens=60))
        assert inbox.token_ids == plain_greedy(text, 60)
        accepted += request.stats.accepted
    assert (accepted > 0) == (kind != "off")


@pytest.mark.parametrize("kind", OURS)
def test_counters_agree_with_a_count_of_the_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = 0
    core = make_core(MODEL, TOKENIZER, proposer(kind), prefill_chunk=5)
    run = Decoder.__call__

    def count(
        self: Decoder, inputs: Sequence[ForwardInput], extras: Extras = PLAIN, *fit: Any
    ) -> ForwardOutput:
        nonlocal passes
        passes += self is core.target.decoder and extras.logits
        return run(self, inputs, extras, *fit)

    monkeypatch.setattr(Decoder, "__call__", count)
    request, inbox = answered(core, PROMPTS[1], SamplingParams(max_tokens=50))
    report = request.report()
    assert report.target_forwards == passes
    assert report.rounds == len(inbox.chunks)
    assert report.target_forwards - report.rounds == (len(TOKENIZER.encode(PROMPTS[1])) - 1) // 5
    assert report.drafted == sum(chunk.drafted for chunk in inbox.chunks)
    assert report.accepted == sum(chunk.accepted for chunk in inbox.chunks)
    short = 0 if inbox.chunks[-1].accepted < len(inbox.chunks[-1].token_ids) else 1
    assert len(report.token_ids) == report.accepted + report.rounds - short


def token_by_token(text: str, params: SamplingParams) -> tuple[str, list[int], str]:
    """Greedy tokens one at a time, the whole text looked at after each: what stops must give."""
    ids = plain_greedy(text, params.max_tokens)
    for count in range(1, len(ids) + 1):
        body = [i for i in ids[:count] if i != EOS]
        shown = str(TOKENIZER.decode(body))
        found = [shown.find(stop) for stop in params.stop if stop in shown]
        if found and ids[count - 1] != EOS:
            return shown[: min(found)], ids[:count], "stop"
        if ids[count - 1] == EOS:
            return shown, ids[:count], "stop"
    return shown, ids, "length"


@pytest.mark.parametrize("kind", OURS)
def test_a_stop_inside_an_accepted_block_ends_it_there(kind: str) -> None:
    rng = random.Random(4)
    core = make_core(MODEL, TOKENIZER, proposer(kind, noise=0.05))
    inside = 0
    for number in range(40):
        text = rng.choice(PROMPTS)
        whole = str(TOKENIZER.decode([i for i in plain_greedy(text, 40) if i != EOS]))
        at = rng.randrange(0, max(1, len(whole) - 3))
        stop = whole[at : at + rng.randint(1, 3)] or "x"
        if "\ufffd" in stop:
            continue
        params = SamplingParams(max_tokens=rng.choice([1, 2, 17, 40]), stop=(stop, "never seen"))
        request, inbox = answered(core, text, params, session=f"s{number % 3}")
        shown, ids, reason = token_by_token(text, params)
        assert (inbox.text, inbox.token_ids, request.finish_reason) == (shown, ids, reason)
        assert request.text == shown
        last = inbox.chunks[-1]
        inside += last.drafted > len(last.token_ids)
        kept = core.slots.kept[f"s{number % 3}"]
        assert kept.rows == request.token_ids[: kept.cache.length]
        assert kept.cache.length >= len(request.token_ids) - 1 - (reason == "stop")
    # On a busy machine `auto` may find that no draft pays; those that it chooses among must draft.
    assert inside > 0 or kind in ("off", "auto")


def test_spans_tile_the_reply() -> None:
    core = make_core(MODEL, TOKENIZER, proposer("draft"))
    _, inbox = answered(core, PROMPTS[3], SamplingParams(max_tokens=60))
    tokens = chars = 0
    for number, chunk in enumerate(inbox.chunks):
        assert chunk.round == number
        assert chunk.tokens == (tokens, tokens + len(chunk.token_ids))
        assert chunk.chars == (chars, chars + len(chunk.text))
        assert len(chunk.ends) == len(chunk.token_ids)
        assert chunk.accepted <= min(chunk.drafted, len(chunk.token_ids))
        tokens, chars = chunk.tokens.end, chunk.chars.end
    assert [c.finish_reason is not None for c in inbox.chunks].count(True) == 1
    assert inbox.chunks[-1].ends[-1] == len(inbox.text)


def test_requests_side_by_side_do_not_touch_each_other() -> None:
    core = make_core(MODEL, TOKENIZER, proposer("draft"), max_running=3)
    check_greedy(core, 40)


def test_a_consumer_that_stops_reading_parks_its_own_request_only() -> None:
    core = make_core(MODEL, TOKENIZER, OffProposer(), eos_ids=())
    slow = Inbox(reading=False, limit=4)
    request, _ = ask(core, "abc", SamplingParams(max_tokens=30), inbox=slow)
    _, quick = answered(core, "abc", SamplingParams(max_tokens=30))
    assert len(slow.chunks) == 4
    assert len(quick.chunks) == 30
    forwards = core.target.forwards
    assert not core.step()
    assert core.target.forwards == forwards
    while request.finish_reason is None:
        slow.read_all()
        run_until_idle(core)
    assert slow.token_ids == quick.token_ids


@pytest.mark.parametrize("after", [0, 1, 5])
def test_cancel_ends_within_one_round_and_frees_the_place(after: int) -> None:
    core = make_core(MODEL, TOKENIZER, proposer("draft"), eos_ids=())
    request, inbox = ask(core, "abc", SamplingParams(max_tokens=400))
    for _ in range(after):
        core.step()
    inbox.delivery.cancelled = True
    forwards = core.target.forwards
    assert not core.step()
    assert core.target.forwards == forwards
    assert inbox.chunks[-1].finish_reason == "cancelled"
    assert len(inbox.chunks) == after + 1
    assert core.slots.in_use == 0
    assert inbox.text == request.text
    drafts = core.proposer
    assert isinstance(drafts, DraftModelProposer)
    assert not drafts.sequences


def test_the_next_turn_reads_only_what_is_new() -> None:
    core = make_core(MODEL, TOKENIZER, proposer("draft"), max_sessions=1, eos_ids=())
    first, one = answered(core, "abcdef", SamplingParams(max_tokens=10), session="s")
    longer = "abcdef" + one.text[:4] + "?"
    second, two = answered(core, longer, SamplingParams(max_tokens=10), session="s")
    fresh = make_core(MODEL, TOKENIZER, OffProposer(), eos_ids=())
    _, again = answered(fresh, longer, SamplingParams(max_tokens=10))
    assert two.token_ids == again.token_ids
    same = 0
    while same < len(second.token_ids) - 11 and first.token_ids[same] == second.token_ids[same]:
        same += 1
    assert second.reused >= min(same, 6)
    answered(core, "zzz", SamplingParams(max_tokens=1), session="t")
    assert len(core.slots.kept) == 1  # the older conversation had to go
    core.slots.forget("t")
    drafts = core.proposer
    assert isinstance(drafts, DraftModelProposer)
    assert not drafts.sequences


@pytest.mark.parametrize("room", [1, 2, 9])
def test_the_context_is_never_overrun(room: int) -> None:
    model = tiny_model(len(TOKENIZER), seed=2, context=40)
    small = noisy_copy(tiny_model(len(TOKENIZER), seed=2, context=32), 0.1)
    draft = DraftModelProposer(DraftProposerConfig(num_tokens=5), ModelRunner(small), frozenset())
    core = make_core(model, TOKENIZER, draft, eos_ids=())
    text = "a" * (40 - room)
    request, inbox = answered(core, text, SamplingParams(max_tokens=1000))
    assert request.finish_reason == "length"
    assert len(inbox.token_ids) == room
    _, inbox = answered(core, "a" * 40, SamplingParams())
    assert isinstance(inbox.errors[0], PromptError)


def test_the_next_in_line_does_not_wait_for_news_after_a_failed_admission() -> None:
    core = make_core(MODEL, TOKENIZER, OffProposer(), max_running=1)
    _, refused = ask(core, "x" * 600, SamplingParams(), inbox=Inbox(reading=False))
    _, served = answered(core, "abc", SamplingParams(max_tokens=3))
    assert isinstance(refused.errors[0], PromptError)
    assert len(served.token_ids) == 3


def test_a_parked_request_takes_no_place() -> None:
    core = make_core(MODEL, TOKENIZER, OffProposer(), eos_ids=(), max_running=1, max_parked=1)
    ask(core, "abc", SamplingParams(max_tokens=30), inbox=Inbox(reading=False, limit=2))
    _, served = answered(core, "abc", SamplingParams(max_tokens=5))
    assert len(served.token_ids) == 5


def test_requests_cancelled_in_line_make_room() -> None:
    core = make_core(MODEL, TOKENIZER, OffProposer(), max_running=1, max_waiting=1)
    for _ in range(2):
        ask(core, "ab", SamplingParams())[1].delivery.cancelled = True
    _, inbox = answered(core, "ab", SamplingParams(max_tokens=2))
    assert not inbox.errors


def test_a_conversation_that_ends_while_it_is_answered_leaves_no_cache() -> None:
    core = make_core(MODEL, TOKENIZER, proposer("draft"), eos_ids=())
    _, inbox = ask(core, "abc", SamplingParams(max_tokens=50), session="s")
    core.step()
    core.slots.forget("s")
    inbox.delivery.cancelled = True
    run_until_idle(core)
    assert (len(core.slots.kept), core.slots.in_use) == (0, 0)
    core.slots.forget("s")
    answered(core, "abc", SamplingParams(max_tokens=2), session="s")
    assert len(core.slots.kept) == 1


def test_a_full_line_is_refused_and_the_rest_served() -> None:
    core = make_core(MODEL, TOKENIZER, OffProposer(), max_running=1, max_waiting=1)
    asked = [ask(core, "ab", SamplingParams(max_tokens=3)) for _ in range(3)]
    run_until_idle(core)
    assert [bool(inbox.errors) for _, inbox in asked] == [False, False, True]
    assert isinstance(asked[2][1].errors[0], EngineBusy)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_request_may_limit_how_much_is_drafted(adaptive: bool) -> None:
    """Beside one that doesn't; the text is the same."""
    model, tokens = tiny_model(len(TOKENIZER), seed=2), list[list[int]]()
    for most in (None, 0, 1, 3):
        runner = ModelRunner(model)
        proposer: Any = DraftModelProposer(DraftProposerConfig(num_tokens=5), runner, frozenset())
        if adaptive:
            proposer = proposer_with(Steady(), runner)
        core = make_core(model, TOKENIZER, proposer, eos_ids=(), max_running=2)
        request, _ = ask(core, "abab", SamplingParams(max_tokens=40))
        free, _ = ask(core, "abab", SamplingParams(max_tokens=40))
        request.most_drafted = most
        run_until_idle(core)
        tokens += [list(request.token_ids), list(free.token_ids)]
        longest = len(request.stats.drafted_at)
        assert longest == most if most is not None else longest > 3
        assert len(free.stats.drafted_at) > 3
    assert all(one == tokens[0] for one in tokens)
