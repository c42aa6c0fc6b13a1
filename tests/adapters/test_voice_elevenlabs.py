"""The voice over ElevenLabs' WebSocket, against a server that speaks its protocol."""

import asyncio
import base64
import json
import logging
import socket
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from specstream import Agent
from specstream.errors import AdapterFailed, AdapterUnavailable
from specstream.stages.adapters import load_adapter
from specstream.stages.contract import StageFailed
from specstream.stages.limits import MarkCheck
from specstream.testing import ScriptedEngine
from specstream.types import Mark, Phrase, Span, Speech
from specstream_adapters.voice.elevenlabs import ElevenLabsVoice
from specstream_adapters.voice.elevenlabs_marks import AudioPieces
from tests.server.doubles import settle, wait_for
from tests.support.speech_servers import ElevenLabsServer, spoken, timed_frames

TEXT = "Seven small ships sailed past the green hills."
SOUND = base64.b64encode(b"\1\0" * 3000).decode()
FINAL = {"audio": None, "isFinal": True}


def phrase(text: str = TEXT, start: int = 0) -> Phrase:
    return Phrase(text, Span(start, start + len(text)), Span(0, 1))


async def say(voice: ElevenLabsVoice, what: Phrase) -> tuple[bytes, list[Mark]]:
    pcm, marks = b"", list[Mark]()
    async with aclosing(voice.synthesize(what)) as buffers:
        async for buffer in buffers:
            pcm += buffer.pcm
            marks += buffer.marks
    return pcm, marks


async def test_it_sends_what_the_protocol_says() -> None:
    async with ElevenLabsServer().running() as server:
        voice = ElevenLabsVoice(
            url=server.url,
            voice="a/b",
            model="m",
            speed=1.1,
            language="de-at",
            settings={"stability": 0.5},
            api_key="secret",
        )
        pcm, marks = await say(voice, phrase("Guten Tag. ", 40))
        await voice.aclose()
    place = urlsplit(server.paths[0])
    assert place.path == "/v1/text-to-speech/a%2Fb/stream-input"
    assert dict(parse_qsl(place.query)) == {
        "model_id": "m",
        "output_format": "pcm_24000",
        "sync_alignment": "true",
        "language_code": "de",
    }
    assert set(server.keys) == {"secret"}
    assert server.begins[0] == {"text": " ", "voice_settings": {"stability": 0.5, "speed": 1.1}}
    assert server.texts == ["Guten Tag. "]
    expected, _ = await spoken("Guten Tag. ")
    assert pcm == expected
    assert [(mark.text, mark.chars) for mark in marks] == [
        ("Guten", Span(40, 45)),
        ("Tag", Span(46, 49)),
    ]


@pytest.mark.parametrize("samples", [700, 1440, 4001, 10**9])
async def test_words_are_marked_however_the_frames_are_cut(samples: int) -> None:
    pcm, known = await spoken(TEXT)
    frames = timed_frames(TEXT, pcm, known, range(samples, len(pcm) // 2, samples))
    async with ElevenLabsServer(lambda text: frames).running() as server:
        voice = ElevenLabsVoice(url=server.url)
        heard, marks = await say(voice, phrase(start=7))
        await voice.aclose()
    assert heard == pcm
    words = [mark for mark in known if mark.kind == "word"]
    assert [mark.text for mark in marks] == [mark.text for mark in words]
    end = 0
    for mark, word in zip(marks, words, strict=True):
        assert mark.chars == Span(word.chars.start + 7, word.chars.end + 7)
        assert mark.samples.start == pytest.approx(word.samples.start, abs=2)
        assert mark.samples.end == pytest.approx(word.samples.end, abs=600)  # 25 ms
        assert end <= mark.samples.start
        end = mark.samples.end
    check = MarkCheck(phrase(start=7).chars, 0, 24_000)
    assert check.fault(marks) == "" and check.end_fault(len(pcm) // 2) == ""


def aligned(chars: str, starts: Sequence[Any], lengths: Sequence[Any], ms: int = 100) -> Any:
    audio = base64.b64encode(bytes(2 * 24 * ms)).decode()
    times = {"chars": list(chars), "charStartTimesMs": starts, "charDurationsMs": lengths}
    return {"audio": audio, "alignment": times}


def marks_of(text: str, *frames: Any) -> list[tuple[str, int, int]]:
    """The words of a phrase in milliseconds."""
    pieces = AudioPieces(text, 0, 24_000)
    buffers = [buffer for frame in frames for buffer in pieces.add(frame)] + pieces.end()
    return [
        (mark.text, mark.samples.start // 24, mark.samples.end // 24)
        for buffer in buffers
        for mark in buffer.marks
    ]


def test_odd_times_still_give_words_in_order_and_inside_the_audio() -> None:
    # A character that isn't in the text, one that is left out, words that overlap or run over the end.
    odd = aligned("a~b c", [0, 20, 40, 60, 50], [20, 20, 30, 10, 90])
    assert marks_of("axb c", odd) == [("axb", 0, 70), ("c", 70, 100)]
    # A word that begins in one frame and ends in the next, whose times count from its own audio.
    parts = [aligned("hel", [50, 60, 80], [10, 20, 20]), aligned("lo", [0, 10], [10, 20])]
    assert marks_of("hello", *parts) == [("hello", 50, 130)]
    assert marks_of("hello", {"audio": SOUND}) == []  # a server without times
    assert marks_of("a b", aligned("a b", [0, 0, 0], [0, 0, 0])) == []  # words that take no time


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([{"audio": "no base64!"}], "no base64"),
        ([{"audio": SOUND, "alignment": {"chars": ["a"]}}], "without chars"),
        ([aligned("ab", [0], [1, 2])], "differ in length"),
        ([aligned("a", ["0"], [1])], "without chars"),
        (["not json"], "no JSON"),
        (["[1]"], "no object"),
        ([FINAL], "no audio"),
        ([{"message": "Out of memory", "error": "internal", "code": 1011}], "Out of memory"),
        ([{"audio": SOUND}, (1011, "worker died")], "worker died"),
        ([(1000, "")], "ended the connection"),
    ],
)
async def test_what_is_no_speech_is_a_typed_error(frames: list[Any], says: str) -> None:
    async with ElevenLabsServer(lambda text: frames).running() as server:
        voice = ElevenLabsVoice(url=server.url)
        with pytest.raises(AdapterFailed, match=says) as failed:
            await say(voice, phrase())
        await voice.aclose()
    assert server.url in str(failed.value)


async def test_a_clean_close_ends_an_answer_that_has_begun() -> None:
    async with ElevenLabsServer(lambda text: [{"audio": SOUND}, (1000, "")]).running() as server:
        voice = ElevenLabsVoice(url=server.url)
        assert len((await say(voice, phrase()))[0]) == 6000
        await voice.aclose()


async def test_a_refused_key_is_unavailable_in_the_servers_words() -> None:
    async with ElevenLabsServer(lambda text: [(1008, "invalid_api_key")]).running() as server:
        voice = ElevenLabsVoice(url=server.url)
        with pytest.raises(AdapterUnavailable, match="invalid_api_key"):
            await say(voice, phrase())
        told = {"message": "You ran out.", "error": "quota_exceeded", "code": 1008}
        server.frames = lambda text: [told]
        with pytest.raises(AdapterUnavailable, match=r"You ran out\."):
            await say(voice, phrase())
        server.refuses = 401, json.dumps({"detail": {"message": "no such key"}})
        with pytest.raises(AdapterUnavailable, match=r"answers 401: no such key; check the key"):
            await say(voice, phrase())
        server.refuses = 500, "broken"
        with pytest.raises(AdapterFailed, match="answers 500: broken"):
            await say(voice, phrase())
        await voice.aclose()


async def test_a_missing_server_is_an_error_at_the_first_phrase_only() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        voice = ElevenLabsVoice(url=f"ws://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(AdapterUnavailable, match="nobody answers"):
            await say(voice, phrase())


async def test_a_silent_server_is_given_up() -> None:
    never = asyncio.Event()
    async with ElevenLabsServer(lambda text: [{"audio": SOUND}, never]).running() as server:
        voice = ElevenLabsVoice(url=server.url, between_s=0.1)
        with pytest.raises(AdapterFailed, match="silent for 0.1 s"):
            await say(voice, phrase())
        await voice.aclose()
        never.set()


async def spoken_with_one_ahead(server: ElevenLabsServer, voice: ElevenLabsVoice) -> None:
    """Speak a phrase that ends only when the connection of the next one is made."""
    go_on = asyncio.Event()
    server.frames = lambda text: [{"audio": SOUND}, go_on, FINAL]
    saying = asyncio.create_task(say(voice, phrase()))
    await server.until_open(2)
    await settle()
    go_on.set()
    await saying
    await server.until_open(1)


async def test_the_next_connection_is_made_while_a_phrase_is_spoken() -> None:
    async with ElevenLabsServer().running() as server:
        voice = ElevenLabsVoice(url=server.url)
        await spoken_with_one_ahead(server, voice)
        server.refuses = 503, "full"  # no new one can be made
        server.frames = lambda text: [{"audio": SOUND}, FINAL]
        assert (await say(voice, phrase()))[0]
        with pytest.raises(AdapterFailed, match="full"):
            await say(voice, phrase())
        await voice.aclose()


async def test_a_connection_that_ended_meanwhile_is_made_again() -> None:
    async with ElevenLabsServer().running() as server:
        voice = ElevenLabsVoice(url=server.url)
        await spoken_with_one_ahead(server, voice)
        (ahead,) = server.open
        await ahead.close(1000, "idle")
        server.frames = lambda text: [{"audio": SOUND}, FINAL]
        assert (await say(voice, phrase()))[0]
        await spoken_with_one_ahead(server, voice)
        (ahead,) = server.open
        ahead.transport.abort()  # not seen before the text is sent
        assert (await say(voice, phrase()))[0]
        await voice.aclose()
        await server.until_open(0)


async def test_closing_early_closes_the_connection_and_closing_the_voice_all() -> None:
    never = asyncio.Event()
    async with ElevenLabsServer(lambda text: [{"audio": SOUND}, never]).running() as server:
        voice = ElevenLabsVoice(url=server.url)
        async with aclosing(voice.synthesize(phrase())) as buffers:
            await anext(buffers)
            await server.until_open(2)
            await settle()
        await server.until_open(1)
        await voice.aclose()
        await server.until_open(0)
        never.set()


async def test_closing_the_voice_ends_a_wait_for_the_first_audio() -> None:
    never = asyncio.Event()
    async with ElevenLabsServer(lambda text: [never]).running() as server:
        voice = ElevenLabsVoice(url=server.url)
        saying = asyncio.create_task(say(voice, phrase()))
        await wait_for(lambda: bool(server.texts))
        await voice.aclose()
        assert await saying == (b"", [])
        await server.until_open(0)
        never.set()


@pytest.mark.slow
async def test_an_agent_speaks_with_it_and_its_words_are_those_of_the_reply() -> None:
    reply = "It costs $5.50 today. Nobody knows **why**."
    async with ElevenLabsServer().running() as server:
        voice = ElevenLabsVoice(url=server.url, language="en-us")
        async with Agent(engine=ScriptedEngine([reply]), voice=voice) as agent:
            await agent.say("What does it cost?")
            agent.finish()
            items = [event.item async for event in agent]
    assert not [item for item in items if isinstance(item, StageFailed)]
    marks = [mark for item in items if isinstance(item, Speech) for mark in item.marks]
    words = dict.fromkeys(reply[slice(*mark.chars)] for mark in marks if mark.kind == "word")
    assert list(words) == ["It", "costs", "$5.50", "today", "Nobody", "knows", "why"]
    assert "five dollars" in "".join(server.texts)


async def test_a_key_is_never_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ELEVENLABS_API_KEY", "k-1234567")
    async with ElevenLabsServer(refuses=(401, "no")).running() as server:
        voice = ElevenLabsVoice(url=server.url)
        with pytest.raises(AdapterUnavailable) as failed:
            await say(voice, phrase())
    assert server.keys == ["k-1234567"]
    mine = [r for r in caplog.records if r.name != "websockets.server"]  # the test's own server
    assert "1234567" not in " ".join(r.getMessage() for r in mine) + str(failed.value)


def test_the_name_chooses_the_voice_and_the_service_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELEVENLABS_API_KEY", raising=False)
    with pytest.raises(AdapterUnavailable, match=r"set \$ELEVENLABS_API_KEY"):
        load_adapter("voice", "elevenlabs")
    made = load_adapter("voice", "elevenlabs=abc", api_key="k", sample_rate=16_000)
    assert made.capabilities.name == "elevenlabs:abc" and made.capabilities.sample_rate == 16_000
