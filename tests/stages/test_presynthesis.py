"""Speaking drafted text: sooner or at the same time, never later, and within its budget."""

import logging
import random

import anyio
import pytest

from specstream.errors import ConfigError
from specstream.stages.drafts import Account, DraftEvent, Presynthesis
from specstream.stages.interfaces import VoiceCapabilities
from specstream.stages.pipeline import Pipeline
from specstream.stages.stages import SegmentStage, VoiceStage
from specstream.types import Span, Speech
from tests.stages.voices import TEXTS, Listener, PacedVoice, Reply, rounds

EAGER = Presynthesis(max_waste=1e6, min_stood=0.0, ahead_s=1e6)


def audio(seconds: float) -> Speech:
    samples = Span(0, int(8000 * seconds))
    return Speech(bytes(2 * samples.length), 8000, samples, (), Span(0, 1), Span(0, 1), 0)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("settings", "first_s"), [(None, 0.02), (EAGER, 0.02), (EAGER, 0.15), (EAGER, 0.4)]
)
async def test_the_first_sample_never_comes_later_and_the_audio_is_the_same(
    settings: Presynthesis | None, first_s: float
) -> None:
    gained = dict.fromkeys((0.3, 0.6, 0.9), 0.0)
    for accept in gained:
        rng = random.Random(4)
        plain = Listener(PacedVoice(first_s))
        drafts = Listener(PacedVoice(first_s), drafts=True, settings=settings)
        for text in TEXTS:
            items = rounds(text, accept, rng)
            before, now = await plain.turn(items), await drafts.turn(items)
            assert [speech for _, speech in now] == [speech for _, speech in before]
            assert now[0][0] <= before[0][0] + 1e-9
            gained[accept] += before[0][0] - now[0][0]
        report = drafts.report
        if settings is None:
            assert report.wasted_s <= 0.5 * report.spoken_s + 1.0
        if accept == 0.9:
            assert report.confirmed > 3 and report.acceptance > 0.5 and report.saved_ms > 0
    assert gained[0.9] > 0.05 and gained[0.9] > gained[0.3]


@pytest.mark.virtual_time
async def test_where_it_does_not_pay_it_goes_off_by_itself() -> None:
    rng, listener = random.Random(4), Listener(PacedVoice(0.02), drafts=True)
    for text in TEXTS * 6:
        await listener.turn(rounds(text, 0.0, rng))
    report = listener.report
    assert not report.on and report.why == "too few drafts stand"
    assert report.wasted_s <= 0.05 * report.spoken_s


@pytest.mark.virtual_time
async def test_no_draft_is_counted_for_a_voice_that_takes_none() -> None:
    voice = PacedVoice(0.02)
    voice.capabilities = VoiceCapabilities("whole", 8000, streaming=False, deterministic=True)
    listener = Listener(voice, drafts=True, settings=EAGER)
    for text in TEXTS:
        assert await listener.turn(rounds(text, 0.9, random.Random(4)))
    report = listener.report
    assert (report.confirmed, report.withdrawn, report.saved_ms) == (0, 0, 0.0)


@pytest.mark.virtual_time
async def test_every_second_of_audio_is_counted_as_spoken_or_wasted() -> None:
    trace: list[DraftEvent] = []
    line = Pipeline(
        [[VoiceStage(PacedVoice(0.0, factor=0.01))]],
        head=SegmentStage(clock=anyio.current_time, drafts=True),
        clock=anyio.current_time,
        presynthesis=EAGER,
        trace=trace.append,
    )
    rng = random.Random(2)
    for text in TEXTS * 2:
        async with line.run(Reply(rounds(text, 0.5, rng))) as run:
            async for _ in run:
                pass
    seconds = dict.fromkeys(("made", "released", "dropped"), 0.0)
    for event in trace:
        if isinstance(event.item, Speech) and event.kind in seconds:
            seconds[event.kind] += event.item.samples.length / event.item.sample_rate
    report = line.presynthesis
    assert report.wasted_s == pytest.approx(seconds["dropped"]) and report.wasted_s > 1
    assert report.spoken_s == pytest.approx(seconds["released"])
    assert seconds["made"] == pytest.approx(seconds["released"] + seconds["dropped"])


def test_it_is_off_while_it_wastes_too_much_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specstream.stages")
    account = Account(Presynthesis(max_waste=0.5))
    turn = account.turn(lambda: 100.0)
    assert turn.allows()
    turn.spoke(audio(1.2), wasted=True)
    assert not turn.allows()
    assert not account.report.on
    turn.spoke(audio(0.5), wasted=False)
    assert account.turn(lambda: 0.0).allows(), "what was spoken meanwhile pays for it"
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "pre-synthesis is off (over its budget)",
        "pre-synthesis is on (within its budget)",
    ]
    assert "1.20 s of audio were wasted for 0.50 s spoken" in caplog.records[-1].message


def test_where_drafts_do_not_stand_one_in_eight_is_tried() -> None:
    account = Account(Presynthesis(min_stood=0.25))
    turn = account.turn(lambda: 0.0)
    for _ in range(8):
        assert turn.allows()
        turn.withdrawn(1)
    tried = [turn.allows() for _ in range(32)]
    assert sum(tried) == 4
    assert account.report.why == "too few drafts stand"
    for _ in range(4):
        turn.confirmed()
    assert account.report.on and turn.allows()
    assert (account.report.confirmed, account.report.withdrawn) == (4, 8)


def test_nothing_is_drafted_for_a_listener_who_has_enough_to_hear() -> None:
    now = 0.0
    turn = Account(Presynthesis(ahead_s=1.0)).turn(lambda: now)
    turn.spoke(audio(3.0), wasted=False)
    assert not turn.allows()
    now = 2.1
    assert turn.allows()
    assert not Account(Presynthesis(max_waste=0)).turn(lambda: 0.0).allows()


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf")])
def test_budgets_that_are_none(wrong: float) -> None:
    for name in ("max_waste", "min_stood", "ahead_s"):
        with pytest.raises(ConfigError, match=name):
            Presynthesis(**{name: wrong})
