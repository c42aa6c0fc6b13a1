"""A mark in speech: every sample once and in place, whatever becomes of a phrase."""

import random
from typing import Any

import anyio
import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable
from specstream.stages.contract import Link
from specstream.stages.interfaces import MarkCapabilities
from specstream.stages.marking import marked
from specstream.stages.pipeline import Pipeline, StageFailed
from specstream.stages.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage
from specstream.testing import chunks_of
from specstream.testing.audit import audit
from specstream.types import Cancel, Phrase, Revoke, Speech
from tests.stages.lives import REPLIES, TinyFace, TinyRewriter, TinyVoice, live, plain, schedule
from tests.support.standins import (
    BitMark,
    BitTrack,
    Face,
    Script,
    ToneVoice,
    events_by_source,
    feed,
    marked_bits,
    phrases_of,
    stream,
)

pytestmark = pytest.mark.virtual_time

PHRASES = phrases_of("[wave] Hello there [smile]. No words: [nod]. A third [wink] one. ")
HELD = (0, 1, 399, 400, 1000, 8000)


def speech_of(items: list[Any]) -> list[Speech]:
    return [item for item in items if isinstance(item, Speech)]


@pytest.mark.parametrize("held", HELD)
async def test_every_sample_is_marked_once_and_spans_stay(held: int) -> None:
    own = speech_of(await feed(VoiceStage(ToneVoice()), PHRASES))
    mark = BitMark(held)
    said = speech_of(await feed(marked(VoiceStage(ToneVoice()), mark), PHRASES))
    assert b"".join(one.pcm for one in said) == marked_bits(b"".join(one.pcm for one in own))
    assert [(o.marks, o.chars, o.tokens, o.phrase, o.last) for o in said] == [
        (o.marks, o.chars, o.tokens, o.phrase, o.last) for o in own
    ]
    clock = 0
    for one in said:
        assert one.samples.start == clock and one.samples.length == len(one.pcm) // 2
        clock = one.samples.end
    ends = [one.samples.end for one in own if one.last]
    assert [one.samples.end for one in said if one.last] == ends, "phrases lie where they lay"
    assert mark.opened == len(PHRASES), "each phrase has a track of its own"


async def test_a_revoked_phrase_leaves_nothing_in_the_next_one() -> None:
    first, second, third = PHRASES
    items = [first, second, Revoke(second.chars.start), third]
    own = await feed(VoiceStage(ToneVoice()), items)
    said = await feed(marked(VoiceStage(ToneVoice()), BitMark(700)), items)
    assert [type(item) for item in said] == [type(item) for item in own]
    for one, other in zip(said, own):
        if isinstance(one, Speech) and one.last:
            assert one.samples.end == other.samples.end


async def test_a_cancel_drops_what_is_held_back() -> None:
    script = Script(stall_at=3)
    stage = marked(VoiceStage(ToneVoice(script)), BitMark(1000))
    link: Link[Phrase] = Link(64)
    await link.send(PHRASES[0])

    async def cancel() -> None:
        await script.stalled.wait()
        link.cancel(Cancel("enough"))

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        items = [item async for item in stage.run(link)]
    assert isinstance(items[-1], Cancel)
    assert sum(one.samples.length for one in speech_of(items)) <= 2 * 400


class NoLast(VoiceStage):
    """A stage that never says that a phrase has ended."""

    async def run(self, items: Any) -> Any:
        async for item in super().run(items):
            if not isinstance(item, Speech) or not item.last:
                yield item


async def test_a_voice_that_ends_no_phrase_is_marked_to_its_end() -> None:
    own = speech_of(await feed(VoiceStage(ToneVoice()), PHRASES))
    said = speech_of(await feed(marked(NoLast(ToneVoice()), BitMark(700)), PHRASES))
    assert b"".join(one.pcm for one in said) == marked_bits(b"".join(one.pcm for one in own))


class Marks(BitMark):
    """Promises no delay, and gives what a subclass or an argument makes of it."""

    def __init__(self, track: type[BitTrack], held: int = 0) -> None:
        super().__init__(held)
        self._track = track
        self.capabilities = MarkCapabilities("odd")

    def open(self, sample_rate: int) -> BitTrack:
        return self._track(self.held)


class Extra(BitTrack):
    async def add(self, pcm: bytes) -> bytes:
        return await super().add(pcm) + b"\0\0"


class Keeps(BitTrack):
    async def close(self) -> bytes:
        return b""


class Halves(BitTrack):
    async def add(self, pcm: bytes) -> bytes:
        return pcm[:-1]


class Texts(BitTrack):
    async def add(self, pcm: bytes) -> Any:
        return "la"


class Breaks(BitTrack):
    async def add(self, pcm: bytes) -> bytes:
        raise OSError("no more room")


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        (Marks(Extra), "gave 1 samples more than it was given"),
        (Marks(BitTrack, 3), "held back 3 samples, and promises at most 0"),
        (Marks(Halves), "half a sample"),
        (Marks(Texts), "gave str as PCM"),
        (Marks(Breaks), "mark 'odd' broke: OSError: no more room"),
    ],
)
async def test_a_broken_promise_is_one_typed_error(mark: BitMark, says: str) -> None:
    with pytest.raises(AdapterFailed, match=says):
        await feed(marked(VoiceStage(ToneVoice()), mark), PHRASES)


async def test_a_mark_that_keeps_samples_is_told() -> None:
    mark = Marks(Keeps, 5)
    mark.capabilities = MarkCapabilities("odd", delay_ms=10)
    with pytest.raises(AdapterFailed, match="kept 5 samples of a phrase"):
        await feed(marked(VoiceStage(ToneVoice()), mark), PHRASES)


def test_what_is_no_mark_is_refused() -> None:
    voice = VoiceStage(ToneVoice())
    with pytest.raises(AdapterUnavailable, match=r"as in BitMark\(\)"):
        marked(voice, BitMark)
    with pytest.raises(AdapterUnavailable, match="lacks capabilities and open"):
        marked(voice, ToneVoice.aclose)
    mark = BitMark()
    for delay in (-1, 2000, float("nan"), "1"):
        mark.capabilities = MarkCapabilities("late", delay)  # type: ignore[arg-type]
        with pytest.raises(AdapterFailed, match="claims a delay"):
            marked(voice, mark)
    mark.capabilities = {}  # type: ignore[assignment]
    with pytest.raises(AdapterFailed, match=r"MarkCapabilities\(\.\.\.\), not dict"):
        marked(voice, mark)


async def test_a_broken_mark_ends_the_speech_and_nothing_else() -> None:
    voice = marked(VoiceStage(ToneVoice()), Marks(Breaks))
    pipeline = Pipeline([[voice, AvatarStage(Face())]], head=SegmentStage())
    async with pipeline.run(stream(chunks_of("One two. Three four. "))) as run:
        found = await events_by_source(run)
    assert [type(item) for item in found["voice"]] == [StageFailed]
    assert found["engine"]
    await voice.aclose()


async def test_voice_and_mark_are_closed_together() -> None:
    script, mark = Script(), BitMark()
    await marked(VoiceStage(ToneVoice(script)), mark).aclose()
    assert script.closed == mark.closed == 1


def _stages() -> list[Any]:
    speaking = marked(VoiceStage(TinyVoice()), BitMark(3))
    return [speaking, AvatarStage(TinyFace()), PromptStage(TinyRewriter())]


def test_schedules_of_drafts_are_marked_as_without_drafts() -> None:
    rng = random.Random(5)
    revoked = 0
    for _ in range(200):
        text = rng.choice(REPLIES)
        found, trace = live(list(schedule(text, rng)), rng, stages=_stages)
        unmarked = plain(text)
        heard, own = (
            b"".join(one.pcm for one in speech_of(each["voice"])) for each in (found, unmarked)
        )
        assert heard == marked_bits(own)
        assert len(found["avatar"]) == len(unmarked["avatar"])
        assert audit(trace, takers=("voice", "avatar", "prompt")) == []
        revoked += any(isinstance(event.item, Revoke) for event in trace)
    assert revoked > 50
