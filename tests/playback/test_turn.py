"""A spoken turn in process: its events, its end, and what an interruption leaves."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
import pytest

from specstream.errors import AdapterFailed, EngineFailed, RequestError
from specstream.playback.turn import GRACE_S
from specstream.stages.contract import Inlet
from specstream.stages.pipeline import Pipeline, StageFailed
from specstream.stages.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage
from specstream.testing import ScriptedEngine, chunks_of
from specstream.types import AvatarCue, Chunk, Control, Phrase, ScenePrompt, Span, Speech
from tests.server.doubles import BrokenVoice, OneCueFace, OneCueTrack, OneShotBoard
from tests.support.turns import TEXT, Sound, Stage, first

pytestmark = pytest.mark.virtual_time


async def test_a_turn_ends_when_all_of_it_was_heard_and_is_remembered_whole() -> None:
    stage = Stage()
    async with stage.turn() as turn:
        await stage.read(turn)
        assert anyio.current_time() == pytest.approx(2.0)
        assert turn.played_ms == pytest.approx(2000)
        assert turn.outcome is None
    assert stage.sound.ms == 2000
    assert [event.seq for event in stage.events] == list(range(len(stage.events)))
    assert stage.told() == ["user: Hi", f"assistant: {TEXT}"]
    assert turn.outcome is not None and turn.outcome.complete
    assert turn.interrupt() == turn.outcome
    assert stage.engine.trimmed == []


async def test_a_head_that_passes_chunks_on_adds_nothing_to_the_text() -> None:
    class Tap:
        name = "text"

        async def run(self, items: Inlet[Any]) -> AsyncGenerator[Any, None]:
            async for item in items:
                yield item

    async with (
        ScriptedEngine(["Hello there."]) as engine,
        engine.session() as talk,
        talk.turn("q", Pipeline([], head=Tap())) as turn,
    ):
        async for _ in turn:
            pass
    assert turn.outcome is not None and turn.outcome.heard == "Hello there."


async def test_nobody_hears_more_than_was_made() -> None:
    stage = Stage()
    async with stage.turn() as turn:
        await stage.read(turn)
        made = turn.interrupt(played_ms=1e9)
    assert made is not None and made.complete and made.played_ms == pytest.approx(2000)


async def test_an_interruption_says_what_was_heard_and_what_was_not() -> None:
    stage = Stage()
    async with stage.reading() as (turn, task):
        await anyio.sleep(1.5)
        made = turn.interrupt()
        assert made.heard == first(7)
        assert made.heard + made.unheard == TEXT
        assert (made.tokens_kept, made.tokens_dropped) == (7, 3)
        assert made.played_ms == pytest.approx(1500)
        assert not made.complete
        heard = stage.sound.ms
        await task
        assert stage.sound.ms == heard <= 1500 + 80
        assert stage.sound.cleared == 1
    assert stage.told() == ["user: Hi", f"assistant: {first(7)}"]
    assert stage.engine.trimmed == [1 + 7]  # the scripted prompt has one token
    assert stage.voice.speaking == 0


async def test_a_stage_that_does_not_end_holds_an_interrupted_turn_up_for_a_quarter_second() -> None:
    class Lingering(PromptStage):
        async def run(self, items: Inlet[Phrase]) -> AsyncGenerator[ScenePrompt | Control, None]:
            async for item in super().run(items):
                yield item
            await anyio.sleep(9.0)

    stage = Stage()
    stage.pipeline = Pipeline(
        [[VoiceStage(stage.voice)], [Lingering(OneShotBoard())]],
        head=SegmentStage(clock=anyio.current_time),
    )
    async with stage.reading() as (turn, task):
        await anyio.sleep(1.0)
        turn.interrupt()
        await task
        assert anyio.current_time() == pytest.approx(1.0 + GRACE_S)
    assert stage.told() == ["user: Hi", f"assistant: {first(5)}"]


async def test_after_an_interruption_nothing_comes_but_the_cues_that_bring_the_face_to_rest() -> None:
    stage = Stage()
    async with stage.turn() as turn:
        stage.events.append(await anext(turn))
        while len(stage.items(Speech)) < 8:  # 400 ms
            stage.events.append(await anext(turn))
        await anyio.sleep(0.3)
        before = len(stage.events)
        turn.interrupt()
        await stage.read(turn)
    late = stage.events[before:]
    cues = [event.item for event in late if isinstance(event.item, AvatarCue)]
    assert cues and all(cue.name == "sil" for cue in cues)
    assert {cue.samples for cue in cues} == {Span(7200, 7200)}
    assert {cue.t_ms for cue in cues} == {300.0}
    assert not [e for e in late if isinstance(e.item, Chunk | Phrase | Speech | ScenePrompt)]


class RestingTrack(OneCueTrack):
    """Has nothing left for the end: all its cues come with speech."""

    def close(self) -> Sequence[AvatarCue]:
        return []


class PunctualFace(OneCueFace):
    punctual = True

    def open(self, sample_rate: int) -> OneCueTrack:
        return RestingTrack(sample_rate)


async def test_a_face_comes_to_rest_although_all_its_cues_were_made_before() -> None:
    """Speech is read after its cues, so the last event isn't the one with the highest number."""
    stage = Stage()
    stage.pipeline = Pipeline(
        [[VoiceStage(stage.voice), AvatarStage(PunctualFace())]],
        head=SegmentStage(clock=anyio.current_time),
    )
    async with stage.turn() as turn:
        while len(stage.items(Speech)) < 8:
            stage.events.append(await anext(turn))
        await anyio.sleep(0.3)
        seen = stage.events.copy()
        turn.interrupt()
        await stage.read(turn)
    late = stage.events[len(seen) :]
    cues = [event.item for event in late if isinstance(event.item, AvatarCue)]
    assert [cue.samples for cue in cues] == [Span(7200, 7200)]
    assert not {event.seq for event in seen} & {event.seq for event in late}


async def test_the_decoding_stops_with_the_turn() -> None:
    stage = Stage()
    stage.gate.shut(after=7)
    async with stage.reading() as (turn, task):
        await anyio.sleep(0.5)
        turn.interrupt()
        await task
    stage.gate.open()
    generation = stage.engine.generations[0]
    assert generation.report.finish_reason == "cancelled"
    assert len(generation.report.token_ids) == 7


async def test_a_false_alarm_pauses_and_goes_on_without_losing_a_sample() -> None:
    whole, stage = Stage(), Stage()
    async with whole.turn() as turn:
        await whole.read(turn)
    async with stage.reading() as (turn, task):
        await anyio.sleep(0.7)
        turn.pause()
        await anyio.sleep(5)
        assert 700 <= stage.sound.ms <= 780
        assert stage.items(Phrase)[-1].text.endswith("word9."), "the text went on"
        turn.resume()
        await task
    assert stage.sound.pcm == whole.sound.pcm
    assert stage.told() == ["user: Hi", f"assistant: {TEXT}"]


async def test_a_long_pause_holds_the_voice_and_the_decoding_within_bounds() -> None:
    long = " ".join(f"word{n}." for n in range(1000))
    stage = Stage(long, ahead_s=1.0)
    async with stage.reading() as (turn, task):
        await anyio.sleep(0.1)
        turn.pause()
        await anyio.sleep(3600)
        assert len(stage.engine.generations[0].report.token_ids) < 500
        assert not stage.items(StageFailed), "waiting for the reader is no stall"
        made = turn.interrupt()
        assert made.heard == ""
        await task


async def test_the_next_prompt_has_what_was_heard() -> None:
    stage = Stage()
    async with stage.reading() as (turn, task):
        await anyio.sleep(0.45)
        turn.interrupt()
        await task
    async with stage.turn("And then?") as turn:
        await stage.read(turn)
    messages, _ = stage.engine.requests[-1]
    assert [m["content"] for m in messages] == ["Hi", first(2), "And then?"]


async def test_a_smaller_count_shortens_what_was_heard_and_a_larger_one_does_not() -> None:
    stage = Stage()
    async with stage.reading() as (turn, task):
        await anyio.sleep(1.5)
        cuts = [turn.interrupt(ms).heard for ms in (1e6, 1400, 1450, 399, None, 0)]
        assert cuts == [first(7), first(7), first(7), first(1), first(1), ""]
        await task
    assert stage.told() == ["user: Hi"]
    assert turn.interrupt(5000).heard == ""


@pytest.mark.parametrize("ms", [-1.0, float("nan"), float("inf")])
async def test_a_count_that_is_none_is_refused_and_nothing_stops(ms: float) -> None:
    stage = Stage()
    async with stage.turn() as turn:
        with pytest.raises(RequestError, match="played_ms"):
            turn.interrupt(ms)
        await stage.read(turn)
    assert stage.told()[-1] == f"assistant: {TEXT}"


async def test_without_a_playout_what_was_read_counts_unless_a_count_is_given() -> None:
    for ms, heard in ((None, TEXT), (650.0, first(3))):
        stage = Stage()
        async with stage.session.turn("Hi", stage.pipeline) as turn:
            await stage.read(turn)
            turn.interrupt(ms)
        assert stage.told()[-1] == f"assistant: {heard}"


async def test_reasoning_that_is_interrupted_leaves_no_message() -> None:
    thinking = [
        Chunk("", (n,), Span(n, n + 1), Span(0, 0), ends=(0,), reasoning=" hm", reasoning_end=n + 1)
        for n in range(5)
    ]
    stage = Stage(thinking + chunks_of(TEXT))
    stage.gate.shut(after=3)
    async with stage.reading() as (turn, task):
        await anyio.sleep(1)
        made = turn.interrupt()
        await task
    assert (made.heard, made.unheard, made.tokens_kept, made.tokens_dropped) == ("", "", 0, 3)
    assert stage.told() == ["user: Hi"]


async def test_a_sink_that_breaks_is_an_event_and_the_text_goes_on() -> None:
    stage = Stage()

    async def broken(pcm: bytes, rate: int) -> None:
        raise OSError("unplugged")

    stage.sound.write = broken  # type: ignore[assignment]
    async with stage.turn() as turn:
        await stage.read(turn)
    [failed] = stage.items(StageFailed)
    assert isinstance(failed.error, AdapterFailed) and "unplugged" in str(failed.error)
    assert stage.told()[-1] == f"assistant: {TEXT}"


async def test_what_was_heard_before_a_sink_broke_is_told() -> None:
    stage, whole = Stage(), Sound.write

    async def breaks(pcm: bytes, sample_rate: int) -> None:
        if stage.sound.ms >= 400:
            raise OSError("unplugged")
        await whole(stage.sound, pcm, sample_rate)

    stage.sound.write = breaks  # type: ignore[method-assign]
    async with stage.turn() as turn:
        await stage.read(turn)
    assert turn.outcome is not None and turn.outcome.complete
    assert 300 <= turn.outcome.played_ms <= 400


async def test_a_sink_that_can_not_be_cleared_is_an_event_and_the_turn_ends() -> None:
    stage = Stage()

    def gone() -> None:
        raise OSError("device gone")

    stage.sound.clear = gone  # type: ignore[method-assign]
    async with stage.turn() as turn:
        while len(stage.items(Speech)) < 8:
            stage.events.append(await anext(turn))
        await anyio.sleep(0.3)
        assert turn.interrupt().heard
        await stage.read(turn)
    [failed] = stage.items(StageFailed)
    assert "device gone" in str(failed.error)
    assert stage.engine.requests[0] and stage.told()[-1].startswith("assistant: word0")


async def test_a_voice_that_breaks_leaves_the_text_whole() -> None:
    stage = Stage(voice=BrokenVoice())
    async with stage.turn() as turn:
        await stage.read(turn)
    assert len(stage.items(StageFailed)) == 1
    assert stage.told()[-1] == f"assistant: {TEXT}"


async def test_an_engine_that_fails_is_raised_behind_what_was_heard() -> None:
    stage = Stage()
    async with stage.session.turn("Hi", stage.pipeline, stage.playout) as turn:
        generation = turn.reply
        taken = 0
        original = generation.__class__.__anext__

        async def fail_late(self: object) -> Chunk:
            nonlocal taken
            taken += 1
            if taken > 7:
                raise EngineFailed("the engine broke")
            return await original(generation)

        generation.__class__ = type("Failing", (type(generation),), {"__anext__": fail_late})
        with pytest.raises(EngineFailed):
            await stage.read(turn)
        assert anyio.current_time() == pytest.approx(1.4)
    assert stage.told()[-1] == f"assistant: {first(7)}"


async def test_cancelling_an_iteration_that_waits_loses_nothing() -> None:
    stage = Stage(ahead_s=0.2)
    async with stage.turn() as turn:
        for _ in range(40):
            task = asyncio.create_task(stage.read(turn))
            await anyio.sleep(0.021)
            task.cancel()
            await asyncio.wait([task])
        await stage.read(turn)
    assert stage.sound.ms == 2000
    assert [event.seq for event in stage.events] == list(range(len(stage.events)))


async def test_the_engine_is_told_when_the_sound_that_is_made_runs_out() -> None:
    stage = Stage()
    async with stage.turn() as turn:
        await stage.read(turn)
    needed = turn.reply.needed
    assert needed[0] == (0.5, False), "the first sound is due"
    assert needed[-1][0] == pytest.approx(2.0) and needed[-1][1]


async def test_a_turn_that_nobody_hears_in_real_time_is_needed_at_no_time() -> None:
    stage = Stage(paced=False)
    async with stage.turn() as turn:
        await stage.read(turn)
    assert turn.reply.needed == []
