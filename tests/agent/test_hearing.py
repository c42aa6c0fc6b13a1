"""An agent with ears: a voice pauses it, a word interrupts it, a cough does not, nor its own voice."""

from __future__ import annotations

import ctypes
import math
from array import array
from contextlib import suppress

import anyio
import numpy as np
import pytest

from specstream.agent import ReplyEnded, ReplyPaused, ReplyResumed, ReplyStarted
from specstream.agent.hearing import Echo
from specstream.errors import AdapterFailed, AdapterUnavailable, RequestError
from specstream.listening.events import ListeningFailed, TurnHeard, TurnLost
from specstream.listening.resampler import Resampler
from specstream.testing import ScriptedEngine
from specstream_adapters.ears import speexdsp
from specstream_adapters.ears.speexdsp import SpeexCanceller
from tests.support.rooms import RATE, Room
from tests.support.turns import TEXT, Sound, first

pytestmark = pytest.mark.virtual_time


async def test_what_is_said_is_answered() -> None:
    room = Room(["Hello there."])
    async with room.talking():
        await room.speak(400)
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Hello there.", TEXT]
    assert room.made(ReplyEnded)[0].outcome.complete
    assert not room.made(ReplyPaused)


async def test_a_word_interrupts_and_the_next_prompt_has_what_was_heard() -> None:
    room = Room(["Wait a moment please."])
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(400)
        assert room.made(ReplyPaused)[0].played_ms == pytest.approx(500, abs=1)
        heard = room.made(ReplyEnded)[0].outcome
        assert not heard.complete and heard.heard == first(2)
        assert 500 <= heard.played_ms <= 580, "nothing was played after the voice but the lead"
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Tell me", first(2), "Wait a moment please.", "Fine."]
    assert room.engine.requests[-1][0][1]["content"] == first(2)
    assert not room.made(ReplyResumed)


async def test_a_cough_pauses_and_the_reply_goes_on_without_losing_a_sample() -> None:
    room, alone = Room([""]), Room([""])
    async with alone.talking() as agent:
        await agent.say("Tell me")
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(200)
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Tell me", TEXT]
    assert len(room.made(ReplyPaused)) == len(room.made(ReplyResumed)) == 1
    assert room.made(ReplyEnded)[0].outcome.complete
    assert room.sound.pcm == alone.sound.pcm
    assert not [m for m in room.made(TurnHeard) if m.transcript.text]


@pytest.mark.parametrize("said", ["Mm hmm.", "Uh-huh.", "Right.", "Ja."])
async def test_a_listeners_word_is_no_question_while_the_agent_speaks(said: str) -> None:
    room, alone = Room([said]), Room([""])
    async with alone.talking() as agent:
        await agent.say("Tell me")
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(400)
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Tell me", TEXT]
    assert room.made(ReplyEnded)[0].outcome.complete
    assert room.sound.pcm == alone.sound.pcm


async def test_the_same_word_is_a_question_when_nobody_speaks() -> None:
    room = Room(["Right."])
    async with room.talking():
        await room.speak(400)
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Right.", TEXT]


async def test_one_word_interrupts_when_it_is_there_again() -> None:
    room = Room(["Stop."])
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(180)
        assert not room.made(ReplyEnded)
        await room.speak(300)
        assert not room.made(ReplyEnded)[0].outcome.complete
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told()[2:] == ["Stop.", "Fine."]


@pytest.mark.parametrize("noise", ["...", "?!", " "])
async def test_marks_without_a_letter_are_no_words(noise: str) -> None:
    room = Room([noise])
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(300)
        await room.speak(600, silence=True)
    assert room.told() == ["Tell me", TEXT]


async def test_a_turn_that_is_lost_resumes_the_reply() -> None:
    room = Room([AdapterFailed("no model")])
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(300)
        await room.speak(600, silence=True)
    assert room.made(TurnLost) and room.made(ReplyResumed)
    assert room.told() == ["Tell me", TEXT]


async def test_a_detector_that_breaks_resumes_the_reply_and_typing_still_works() -> None:
    room = Room([""])
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(100)
        room.detector.error = RuntimeError("detector on fire")
        await room.speak(40)
        await agent.say("And?")
        await anyio.sleep(5)
        assert room.told() == ["Tell me", TEXT, "And?", "Fine."]
    assert len(room.made(ListeningFailed)) == 1


async def test_a_reply_that_begins_while_somebody_speaks_waits_for_them() -> None:
    room = Room([""])
    async with room.talking() as agent:
        await room.speak(100)
        await agent.say("Tell me")
        await anyio.sleep(3)
        assert room.sound.ms == 0
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.sound.ms == 2000
    assert [e.asked for e in room.made(ReplyStarted)] == ["Tell me"]


async def test_a_typed_question_that_waits_is_answered_after_words_that_interrupt() -> None:
    room = Room(["Wait a moment please."], engine=ScriptedEngine([TEXT, "Two.", "Three."]))
    async with room.talking() as agent:
        await agent.say("One?")
        await agent.say("Two?")
        await anyio.sleep(0.5)
        await room.speak(400)
        await room.speak(600, silence=True)
        await anyio.sleep(5)
    asked = ["Wait a moment please.", "Two.", "Two?", "Three."]
    assert room.told() == ["One?", first(2), *asked]
    assert all(ended.outcome.complete for ended in room.made(ReplyEnded)[1:])


async def test_a_full_queue_of_typed_questions_holds_up_no_listener() -> None:
    room = Room(["Wait a moment please.", "Go on."], engine=ScriptedEngine([TEXT]))
    async with room.talking() as agent, anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(agent.say, f"{number}?")
        await anyio.sleep(0.5)
        for _ in range(2):
            await room.speak(400)
            await room.speak(3000, silence=True)
        await anyio.sleep(60)
    asked = [e.asked for e in room.made(ReplyStarted)]
    assert sorted(asked) == sorted([f"{n}?" for n in range(12)] + ["Wait a moment please.", "Go on."])


async def test_a_recogniser_that_hangs_costs_a_turn_and_the_reply_goes_on() -> None:
    room = Room([""], deadline_s=2.0)
    room.recognizer.takes_s = math.inf
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(300)
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Tell me", TEXT]
        await agent.say("And?")
    (lost,) = room.made(TurnLost)
    assert "longer than 2 s" in str(lost.error)
    assert room.told() == ["Tell me", TEXT, "And?", "Fine."]


async def test_half_a_sample_is_refused_nothing_is_taken_and_the_agent_lives() -> None:
    room = Room(["Hello there."])
    async with room.talking() as agent:
        for bad in (b"\1", b"\1" * 333):
            with pytest.raises(RequestError, match="even number of bytes"):
                await agent.hear(bad)
        await agent.hear(b"")
        await room.speak(400)
        await room.speak(600, silence=True)
    assert room.told() == ["Hello there.", TEXT]


async def test_minutes_of_silence_are_no_turn() -> None:
    room = Room(["Hello there."])
    async with room.talking() as agent:
        for _ in range(5):
            await agent.hear(bytes(2 * RATE * 60))
        assert room.events == []
        await room.speak(400)
        await room.speak(600, silence=True)
    assert room.told() == ["Hello there.", TEXT]


async def test_what_was_said_last_is_answered_before_the_end() -> None:
    room = Room(["Bye now."])
    async with room.talking():
        await room.speak(300)  # the microphone is switched off in mid-turn
    assert room.told() == ["Bye now.", TEXT]
    assert room.made(ReplyEnded)[0].outcome.complete


@pytest.mark.parametrize("seed", range(6))
async def test_any_mix_of_coughs_words_and_typing_leaves_a_history_of_what_was_heard(seed: int) -> None:
    from random import Random

    random = Random(seed)
    texts = [random.choice(["", "Hm yes.", "Wait.", "..."]) for _ in range(12)]
    room = Room(texts)
    room.engine._replies = [TEXT]
    async with room.talking() as agent:
        for _ in range(8):
            if random.random() < 0.4:
                await agent.say("typed")
            await room.speak(random.randrange(0, 500))
            await room.speak(random.randrange(0, 1500), silence=True)
    said = [m["content"] for m in agent.messages if m["role"] == "assistant"]
    asked = [e.asked for e in room.made(ReplyStarted)]
    # A reply is withdrawn where the question that it answers goes on.
    kept = [not whole.startswith(f"{first} ") for first, whole in zip(asked, [*asked[1:], ""])]
    outcomes = [e.outcome for e, keep in zip(room.made(ReplyEnded), kept, strict=True) if keep]
    assert said == [o.heard for o in outcomes if o.heard]
    assert all(TEXT.startswith(text) for text in said)
    users = [m["content"] for m in agent.messages if m["role"] == "user"]
    assert users == [text for text, keep in zip(asked, kept, strict=True) if keep]


DELAY_S = 0.01  # the reference comes so much earlier than the echo of a play-out without latency


class Subtractor:
    """A perfect canceller of one echo that is as loud as what is played."""

    def __init__(self, delay_s: float = DELAY_S) -> None:
        self.delay_s = delay_s

    def open(self, sample_rate: int) -> Subtraction:
        return Subtraction(sample_rate, round(self.delay_s * sample_rate))


class Subtraction:
    def __init__(self, rate: int, delay: int) -> None:
        self.frame = rate // 100
        self.calls = 0
        self._line = np.zeros(delay, dtype=np.int32)

    def cancel(self, heard: bytes, played: bytes) -> bytes:
        self.calls += 1
        self._line = np.concatenate([self._line, np.frombuffer(played, "<i2")])
        echo, self._line = self._line[: self.frame], self._line[self.frame :]
        return (np.frombuffer(heard, "<i2") - echo).astype("<i2").tobytes()


class Loudspeaker(Sound):
    """A sink beside the microphone."""

    RATE = 24_000

    def __init__(self) -> None:
        super().__init__()
        self._heard: list[tuple[int, bytes]] = []  # number of the first sample on the clock
        self._end = 0

    async def write(self, pcm: bytes, sample_rate: int) -> None:
        await super().write(pcm, sample_rate)
        start = max(self._end, round(anyio.current_time() * self.RATE))
        self._heard.append((start, pcm))
        self._end = start + len(pcm) // 2

    def recorded(self, seconds: float) -> bytes:
        """The last so many seconds."""
        end = round(anyio.current_time() * self.RATE)
        out = np.zeros(round(seconds * self.RATE), dtype="<i2")
        begin = end - len(out)
        for start, pcm in self._heard:
            samples = np.frombuffer(pcm, "<i2")
            low, high = max(begin, start), min(end, start + len(samples))
            if low < high:
                out[low - begin : high - begin] = samples[low - start : high - start]
        return out.tobytes()


class Clock:
    time = 100.0

    def now(self) -> float:
        return self.time


def noise(seconds: float, seed: int = 0) -> bytes:
    samples = np.random.default_rng(seed).integers(-9000, 9000, int(RATE * seconds))
    return samples.astype("<i2").tobytes()


def loudness(pcm: bytes) -> int:
    return max(map(abs, array("h", pcm)), default=0)


def heard(echo: Echo, clock: Clock, pcm: bytes, piece_s: float = 0.02) -> bytes:
    size, out = 2 * int(RATE * piece_s), b""
    for at in range(0, len(pcm), size):
        clock.time += piece_s
        out += echo.clean(pcm[at : at + size])
    return out


def test_what_is_played_is_taken_out_sample_by_sample() -> None:
    clock = Clock()
    echo = Echo(Subtractor(), RATE, clock.now)
    sound, user = noise(4), noise(1, seed=1)
    silent = bytes(2 * RATE)
    assert heard(echo, clock, user) == user, "nothing is played: not a bit is changed"
    for at in range(0, 4, 1):
        echo.played(sound[2 * RATE * at : 2 * RATE * (at + 1)], RATE, clock.time + at)
    first = heard(echo, clock, sound[: 4 * RATE])
    assert loudness(first) == 0, "it learns"
    assert loudness(heard(echo, clock, sound[4 * RATE : 6 * RATE])) == 0
    mixed = np.frombuffer(sound[6 * RATE :], "<i2") // 2 + np.frombuffer(user, "<i2") // 2
    rest = heard(echo, clock, mixed.astype("<i2").tobytes())
    assert loudness(rest) > 4000, "the user is still there"
    heard(echo, clock, silent)
    assert heard(echo, clock, user) == user


def test_a_short_gap_between_two_phrases_stays_a_gap() -> None:
    clock = Clock()
    echo = Echo(Subtractor(), RATE, clock.now)
    sound = noise(3)
    gap = bytes(2 * RATE * 45 // 1000)
    echo.played(sound, RATE, clock.time)
    echo.played(sound, RATE, clock.time + 3.045)
    assert loudness(heard(echo, clock, sound + gap + sound[: -len(gap)])) == 0


def test_audio_that_comes_in_jumps_stays_aligned() -> None:
    clock = Clock()
    echo = Echo(Subtractor(), RATE, clock.now)
    sound = noise(6)
    echo.played(sound, RATE, clock.time)
    out = b""
    for n in range(60):  # a tenth of a second at a time, up to 40 ms late
        clock.time += 0.1
        late, clock.time = clock.time, clock.time + (n % 5) / 100
        out += echo.clean(sound[2 * RATE // 10 * n : 2 * RATE // 10 * (n + 1)])
        clock.time = late
    assert loudness(out[: 2 * RATE * 6]) == 0


def test_what_is_played_is_kept_for_seconds_only() -> None:
    clock = Clock()
    echo = Echo(Subtractor(), RATE, clock.now)
    for _ in range(60):
        echo.played(noise(1), RATE, clock.time)
        heard(echo, clock, bytes(2 * RATE))
    assert len(echo._played) <= 2 * RATE * 4


@pytest.mark.parametrize("heard_before", [False, True])
def test_what_is_played_while_the_microphone_is_off_is_not_kept(heard_before: bool) -> None:
    clock = Clock()
    echo = Echo(Subtractor(), RATE, clock.now)
    if heard_before:
        heard(echo, clock, bytes(2 * RATE))
    for _ in range(60):
        echo.played(noise(1), RATE, clock.time)
        clock.time += 1
    assert len(echo._played) <= 2 * RATE * 12
    track = echo._track
    assert isinstance(track, Subtraction)
    before = track.calls
    echo.clean(bytes(2 * RATE // 50))
    assert track.calls - before <= 2 + 10, "what was missed is not all worked off at once"


def test_a_reply_replaces_what_an_interrupted_one_left_unheard() -> None:
    clock = Clock()
    echo = Echo(Subtractor(), RATE, clock.now)
    sound, other = noise(3), noise(2, seed=1)
    echo.played(sound, RATE, clock.time)  # of which 2.9 seconds are heard
    echo.played(other, RATE, clock.time + 2.9)
    cut = sound[: 2 * RATE * 29 // 10]
    assert loudness(heard(echo, clock, cut + other)) == 0


@pytest.mark.virtual_time
@pytest.mark.parametrize("cancels", [True, False])
async def test_an_agent_that_hears_itself_interrupts_itself_only_without(cancels: bool) -> None:
    sound = Loudspeaker()
    echo = Subtractor() if cancels else None
    room = Room(["I said so."], echo=echo, sound=sound, rate=sound.RATE)
    async with room.talking() as agent:
        for question in ("Tell me", "Tell me more"):
            await agent.say(question)
            for _ in range(400):
                await anyio.sleep(0.02)
                await agent.hear(sound.recorded(0.02))
    assert bool(room.made(ReplyPaused)) != cancels
    if cancels:
        assert room.told() == ["Tell me", TEXT, "Tell me more", "Fine."]
        assert all(ended.outcome.complete for ended in room.made(ReplyEnded))


def library() -> bool:
    with suppress(AdapterUnavailable):
        SpeexCanceller()
        return True
    return False


@pytest.mark.skipif(not library(), reason="libspeexdsp is not installed")
@pytest.mark.parametrize("level", [-10, -20, -30])
def test_speexdsp_in_a_room(level: int) -> None:
    """Noise like speech, 120 ms late, with reverberation: 15 dB less of it after three seconds."""
    random = np.random.default_rng(2)
    rate, seconds = 16_000, 6
    syllables = np.repeat(random.uniform(0, 1, seconds * 8) ** 2, rate // 8)
    played = random.normal(0, 3000, rate * seconds) * syllables
    response = np.zeros(rate // 4)
    late = np.arange(len(response) - int(0.12 * rate))
    response[-len(late) :] = random.normal(0, 1, len(late)) * np.exp(-late / (0.04 * rate))
    response *= 10 ** (level / 20) / math.sqrt(float(np.sum(response**2)))
    echo = np.convolve(played, response)[: len(played)].astype("<i2")
    track = SpeexCanceller().open(rate)
    out, size = b"", 2 * track.frame
    reference = played.astype("<i2").tobytes()
    for at in range(0, len(reference), size):
        out += track.cancel(echo.tobytes()[at : at + size], reference[at : at + size])

    def power(samples: np.ndarray) -> float:
        return float(np.mean(samples[3 * rate :].astype(float) ** 2)) + 1e-9

    assert 10 * math.log10(power(echo) / power(np.frombuffer(out, "<i2"))) > 15


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    speexdsp._library.cache_clear()
    with pytest.raises(AdapterUnavailable, match="libspeexdsp1"):
        SpeexCanceller()


def test_a_reference_at_another_rate_is_converted() -> None:
    clock = Clock()
    echo = Echo(Subtractor(), RATE, clock.now)
    tone = (9000 * np.sin(np.arange(4 * RATE) * 0.05)).astype("<i2").tobytes()
    other = Resampler(RATE, 16_000)
    echo.played(other.push(tone) + other.flush(), 16_000, clock.time)
    assert loudness(heard(echo, clock, tone)[: 2 * RATE * 3]) < 100
