"""The voice behind OpenAI's ``/v1/audio/speech``, against servers that answer as real ones do."""

import asyncio
import gc
import logging
import socket
import struct
import sys
from contextlib import aclosing
from typing import Any

import pytest

from specstream import Agent
from specstream.errors import AdapterError, AdapterFailed, AdapterUnavailable
from specstream.stages.adapters import load_adapter
from specstream.stages.contract import StageFailed
from specstream.stages.interfaces import SpeechSynthesizer
from specstream.testing import ScriptedEngine
from specstream.types import Phrase, Span
from specstream_adapters.voice import ReferenceVoice
from specstream_adapters.voice.openai import OpenAIVoice, SampleReader
from tests.server.doubles import Stand, wait_for
from tests.support.speech_servers import AudioServer, Reply, in_thread, spoken

pytest.importorskip("openai")

SOUND = struct.pack("<5000h", *range(5000))


def phrase(text: str = "Hello there.") -> Phrase:
    return Phrase(text, Span(0, len(text)), Span(0, 1))


async def say(voice: SpeechSynthesizer, text: str = "Hello there.") -> bytes:
    async with aclosing(voice.synthesize(phrase(text))) as buffers:
        return b"".join([buffer.pcm async for buffer in buffers])


def wave_header(rate: int = 24_000, *, channels: int = 1, bits: int = 16, size: int = 0) -> bytes:
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * 2, 2, bits)
    info = b"LIST\x03\0\0\0abc\0"  # a chunk of odd length, padded
    return b"RIFF\0\0\0\0WAVE" + info + b"fmt \x10\0\0\0" + form + b"data" + struct.pack("<I", size)


async def test_it_asks_as_it_is_told_and_keeps_its_connection() -> None:
    async with AudioServer().running() as server:
        voice = OpenAIVoice(
            url=f"{server.url}/?model=kokoro&voice=af_sky&language=en-us",
            speed=1.5,
            api_key=" secret ",
            extra={"lang_code": "a"},
        )
        assert await say(voice, " Hi \u2192 you! ") == (await spoken("Hi   you!"))[0]
        await say(voice, "Again.")
        await voice.aclose()
    first, second = server.asked
    assert first == {
        "model": "kokoro",
        "voice": "af_sky",
        "input": "Hi   you!",
        "response_format": "pcm",
        "speed": 1.5,
        "lang_code": "a",
    }
    assert second["input"] == "Again."
    assert server.keys == ["Bearer secret"] * 2
    assert server.connections == 1
    assert voice.capabilities.name == "openai:af_sky" and voice.capabilities.language == "en-us"


async def test_an_option_goes_before_the_address_and_defaults_are_what_servers_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    async with AudioServer().running() as server:
        named = load_adapter("voice", f"openai={server.url}")
        chosen = OpenAIVoice(url=f"{server.url}?voice=a&sample_rate=24000", voice="b")
        for voice in (named, chosen):
            await say(voice)
            await voice.aclose()
    assert [(asked["model"], asked["voice"]) for asked in server.asked] == [
        ("tts-1", "alloy"),
        ("tts-1", "b"),
    ]
    assert "speed" not in server.asked[0]
    assert set(server.keys) == {"Bearer from-the-environment"}


async def test_our_own_server_is_such_a_server() -> None:
    stand = Stand(ScriptedEngine([""]), voice=ReferenceVoice)
    async with stand.running():
        voice = OpenAIVoice(url=f"http://127.0.0.1:{stand.port}/v1")
        pcm = await say(voice, "Seven small ships.")
        await voice.aclose()
    assert pcm == (await spoken("Seven small ships."))[0]


@pytest.mark.parametrize("cut", [1, 3, 7, 4096])
@pytest.mark.parametrize(
    ("header", "tail"),
    [
        (b"", b""),
        (wave_header(), b""),
        (wave_header(size=0xFFFFFFFF), b""),
        (wave_header(size=len(SOUND)), b"LIST\x04\0\0\0tail"),
        (wave_header(size=len(SOUND) + 1), b"\0"),
    ],
    ids=["pcm", "wav without a length", "wav of a stream", "wav with a tail", "wav of odd size"],
)
def test_samples_are_found_however_the_answer_is_cut(header: bytes, tail: bytes, cut: int) -> None:
    reader, data, kind = SampleReader(24_000, "audio/wav"), header + SOUND + tail, bytearray()
    for at in range(0, len(data), cut):
        made = reader.add(data[at : at + cut])
        assert len(made) % 2 == 0
        kind += made
    assert kind == SOUND


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply([wave_header(22_050) + SOUND]), "set sample_rate=22050"),
        (Reply([wave_header(channels=2) + SOUND]), "2 channels"),
        (Reply([wave_header(bits=24) + SOUND]), "24 bits"),
        (Reply([wave_header().replace(b"fmt ", b"junk") + SOUND]), "without a format"),
        (Reply([SOUND], kind="audio/pcm;rate=16000"), "set sample_rate=16000"),
        (Reply([SOUND], kind='audio/L16; rate="24000"; channels=2'), "2 channels"),
        (Reply([b"ID3" + SOUND], kind="Audio/MPEG"), "audio/mpeg, not PCM"),
        (Reply([b'{"title": "No"}'], kind="application/problem+json"), "not PCM.*title"),
        (Reply([b"\xff\xfb" + SOUND], kind="audio/mp3"), "audio/mp3, not PCM"),
        (Reply([b"Ogg", b"S" + SOUND], kind="application/octet-stream"), "not PCM: b'OggS"),
        (Reply([b"<!DOCTYPE html>Log in"], kind="application/octet-stream"), "not PCM.*Log in"),
        (Reply([wave_header(size=48_000) + SOUND]), "ended 38000 bytes before its WAV"),
        (Reply(status=429, body="slow down", header="Retry-After: 30"), "answers 429: slow down"),
        (Reply(body={"queued": True}), "application/json, not PCM"),
        (Reply([]), "sends no audio"),
        (Reply([SOUND], cut=True), "the answer broke"),
        (Reply(status=422, body={"detail": [{"loc": ["voice"], "msg": "unknown"}]}), "unknown"),
        (Reply(status=400, body={"error": {"message": "no such\nspeaker"}}), "no such speaker"),
        (Reply(status=400, body="plain words"), "plain words"),
    ],
)
async def test_what_is_no_speech_is_said_in_the_servers_words(reply: Reply, says: str) -> None:
    async with AudioServer(lambda path, body: reply).running() as server:
        voice = OpenAIVoice(url=server.url)
        with pytest.raises(AdapterFailed, match=says) as failed:
            await say(voice)
        await voice.aclose()
    assert server.url in str(failed.value)
    assert len(server.bodies) == 1  # nothing of it is tried again


async def test_a_server_that_fails_before_the_first_byte_is_asked_once_more() -> None:
    replies = [Reply(status=503, body={"error": "warming up"}), Reply([SOUND])]
    async with AudioServer(lambda path, body: replies.pop(0)).running() as server:
        voice = OpenAIVoice(url=server.url)
        assert await say(voice) == SOUND
        await voice.aclose()


@pytest.mark.parametrize(
    ("status", "says"), [(401, "check the key"), (403, "check the key"), (404, "no such model")]
)
async def test_what_is_not_to_be_had_is_unavailable(status: int, says: str) -> None:
    refusal = Reply(status=status, body={"error": {"message": "no such model"}})
    async with AudioServer(lambda path, body: refusal).running() as server:
        voice = OpenAIVoice(url=server.url)
        with pytest.raises(AdapterUnavailable, match=says):
            await say(voice)
        await voice.aclose()


async def test_an_address_that_sends_on_and_on_is_given_up() -> None:
    moved = Reply(status=307, body="", header="Location: /v1/login")
    async with AudioServer(lambda path, body: moved).running() as server:
        voice = OpenAIVoice(url=server.url)
        with pytest.raises(AdapterUnavailable, match="sends us on and on"):
            await say(voice)
        await voice.aclose()
    assert len(server.bodies) <= 8


async def test_a_missing_server_is_an_error_at_the_first_phrase_only() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        voice = OpenAIVoice(url=f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
        with pytest.raises(AdapterUnavailable, match="nobody answers"):
            await say(voice)
        await voice.aclose()


async def test_an_agent_tells_why_its_voice_is_not_heard() -> None:
    refusal = Reply(status=404, body={"detail": "no such model"})
    async with AudioServer(lambda path, body: refusal).running() as server:
        async with Agent(engine=ScriptedEngine(["Hi."]), voice=f"openai={server.url}") as agent:
            await agent.say("Hello?")
            agent.finish()
            items = [event.item async for event in agent]
    (failed,) = [item for item in items if isinstance(item, StageFailed)]
    assert isinstance(failed.error, AdapterUnavailable) and "no such model" in str(failed.error)


async def test_closing_the_voice_ends_a_wait_for_the_first_audio() -> None:
    async with AudioServer(lambda path, body: Reply(hang=True)).running() as server:
        voice = OpenAIVoice(url=server.url)
        saying = asyncio.create_task(say(voice))
        await wait_for(lambda: bool(server.bodies))
        await voice.aclose()
        assert await saying == b""
        await server.left.wait()


async def test_a_silent_server_is_given_up() -> None:
    pieces: list[bytes] = []
    async with AudioServer(lambda path, body: Reply(pieces, hang=True)).running() as server:
        for sound, kept in (([], 0), ([SOUND], len(SOUND))):
            pieces[:] = sound
            voice = OpenAIVoice(url=server.url, between_s=0.1)
            heard = bytearray()

            async def listen(voice: OpenAIVoice, heard: bytearray) -> None:
                async for buffer in voice.synthesize(phrase()):
                    heard += buffer.pcm

            with pytest.raises(AdapterFailed, match="silent for 0.1 s"):
                await listen(voice, heard)
            assert len(heard) == kept
            await voice.aclose()


async def test_audio_comes_before_the_answer_ends_and_closing_stops_the_server() -> None:
    async with AudioServer(lambda path, body: Reply([SOUND], hang=True)).running() as server:
        voice = OpenAIVoice(url=server.url)
        async with aclosing(voice.synthesize(phrase())) as buffers:
            assert (await anext(buffers)).pcm == SOUND[: 2 * 24 * 60]
        await server.left.wait()
        await voice.aclose()


async def test_cancelling_a_wait_stops_the_server() -> None:
    async with AudioServer(lambda path, body: Reply([SOUND], hang=True)).running() as server:
        voice = OpenAIVoice(url=server.url)
        heard = 0

        async def listen() -> None:
            nonlocal heard
            async with aclosing(voice.synthesize(phrase())) as buffers:
                async for buffer in buffers:
                    heard += len(buffer.pcm)
                    if heard == len(SOUND):
                        all_heard.set()

        all_heard = asyncio.Event()
        task = asyncio.create_task(listen())
        await all_heard.wait()
        task.cancel()
        await server.left.wait()
        with pytest.raises(asyncio.CancelledError):
            await task
        await voice.aclose()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_voice_serves_one_event_loop_after_another() -> None:
    """The first loop leaves its connection open, which no other loop can close."""
    with in_thread(AudioServer) as url:
        voice = OpenAIVoice(url=url)

        async def twice() -> bytes:
            pcm = await say(voice) + await say(voice)
            await voice.aclose()
            return pcm

        first = asyncio.run(say(voice))
        assert asyncio.run(twice()) == 2 * first
        gc.collect()


async def test_a_key_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refusal = Reply(status=401, body={"error": {"message": "wrong key"}})
    async with AudioServer(lambda path, body: refusal).running() as server:
        voice = OpenAIVoice(url=server.url, api_key="k-1234567")
        with pytest.raises(AdapterError) as failed:
            await say(voice)
        await voice.aclose()
    assert server.keys == ["Bearer k-1234567"]
    assert "1234567" not in caplog.text + str(failed.value) + repr(vars(voice))


def test_without_a_key_or_the_package_it_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(AdapterUnavailable, match=r"set \$OPENAI_API_KEY"):
        load_adapter("voice", "openai")
    missing: Any = None
    monkeypatch.setitem(sys.modules, "openai", missing)
    with pytest.raises(AdapterUnavailable, match=r"specstream-client\[openai\]"):
        OpenAIVoice(url="http://127.0.0.1:1/v1")
