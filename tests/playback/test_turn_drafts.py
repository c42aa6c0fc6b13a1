"""A turn whose voice speaks drafted text: what is heard and remembered is what it is without."""

import random
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from specstream.stages.drafts import DraftEvent
from specstream.stages.pipeline import Pipeline
from specstream.stages.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage
from specstream.testing import ScriptedGeneration
from specstream.testing.audit import audit
from specstream.types import Chunk, Preview, Revoke, Span
from specstream_adapters.prompt.template import TemplateRewriter
from tests.server.doubles import OneCueFace
from tests.stages.lives import ALWAYS, schedule
from tests.support.turns import Stage

pytestmark = pytest.mark.virtual_time
TEXT = "A fox ran. It hid. A dog saw it! Rex barked? No. A cat sat on a wall."


def reply(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[Chunk]:
    """A random schedule's chunks; the generation shows its drafts to who asks."""
    events = list(schedule(TEXT, random.Random(seed)))
    previews = {item.round: item for item in events if isinstance(item, Preview)}

    async def previewed(self: ScriptedGeneration) -> AsyncGenerator[Chunk | Preview, None]:
        while self.ahead:
            if (preview := previews.pop(self.ahead[0].round, None)) is not None:
                yield preview
            try:
                yield await anext(self)
            except StopAsyncIteration:
                return

    monkeypatch.setattr(ScriptedGeneration, "previewed", previewed, raising=False)
    chunks = [item for item in events if isinstance(item, Chunk)]
    last = chunks[-1].tokens.end
    end = Chunk("", (), Span(last, last), Span(len(TEXT), len(TEXT)), finish_reason="stop")
    return [*chunks, end]


async def heard(chunks: list[Chunk], stop_s: float, trace: list[DraftEvent], drafts: bool) -> Any:
    stage = Stage(chunks)
    stage.pipeline = Pipeline(
        [[VoiceStage(stage.voice), AvatarStage(OneCueFace())], [PromptStage(TemplateRewriter())]],
        head=SegmentStage(clock=anyio.current_time, drafts=drafts),
        presynthesis=ALWAYS,
        trace=trace.append,
    )
    async with stage.reading() as (turn, task):
        await anyio.sleep(stop_s)
        outcome = turn.interrupt()
        await task
    assert stage.voice.speaking == 0
    return outcome, stage.sound.pcm, stage.told(), stage.engine.trimmed


@pytest.mark.parametrize("seed", range(3))
async def test_an_interruption_cuts_at_the_same_word(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    revokes = 0
    for stop_s in (0.01, 0.3, 0.75, 1.5, 2.2, 3.1, 9.0):
        trace: list[DraftEvent] = []
        plain = await heard(reply(seed, monkeypatch), stop_s, [], drafts=False)
        assert await heard(reply(seed, monkeypatch), stop_s, trace, drafts=True) == plain
        assert audit(trace, takers=("voice", "prompt")) == []
        revokes += sum(isinstance(event.item, Revoke) for event in trace)
    assert revokes > 10
