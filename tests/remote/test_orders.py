"""The checks of remote adapters let through whatever the stages of this package make."""

import random
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from specstream.remote.frames import EndFrame
from specstream.remote.guards import CueOrder, PromptOrder, SpokenOrder
from specstream.remote.order import Order
from specstream.stages.contract import Link
from specstream.stages.stages import AvatarStage, PromptStage, VoiceStage
from specstream.types import Flush, Phrase, Revoke, Span, Tag
from specstream_adapters.avatar import VisemeScripter
from specstream_adapters.prompt import ModelRewriter, TemplateRewriter
from specstream_adapters.voice import ReferenceVoice
from tests.stages.lives import TinyFace, TinyRewriter, TinyVoice
from tests.support.standins import Board, Face, ToneVoice

SENTENCES = (
    "A fox ran over the hill. ",
    "It hid [gasp] in a barn. ",
    "[smile] A dog saw it! ",
    "Rex barked? ",
    "No. ",
    "A **tall** man paid $5 at the bridge on 3 May. ",
    "[wave] ",
    "A red cat sat on a wall, ",
    "and it slept. ",
    "Why not? ",
)


class Writer:
    """A language model that answers at once, now and then with something unusable."""

    def __init__(self) -> None:
        self._count = 0

    async def complete(self, messages: Any, *, max_tokens: int, reference: str = "") -> str:
        self._count += 1
        await anyio.lowlevel.checkpoint()
        return "" if self._count % 3 == 0 else reference.partition("\n")[2]


def phrase_at(text: str, index: int, char: int) -> Phrase:
    tags = tuple(
        Tag(found[1], Span(char + found.start(), char + found.end()))
        for found in re.finditer(r"\[(\w+)\]", text)
    )
    chars = Span(char, char + len(text))
    return Phrase(text, chars, Span(char // 3, chars.end // 3 + 1), index, tags)


def reply(rng: random.Random, *, drafts: bool) -> Iterator[Any]:
    """Phrases, flushes and revokes; drafted phrases come after verified ones, judged in order."""
    given: list[Phrase] = []
    drafted = 0  # how many of the last ones
    for _ in range(rng.randrange(4, 30)):
        chance = rng.random()
        if drafts and drafted and chance < 0.2:
            back = rng.randrange(1, drafted + 1)
            yield Revoke(given[-back].chars.start, drafted=True)
            given, drafted = given[:-back], drafted - back
        elif not drafted and given and chance < 0.3:
            whole = rng.choice(given[-3:]).chars
            char = rng.choice([whole.start, rng.randrange(whole.start, whole.end + 1)])
            yield Revoke(char)
            kept = [phrase for phrase in given if phrase.chars.start < char]
            if kept and kept[-1].chars.end > char:
                last = kept[-1]
                tags = tuple(tag for tag in last.tags if tag.chars.end <= char)
                chars = Span(last.chars.start, char)
                kept[-1] = replace(last, text=last.text[: chars.length], chars=chars, tags=tags)
            given = kept
        elif not drafted and chance < 0.4:
            yield Flush()
        elif drafted < 4:
            index = given[-1].index + 1 if given else 0
            given.append(phrase_at(rng.choice(SENTENCES), index, given[-1].chars.end if given else 0))
            drafted += 1
            yield given[-1]
        if drafted and (not drafts or rng.random() < 0.5):
            drafted -= 1  # the first of them is verified


async def checked(stage: Any, order: Order, items: Sequence[Any], rng: random.Random) -> list[Any]:
    """Run a turn; what the stage makes reaches ``order`` a little later, as through a socket."""
    link: Link[Any] = Link(rng.choice([1, 4, 64]), drafted=True)
    wire: deque[tuple[Any, int]] = deque()
    found: list[Any] = []

    def receive() -> None:
        item, read = wire.popleft()
        found.append(item)
        if isinstance(item, Revoke):
            order.revoke(item)
        elif isinstance(item, Flush):
            order.flush()
        else:
            order.check(item, read)

    async def send() -> None:
        for item in items:
            order.send(item)
            await link.send(item)
            for _ in range(rng.randrange(4)):
                await anyio.lowlevel.checkpoint()
        order.send(EndFrame())
        link.close()

    async with anyio.create_task_group() as group:
        group.start_soon(send)
        async for item in stage.run(link):
            wire.append((item, link.reach))
            while wire and rng.random() < 0.6:
                receive()
    while wire:
        receive()
    order.finish()
    return found


@pytest.mark.parametrize("voice", [ToneVoice, TinyVoice, ReferenceVoice])
@pytest.mark.parametrize(
    "face", [VisemeScripter, lambda: VisemeScripter(patience_ms=800), TinyFace, Face]
)
async def test_speech_and_cues_of_many_replies_pass(
    voice: Callable[[], Any], face: Callable[[], Any]
) -> None:
    revokes = 0
    for seed in range(25):
        rng = random.Random(seed)
        avatar = AvatarStage(face())
        items = list(reply(rng, drafts=avatar.takes_drafts))
        speech = await checked(VoiceStage(voice()), SpokenOrder(), items, rng)
        cues = await checked(avatar, CueOrder(), speech, rng)
        revokes += sum(isinstance(item, Revoke) for item in cues)
    assert revokes > 20


@pytest.mark.parametrize(
    "rewriter", [TemplateRewriter, TinyRewriter, Board, lambda: ModelRewriter(Writer())]
)
async def test_prompts_of_many_replies_pass(rewriter: Callable[[], Any]) -> None:
    revisions = 0
    made = rewriter()  # one for all replies: numbers of shots go on
    for seed in range(60):
        rng = random.Random(seed)
        stage = PromptStage(made)
        items = list(reply(rng, drafts=stage.takes_drafts or seed % 2 == 1))
        prompts = await checked(stage, PromptOrder(), items, rng)
        revisions += sum(getattr(item, "supersedes", None) is not None for item in prompts)
    assert revisions > 20 or not isinstance(made, TemplateRewriter | ModelRewriter)
