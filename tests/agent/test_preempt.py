"""Answers that are begun before the question is over: kept, dropped, bounded, and never seen early."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from specstream import Agent
from specstream.agent import Preempt, ReplyEnded, ReplyFailed, ReplyStarted
from specstream.engine.protocol import EngineCapabilities
from specstream.errors import AdapterFailed, ConfigError, PromptError
from specstream.listening.events import TurnHeard, TurnPaused
from specstream.listening.preempt import Ledger
from specstream.listening.taking import Guess, Question
from specstream.testing import ScriptedEngine, ScriptedModel
from specstream.types import Chunk, Phrase, Speech
from tests.support.rooms import Room
from tests.support.turns import TEXT, first

pytestmark = pytest.mark.virtual_time
ASKED = "Tell me a tale."


def model(*replies: str) -> ScriptedModel:
    return ScriptedModel(replies or (TEXT,), first_token_ms=100, round_ms=20, drafted=0)


async def ask(room: Room, ms: int = 400) -> None:
    await room.speak(ms)
    await room.speak(600, silence=True)
    await anyio.sleep(5)


def first_time(room: Room, kind: type) -> float:
    return next(at for at, e in zip(room.times, room.events, strict=True) if isinstance(e.item, kind))


def late(room: Room) -> float:
    """Seconds from the end of the question to the first speech."""
    return first_time(room, Speech) - first_time(room, TurnHeard)


async def test_an_answer_that_was_wanted_comes_sooner_and_is_the_same() -> None:
    plain, room = Room([ASKED], engine=model()), Room([ASKED], engine=model(), preempt=Preempt())
    for each in (plain, room):
        async with each.talking():
            await ask(each)
            assert each.told() == [ASKED, TEXT]
    kinds = [e for e in room.events if isinstance(e.item, Chunk | Phrase | Speech)]
    heard = next(e.seq for e in room.events if isinstance(e.item, TurnHeard))
    assert all(e.seq > heard for e in kinds), "nothing is given before the question is over"
    assert [e.seq for e in room.events] == list(range(len(room.events)))
    assert room.sound.pcm == plain.sound.pcm
    assert room.made(Chunk) == plain.made(Chunk)
    assert len(room.engine.requests) == 1 and room.engine.requests == plain.engine.requests
    assert room.engine.tools == [None], "an answer that is held back could call none"
    paused, over = first_time(room, TurnPaused), first_time(room, TurnHeard)
    gain = late(plain) - late(room)
    assert gain == pytest.approx(min(over - paused, late(plain)), abs=0.002) and gain > 0.1
    report = room.agent.preempted
    assert (report.starts, report.hits, report.wasted_tokens) == (1, 1, 0)
    assert report.saved_ms == pytest.approx(gain * 1e3, abs=2)
    assert "1 of 1 were wanted" in report.words
    assert not plain.agent.preempted.on and plain.agent.preempted.starts == 0


async def test_other_words_get_another_answer_drafted_from_the_first() -> None:
    spoken: list[str] = []
    vain, wanted = "Sure. One two three four.", "Sure. Five six seven eight."
    room = Room(["Tell me a tale now please."], engine=model(vain, wanted), preempt=Preempt())
    room.voice.synthesize = _noting(room.voice.synthesize, spoken)  # type: ignore[method-assign]
    async with room.talking():
        await room.speak(400)
        await room.speak(240, silence=True)  # a pause, but not long enough
        await ask(room, 200)
        assert room.told() == ["Tell me a tale now please.", wanted]
    assert [r[0][-1]["content"] for r in room.engine.requests] == [
        "Tell me a tale now",
        "Tell me a tale now please.",
    ]
    assert room.engine.references[0] == ""
    assert vain.startswith(room.engine.references[1]) and room.engine.references[1]
    assert spoken[0] == "Sure." and spoken.count("Sure.") == 1, "kept, not spoken twice"
    report = room.agent.preempted
    assert report.starts - report.hits == 1 and report.wasted_tokens > 0
    assert report.wasted_audio_s == pytest.approx(0), "all that was spoken was used"
    assert room.engine.trimmed == [1] and room.engine.learnt == [False, False]
    assert report.redrafted == 1 and report.accepted_tokens == 0
    assert "".join(chunk.text for chunk in room.made(Chunk)) == wanted
    [ended] = room.made(ReplyEnded)
    assert (ended.reply, ended.outcome.complete) == (0, True)


async def test_an_engine_that_drafts_from_no_text_is_given_none() -> None:
    engine = model("Sure. One two three four.", "Sure. Five six seven eight.")
    engine.capabilities = EngineCapabilities()
    room = Room(["Tell me a tale now please."], engine=engine, preempt=Preempt())
    async with room.talking():
        await room.speak(400)
        await room.speak(240, silence=True)
        await ask(room, 200)
        assert room.told()[0] == "Tell me a tale now please."
    assert len(engine.references) == 2 and engine.references == ["", ""]
    assert room.agent.preempted.redrafted == 0


def _noting(synthesize: Any, spoken: list[str]) -> Any:
    def noted(phrase: Phrase) -> Any:
        spoken.append(phrase.spoken.strip())
        return synthesize(phrase)

    return noted


@pytest.mark.parametrize("heard", ["", AdapterFailed("no model")])
async def test_without_a_question_nothing_is_said_and_nothing_remembered(heard: Any) -> None:
    class Half(Room):
        """Words in the pause that the final transcript doesn't have."""

        async def speak(self, ms: int, *, silence: bool = False) -> None:
            await super().speak(ms, silence=silence)
            if not silence:
                for stream in streams:
                    stream._text = heard

    streams: list[Any] = []
    room = Half([ASKED], engine=model(), preempt=Preempt(in_speech=True))
    opens = room.recognizer.open

    def opened(*args: Any, **options: Any) -> Any:
        streams.append(opens(*args, **options))
        return streams[-1]

    room.recognizer.open = opened  # type: ignore[method-assign]
    async with room.talking() as agent:
        await ask(room)
        assert room.told() == [] and room.agent.preempted.starts > 0
        await agent.say("And?")
        await anyio.sleep(5)
        assert room.told() == ["And?", TEXT]
    assert room.engine.generations[0].report.finish_reason == "cancelled"
    assert [e.asked for e in room.made(ReplyStarted)] == ["And?"]
    assert room.made(ReplyEnded)[0].reply == 0


async def test_a_typed_question_waits_for_the_spoken_one() -> None:
    room = Room([ASKED], engine=model("Yes."), preempt=Preempt(), silence_ms=2000)
    async with room.talking() as agent:
        await agent.say("Well?")
        await anyio.sleep(1)
        await room.speak(400)
        await room.speak(400, silence=True)
        await agent.say("And?")  # while the same "Yes." is held back
        await room.speak(2000, silence=True)
        await anyio.sleep(3)
    assert room.told() == ["Well?", "Yes.", ASKED, "Yes.", "And?", "Yes."]
    assert room.agent.preempted.starts == 1 and room.agent.preempted.hits == 1


async def test_leaving_while_an_answer_is_held_back_ends_it() -> None:
    long = model(" ".join(["word"] * 400) + ".")
    room = Room([ASKED], engine=long, preempt=Preempt(), silence_ms=5000)
    async with room.agent as agent:
        reading = asyncio.create_task(room._read())
        await room.speak(400)
        await room.speak(400, silence=True)
        assert len(room.engine.generations) == 1 and agent.messages == []
        assert agent.interrupt() is None, "there is nothing that anybody hears"
    await reading
    assert room.engine.generations[0].report.finish_reason == "cancelled"
    assert room.voice.speaking == 0 and room.sound.pcm == b""


@pytest.mark.parametrize("at_once", [False, True])
async def test_an_edited_history_gets_a_new_answer(at_once: bool) -> None:
    room = Room([ASKED], engine=Slow([TEXT]), preempt=Preempt(), silence_ms=1000)
    async with room.talking() as agent:
        await room.speak(400)
        while at_once and not room.engine.requests:  # it is still being submitted
            await room.speak(20, silence=True)
        await room.speak(0 if at_once else 400, silence=True)
        agent.messages.append({"role": "system", "content": "Be brief."})
        await ask(room, 0)
    assert room.told() == ["Be brief.", ASKED, TEXT]
    assert [len(messages) for messages, _ in room.engine.requests] == [1, 2]


class Slow(ScriptedEngine):
    """Takes a while to accept a request."""

    @asynccontextmanager
    async def generate(self, *args: Any, **options: Any) -> Any:
        async with super().generate(*args, **options) as generation:
            await anyio.sleep(0.1)
            yield generation


class Failing(ScriptedModel):
    """The first request breaks, before or behind its first chunks."""

    def __init__(self, *, refuses: bool) -> None:
        super().__init__([TEXT], first_token_ms=100, round_ms=20, drafted=0)
        self._refuses = refuses
        self.left = 1

    def generate(self, *args: Any, **options: Any) -> Any:
        self.left, first = self.left - 1, self.left
        if first > 0 and self._refuses:
            raise PromptError("no")
        return super().generate(*args, **options)

    def _chunks(self, reply: str) -> Any:
        chunks = super()._chunks(reply)
        return [chunks[0], None] if self.left == 0 else chunks


@pytest.mark.parametrize("refuses", [True, False])
async def test_an_answer_that_breaks_early_costs_nothing_but_time(refuses: bool) -> None:
    room = Room([ASKED], engine=Failing(refuses=refuses), preempt=Preempt(), silence_ms=600)
    async with room.talking():
        await ask(room)
        await room.speak(400, silence=True)
        await anyio.sleep(3)
        assert room.told() == [ASKED, TEXT]
    assert not room.made(ReplyFailed) and room.agent.preempted.failed == 1
    assert room.made(ReplyEnded)[0].outcome.complete


async def test_a_voice_that_breaks_early_is_asked_again() -> None:
    room = Room([ASKED], engine=model(), preempt=Preempt(), silence_ms=1000)
    speaks, room.voice.synthesize = room.voice.synthesize, None  # type: ignore[assignment]
    async with room.talking():
        await room.speak(400)
        await room.speak(700, silence=True)
        room.voice.synthesize = speaks  # type: ignore[method-assign]
        await ask(room, 0)
    assert room.told() == [ASKED, TEXT] and room.sound.ms == 2000
    assert room.agent.preempted.failed == 1


async def test_words_that_interrupt_begin_an_answer_once_the_reply_has_ended() -> None:
    room = Room(["Wait please."], engine=model(TEXT, "Fine."), preempt=Preempt())
    async with room.talking() as agent:
        await agent.say("Hi")
        await anyio.sleep(0.8)
        await ask(room)
        kept = room.told()[1]
        assert room.told() == ["Hi", kept, "Wait please.", "Fine."] and TEXT.startswith(kept)
    assert room.agent.preempted.hits == 1
    asked = room.engine.requests[-1][0]
    assert [m["content"] for m in asked] == ["Hi", kept, "Wait please."]


async def test_what_is_written_ahead_is_bounded_and_so_are_the_starts() -> None:
    long = " ".join(["word"] * 400) + "."
    bounds = Preempt(max_tokens=10, max_starts=2)
    room = Room([first(9)], engine=model(long), preempt=bounds, silence_ms=5000)
    async with room.agent:
        reading = asyncio.create_task(room._read())
        for _ in range(4):
            await room.speak(200)
            await room.speak(1000, silence=True)
        assert len(room.engine.generations) == 2
        written = [len(g.report.token_ids) for g in room.engine.generations]
        assert written == [10, 10] and room.agent.preempted.wasted_tokens >= 10
    await reading


async def test_in_speech_it_begins_with_the_words_so_far() -> None:
    room = Room([ASKED], engine=model(), preempt=Preempt(in_speech=True))
    async with room.talking():
        await ask(room)
    assert room.told() == [ASKED, TEXT]
    begun = [messages[-1]["content"] for messages, _ in room.engine.requests]
    assert begun == ["Tell", ASKED]  # "Tell me" came less than a second later, "Tell me a" is unfinished
    assert room.agent.preempted.hits == 1


async def test_in_speech_one_a_second_is_begun_and_the_last_is_kept_for_a_pause() -> None:
    question = "I went to town today and saw nine red birds there. What are they?"
    bounds = Preempt(in_speech=True, max_starts=4)
    room = Room([question], engine=model(), preempt=bounds)
    room.recognizer.word_ms = 300
    began: list[float] = []
    generate = room.engine.generate
    room.engine.generate = lambda *a, **k: began.append(anyio.current_time()) or generate(*a, **k)  # type: ignore[method-assign,func-returns-value]
    async with room.talking():
        await ask(room, 14 * 300)
    assert room.told() == [question, TEXT] and len(began) == 4
    apart = [b - a for a, b in zip(began[:2], began[1:3], strict=True)]
    assert min(apart) >= 1 and began[2] - began[0] < 14 * 0.3 - 1, "it stopped while he spoke on"
    assert room.agent.preempted.hits == 1, "the last one was begun in the pause"


def test_it_stops_where_too_few_are_wanted_and_says_so() -> None:
    ledger = Ledger(Preempt())
    begun = 0
    for turn in range(40):
        if ledger.begins(Guess("How are you?", turn)):
            begun += 1
            ledger.unwanted(3)
    assert begun == 8 + 32 // 8, "in one turn of eight once eight were in vain"
    report = ledger.report
    assert not report.on and report.wasted_tokens == 3 * begun
    assert "off (too few are wanted; they are begun in one turn of eight): 0 of 12" in report.words
    assert not Ledger(Preempt(max_starts=0)).begins(Guess("Hi.", 0))
    for text, turn in (("how are YOU", 1), ("How are they?", 1), ("How are you?", 2), ("", 1)):
        ledger.asked(Guess("How are you?", 1), Question(text, turn))
    assert ledger.report.nearly == 1
    with pytest.raises(ConfigError, match="min_hits"):
        Preempt(min_hits=2)


async def test_typed_questions_are_never_begun_early() -> None:
    async with Agent(engine=ScriptedEngine(["x"]), voice=None, preempt=Preempt()) as agent:
        await agent.say("Hi")
        agent.finish()
        assert [e async for e in agent] and agent.preempted.starts == 0
