"""Scene prompts of drafted text: the shot list is that without drafts, here and behind a socket."""

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import anyio
import pytest

from specstream.errors import ProtocolError
from specstream.remote import frames as codec, protocol
from specstream.remote.frames import PromptFrame
from specstream.remote.server import adapter_server
from specstream.remote.stage import RemoteStage
from specstream.stages.drafts import DraftEvent
from specstream.stages.pipeline import Pipeline, StageFailed
from specstream.stages.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage
from specstream.testing.audit import audit
from specstream.types import Chunk, Flush, Revoke, ScenePrompt
from specstream_adapters.prompt import ModelRewriter, TemplateRewriter
from tests.adapters.test_prompt_template import STORIES, phrases
from tests.stages.lives import ALWAYS, Previewing, TinyFace, TinyRewriter, TinyVoice, live, schedule
from tests.support.standins import events_by_source

SEEN = (
    "A fox ran. It hid. A dog saw it! Rex barked? No. A cat sat on a wall.",
    "Dr. Lee saw a dog. He ran. A man sat, a boy stood. Yes! It is 5 p.m. now.",
)
TAKERS = ("voice", "avatar", "prompt")


def stages() -> list[Any]:
    return [VoiceStage(TinyVoice()), AvatarStage(TinyFace()), PromptStage(TemplateRewriter())]


def test_shot_lists_of_many_schedules_are_those_without_drafts() -> None:
    rng = random.Random(1)
    revoked = 0
    for text in SEEN:
        verified = [e for e in schedule(text, random.Random(0)) if isinstance(e, Chunk)]
        plain = live(verified, random.Random(0), stages=stages)[0]
        assert len(plain["prompt"]) >= 3
        for _ in range(60):
            found, trace = live(list(schedule(text, rng)), rng, stages=stages)
            assert found == plain
            assert audit(trace, takers=TAKERS) == []
            made = [e.item for e in trace if e.kind == "dropped" and e.stage == "prompt"]
            revoked += any(isinstance(item, ScenePrompt) for item in made)
    assert revoked > 15


@asynccontextmanager
async def board(where: str, make: Callable[[], Any]) -> AsyncGenerator[Any, None]:
    if where == "here":
        yield PromptStage(make())
        return
    async with adapter_server("prompt", make) as port:
        async with RemoteStage(f"ws://127.0.0.1:{port}", "prompt", takes_drafts=True) as stage:
            yield stage


async def shots(
    events: list[Any], prompt: Any, trace: list[DraftEvent], **options: Any
) -> dict[str, list[Any]]:
    line = Pipeline(
        [[VoiceStage(TinyVoice())], [prompt]],
        head=SegmentStage(**options),
        presynthesis=ALWAYS,
        trace=trace.append,
    )
    with anyio.fail_after(20):
        async with line.run(Previewing(events)) as run:
            return await events_by_source(run)


@pytest.mark.parametrize("make", [TemplateRewriter, TinyRewriter])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_wherever_the_board_is_its_shots_are_those_without_drafts(
    where: str, make: Callable[[], Any]
) -> None:
    revoked = 0
    for seed in range(12):
        text, trace = SEEN[seed % 2], list[DraftEvent]()
        plain = await shots(list(schedule(text, random.Random(0))), PromptStage(make()), [])
        async with board(where, make) as prompt:
            events = list(schedule(text, random.Random(seed)))
            found = await shots(events, prompt, trace, drafts=True)
        assert found["prompt"] == plain["prompt"]
        assert audit(trace, takers=("voice", "prompt")) == []
        given = [event.item for event in trace if event.kind == "given"]
        revoked += sum(isinstance(item, Revoke) for item in given)
    assert revoked > 12


async def test_a_flush_keeps_its_place_among_drafts() -> None:
    for seed in range(60):
        rng, events = random.Random(seed), list[Any]()
        for item in schedule(SEEN[seed % 2], rng):
            events += [item, Flush()] if rng.random() < 0.2 else [item]
        plain = await shots(events, PromptStage(TemplateRewriter()), [])
        trace: list[DraftEvent] = []
        found = await shots(events, PromptStage(TemplateRewriter()), trace, drafts=True)
        assert (found["prompt"], found["voice"]) == (plain["prompt"], plain["voice"])
        assert audit(trace, takers=("voice", "prompt")) == []


async def test_a_board_that_does_not_say_what_it_read_is_given_no_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A third-party adapter, which leaves ``read`` out."""

    def encode(frame: Any) -> Any:
        known = isinstance(frame, PromptFrame)
        return codec.encode(frame.model_copy(update={"read": None}) if known else frame)

    monkeypatch.setattr(protocol, "encode", encode)
    events = list(schedule(SEEN[0], random.Random(0)))
    async with board("elsewhere", TemplateRewriter) as stage:
        found = await shots(events, stage, [], drafts=True)
        [failed] = [item for item in found["prompt"] if isinstance(item, StageFailed)]
        assert isinstance(failed.error, ProtocolError) and "'read'" in str(failed.error)
        stage.takes_drafts = False
        found = await shots(events, stage, [], drafts=True)
        plain = await shots(events, PromptStage(TemplateRewriter()), [])
        assert found["prompt"] == plain["prompt"]


async def test_a_model_is_never_asked_about_drafted_text() -> None:
    """Its work would be wasted whenever a draft is rejected, so it is asked about verified text."""

    class Writer:
        asked = list[str]()

        async def complete(self, messages: Any, *, max_tokens: int, reference: str = "") -> str:
            self.asked.append(reference.partition("\n")[0])
            return ""

    for seed in range(6):
        Writer.asked, text = [], SEEN[seed % 2]
        stage, trace = PromptStage(ModelRewriter(Writer())), list[DraftEvent]()
        assert not stage.takes_drafts
        found = await shots(list(schedule(text, random.Random(seed))), stage, trace, drafts=True)
        assert Writer.asked and {*Writer.asked} <= {shot.action for shot in found["prompt"]}
        assert audit(trace, takers=["voice"]) == []


@pytest.mark.parametrize("name", ["tale", "space", "german"])
async def test_a_copy_of_a_board_goes_on_as_if_nothing_had_come_between(name: str) -> None:
    text = STORIES[name]
    for at in range(len(phrases(text))):
        rewriter, other = TemplateRewriter(), TemplateRewriter()
        board, plain = rewriter.open(), other.open()
        for phrase in phrases(text)[:at]:
            assert await board.add(phrase) == await plain.add(phrase)
        kept = deepcopy(board)
        for phrase in phrases(text)[at:]:
            await board.add(replace(phrase, text=phrase.text.swapcase()))
        await board.revoke(0)
        for phrase in phrases(text)[at:]:
            assert await kept.add(phrase) == await plain.add(phrase)
        assert await kept.close() == await plain.close()
        # The next reply's shots have the numbers behind it.
        (first,), (second,) = [
            await r.open().add(phrases("A fox ran off.")[0]) for r in (rewriter, other)
        ]
        assert first == second


async def test_numbers_never_come_twice_where_boards_of_one_rewriter_take_turns() -> None:
    rewriter, rng = TemplateRewriter(), random.Random(3)
    boards = [rewriter.open() for _ in range(3)]
    kept = [deepcopy(board) for board in boards]
    at, seen = [0] * 3, set[str]()
    for _ in range(60):
        n = rng.randrange(3)
        text = "A fox ran off. " * (at[n] + 1)
        phrase = phrases(text)[at[n]]
        made = {shot.shot_id for shot in await boards[n].add(phrase)}
        if rng.random() < 0.4:  # it was drafted only, and is revoked
            boards[n], kept[n] = kept[n], deepcopy(kept[n])
            continue
        assert made and not made & seen
        seen |= made
        kept[n], at[n] = deepcopy(boards[n]), at[n] + 1
