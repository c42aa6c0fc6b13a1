"""From draft to release: nothing that a draft brought about is seen unless it is verified."""

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from specstream.errors import AdapterFailed
from specstream.remote.server import adapter_server
from specstream.remote.stage import RemoteStage
from specstream.stages.adapters import AdapterKind
from specstream.stages.drafts import DraftEvent, DraftLedger
from specstream.stages.pipeline import Pipeline, StageFailed
from specstream.stages.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage
from specstream.testing.audit import audit
from specstream.types import Chunk, Phrase, Preview, Revoke, Span, Speech, SpeechBuffer
from specstream_adapters.avatar.script import VisemeScripter
from specstream_adapters.prompt.template import TemplateRewriter
from specstream_adapters.voice.reference import ReferenceVoice
from tests.stages.lives import (
    ALWAYS,
    REPLIES,
    Bend,
    Previewing,
    Station,
    TinyFace,
    TinyRewriter,
    TinyVoice,
    live,
    plain,
    schedule,
)
from tests.support.standins import events_by_source

pytestmark = pytest.mark.slow

TAKERS = ("voice", "avatar", "prompt")


@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_schedules_of_drafts_leave_no_mark(seed: int) -> None:
    rng = random.Random(seed)
    revoked = 0
    for _ in range(2_000):
        text = rng.choice(REPLIES)
        found, trace = live(list(schedule(text, rng)), rng)
        assert found == plain(text)
        assert audit(trace, takers=TAKERS) == []
        revoked += any(isinstance(event.item, Revoke) for event in trace)
    assert revoked > 1_000


class Deaf(VoiceStage):
    """Keeps every revoke to itself."""

    async def run(self, items: Any) -> AsyncGenerator[Any, None]:
        async for item in super().run(items):
            if not isinstance(item, Revoke):
                yield item


class Stuttering(AvatarStage):
    """Revokes twice."""

    async def run(self, items: Any) -> AsyncGenerator[Any, None]:
        async for item in super().run(items):
            yield item
            if isinstance(item, Revoke):
                yield item


class Stubborn(VoiceStage):
    """Goes on with what it was saying when that is revoked."""

    async def run(self, items: Any) -> AsyncGenerator[Any, None]:
        said: list[Speech] = []
        async for item in super().run(items):
            yield item
            if isinstance(item, Speech):
                said.append(item)
            elif isinstance(item, Revoke) and said:
                yield said[-1]


def released_at_once(stations: list[Station], life: DraftLedger) -> None:
    life.state = lambda end, revokes: "verified"  # type: ignore[method-assign]


def released_although_revoked(stations: list[Station], life: DraftLedger) -> None:
    state = life.state

    def wrong(end: int, revokes: int) -> Any:
        return "verified" if state(end, revokes) == "revoked" else state(end, revokes)

    life.state = wrong  # type: ignore[method-assign]


def last_in_first_out(stations: list[Station], life: DraftLedger) -> None:
    note, late = life.note, list[Any]()

    def swapped(kind: Any, who: str, what: Any) -> None:
        if (kind, who) != ("released", "voice"):
            note(kind, who, what)
            return
        late.append(what)
        if len(late) == 2:
            note(kind, who, late.pop())
            note(kind, who, late.pop())

    life.note = swapped  # type: ignore[method-assign]


def head_releases_twice(stations: list[Station], life: DraftLedger) -> None:
    note = life.note

    def twice(kind: Any, who: str, what: Any) -> None:
        note(kind, who, what)
        if kind == "released" and isinstance(what, Phrase):
            note(kind, who, what)

    life.note = twice  # type: ignore[method-assign]


def head_forgets(stations: list[Station], life: DraftLedger) -> None:
    note = life.note

    def silent(kind: Any, who: str, what: Any) -> None:
        if kind != "released" or not isinstance(what, Phrase):
            note(kind, who, what)

    life.note = silent  # type: ignore[method-assign]


def forgotten(stations: list[Station], life: DraftLedger) -> None:
    stations[1].gate.ready = lambda: None  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("voice", "avatar", "bend", "fault", "stage"),
    [
        (Deaf, AvatarStage, None, "orphan", "voice"),
        (Stubborn, AvatarStage, None, "orphan", "voice"),
        (VoiceStage, Stuttering, None, "double revoke", "avatar"),
        (VoiceStage, AvatarStage, released_at_once, "early", "voice"),
        (VoiceStage, AvatarStage, released_although_revoked, "rejected", "voice"),
        (VoiceStage, AvatarStage, last_in_first_out, "order", "voice"),
        (VoiceStage, AvatarStage, forgotten, "lost", "avatar"),
        (VoiceStage, AvatarStage, head_releases_twice, "order", "text"),
        (VoiceStage, AvatarStage, head_forgets, "lost", "text"),
    ],
)
def test_the_audit_finds_planted_bugs(
    voice: Any, avatar: Any, bend: Bend | None, fault: str, stage: str
) -> None:
    def stages() -> list[Any]:
        return [voice(TinyVoice()), avatar(TinyFace()), PromptStage(TinyRewriter())]

    rng = random.Random(2)
    found = set()
    for _ in range(40):
        events = list(schedule(rng.choice(REPLIES), rng))
        _, trace = live(events, rng, bend or (lambda stations, life: None), stages)
        found |= {(finding.fault, finding.stage) for finding in audit(trace, takers=TAKERS)}
    assert (fault, stage) in found


TEXT = "Well, Dr. Lee is here [smile]. It is 5 p.m. now! Is it? No. And so it goes on. Yes."


def fast_voice() -> ReferenceVoice:
    return ReferenceVoice(sample_rate=8000, speed=2.0)


@asynccontextmanager
async def far(kind: AdapterKind, make: Callable[[], Any]) -> AsyncGenerator[RemoteStage, None]:
    async with adapter_server(kind, make) as port:
        async with RemoteStage(f"ws://127.0.0.1:{port}", kind, takes_drafts=True) as stage:
            yield stage


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_what_a_run_gives_out_is_the_same_with_drafts(where: str) -> None:
    async def turn(events: list[Any], voice: Any, avatar: Any, **options: Any) -> dict[str, Any]:
        branches: list[list[Any]] = [[voice, avatar], [PromptStage(TemplateRewriter())]]
        line = Pipeline(branches, head=SegmentStage(**options), presynthesis=ALWAYS, trace=note)
        reply = Previewing(events)
        async with line.run(reply) as run:
            found = await events_by_source(run)
        assert reply.asked == ("drafts" in options)
        assert found.pop("engine") == [item for item in events if isinstance(item, Chunk)]
        found["text"] = [replace(phrase, t_ms=0.0) for phrase in found["text"]]
        return found

    trace: list[DraftEvent] = []
    note = trace.append
    async with AsyncExitStack() as stack:
        voice: Any = VoiceStage(fast_voice())
        avatar: Any = AvatarStage(VisemeScripter())
        plain = await turn(list(schedule(TEXT, random.Random(0))), voice, avatar)
        if where == "elsewhere":
            voice = await stack.enter_async_context(far("voice", fast_voice))
            avatar = await stack.enter_async_context(far("avatar", VisemeScripter))
        revoked = 0
        for seed in range(6):
            trace.clear()
            events = list(schedule(TEXT, random.Random(seed)))
            assert await turn(events, voice, avatar, drafts=True) == plain
            assert audit(trace, takers=TAKERS) == []
            given = [event.item for event in trace if event.kind == "given"]
            revoked += sum(isinstance(item, Revoke) for item in given)
        assert revoked > 3


async def test_a_cancel_at_any_time_lets_nothing_out_that_was_held() -> None:
    events = list(schedule(TEXT, random.Random(3)))
    for stop_at in range(0, 60, 4):
        trace: list[DraftEvent] = []
        line = Pipeline(
            [[VoiceStage(TinyVoice()), AvatarStage(TinyFace())]],
            head=SegmentStage(drafts=True),
            presynthesis=ALWAYS,
            trace=trace.append,
            capacity=3,
        )
        with anyio.fail_after(5):
            async with line.run(Previewing(events)) as run:
                seen = 0
                async for _ in run:
                    seen += 1
                    if seen == stop_at:
                        run.cancel()
        assert audit(trace) == []


async def test_the_head_goes_on_while_a_stage_waits_for_its_verdict_whatever_the_capacity() -> None:
    text = "I see. It ran. We did. So be it. He sat. Now go. "
    size = len(text)
    ids, span, ends = tuple(range(size)), Span(0, size), tuple(range(1, size + 1))
    events = [Preview(text, ids, span, span, ends), Chunk(text, ids, span, span, ends)]
    line = Pipeline(
        [[VoiceStage(TinyVoice())]], head=SegmentStage(drafts=True), presynthesis=ALWAYS, capacity=1
    )
    with anyio.fail_after(5):
        async with line.run(Previewing(events)) as run:
            found = await events_by_source(run)
    assert "".join(phrase.text for phrase in found["text"]) == text


class Breaking(TinyVoice):
    """Breaks at a phrase."""

    def __init__(self, at: int) -> None:
        self.left = at

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        async for buffer in super().synthesize(phrase):
            yield buffer
        self.left -= 1
        if not self.left:
            raise AdapterFailed("out of breath")


@pytest.mark.parametrize("broken", ["voice", "text"])
async def test_a_stage_that_breaks_ends_its_branch_behind_what_was_verified(broken: str) -> None:
    for seed in range(8):
        events = list(schedule(TEXT, random.Random(seed)))
        if broken == "text":
            last = events[-1]
            events[-1] = replace(last, chars=Span(0, last.chars.length))
        line = Pipeline(
            [[VoiceStage(Breaking(3 if broken == "voice" else 99)), AvatarStage(TinyFace())]],
            head=SegmentStage(drafts=True),
            presynthesis=ALWAYS,
        )
        with anyio.fail_after(5):
            async with line.run(Previewing(events)) as run:
                found = await events_by_source(run)
        failures = [item for item in found[broken] if isinstance(item, StageFailed)]
        assert len(failures) == 1 and found[broken][-1] is failures[0]
        spoken = {item.phrase for item in found["voice"] if isinstance(item, Speech)}
        assert spoken >= {0, 1}


async def test_lookahead_and_drafts_together_lose_nothing() -> None:
    for seed in range(12):
        trace: list[DraftEvent] = []
        line = Pipeline(
            [[VoiceStage(TinyVoice()), AvatarStage(TinyFace())], [PromptStage(TinyRewriter())]],
            head=SegmentStage(drafts=True, lookahead=True),
            presynthesis=ALWAYS,
            trace=trace.append,
        )
        async with line.run(Previewing(list(schedule(TEXT, random.Random(seed))))) as run:
            found = await events_by_source(run)
        assert "".join(phrase.text for phrase in found["text"]) == TEXT
        assert len(b"".join(speech.pcm for speech in found["voice"])) == 2 * len(TEXT)
        assert audit(trace, takers=TAKERS) == []
