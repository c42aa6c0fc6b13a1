"""The wrappers around adapters: the turn's clock, provenance, tags, cancel and revoke."""

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from specstream.errors import AdapterFailed, ConfigError
from specstream.stages.contract import Link
from specstream.stages.pipeline import Pipeline, Stage
from specstream.stages.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage
from specstream.testing import chunks_of
from specstream.types import (
    AvatarCue,
    Cancel,
    Flush,
    Phrase,
    Revoke,
    ScenePrompt,
    Span,
    Speech,
    SpeechBuffer,
)
from specstream_adapters.avatar import VisemeScripter
from tests.support.standins import (
    RATE,
    Board,
    Face,
    Script,
    ToneVoice,
    events_by_source,
    feed,
    phrases_of,
    stream,
)

pytestmark = pytest.mark.virtual_time

TEXT = "[wave] Hello there [smile]. No words: [nod]. A third [wink] [blink] one. "
PHRASES = phrases_of(TEXT)


@pytest.mark.parametrize("stage", [VoiceStage, AvatarStage, PromptStage])
def test_a_stage_of_nothing_is_refused_when_it_is_made(stage: Any) -> None:
    with pytest.raises(AdapterFailed, match="None"):
        stage(None)


@pytest.mark.parametrize("deadline_s", ["1", -1, float("nan")])
def test_a_deadline_that_is_no_time_is_refused(deadline_s: Any) -> None:
    with pytest.raises(ConfigError, match="deadline_s must be a number from 0 on"):
        SegmentStage(deadline_s=deadline_s)


class Dictated(ToneVoice):
    """Speaks exactly the buffers that it was given, for every phrase."""

    def __init__(self, *buffers: SpeechBuffer) -> None:
        super().__init__()
        self._buffers = buffers

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        for buffer in self._buffers:
            yield buffer


async def cancelled_while_stalled(stage: Stage[Any, Any], items: list[Any], script: Script) -> list[Any]:
    """Everything the stage yields if the turn is cancelled while its adapter hangs."""
    link: Link[Any] = Link(64)
    for item in items:
        await link.send(item)
    link.close()

    async def cancel() -> None:
        await script.stalled.wait()
        link.cancel(Cancel("enough"))

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        found = [item async for item in stage.run(link)]
    return found


# --- voice --------------------------------------------------------------------------------------


async def test_speech_lies_end_to_end_and_knows_where_it_comes_from() -> None:
    spoken: list[Speech] = await feed(VoiceStage(ToneVoice()), PHRASES)
    at = 0
    for piece in spoken:
        assert piece.samples == Span(at, at + len(piece.pcm) // 2)
        at = piece.samples.end
        phrase = PHRASES[piece.phrase]
        assert (piece.chars, piece.tokens, piece.sample_rate) == (phrase.chars, phrase.tokens, RATE)
        for mark in piece.marks:
            assert mark.samples.end <= at
            if mark.kind == "word":
                assert TEXT[slice(*mark.chars)] == mark.text
    assert [p.phrase for p in spoken if p.last] == [phrase.index for phrase in PHRASES]
    first_of = {p.phrase: p.samples.start for p in reversed(spoken)}
    alone: list[Speech] = await feed(VoiceStage(ToneVoice()), PHRASES[1:2])
    assert b"".join(p.pcm for p in alone) == b"".join(p.pcm for p in spoken if p.phrase == 1)
    assert [m.samples.start + first_of[1] for p in alone for m in p.marks] == [
        m.samples.start for p in spoken if p.phrase == 1 for m in p.marks
    ]


async def test_a_tag_sits_at_the_word_that_follows_it_or_at_the_end() -> None:
    spoken: list[Speech] = await feed(VoiceStage(ToneVoice()), PHRASES)
    marks = [mark for piece in spoken for mark in piece.marks]
    tags = {mark.text: mark for mark in marks if mark.kind == "tag"}
    assert list(tags) == ["wave", "smile", "nod", "wink", "blink"]
    starts = {TEXT[m.chars.start :][:5]: m.samples.start for m in marks if m.kind == "word"}
    assert tags["wave"].samples == Span(0, 0) == Span(starts["Hello"], 0)
    assert tags["smile"].samples.start == starts[". No "]
    assert tags["wink"].samples == tags["blink"].samples == Span(starts["one. "], starts["one. "])
    silent: list[Speech] = await feed(VoiceStage(Dictated(SpeechBuffer(bytes(20)))), PHRASES[:1])
    assert [(m.text, m.samples.start) for m in silent[-1].marks] == [("wave", 10), ("smile", 10)]
    assert (silent[-1].last, silent[-1].pcm) == (True, b"")
    assert tags["nod"].samples.start == starts["words"] + 150 * len("words:") + 7, "at the end"


async def test_revoked_phrases_give_their_place_on_the_clock_back() -> None:
    whole: list[Any] = await feed(VoiceStage(ToneVoice()), PHRASES)
    for kept in range(3):
        again = [*PHRASES[:2], Revoke(PHRASES[kept].chars.start), *PHRASES[kept:], Flush()]
        found: list[Any] = await feed(VoiceStage(ToneVoice()), again)
        at = found.index(Revoke(PHRASES[kept].chars.start))
        assert found[:at] == [piece for piece in whole if piece.phrase < 2]
        assert found[at + 1 : -1] == [piece for piece in whole if piece.phrase >= min(kept, 2)]
        assert found[-1] == Flush()


async def test_a_voice_that_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    spoken: list[Speech] = await feed(VoiceStage(Dictated()), PHRASES)
    assert len([one for one in caplog.messages if "'tone' gave no audio for" in one]) == 1
    assert [(p.pcm, p.samples, p.last) for p in spoken] == [(b"", Span(0, 0), True)] * 3


@pytest.mark.parametrize("stall", [0, 1, 5])
async def test_a_cancel_stops_a_voice_that_hangs(stall: int) -> None:
    script = Script(stall_at=stall)
    voice = VoiceStage(ToneVoice(script))
    found = await cancelled_while_stalled(voice, list(PHRASES), script)
    assert found.pop() == Cancel("enough")
    assert found == (await feed(VoiceStage(ToneVoice()), PHRASES))[: len(found)]
    assert sum(len(piece.pcm) > 0 for piece in found) == stall
    assert script.running == 0, "the generator was closed"
    script.stall_at = None
    assert await feed(voice, PHRASES) == await feed(VoiceStage(ToneVoice()), PHRASES)


async def test_closing_the_stage_closes_the_voice() -> None:
    script = Script()
    link: Link[Phrase] = Link()
    await link.send(PHRASES[0])
    outputs = VoiceStage(ToneVoice(script)).run(link)
    await anext(outputs)
    assert script.running == 1
    await outputs.aclose()
    assert script.running == 0


async def test_a_broken_voice_is_left_at_once() -> None:
    script = Script(break_at=3)
    link: Link[Phrase] = Link()
    await link.send(PHRASES[0])
    outputs = VoiceStage(ToneVoice(script)).run(link)
    for _ in range(3):
        await anext(outputs)
    with pytest.raises(RuntimeError, match="out of paint"):
        await anext(outputs)
    assert script.running == 0


# --- avatar -------------------------------------------------------------------------------------


async def test_the_first_speech_tells_the_sample_rate() -> None:
    opened: list[int] = []

    class Noting(Face):
        def open(self, sample_rate: int) -> Any:
            opened.append(sample_rate)
            return super().open(sample_rate)

    stage = AvatarStage(Noting())
    assert await feed(stage, [Flush(), Cancel()]) == [Flush(), Cancel()]
    assert opened == [], "without speech there is no face to bring to rest"
    for rate in (8000, 22050):
        speech = Speech(bytes(8), rate, Span(0, 4), (), Span(0, 1), Span(0, 1), 0)
        assert len(await feed(stage, [speech, speech])) == 1
    assert opened == [8000, 22050]


@pytest.mark.parametrize("end", ["close", "cancel"])
async def test_the_face_comes_to_rest(end: str) -> None:
    voiced: list[Any] = await feed(VoiceStage(ToneVoice()), PHRASES[:1])
    items = [*voiced, Cancel("enough")] if end == "cancel" else voiced
    cues: list[Any] = await feed(AvatarStage(Face()), items)
    if end == "cancel":
        assert cues.pop() == Cancel("enough")
    assert all(isinstance(cue, AvatarCue) for cue in cues)
    assert cues[-1].name == "sil"
    assert cues[-1].samples.start == voiced[-1].samples.end
    assert [cue.name for cue in cues[:-1]] == [
        mark.text for piece in voiced for mark in piece.marks if mark.kind != "word"
    ]


# --- prompts ------------------------------------------------------------------------------------


def texts(items: list[Any]) -> list[Any]:
    return [item.prompt if isinstance(item, ScenePrompt) else item for item in items]


async def test_a_flush_brings_out_the_open_shot_and_goes_on() -> None:
    a, b, c = (phrase.text for phrase in PHRASES)
    items = [PHRASES[0], Flush(), PHRASES[1], PHRASES[2], Flush()]
    assert texts(await feed(PromptStage(Board()), items)) == [a, Flush(), b, c, Flush()]
    assert texts(await feed(PromptStage(Board()), PHRASES)) == [a, b, c]


async def test_nothing_follows_a_revoke_that_was_made_from_what_it_took_back() -> None:
    one, two, three = PHRASES
    a, b, c = (phrase.text for phrase in PHRASES)
    back = Revoke(two.chars.start)
    found = texts(await feed(PromptStage(Board()), [one, two, back, two, three]))
    assert found == [a, back, b, c]
    found = texts(await feed(PromptStage(Board()), [one, back, two]))
    assert found == [back, a, b], "what lies before the offset is not touched"
    everything = Revoke(0)
    assert texts(await feed(PromptStage(Board()), [one, everything])) == [everything]


@pytest.mark.parametrize(
    ("stall", "items", "before"),
    [
        (1, PHRASES, 0),  # in the middle of a phrase
        (3, PHRASES, 2),  # at the end, when the input is all read
        (1, [PHRASES[0], Flush()], 0),
    ],
)
async def test_a_cancel_stops_a_rewriter_that_hangs(stall: int, items: list[Any], before: int) -> None:
    script = Script(stall_at=stall)
    found = await cancelled_while_stalled(PromptStage(Board(script)), list(items), script)
    assert found[-1] == Cancel("enough")
    assert [item for item in found if item != Flush()][:-1] == (
        await feed(PromptStage(Board()), PHRASES)
    )[:before]


# --- all together -------------------------------------------------------------------------------


async def test_from_text_to_cues_every_piece_can_be_followed_back() -> None:
    text = "Well [smile], hello there. This is fine. And so it ends without a stop"
    branches: list[list[Stage[Any, Any]]] = [
        [VoiceStage(ToneVoice()), AvatarStage(Face())],
        [PromptStage(Board())],
    ]
    line = Pipeline(branches, head=SegmentStage(clock=anyio.current_time))
    async with line.run(stream(chunks_of(text, [2, 1, 3]))) as run:
        found = await events_by_source(run)
    assert "".join(chunk.text for chunk in found["engine"]) == text
    assert "".join(phrase.text for phrase in found["text"]) == text
    for item in [*found["voice"], *found["avatar"][:-1]]:
        assert 0 <= item.chars.start <= item.chars.end <= len(text)
    smile = next(cue for cue in found["avatar"] if cue.kind == "gesture")
    assert text[slice(*smile.chars)] == "[smile]"
    words = [m for s in found["voice"] for m in s.marks if m.kind == "word"]
    assert [text[slice(*mark.chars)] for mark in words] == [mark.text for mark in words]
    assert "".join(shot.prompt for shot in found["prompt"]) == text


def test_an_avatar_without_a_voice_before_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="an avatar follows a voice"):
        Pipeline([[AvatarStage(VisemeScripter())]], head=SegmentStage())
