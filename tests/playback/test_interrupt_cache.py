"""What an interruption leaves in a real engine's cache, counted in tokens."""

import re

import pytest

from specstream import Engine, SamplingParams, Session
from specstream.engine.core.step import EngineCore
from specstream.playback.playout import Playout
from specstream.playback.turn import Interruption
from specstream.stages.pipeline import Hold, Pipeline
from specstream.stages.stages import SegmentStage, VoiceStage
from specstream.types import Speech
from tests.server.doubles import WordVoice, wait_for

PARAMS = SamplingParams(max_tokens=40)
SHORT = SamplingParams(max_tokens=12)
SYSTEM = "You are a storyteller. Mark feelings and gestures in brackets."
ASKED = "Tell me about a beaver who builds a radio."


@pytest.fixture
def engine() -> Engine:
    return Engine.load(proposer="off", dtype="float32")


def pipeline() -> Pipeline:
    return Pipeline([[VoiceStage(WordVoice())]], head=SegmentStage())


async def cached(engine: Engine) -> tuple[int, int]:
    """Tokens in the one conversation's cache, and slots in use, once the engine has come that far."""

    def look(core: EngineCore) -> tuple[int, int]:
        slots = core.slots
        assert len(slots.kept) < 2
        slot = next(iter(slots.kept.values()), None)
        if slot is not None:
            assert len(slot.rows) == slot.cache.length
        return slot.cache.length if slot is not None else -1, slots.in_use

    return await engine.ask(look)


async def settled(engine: Engine) -> tuple[int, int]:
    while (found := await cached(engine))[1]:
        pass
    return found


async def interrupted(session: Session, words: int, *, whole: bool) -> tuple[Interruption, int]:
    """A turn of which ``words`` words are heard, and its prompt's length in tokens."""
    async with session.turn(ASKED, pipeline(), Playout(paced=False), PARAMS) as turn:
        spoken = 0
        async for event in turn:
            if isinstance(event.item, Speech):
                spoken += sum(mark.kind == "word" for mark in event.item.marks)
            if not whole and turn.text and spoken >= words:
                await wait_for(lambda: turn.played_ms >= words * 200)
                break
        return turn.interrupt(words * 200 + 10), turn.reply.report.prompt_tokens


async def test_history_and_cache_end_at_the_last_word_heard_and_the_rest_is_reused(
    engine: Engine,
) -> None:
    """While the model writes (False), and after it has written all (True)."""
    async with engine:
        for words, whole in ((0, False), (2, False), (7, False), (0, True), (5, True)):
            async with engine.session(SYSTEM) as session:
                made, prompt = await interrupted(session, words, whole=whole)
                spoken = re.sub(r"\[.*?\]", " ", made.heard)
                assert len(re.findall(r"\w+", spoken)) == words
                length, used = await settled(engine)
                assert used == 0 and length == prompt + made.tokens_kept
                last = session.messages[-1]
                assert last["content"] == (made.heard if words else ASKED)
                async with session.generate("Go on.", PARAMS) as generation:
                    text = "".join([chunk.text async for chunk in generation])
                report = generation.report
                # What the prompts share was not read again, but for a token that ends otherwise.
                assert length - 4 <= report.reused_tokens <= length
                assert report.prompt_tokens - report.reused_tokens <= 12
                async with engine.generate(session.messages[:-1], PARAMS) as fresh:
                    assert text == "".join([chunk.text async for chunk in fresh])
                assert fresh.report.reused_tokens < fresh.report.prompt_tokens


async def test_a_turn_interrupted_before_prefill_leaves_no_slot_and_the_old_cache(
    engine: Engine,
) -> None:
    async with engine, engine.session(SYSTEM) as session:
        async with session.turn(ASKED, pipeline(), Playout(paced=False), PARAMS) as turn:
            async for _ in turn:
                pass
        before, _ = await settled(engine)
        async with session.turn("wait", pipeline(), Playout(paced=False), PARAMS) as turn:
            assert turn.interrupt().heard == ""
        after, used = await settled(engine)
        assert used == 0 and after <= before
        assert [m["role"] for m in session.messages][-2:] == ["assistant", "user"]
        async with session.generate("go on", PARAMS) as generation:
            async for _ in generation:
                pass
            assert generation.report.reused_tokens >= after - 2


async def test_an_answer_that_nobody_wanted_leaves_its_prompt_only(engine: Engine) -> None:
    async with engine, engine.session(SYSTEM) as session:
        hold = Hold(20)
        async with session.turn(ASKED, pipeline(), Playout(), PARAMS, hold=hold) as turn:
            await wait_for(lambda: len(turn.reply.report.token_ids) > 5)
        assert (await settled(engine))[0] == turn.reply.report.prompt_tokens
        assert [message["role"] for message in session.messages] == ["system"]
        longer = ASKED[:-1] + " at night."
        async with session.generate(longer, SHORT, reference=turn.reply.text) as generation:
            text = "".join([chunk.text async for chunk in generation])
        assert generation.report.reused_tokens > 10, "what the two questions share"
        async with engine.generate(session.messages[:-1], SHORT) as fresh:
            assert text == "".join([chunk.text async for chunk in fresh])
