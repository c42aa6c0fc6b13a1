"""Cues are read before the speech that they time, in process and on the wire."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import anyio
import pytest

from specstream.errors import AdapterFailed
from specstream.playback.cue_order import CuesFirst, cues_first
from specstream.stages.pipeline import Event, Pipeline, StageFailed
from specstream.stages.stages import AvatarStage, SegmentStage, VoiceStage
from specstream.testing import ScriptedEngine
from specstream.types import AvatarCue, Cancel, Chunk, Phrase, Revoke, Span, Speech
from specstream_adapters.avatar import VisemeScripter
from specstream_adapters.voice import EspeakVoice, HibariVoice, ReferenceVoice
from tests.server.doubles import ALL_OWN, Stand
from tests.support.turns import Stage

TEXT = "Bob [smile] bought a map, and a pumpkin pie! [nod] My mother maybe bumped into him at $3.50."


def speech(start: int, end: int) -> Speech:
    pcm = bytes(2 * (end - start))
    return Speech(pcm, 16_000, Span(start, end), (), Span(0, 1), Span(0, 1), 0)


def cue(start: int, end: int, kind: str = "viseme") -> AvatarCue:
    span = Span(start, end)
    return AvatarCue(kind, "aa", start / 16, (end - start) / 16, 1.0, span, Span(0, 1), Span(0, 1))  # type: ignore[arg-type]


async def told(items: Sequence[object]) -> AsyncIterator[Event]:
    for seq, item in enumerate(items):
        own = {Speech: "voice", Revoke: "voice", AvatarCue: "avatar", StageFailed: "avatar"}
        source, item = item if isinstance(item, tuple) else (own.get(type(item), "x"), item)
        yield Event(seq, 0.0, source, item)


async def read(items: Sequence[object]) -> list[int]:
    """The numbers of the items in the order in which they are read."""
    return [event.seq async for event in CuesFirst(told(items))]


FAILED = StageFailed(AdapterFailed("broken"))


@pytest.mark.parametrize(
    ("items", "order"),
    [
        ([speech(0, 9), speech(9, 18), cue(0, 5), cue(5, 12), cue(12, 18)], [2, 3, 0, 4, 1]),
        ([speech(0, 9), cue(0, 30), speech(9, 18), speech(18, 27)], [1, 0, 2, 3]),
        ([speech(0, 9), Phrase("a", Span(0, 1), Span(0, 1)), cue(0, 9)], [1, 2, 0]),
        ([speech(0, 9), cue(3, 3, "gesture"), cue(0, 9)], [1, 2, 0]),
        ([speech(0, 9), Cancel()], [0, 1]),
        ([speech(0, 9), Revoke(0), cue(0, 9), speech(0, 8), cue(0, 8)], [2, 0, 1, 4, 3]),
        # The avatar drops what was taken back before it came to it: nobody waits for that.
        (
            [speech(0, 9), Revoke(0), speech(0, 8), ("avatar", Revoke(0)), cue(0, 8), speech(8, 8)],
            [0, 1, 3, 4, 2, 5],
        ),
        ([speech(0, 9), ("voice", FAILED), cue(0, 9)], [2, 0, 1]),
        # What replaces revoked speech waits for its own cues, not for those of before.
        (
            [speech(0, 9), cue(0, 20), speech(4, 12), cue(4, 4), cue(4, 12), speech(12, 13)],
            [1, 0, 3, 4, 2, 5],
        ),
        ([speech(0, 9), speech(9, 18), FAILED, speech(18, 27)], [0, 1, 2, 3]),
        ([*(speech(9 * i, 9 * i + 9) for i in range(140)), FAILED], list(range(141))),
    ],
)
async def test_speech_waits_for_its_cues_and_for_nothing_else(
    items: list[object], order: list[int]
) -> None:
    assert await read(items) == order


async def test_an_error_of_the_reply_comes_behind_what_was_held() -> None:
    async def failing() -> AsyncIterator[Event]:
        yield Event(0, 0.0, "voice", speech(0, 9))
        raise AdapterFailed("gone")

    events = CuesFirst(failing())
    assert (await anext(events)).seq == 0
    for _ in range(2):
        with pytest.raises(AdapterFailed, match="gone"):
            await anext(events)


async def chunks() -> AsyncGenerator[Chunk, None]:
    for at, char in enumerate(TEXT):
        yield Chunk(char, (at,), Span(at, at + 1), Span(at, at + 1), ends=(at + 1,))


def late(order: Sequence[tuple[str, Span]]) -> list[tuple[str, Span]]:
    """Of cues and speech in the order in which they came, the cues behind their first sample."""
    heard, missed = 0, []
    for kind, samples in order:
        if kind == "speech":
            heard = samples.end
        elif samples.length and samples.start < heard:
            missed.append((kind, samples))
    return missed


@pytest.mark.parametrize("make", [ReferenceVoice, EspeakVoice, HibariVoice])
async def test_no_cue_comes_after_its_audio(make: type[ReferenceVoice]) -> None:
    package = {"EspeakVoice": "espeakng_loader", "HibariVoice": "hibari"}.get(make.__name__)
    if package is not None:
        pytest.importorskip(package)
    voice = make()
    pipeline = Pipeline([[VoiceStage(voice), AvatarStage(VisemeScripter())]], head=SegmentStage())
    order: list[tuple[str, Span]] = []
    async with pipeline.run(chunks()) as run:
        async for event in cues_first(pipeline, run):
            if isinstance(event.item, Speech):
                order.append(("speech", event.item.samples))
            elif isinstance(event.item, AvatarCue):
                order.append((event.item.kind, event.item.samples))
    await voice.aclose()
    assert late(order) == []
    assert {kind for kind, _ in order} == {"speech", "viseme", "emotion", "gesture"}


@pytest.mark.virtual_time
async def test_who_reads_a_turn_reads_cues_first() -> None:
    stage = Stage(TEXT)
    stage.pipeline = Pipeline(
        [[VoiceStage(ReferenceVoice()), AvatarStage(VisemeScripter())]],
        head=SegmentStage(clock=anyio.current_time),
    )
    async with stage.turn() as turn:
        await stage.read(turn)
    order = [
        (getattr(event.item, "kind", "speech"), event.item.samples)
        for event in stage.events
        if isinstance(event.item, Speech | AvatarCue)
    ]
    assert late(order) == [] and len(order) > 100


async def test_no_cue_comes_after_its_audio_on_the_wire() -> None:
    stand = Stand(ScriptedEngine([TEXT]), voice=ReferenceVoice, avatar=VisemeScripter)
    async with stand.running(), stand.client() as wire:
        await wire.configure(**ALL_OWN)
        await wire.ask("Hi")
        await wire.until("response.done")
        order: list[tuple[str, Span]] = []
        for event in wire.seen:
            if event["type"] == "specstream.avatar.delta":
                order.append((event["cue"]["kind"], Span(*event["cue"]["samples"])))
            elif event["type"] == "response.output_audio.delta":
                order.append(("speech", Span(*event["specstream"]["samples"])))
    assert late(order) == []
    assert len([kind for kind, _ in order if kind != "speech"]) > 40


async def test_where_no_avatar_is_punctual_events_stay_as_they_are() -> None:
    stage = AvatarStage(VisemeScripter(patience_ms=500))
    pipeline = Pipeline([[VoiceStage(ReferenceVoice()), stage]], head=SegmentStage())
    async with pipeline.run(chunks()) as run:
        assert cues_first(pipeline, run) is run
