"""Audio input over the Realtime protocol: turns, items, transcripts, automatic responses, bad input."""

import base64
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import numpy as np
import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable
from specstream.listening.ears import Ears
from specstream.listening.events import ListenerSettings
from specstream.listening.listener import MAX_WAITING
from specstream.realtime.input_settings import AudioInput, TurnDetection
from specstream.server.keys import KeyAccount
from specstream.server.sessions import audio as g711, microphone
from specstream.server.sessions.hearing import SessionHearing, _agreed
from specstream.server.sessions.microphone import Microphone, listener_settings
from specstream.testing import ScriptedEngine, ScriptedRecognizer, ScriptedTurnDetector
from tests.server.doubles import WORD_S, Gate, Stand, Wire, WordVoice, wait_for

SAID = "what is the capital of France"
MANUAL = {"turn_detection": None}
HEARD = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
]


def voice(seconds: float) -> bytes:
    return b"\x01\x02" * int(24_000 * seconds)


def silence(seconds: float) -> bytes:
    return bytes(2 * int(24_000 * seconds))


class Ear:
    """A server with scripted ears."""

    def __init__(self, *texts: str | Exception, **options: Any) -> None:
        self.recognizer = ScriptedRecognizer(texts or [SAID])
        self.detector = ScriptedTurnDetector()
        self.engine = options.pop("engine", None) or ScriptedEngine(["Paris."])
        options.setdefault("voice", None)
        self.stand = Stand(self.engine, ears=lambda: Ears(self.recognizer, self.detector), **options)

    @asynccontextmanager
    async def client(self, **audio_input: Any) -> AsyncGenerator[Wire, None]:
        async with self.stand.running(), self.stand.client() as wire:
            if audio_input:
                await configure(wire, **audio_input)
            yield wire
        assert self.recognizer.closed
        assert self.recognizer.open_streams == 0


async def configure(wire: Wire, **audio_input: Any) -> dict[str, Any]:
    answer = await wire.configure(audio={"input": audio_input})
    updated: dict[str, Any] = answer["session"]["audio"]["input"]
    return updated


async def speak(wire: Wire, *sounds: bytes) -> None:
    for sound in sounds:
        for at in range(0, len(sound), 4800):
            audio = base64.b64encode(sound[at : at + 4800]).decode()
            await wire.send("input_audio_buffer.append", audio=audio)


async def test_a_spoken_question_is_answered() -> None:
    ear = Ear()
    async with ear.client() as wire:
        await speak(wire, silence(0.5), voice(2), silence(1))
        assert (await wire.done())["status"] == "completed"
        assert wire.types()[1:7] == [*HEARD, "response.created"]
        started, stopped, committed, added = wire.seen[1:5]
        assert started["audio_start_ms"] == pytest.approx(200, abs=40)
        assert stopped["audio_end_ms"] == pytest.approx(3000, abs=40)
        ids = {started["item_id"], stopped["item_id"], committed["item_id"], added["item"]["id"]}
        assert len(ids) == 1
        assert added["item"]["content"] == [{"type": "input_audio", "transcript": None}]
        assert ear.engine.requests[0][0] == [{"role": "user", "content": SAID}]
        item = await wire.retrieve(started["item_id"])
        assert item["content"] == [{"type": "input_audio", "transcript": SAID}]


async def test_who_may_begin_nothing_more_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    ear = Ear()
    async with ear.client() as wire:
        monkeypatch.setattr(KeyAccount, "refusal", lambda _: "the key of 'web' has expired")
        await speak(wire, voice(2), silence(1), voice(2))
        await wire.send("session.update", session={"type": "realtime", "instructions": "Be brief."})
        await wire.until("error")
        await wire.until("session.updated")
        assert wire.types() == ["session.created", "error", "session.updated"], "told once"
        assert wire.seen[1]["error"]["code"] == "insufficient_quota"
        assert "has expired" in wire.seen[1]["error"]["message"]
        assert not ear.recognizer.languages, "nothing was recognised"


async def test_transcripts_are_sent_to_those_who_ask() -> None:
    ear = Ear()
    async with ear.client(transcription={"model": "whisper-1", "language": "en-US"}) as wire:
        await speak(wire, voice(2), silence(1))
        await wire.until("response.done")
        deltas = [e["delta"] for e in wire.of("transcription.delta")]
        (completed,) = wire.of("transcription.completed")
        assert completed["transcript"] == "".join(deltas) == SAID
        assert completed["usage"]["type"] == "duration"
        assert completed["usage"]["seconds"] == pytest.approx(2.5, abs=0.1)
        assert ear.recognizer.languages == ["en"]


async def test_settings_that_change_during_a_turn_take_effect_with_the_next() -> None:
    ear = Ear(SAID, SAID)
    async with ear.client() as wire:
        await speak(wire, voice(1))
        detection = {"type": "server_vad", "silence_duration_ms": 900, "create_response": False}
        await configure(wire, turn_detection=detection)
        await speak(wire, voice(1), silence(0.7))
        stopped = await wire.until("input_audio_buffer.speech_stopped")
        assert stopped["audio_end_ms"] == pytest.approx(2500, abs=100)
        await wire.until("conversation.item.done")
        await speak(wire, voice(1), silence(0.7), voice(1), silence(1.2))
        await wire.until("conversation.item.done")
        types = wire.types()
        assert types.count("input_audio_buffer.speech_started") == 2
        assert types.count("input_audio_buffer.committed") == 2


async def test_another_format_discards_a_turn_in_progress_and_says_so() -> None:
    ear = Ear()
    async with ear.client() as wire:
        await speak(wire, voice(1))
        await wire.until("input_audio_buffer.speech_started")
        await configure(wire, format={"type": "audio/pcmu"})
        await wire.until("input_audio_buffer.cleared")
        await configure(wire, format={"type": "audio/pcm", "rate": 24_000})
        await speak(wire, voice(2), silence(1))
        assert (await wire.done())["status"] == "completed"
        assert wire.types().count("input_audio_buffer.committed") == 1


async def test_guesses_are_sent_while_the_user_speaks() -> None:
    ear = Ear()
    async with ear.client(transcription={}) as wire:
        await wire.configure(specstream={"events": ["hearing"]})
        for _ in range(3):
            await speak(wire, voice(0.6))
            await wire.until("specstream.hearing")
        guesses = [e["transcript"] for e in wire.of("specstream.hearing")]
        assert guesses[:2] == ["what is", "what is the capital"]
        deltas = [e["delta"] for e in wire.of("transcription.delta")]
        assert deltas[0] == "what is"


async def test_by_hand_nothing_starts_by_itself_and_a_response_waits_for_the_words() -> None:
    ear = Ear()
    async with ear.client(**MANUAL) as wire:
        await speak(wire, voice(1))
        await wire.send("input_audio_buffer.commit")
        await wire.send("response.create")
        await wire.until("response.done")
        types = wire.types()
        assert [t for t in types if "speech" in t] == []
        assert types.index("input_audio_buffer.committed") < types.index("response.created")
        assert ear.engine.requests[0][0] == [{"role": "user", "content": SAID}]
        assert len(ear.engine.requests) == 1


async def test_a_response_that_waits_for_the_words_can_be_cancelled() -> None:
    async with Ear().client(**MANUAL) as wire:
        await speak(wire, voice(1))
        await wire.send("input_audio_buffer.commit")
        await wire.send("response.create")
        await wire.send("response.cancel")
        details = (await wire.done())["status_details"]
        assert details == {"type": "cancelled", "reason": "client_cancelled"}
        assert "error" not in wire.types()


async def test_a_commit_of_nothing_is_refused_as_openai_does() -> None:
    async with Ear().client(**MANUAL) as wire:
        error = await wire.refused("input_audio_buffer.commit")
        assert error["code"] == "input_audio_buffer_commit_empty"
        assert "0.00ms" in error["message"]
        await speak(wire, voice(0.05))
        error = await wire.refused("input_audio_buffer.commit")
        assert "only has 47." in error["message"]
        await wire.send("input_audio_buffer.clear")
        await wire.until("input_audio_buffer.cleared")
        error = await wire.refused("input_audio_buffer.commit")
        assert "0.00ms" in error["message"]


async def test_cleared_turns_leave_nothing_behind() -> None:
    ear = Ear()
    held: list[SessionHearing] = []
    opened = Microphone._listener

    def listener(self: Microphone) -> SessionHearing:
        held.append(opened(self))
        return held[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Microphone, "_listener", listener)
        async with ear.client() as wire:
            for _ in range(5):
                await speak(wire, voice(0.5))
                await wire.until("input_audio_buffer.speech_started")
                await wire.send("input_audio_buffer.clear")
                await wire.until("input_audio_buffer.cleared")
                await speak(wire, silence(0.5))
            await speak(wire, voice(0.5), silence(1))
            await wire.until("response.done")
            assert held[-1]._turns == {}
            assert not held[-1].speaking
    assert wire.types().count("input_audio_buffer.committed") == 1


async def test_without_create_response_nothing_is_answered() -> None:
    ear = Ear()
    off = {"type": "server_vad", "create_response": False}
    async with ear.client(turn_detection=off, transcription={}) as wire:
        await speak(wire, voice(1), silence(1))
        await wire.until("conversation.item.input_audio_transcription.completed")
        await wire.send("response.create")
        await wire.until("response.done")
        assert len(ear.engine.requests) == 1


@pytest.mark.parametrize("turns", [None, {"type": "server_vad", "create_response": False}])
async def test_what_was_not_to_be_answered_is_not_when_the_settings_change(turns: Any) -> None:
    ear = Ear("note this down", "what was it")
    async with ear.client(turn_detection=turns, transcription={}) as wire:
        await speak(wire, voice(1), silence(1))
        if turns is None:
            await wire.send("input_audio_buffer.commit")
        await wire.until("conversation.item.input_audio_transcription.completed")
        await configure(wire, turn_detection={"type": "server_vad"})
        await wire.configure(instructions="Be kind.")  # everything before it has been done
        assert ear.engine.requests == []
        await speak(wire, voice(1), silence(1))
        await wire.until("response.done")
    assert len(ear.engine.requests) == 1


async def test_a_response_aside_with_its_own_input_waits_for_no_transcript() -> None:
    ear = Ear()
    ear.recognizer.takes_s = 0.3
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "side"}]}
    async with ear.client(**MANUAL) as wire:
        await speak(wire, voice(1))
        await wire.send("input_audio_buffer.commit")
        await wire.send("response.create", response={"conversation": "none", "input": [said]})
        await wire.send("response.create")
        for _ in range(2):
            await wire.until("response.done")
        assert wire.of("error") == []
    asked = [messages[-1]["content"] for messages, _ in ear.engine.requests]
    assert asked == ["side", SAID]


async def test_a_sound_without_words_is_not_answered() -> None:
    ear = Ear("", SAID)
    async with ear.client(transcription={}) as wire:
        await speak(wire, voice(0.3), silence(1))
        completed = await wire.until("conversation.item.input_audio_transcription.completed")
        assert completed["transcript"] == ""
        await speak(wire, voice(1), silence(1))
        await wire.until("response.done")
        assert len(ear.engine.requests) == 1


@pytest.mark.parametrize("interrupts", [True, False])
async def test_speaking_interrupts_as_the_client_wishes(interrupts: bool) -> None:
    gate = Gate(shut=False)
    ear = Ear(engine=ScriptedEngine(["One two three four five six.", "Paris."], gate=gate))
    async with ear.client(
        turn_detection={"type": "server_vad", "interrupt_response": interrupts}
    ) as wire:
        gate.shut(after=2)
        await wire.ask("Count.")
        await wire.until("response.output_text.delta")
        await speak(wire, voice(1))
        await wire.until("input_audio_buffer.speech_started")
        if interrupts:
            done = await wire.done()
            details = done["status_details"]
            assert (done["status"], details["reason"]) == ("cancelled", "turn_detected")
            gate.open()
            await speak(wire, silence(1))
            done = await wire.done()
            assert done["output"][0]["content"][0]["text"] == "Paris."
        else:
            await speak(wire, silence(1))
            await wire.until("conversation.item.done")
            gate.open()
            dones = [await wire.done() for _ in range(2)]
            assert [done["status"] for done in dones] == ["completed"] * 2
            assert dones[1]["output"][0]["content"][0]["text"] == "Paris."


@pytest.mark.parametrize("interrupts", [True, False])
async def test_turns_that_follow_one_another_quickly_get_one_answer(interrupts: bool) -> None:
    ear = Ear(engine=ScriptedEngine(["Both."]))
    ear.recognizer = ScriptedRecognizer(["what is", "the capital"], takes_s=0.3)
    turns = {"type": "server_vad", "interrupt_response": interrupts}
    async with ear.client(turn_detection=turns) as wire:
        await speak(wire, voice(1), silence(0.6), voice(1), silence(0.6))
        assert (await wire.done())["status"] == "completed"
        assert wire.of("error") == []
        ((messages, _),) = ear.engine.requests
        assert messages == [{"role": "user", "content": "what is the capital"}]


async def full_of_audio(ear: Ear, wire: Wire) -> None:
    """Have a reply under way, and audio that waits for a recogniser that never answers."""
    await wire.ask("Count.", output_modalities=["text"])
    await wire.until("response.output_text.delta")
    for _ in range(MAX_WAITING + 2):
        await speak(wire, voice(0.5), silence(0.6))
    for _ in range(MAX_WAITING):
        await wire.until("input_audio_buffer.committed")


async def test_a_cancel_overtakes_audio_that_waits_for_the_recogniser() -> None:
    gate = Gate(shut=False)
    ear = Ear(engine=ScriptedEngine(["One two three."], gate=gate))
    ear.recognizer = ScriptedRecognizer([SAID], takes_s=math.inf)
    async with ear.client(turn_detection={"type": "server_vad", "interrupt_response": False}) as wire:
        gate.shut(after=2)
        await full_of_audio(ear, wire)
        await wire.send("response.cancel")
        assert (await wire.done())["status"] == "cancelled"


async def test_a_client_that_leaves_takes_its_waiting_audio_with_it() -> None:
    ear = Ear()
    ear.recognizer = ScriptedRecognizer([SAID], takes_s=math.inf)
    async with ear.stand.running():
        async with ear.stand.client() as wire:
            await configure(wire, turn_detection={"type": "server_vad"})
            for _ in range(MAX_WAITING + 1):
                await speak(wire, voice(0.5), silence(0.6))
            for _ in range(MAX_WAITING):
                await wire.until("input_audio_buffer.committed")
        await wait_for(lambda: ear.recognizer.open_streams == 0)
    assert len(ear.recognizer.audio) <= MAX_WAITING + 1


@asynccontextmanager
async def counting(ear: Ear, gate: Gate) -> AsyncGenerator[Wire, None]:
    """A reply under way, which only a word interrupts."""
    turns = {"type": "server_vad", "interrupt_response": True}
    async with ear.client(turn_detection=turns) as wire:
        updated = await wire.configure(specstream={"interrupt": "words"})
        assert updated["session"]["specstream"]["interrupt"] == "words"
        gate.shut(after=2)
        await wire.ask("Count.")
        await wire.until("response.output_text.delta")
        yield wire


async def test_a_noise_interrupts_nothing_where_words_are_waited_for() -> None:
    gate = Gate(shut=False)
    ear = Ear(engine=ScriptedEngine(["One two three four five six."], gate=gate))
    ear.recognizer = ScriptedRecognizer(["", "...", "?!", SAID], word_ms=100)
    async with counting(ear, gate) as wire:
        for turn in range(3):
            await speak(wire, voice(0.7), silence(1))
            await wait_for(lambda turn=turn: len(ear.recognizer.audio) == turn + 1)  # type: ignore[misc]
            await wait_for(lambda: ear.recognizer.open_streams == 0)
        gate.open()
        done = await wire.done()
        assert done["status"] == "completed"
        assert done["output"][0]["content"][0]["text"] == "One two three four five six."
        assert not [kind for kind in wire.types() if kind.startswith("input_audio_buffer")]
        await wire.reply("Again.")
    roles = [message["role"] for message in ear.engine.requests[-1][0]]
    assert roles == ["user", "assistant", "user"]


async def test_a_listeners_word_interrupts_nothing_where_words_are_waited_for() -> None:
    gate = Gate(shut=False)
    ear = Ear(engine=ScriptedEngine(["One two three four five six."], gate=gate))
    ear.recognizer = ScriptedRecognizer(["Mm hmm."], word_ms=100)
    async with counting(ear, gate) as wire:
        await speak(wire, voice(1), silence(1))
        await wire.send("conversation.item.retrieve", item_id="nothing")  # has been read up to here
        await wire.until("error")
        gate.open()
        assert (await wire.done())["status"] == "completed"
        assert not wire.of("speech_started", "committed")
        assert len(ear.engine.requests) == 1


@pytest.mark.parametrize("while_said", [True, False])
async def test_a_word_interrupts_as_soon_as_it_is_known(while_said: bool) -> None:
    gate = Gate(shut=False)
    ear = Ear(engine=ScriptedEngine(["One two three four five six.", "Paris."], gate=gate))
    ear.recognizer = ScriptedRecognizer([SAID], word_ms=100 if while_said else 10_000)
    async with counting(ear, gate) as wire:
        await speak(wire, voice(0.7), *([] if while_said else [silence(1)]))
        done = await wire.done()
        assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "turn_detected")
        assert ("input_audio_buffer.committed" in wire.types()) is False
        gate.open()
        if while_said:
            await speak(wire, silence(1))
        done = await wire.done()
        assert done["output"][0]["content"][0]["text"] == "Paris."
        heard = [kind for kind in wire.types() if kind.startswith("input_audio_buffer")]
        assert heard == HEARD[:3]
        (started,) = wire.of(HEARD[0])
        assert started["audio_start_ms"] == 0
    roles = [message["role"] for message in ear.engine.requests[-1][0]]
    assert roles == ["user", "assistant", "user"]


async def test_words_that_were_lost_are_told_and_interrupt_nothing() -> None:
    gate = Gate(shut=False)
    lost = AdapterFailed("the ear is tired")
    ear = Ear(lost, engine=ScriptedEngine(["One two three four five six."], gate=gate))
    async with counting(ear, gate) as wire:
        await speak(wire, voice(1), silence(1))
        failed = await wire.until("conversation.item.input_audio_transcription.failed")
        assert failed["error"]["code"] == "adapter_failed"
        gate.open()
        assert (await wire.done())["status"] == "completed"
        assert not [kind for kind in wire.types() if "speech" in kind]


async def test_a_turn_that_is_cleared_before_a_word_leaves_nothing_behind() -> None:
    gate = Gate(shut=False)
    ear = Ear(engine=ScriptedEngine(["One two three four five six."], gate=gate))
    ear.recognizer = ScriptedRecognizer([SAID], word_ms=10_000)
    async with counting(ear, gate) as wire:
        await speak(wire, voice(0.7))
        await wait_for(lambda: ear.recognizer.open_streams == 1)
        await wire.send("input_audio_buffer.clear")
        await wire.until("input_audio_buffer.cleared")
        gate.open()
        assert (await wire.done())["status"] == "completed"
        assert not [kind for kind in wire.types() if "speech" in kind]


async def test_a_recogniser_that_breaks_fails_one_item() -> None:
    ear = Ear(AdapterFailed("the ear is tired"), SAID)
    async with ear.client() as wire:
        await speak(wire, voice(1), silence(3))
        failed = await wire.until("conversation.item.input_audio_transcription.failed")
        assert failed["error"]["code"] == "adapter_failed"
        assert "tired" in failed["error"]["message"]
        await speak(wire, voice(1), silence(3))
        await wire.until("response.done")


@pytest.mark.parametrize("interrupt", ["voice", "words"])
async def test_a_recogniser_that_hangs_fails_one_item_and_typing_goes_on(
    interrupt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = ListenerSettings(deadline_s=0.1, by_words=False, partial_ms=None)
    monkeypatch.setattr(microphone, "listener_settings", lambda heard, by_words: hasty)
    ear = Ear()
    ear.recognizer.takes_s = math.inf
    async with ear.client() as wire:
        await wire.configure(specstream={"interrupt": interrupt})
        await speak(wire, voice(1), silence(3))
        failed = await wire.until("conversation.item.input_audio_transcription.failed")
        assert failed["error"]["code"] == "adapter_failed"
        assert "longer than 0.1 s" in failed["error"]["message"]
        assert (await wire.reply("Are you there?"))["status"] == "completed"


async def test_a_detector_that_breaks_is_one_error() -> None:
    ear = Ear()
    ear.detector.error = OSError("no ear drum")
    async with ear.client() as wire:
        await speak(wire, voice(1))
        assert "ear drum" in (await wire.until("error"))["error"]["message"]
        await wire.reply("Are you there?")
        assert wire.types().count("error") == 1


async def test_bad_audio_is_one_error_each_and_the_session_lives() -> None:
    ear = Ear()
    random = Random(4)
    async with ear.client(**MANUAL) as wire:
        for _ in range(20):
            await wire.send("input_audio_buffer.append", audio="no base64!")
        assert (await wire.until("error"))["error"]["param"] == "audio"
        for _ in range(20):
            await wire.send("input_audio_buffer.append", audio=base64.b64encode(b"abc").decode())
        assert "even" in (await wire.until("error"))["error"]["message"]
        await wire.send("input_audio_buffer.append", audio="")
        rubbish = base64.b64encode(random.randbytes(30_000)).decode()
        await wire.send("input_audio_buffer.append", audio=rubbish)
        await wire.send("input_audio_buffer.commit")
        await wire.send("response.create")
        await wire.until("response.done")
        assert wire.types().count("error") == 2
        error = await wire.refused("input_audio_buffer.append")
        assert error["code"] == "missing_required_parameter"


async def test_a_full_buffer_is_one_error_until_it_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    short = ListenerSettings(manual=True, max_turn_s=2.0)
    monkeypatch.setattr(microphone, "listener_settings", lambda heard, by_words: short)
    ear = Ear()
    async with ear.client(**MANUAL) as wire:
        huge = base64.b64encode(voice(5)).decode()
        await wire.send("input_audio_buffer.append", audio=huge)
        assert (await wire.until("error"))["error"]["code"] == "input_audio_buffer_full"
        await wire.send("input_audio_buffer.clear")
        await wire.until("input_audio_buffer.cleared")
        chunk = base64.b64encode(voice(1)).decode()
        for _ in range(9):
            await wire.send("input_audio_buffer.append", audio=chunk)
        error = (await wire.until("error"))["error"]
        assert error["code"] == "input_audio_buffer_full"
        await wire.send("input_audio_buffer.clear")
        await wire.until("input_audio_buffer.cleared")
        await wire.send("input_audio_buffer.append", audio=chunk)
        await wire.send("input_audio_buffer.commit")
        await wire.until("input_audio_buffer.committed")
        assert wire.types().count("error") == 2
        assert max(map(len, ear.recognizer.audio)) <= 2 * 16_000 * 3


@pytest.mark.parametrize("kind", ["audio/pcmu", "audio/pcma"])
async def test_g711_in_both_directions(kind: g711.Format) -> None:
    tone = np.rint(9000 * np.sin(np.arange(8000) * 2 * np.pi * 300 / 8000)).astype("<i2")
    ear = Ear(voice=WordVoice)
    async with ear.client(format={"type": kind}, turn_detection=None) as wire:
        await wire.configure(audio={"output": {"format": {"type": kind}}})
        sound = base64.b64encode(g711.coded(tone.tobytes(), kind)).decode()
        await wire.send("input_audio_buffer.append", audio=sound)
        await wire.send("input_audio_buffer.commit")
        await wire.send("response.create")
        done = await wire.done()
    assert done["audio"]["output"]["format"] == {"type": kind}
    heard = np.frombuffer(ear.recognizer.audio[0], "<i2").astype(float)
    wanted = 9000 * np.sin(np.arange(len(heard)) * 2 * np.pi * 300 / 16_000)
    assert len(heard) == pytest.approx(16_000, abs=200)
    assert np.abs(heard - wanted).max() < 500
    deltas = wire.of("response.output_audio.delta")
    spoken = b"".join(base64.b64decode(e["delta"]) for e in deltas)
    assert len(spoken) == 8000 * WORD_S  # "Paris" is one word
    voice_tone = np.frombuffer(g711.decoded(spoken, kind), "<i2").astype(float)
    own = 9000 * np.sin(np.arange(len(voice_tone)) * 0.3)
    assert np.abs(voice_tone - own)[100:-100].max() < 500


def test_g711_codes() -> None:
    samples = np.array([0, 32767, -32768, 1000], dtype="<i2").tobytes()
    assert g711.coded(samples, "audio/pcmu") == bytes([0xFF, 0x80, 0x00, 0xCE])
    assert g711.coded(samples, "audio/pcma") == bytes([0xD5, 0xAA, 0x2A, 0xFA])


async def test_times_go_on_when_settings_change() -> None:
    ear = Ear()
    async with ear.client() as wire:
        await speak(wire, silence(2))
        changed = await configure(wire, turn_detection={"type": "semantic_vad"})
        assert changed["turn_detection"] == {
            "type": "semantic_vad",
            "eagerness": "auto",
            "create_response": True,
            "interrupt_response": True,
        }
        await speak(wire, voice(1))
        started = await wire.until("input_audio_buffer.speech_started")
        assert started["audio_start_ms"] == pytest.approx(2000, abs=40)


async def test_what_cannot_be_served_of_the_input_is_reported() -> None:
    async with Ear().client() as wire:
        heard = {
            "noise_reduction": {"type": "near_field"},
            "transcription": {"model": "whisper-1", "language": "de", "prompt": "Berlin"},
            "turn_detection": {"type": "server_vad", "idle_timeout_ms": 6000, "threshold": 0.7},
        }
        updated = await wire.configure(audio={"input": heard})
        params = {ignored["param"].split(".")[-1] for ignored in updated["specstream"]["ignored"]}
        assert params == {"noise_reduction", "prompt", "idle_timeout_ms", "language"}
        assert updated["session"]["audio"]["input"]["turn_detection"]["threshold"] == 0.7


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"turn_detection": {"type": "server_vad", "eagerness": "low"}}, "turn_detection"),
        ({"turn_detection": {"type": "semantic_vad", "threshold": 0.5}}, "turn_detection"),
        ({"turn_detection": {"type": "server_vad", "threshold": 2}}, "turn_detection.threshold"),
        ({"turn_detection": {"type": "telepathy"}}, "turn_detection.type"),
        ({"format": {"type": "audio/pcm", "rate": 16000}}, "format.rate"),
        ({"format": {"type": "audio/pcmu", "rate": 24000}}, "format"),
        ({"transcription": {"language": "??"}}, "transcription.language"),
    ],
)
async def test_wrong_settings_are_refused(wrong: dict[str, Any], param: str) -> None:
    async with Ear().client() as wire:
        session = {"type": "realtime", "audio": {"input": wrong}}
        error = await wire.refused("session.update", session=session)
        assert error["param"] == f"session.audio.input.{param}"


async def test_ears_that_cannot_be_had_stop_the_start() -> None:
    def missing() -> Ears:
        raise AdapterUnavailable("no whisper here")

    with pytest.raises(AdapterUnavailable, match="no whisper"):
        async with Stand(ScriptedEngine(["Hi."]), ears=missing).running():
            pass


async def test_a_client_that_leaves_while_it_speaks_leaves_nothing_behind() -> None:
    ear = Ear()
    async with ear.stand.running():
        async with ear.stand.client() as wire:
            await speak(wire, voice(1))
            await wire.until("input_audio_buffer.speech_started")
        with anyio.fail_after(10):
            await wait_for(lambda: ear.recognizer.open_streams == 0)


def test_settings_of_the_listener() -> None:
    by_silence = listener_settings(AudioInput(turn_detection=TurnDetection(silence_duration_ms=200)))
    assert (by_silence.silence_ms, by_silence.by_words) == (200, False)
    semantic = TurnDetection(type="semantic_vad", eagerness="low")
    assert listener_settings(AudioInput(turn_detection=semantic)).patience == 2.0
    assert listener_settings(AudioInput()).manual


def test_words_that_two_guesses_agree_on() -> None:
    assert _agreed("", "what is") == ""
    assert _agreed("what is the cap", "what is the capital") == "what is the"
    assert _agreed("the the", "the the end") == "the the"
