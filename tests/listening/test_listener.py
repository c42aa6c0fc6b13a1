"""The listener on virtual time: order of events, partial transcripts, deadlines, bounds."""

import asyncio
import math
from array import array
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from specstream.errors import AdapterFailed, ConfigError, RequestError
from specstream.listening import listener as module
from specstream.listening.ears import Ears, Recognition
from specstream.listening.events import (
    ListenerEvent,
    ListenerSettings,
    ListeningFailed,
    TurnEnded,
    TurnHeard,
    TurnLost,
    TurnPartial,
    TurnStarted,
)
from specstream.listening.interfaces import Alternative, Transcript, TurnCapabilities
from specstream.listening.listener import Listener
from specstream.testing import ScriptedRecognizer, ScriptedTurnDetector

pytestmark = pytest.mark.virtual_time

RATE = 24_000
QUESTION = "What is the capital of France?"


def test_settings_of_the_wrong_kind_are_named() -> None:
    ears = Ears(ScriptedRecognizer([]), ScriptedTurnDetector())
    with pytest.raises(ConfigError, match="must be ListenerSettings"):
        Listener(ears, sample_rate=RATE, settings={"manual": True})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, None, "24000", 24_000.5, float("nan"), 10**6])
def test_a_rate_that_no_microphone_has_is_named(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="sample_rate must be a whole number from 4000"):
        Listener(Ears(ScriptedRecognizer([]), ScriptedTurnDetector()), sample_rate=wrong)


@pytest.mark.parametrize(
    "error", [KeyError("mine"), RequestError("ours"), ExceptionGroup("own", [KeyError("mine")])]
)
async def test_an_error_inside_the_block_is_raised_as_it_is(error: Exception) -> None:
    hearing = Listener(Ears(ScriptedRecognizer([]), ScriptedTurnDetector()), sample_rate=RATE)
    with pytest.raises(type(error)) as raised:
        async with hearing:
            raise error
    assert raised.value is error


@pytest.mark.parametrize("wrong", [None, "text", [0, 0], array("h", [0, 0])])
async def test_audio_that_is_no_bytes_is_named(wrong: Any) -> None:
    ears = Ears(ScriptedRecognizer([QUESTION]), ScriptedTurnDetector())
    with pytest.raises(RequestError, match=f"16-bit samples, not {type(wrong).__name__}"):
        await Listener(ears, sample_rate=RATE).add(wrong)


def voice(seconds: float) -> bytes:
    return b"\x01\x02" * int(RATE * seconds)


def silence(seconds: float) -> bytes:
    return bytes(2 * int(RATE * seconds))


def ears(*texts: str | Exception, takes_s: float = 0.0) -> tuple[Ears, ScriptedRecognizer]:
    recognizer = ScriptedRecognizer(texts or [QUESTION], takes_s=takes_s)
    return Ears(recognizer, ScriptedTurnDetector()), recognizer


class Heard:
    """Speaks to a listener at the pace of real time and keeps (time, event)."""

    def __init__(self, made: Ears, settings: ListenerSettings | None = None) -> None:
        self.listener = Listener(made, sample_rate=RATE, settings=settings)
        self.events: list[tuple[float, ListenerEvent]] = []

    async def speak(self, *sounds: bytes, then: Sequence[str] = ()) -> list[ListenerEvent]:
        async with self.listener, anyio.create_task_group() as group:

            async def read() -> None:
                async for event in self.listener:
                    self.events.append((anyio.current_time(), event))

            group.start_soon(read)
            size = 2 * RATE // 50
            for sound in sounds:
                for at in range(0, len(sound), size):
                    await self.listener.add(sound[at : at + size])
                    await anyio.sleep(0.02)
            for call in then:
                getattr(self.listener, call)()
            self.listener.finish()
        return [event for _, event in self.events]

    def kinds(self) -> list[str]:
        return [type(event).__name__ for _, event in self.events]


async def test_one_turn() -> None:
    made, recognizer = ears()
    heard = Heard(made)
    events = await heard.speak(silence(0.5), voice(2.0), silence(1.0))
    assert heard.kinds()[0] == "TurnStarted"
    assert set(heard.kinds()[1:-2]) == {"TurnPartial", "TurnPaused"}
    started, ended, last = events[0], events[-2], events[-1]
    assert isinstance(started, TurnStarted)
    assert [started.at_ms, started.start_ms] == pytest.approx([500, 200], abs=40)
    assert isinstance(ended, TurnEnded)
    assert ended.end_ms == pytest.approx(2500 + 0.6 * 500, abs=70)  # a question
    assert isinstance(last, TurnHeard)
    assert last.transcript.text == QUESTION
    assert last.transcript.words[1].start_ms == 250
    assert recognizer.open_streams == 0


async def test_a_view_of_samples_is_heard_as_its_bytes() -> None:
    made, _ = ears()
    sound: Any = memoryview(voice(2.0) + silence(1.0)).cast("h")
    ended = [e for e in await Heard(made).speak(sound) if isinstance(e, TurnEnded)]
    assert [e.end_ms for e in ended] == pytest.approx([2300], abs=70)


async def test_partial_transcripts_grow_while_the_person_speaks() -> None:
    made, _ = ears(takes_s=0.05)
    heard = Heard(made)
    await heard.speak(voice(2.0), silence(1.0))
    partial = [(t, e.transcript.text) for t, e in heard.events if isinstance(e, TurnPartial)]
    while_speaking = [text for t, text in partial if t < 2.0]
    assert while_speaking[:2] == ["What is", "What is the capital"]
    assert len(while_speaking) >= 3


async def test_the_transcript_of_the_pause_is_the_final_one() -> None:
    """Recognised while the silence lasts: nothing is left to do when the turn ends."""
    made, recognizer = ears(takes_s=0.1)
    heard = Heard(made, ListenerSettings(partial_ms=None))
    await heard.speak(voice(2.0), silence(1.0))
    times = {type(event).__name__: time for time, event in heard.events}
    assert times["TurnHeard"] - times["TurnEnded"] < 0.001
    assert recognizer.asked == [1]


async def test_an_unfinished_clause_is_waited_for() -> None:
    made, _ = ears("I would like to, um", QUESTION)
    heard = Heard(made)
    await heard.speak(voice(2.0), silence(1.5), voice(1.0), silence(4.0))
    assert heard.kinds().count("TurnStarted") == 1
    hasty = Heard(ears("I would like to, um", QUESTION)[0], ListenerSettings(by_words=False))
    await hasty.speak(voice(2.0), silence(1.5), voice(1.0), silence(4.0))
    assert hasty.kinds().count("TurnStarted") == 2


@pytest.mark.parametrize(("language", "ends_ms"), [(None, 3500), ("de", 1500)])
async def test_the_language_that_was_asked_for_decides_which_words_count(
    language: str | None, ends_ms: float
) -> None:
    """ "an" is a word that no English turn ends with."""
    heard = Heard(ears("Ruf mich an.")[0], ListenerSettings(language=language))
    events = await heard.speak(voice(1.0), silence(4.0))
    ended = [event.end_ms for event in events if isinstance(event, TurnEnded)]
    assert ended == pytest.approx([ends_ms], abs=70)


async def test_a_recogniser_that_hangs_costs_one_turn_each_within_the_deadline() -> None:
    made, recognizer = ears(QUESTION, takes_s=math.inf)
    heard = Heard(made, ListenerSettings(deadline_s=2.0, by_words=False))
    await heard.speak(voice(1.0), silence(4.0), voice(1.0), silence(1.0))
    ended = [t for t, e in heard.events if isinstance(e, TurnEnded)]
    lost = [(t, e.error) for t, e in heard.events if isinstance(e, TurnLost)]
    assert len(ended) == len(lost) == 2
    assert all(failed - end <= 2.0 for end, (failed, _) in zip(ended, lost))
    assert "longer than 2 s" in str(lost[0][1])
    assert recognizer.open_streams == 0


@pytest.mark.parametrize(
    ("said", "most_s"), [("what is the capital.", 2.6), ("what is the capital and", 4.2)]
)
async def test_a_turn_ends_though_others_talk_on(said: str, most_s: float) -> None:
    heard = Heard(ears(said)[0])
    await heard.speak(voice(10.0))
    (end, *others) = [e.end_ms for _, e in heard.events if isinstance(e, TurnEnded)]
    assert 1.0 + 1.0 <= end / 1e3 <= most_s, "four words in a second, nothing new in the next"
    assert not others


async def test_a_slow_recogniser_ends_no_turn() -> None:
    made, _ = ears(" ".join(["word"] * 100), takes_s=2.0)
    heard = Heard(made)
    await heard.speak(voice(12.0), silence(6.0))
    (end,) = [e.end_ms for _, e in heard.events if isinstance(e, TurnEnded)]
    assert end > 12_000


async def test_by_silence_alone_a_turn_lasts_as_long_as_a_voice() -> None:
    heard = Heard(ears(QUESTION)[0], ListenerSettings(by_words=False))
    await heard.speak(voice(10.0), silence(1.0))
    (end,) = [e.end_ms for _, e in heard.events if isinstance(e, TurnEnded)]
    assert end > 10_000


async def test_the_deadline_does_not_run_while_others_are_recognised() -> None:
    made, _ = ears(takes_s=1.9)
    many = [Heard(made, ListenerSettings(deadline_s=2.0, by_words=False)) for _ in range(4)]
    async with anyio.create_task_group() as group:
        for heard in many:
            group.start_soon(heard.speak, voice(1.0), silence(1.0))
    assert all(heard.kinds()[-1] == "TurnHeard" for heard in many)


@pytest.mark.slow
async def test_clients_that_have_much_recognised_delay_a_short_turn_by_one_pass_at_most() -> None:
    recognizer = ScriptedRecognizer([QUESTION], takes_s=0.2, real_time_factor=0.05)
    made = Ears(recognizer, ScriptedTurnDetector())
    settings = ListenerSettings(manual=True, partial_ms=None)
    waits: list[float] = []

    async def hostile() -> None:
        async with Listener(made, sample_rate=RATE, settings=settings) as listener:
            async with anyio.create_task_group() as both:
                both.start_soon(drain, listener)
                while True:
                    await listener.add(voice(120))
                    listener.commit()

    async def drain(listener: Listener) -> None:
        async for _ in listener:
            pass

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(hostile)
        async with Listener(made, sample_rate=RATE, settings=settings) as victim:
            for _ in range(5):
                await anyio.sleep(5)
                await victim.add(voice(2))
                began = anyio.current_time()
                victim.commit()
                async for event in victim:
                    assert not isinstance(event, TurnLost)
                    if isinstance(event, TurnHeard):
                        waits.append(anyio.current_time() - began)
                        break
        group.cancel_scope.cancel()
    assert len(waits) == 5
    assert max(waits) <= 0.2 + 0.05 * 120 + 0.2 + 0.05 * 2


@pytest.mark.parametrize("error", [AdapterFailed("it is tired"), ValueError("it is tired")])
async def test_a_recogniser_that_raises_costs_its_turn_only(error: Exception) -> None:
    made, recognizer = ears(error, QUESTION)
    heard = Heard(made)
    events = await heard.speak(voice(1.0), silence(3.0), voice(1.0), silence(3.0))
    (lost,) = [e for e in events if isinstance(e, TurnLost)]
    assert isinstance(lost.error, AdapterFailed)
    assert "tired" in str(lost.error)
    (good,) = [e for e in events if isinstance(e, TurnHeard)]
    assert (lost.turn, good.turn) == (0, 1)
    assert recognizer.open_streams == 0


async def test_a_detector_that_breaks_is_reported_once() -> None:
    made, _ = ears()
    assert isinstance(made.detector, ScriptedTurnDetector)
    made.detector.error = ValueError("no ears")
    heard = Heard(made)
    events = await heard.speak(voice(1.0), silence(1.0))
    (failed,) = events
    assert isinstance(failed, ListeningFailed)
    assert "no ears" in str(failed.error)


async def test_commit_and_clear_by_hand() -> None:
    made, recognizer = ears()
    heard = Heard(made, ListenerSettings(manual=True, partial_ms=None))
    await heard.speak(silence(1.0), then=["commit", "commit"])
    assert heard.kinds() == ["TurnStarted", "TurnEnded", "TurnHeard"]
    made, recognizer = ears()
    heard = Heard(made)
    await heard.speak(voice(1.0), then=["clear"])
    assert heard.kinds()[-1] in ("TurnStarted", "TurnPartial", "TurnPaused")
    assert recognizer.open_streams == 0


async def test_the_last_samples_reach_the_recogniser(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener's rate is not the recogniser's: the resampler holds samples until the end."""
    made, _ = ears()
    heard, taken = Heard(made, ListenerSettings(manual=True, partial_ms=None)), list[bytes]()
    add = Recognition.add

    def keep(recognition: Recognition, pcm: bytes) -> None:
        taken.append(pcm)
        add(recognition, pcm)

    monkeypatch.setattr(Recognition, "add", keep)
    await heard.speak(voice(1.0))
    assert len(b"".join(taken)) == 2 * made.sample_rate


async def test_manual_audio_is_bounded() -> None:
    made, _ = ears()
    settings = ListenerSettings(manual=True, max_turn_s=1.0, partial_ms=None)
    async with Listener(made, sample_rate=RATE, settings=settings) as listener:
        await listener.add(voice(1.1))
        with pytest.raises(RequestError, match="commit or clear"):
            await listener.add(voice(0.1))
        listener.clear()
        await listener.add(voice(0.1))
        with pytest.raises(RequestError, match="even"):
            await listener.add(b"\0")


async def test_audio_faster_than_it_is_recognised_waits() -> None:
    made, recognizer = ears(takes_s=10.0)
    settings = ListenerSettings(by_words=False, partial_ms=None, deadline_s=100.0)
    async with (
        Listener(made, sample_rate=RATE, settings=settings) as listener,
        anyio.create_task_group() as group,
    ):
        most = 0

        async def read() -> None:
            nonlocal most
            async for _ in listener:
                most = max(most, listener.waiting)

        group.start_soon(read)
        for _ in range(12):
            await listener.add(voice(0.5) + silence(0.7))
        assert anyio.current_time() > 60  # it was made to wait
        listener.finish()
    assert most <= module.MAX_WAITING + 1
    assert len(recognizer.audio) == 12


async def test_events_that_nobody_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 8)
    made, _ = ears()
    async with Listener(made, sample_rate=RATE) as listener:
        with anyio.move_on_after(100) as scope:
            for _ in range(100):
                await listener.add(voice(0.5) + silence(3))
                await anyio.sleep(0.1)
        assert scope.cancelled_caught
        assert len(listener._events) <= 8 + 4


@pytest.mark.parametrize("finishes", [True, False])
async def test_who_waits_for_room_is_told_of_the_end(finishes: bool) -> None:
    made, _ = ears(takes_s=math.inf)

    async def speak() -> None:
        for _ in range(100):
            await listener.add(voice(0.5) + silence(3))

    async with Listener(made, sample_rate=RATE) as listener:
        speaking = asyncio.create_task(speak())
        await anyio.sleep(1000)
        assert not speaking.done()
        if finishes:
            listener.finish()
            with pytest.raises(RequestError, match="before there was room"):
                await speaking
    with pytest.raises(RequestError, match="before there was room"):
        await speaking


async def test_two_sessions_share_the_ears() -> None:
    made, _ = ears(takes_s=0.3)
    first, second = Heard(made), Heard(made)
    async with anyio.create_task_group() as group:
        group.start_soon(first.speak, voice(2.0), silence(2.0))
        group.start_soon(second.speak, voice(2.0), silence(2.0))
    for heard in (first, second):
        assert heard.kinds()[-1] == "TurnHeard"


async def test_leaving_early_closes_everything() -> None:
    made, recognizer = ears(takes_s=math.inf)
    async with Listener(made, sample_rate=RATE) as listener:
        await listener.add(voice(1.0))
        await anyio.sleep(1)
    assert recognizer.open_streams == 0


def test_ears_that_share_no_rate_are_refused() -> None:
    class Whistles(ScriptedTurnDetector):
        capabilities = TurnCapabilities("whistles", (44_100,))

    with pytest.raises(ConfigError, match="'whistles' share no rate"):
        Listener(Ears(ScriptedRecognizer([""]), Whistles()), sample_rate=RATE)


class Judge(ScriptedTurnDetector):
    """Says of each pause how likely it is the end; raises what is no number."""

    def __init__(self, *says: Any) -> None:
        super().__init__()
        self.says = list(says)
        self.asked: list[int] = []

    def ended(self, pcm: bytes) -> float:
        self.asked.append(len(pcm))
        said = self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        return float(said)


@pytest.mark.parametrize(
    ("says", "waits_ms"),
    [([0.9], 400), ([0.1], 950), ([RuntimeError("broken")], 300)],
    ids=["sounds over", "goes on", "broken"],
)
async def test_a_pause_is_judged_by_sound_and_words(says: list[Any], waits_ms: float) -> None:
    """A broken judge is as if there were none."""
    judge = Judge(*says)
    made = Ears(ScriptedRecognizer(["What time is it?"], word_ms=50), judge)
    listener = Listener(made, sample_rate=RATE)
    ended: list[TurnEnded] = []

    async def read() -> None:
        async for event in listener:
            if isinstance(event, TurnEnded):
                ended.append(event)

    async with listener, anyio.create_task_group() as group:
        group.start_soon(read)
        for ms, sound in ((400, b"\1\1"), (2000, b"\0\0")):
            for _ in range(ms // 20):
                await listener.add(sound * (RATE // 50))
                await anyio.sleep(0.02)
        listener.finish()
    [end] = ended
    assert end.end_ms - 400 == pytest.approx(waits_ms, abs=60)
    assert len(judge.asked) == 1
    assert judge.asked[0] <= 2 * RATE * 8


async def test_without_words_that_count_nobody_is_asked_about_the_sound() -> None:
    judge = Judge()
    made = Ears(ScriptedRecognizer(["What time is it?"]), judge)
    listener = Listener(made, sample_rate=RATE, settings=ListenerSettings(by_words=False))
    async with listener:
        for sound in (b"\1\1", b"\0\0"):
            for _ in range(50):
                await listener.add(sound * (RATE // 50))
        listener.finish()
    assert judge.asked == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": None},
        {"text": "Hi", "language": 5},
        {"text": "Hi", "confidence": 1.5},
        {"text": "Hi", "confidence": float("nan")},
        {"text": "Hi", "words": ("Hi",)},
        {"text": "Hi", "alternatives": (("Hi", 0.6),)},
        {"text": "Hi", "alternatives": [Alternative("Hi", 0.6)]},
    ],
)
async def test_a_recogniser_that_makes_a_wrong_transcript_loses_one_turn(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Transcript(**wrong)
    with pytest.raises(ConfigError):
        Alternative("Hi", -0.1)

    class Wrong(ScriptedRecognizer):
        def open(self, sample_rate: int, *, language: str | None = None) -> Any:
            stream = super().open(sample_rate, language=language)
            said = stream.finish

            async def finish() -> Transcript:
                found = await said()
                return Transcript(**wrong) if found.text == "one" else found

            stream.finish = finish  # type: ignore[method-assign]
            return stream

    heard = Heard(Ears(Wrong(["one", "two"]), ScriptedTurnDetector()))
    events = await heard.speak(voice(1.0), silence(3.0), voice(1.0), silence(3.0))
    lost, found = [e for e in events if isinstance(e, TurnLost | TurnHeard)]
    assert isinstance(lost, TurnLost) and "the recogniser broke" in str(lost.error)
    assert isinstance(found, TurnHeard) and found.transcript.text == "two"
