"""Cancel, truncate, interrupt and disconnect, at every phase of a turn, in process.

Virtual time: the voice speaks a word in 200 ms, the play-out begins at once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import pytest

from specstream.playback.turn import Interruption, Turn
from specstream.testing import ScriptedGeneration
from tests.support.turns import TEXT, WORD_MS, Stage, first

pytestmark = pytest.mark.virtual_time
WHOLE = len(TEXT.split())


@dataclass(frozen=True)
class Phase:
    """What happens at ``seconds``; the model is held after ``tokens``, if any."""

    seconds: float
    tokens: int | None = None
    reading: bool = True

    @property
    def written(self) -> int:
        """Words that the model has written by then."""
        return 0 if not self.reading else WHOLE if self.tokens is None else self.tokens

    @property
    def words(self) -> int:
        """Words that were heard by then."""
        return min(self.written, int(self.seconds * 1000) // WORD_MS)


PHASES = {
    "before prefill": Phase(0.0, 0, reading=False),
    "before the first chunk": Phase(1.0, 0),
    "before the first word": Phase(0.1),
    "mid-phrase": Phase(0.5, 7),
    "between phrases": Phase(1.0, 7),
    "text over, audio not": Phase(1.5),
    "over": Phase(9.0),
}
Talk = Turn[ScriptedGeneration]
Ask = Callable[[Talk], object]
# Name → what is done, and how many words it leaves of those that were heard.
ACTIONS: dict[str, tuple[list[Ask], int]] = {
    "interrupt": ([lambda turn: turn.interrupt()], WHOLE),
    "interrupt twice": ([lambda turn: turn.interrupt()] * 2, WHOLE),
    "truncate": ([lambda turn: turn.interrupt(300)], 1),
    "truncate to nothing": ([lambda turn: turn.interrupt(0)], 0),
    "interrupt, truncate": ([lambda turn: turn.interrupt(), lambda turn: turn.interrupt(250)], 1),
    "truncate, interrupt": ([lambda turn: turn.interrupt(250), lambda turn: turn.interrupt()], 1),
    "truncate to more": ([lambda turn: turn.interrupt(1e7)], WHOLE),
    "cancel, interrupt": ([lambda turn: turn.reply.cancel(), lambda turn: turn.interrupt()], WHOLE),
    "pause, interrupt": ([lambda turn: turn.pause(), lambda turn: turn.interrupt()], WHOLE),
    "interrupt, resume": ([lambda turn: turn.interrupt(), lambda turn: turn.resume()], WHOLE),
    "leave": ([], WHOLE),
}


async def at_phase(stage: Stage, phase: Phase, acts: list[Ask]) -> Interruption | None:
    """One turn, in which ``acts`` happen at that phase; the block is left right after it."""
    if phase.tokens is not None:
        stage.gate.shut(after=phase.tokens)
    async with stage.turn() as turn:
        task = asyncio.create_task(stage.read(turn)) if phase.reading else None
        await anyio.sleep(phase.seconds)
        for act in acts:
            act(turn)
        if task is not None and turn.outcome is None:
            task.cancel()
        if task is not None:
            await asyncio.wait([task])
    stage.gate.open()
    return turn.outcome


async def check_next(stage: Stage, before: list[str]) -> None:
    """The next turn is served, and its prompt has what the history had."""
    async with stage.turn("Next") as turn:
        await stage.read(turn)
    asked, _ = stage.engine.requests[-1]
    assert [f"{m['role']}: {m['content']}" for m in asked] == [*before, "user: Next"]
    assert stage.told() == [*before, "user: Next", f"assistant: {TEXT}"]
    assert stage.voice.speaking == 0


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("phase", PHASES)
async def test_the_history_ends_at_the_last_word_heard_and_the_next_turn_works(
    phase: str, action: str
) -> None:
    stage, when = Stage(), PHASES[phase]
    acts, most = ACTIONS[action]
    outcome = await at_phase(stage, when, acts)
    words = min(when.words, most)
    assert outcome is not None
    assert outcome.heard == first(words)
    assert outcome.tokens_kept == words or (outcome.complete and words == WHOLE)
    assert outcome.complete == (words == WHOLE)
    assert TEXT.startswith(outcome.heard + outcome.unheard)
    history = ["user: Hi"] + ([f"assistant: {first(words)}"] if words else [])
    assert stage.told() == history
    trimmed = [] if outcome.complete or not when.written else [1 + words]
    assert stage.engine.trimmed == trimmed
    written = stage.sound.ms
    await anyio.sleep(10)
    assert stage.sound.ms == written, "a stale sample left after the turn"
    await check_next(stage, history)


@pytest.mark.parametrize("phase", PHASES)
async def test_a_consumer_that_is_cancelled_leaves_what_was_heard(phase: str) -> None:
    stage, when = Stage(), PHASES[phase]
    if when.tokens is not None:
        stage.gate.shut(after=when.tokens)

    async def talk() -> None:
        async with stage.turn() as turn:
            if when.reading:
                await stage.read(turn)
            await anyio.sleep_forever()

    task = asyncio.create_task(talk())
    await anyio.sleep(when.seconds)
    if not when.reading:
        await anyio.lowlevel.checkpoint()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    stage.gate.open()
    history = ["user: Hi"] + ([f"assistant: {first(when.words)}"] if when.words else [])
    if not when.reading:  # the task may not have begun to talk
        history = stage.told()
        assert history in ([], ["user: Hi"])
    assert stage.told() == history
    await check_next(stage, history)


@pytest.mark.parametrize("phase", PHASES)
async def test_a_cancelled_reply_is_spoken_to_the_end_of_what_was_written(phase: str) -> None:
    stage, when = Stage(), PHASES[phase]
    if when.tokens is not None:
        stage.gate.shut(after=when.tokens)
    async with stage.turn() as turn:
        task = asyncio.create_task(stage.read(turn)) if when.reading else None
        await anyio.sleep(when.seconds)
        turn.reply.cancel()
        await (task or stage.read(turn))
    stage.gate.open()
    said = first(when.written)
    history = ["user: Hi"] + ([f"assistant: {said}"] if said else [])
    assert stage.told() == history
    assert stage.sound.ms == when.written * WORD_MS
    await check_next(stage, history)


async def test_a_timer_of_the_loop_may_interrupt() -> None:
    """`call_later` runs outside every task, where anyio knows no event loop."""
    stage = Stage()
    async with stage.turn() as turn:
        asyncio.get_running_loop().call_later(0.5, turn.interrupt)
        await stage.read(turn)
    assert turn.outcome is not None and turn.outcome.heard == first(2)
