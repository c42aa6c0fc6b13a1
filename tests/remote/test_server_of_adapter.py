"""The server of one adapter: what it refuses, whom it bears with, what it leaves behind."""

import asyncio
import gc
import json
import random
import struct
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from specstream.errors import (
    AdapterFailed,
    AdapterUnavailable,
    ConfigError,
    ConnectionFailed,
    PortUnavailable,
)
from specstream.remote import channel
from specstream.remote.channel import MAX_SIZE, Channel
from specstream.remote.frames import (
    MAX_MESSAGE,
    AckFrame,
    CancelFrame,
    ChunkFrame,
    EndFrame,
    FlushFrame,
    ReadyFrame,
    StartFrame,
    encode,
)
from specstream.remote.protocol import StageRules
from specstream.remote.server import adapter_server
from specstream.remote.stage import RemoteStage
from specstream.server import asgi
from specstream.types import Phrase, SpeechBuffer
from tests.server.doubles import wait_for
from tests.server.remotes import a_turn_elsewhere, at, dial, last_words, spoken
from tests.support.standins import Board, Face, Script, ToneVoice, feed, phrases_of

PHRASES = phrases_of("Hello there [smile]. This is another sentence. And the last one.")
START = encode(StartFrame(window=8))
CHUNK = encode(ChunkFrame(phrase=PHRASES[0]))


# --- nonsense -----------------------------------------------------------------------------------


def nonsense(rng: random.Random) -> str | bytes:
    """A message that no adapter may take when no turn is open."""
    header = struct.pack("<4sBBHIIQI", b"SPST", 1, 1, 0, 0, 8000, 0, 8)
    letters = "".join(chr(rng.choice([rng.randrange(128), rng.randrange(0xD000)])) for _ in range(20))
    return rng.choice(
        [
            rng.randbytes(rng.randint(0, 100)),
            header[: rng.randrange(len(header))],
            header + bytes(rng.choice([0, 7, 8, 9])),
            letters,
            json.dumps(rng.choice([None, [], {}, 1, "start", {"type": letters}, {"type": None}])),
            "[" * rng.randint(1, 100_000),
            json.dumps({"type": "start", "window": rng.choice([0, -1, 10**30, "8", None, 1.5])}),
            json.dumps({"type": "start", "window": 8, letters: letters}),
            json.dumps({"type": "chunk", "phrase": {"text": letters}}),
            str(START)[: rng.randrange(len(START))],
            rng.choice([CHUNK, encode(EndFrame()), encode(FlushFrame()), encode(CancelFrame())]),
            rng.choice(
                [
                    encode(AckFrame(count=1)),
                    '{"type":"done"}',
                    '{"type":"error","code":"x","message":""}',
                ]
            ),
        ]
    )


@pytest.mark.parametrize("seed", range(4))
async def test_nonsense_gets_one_error_and_a_close(seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(seed)
    async with adapter_server("voice", ToneVoice) as port:
        for _ in range(40):
            junk = nonsense(rng)
            async with dial(port) as socket:
                await socket.send(junk)
                errors, code = await last_words(socket)
            assert [error["code"] for error in errors] == ["protocol_error"], junk
            assert set(errors[0]) == {"type", "code", "message"}
            assert code in (1002, 1007), junk
        await a_turn_elsewhere(port)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("messages", "why", "code"),
    [
        ([START, START], "'start' may not come in state 'open'", 1002),
        ([START, CHUNK, bytes(28)], "not an audio message", 1007),
        ([START, encode(EndFrame()), CHUNK], "'chunk' may not come in state 'ending'", 1002),
        ([START, encode(CancelFrame()), encode(CancelFrame())], "'cancel' may not come", 1002),
        ([START, *[CHUNK] * 40], "window full", 1002),
        ([START, encode(AckFrame(count=9))], "more items than were sent", 1002),
        ([START, '{"type":"chunk"}'], "holds a phrase", 1002),
        ([START, '{"type":"wink"}'], "'wink'", 1002),
        ([START, "{"], "Invalid JSON", 1007),
        ([" " * (MAX_MESSAGE + 1)], "longer than", 1009),
        ([bytes(MAX_MESSAGE + 1)], "longer than", 1009),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
async def test_what_is_wrong_is_said(
    messages: list[str | bytes], why: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no close may wait to be given up
    monkeypatch.setattr(asgi, "CLOSE_TIMEOUT", 1000.0)
    monkeypatch.setattr(channel, "CLOSE_TIMEOUT", 1000.0)
    script = Script(stall_at=0)
    async with adapter_server("voice", lambda: ToneVoice(script)) as port, dial(port) as socket:
        for message in messages:
            with suppress(ConnectionClosed):
                await socket.send(message)
        errors, closed_with = await last_words(socket)
        assert [why in error["message"] for error in errors] == [True], errors
        assert closed_with == code
        await wait_for(lambda: script.running == 0 and script.closed == 1)


async def test_what_the_socket_itself_refuses(capfd: pytest.CaptureFixture[str]) -> None:
    """Too big by far, not UTF-8, not a WebSocket at all: closed, without a word or a traceback."""
    async with adapter_server("voice", ToneVoice) as port:
        async with dial(port) as socket:
            socket.transport.write(b"\x82\xff" + struct.pack("!QI", MAX_SIZE + 1, 0))
            assert await last_words(socket) == ([], 1009)
        async with dial(port) as socket:
            await socket.send(b'"\xff"', text=True)
            assert await last_words(socket) == ([], 1007)
        for junk in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 9000, b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(junk)
            writer.write_eof()
            await reader.read()
            writer.close()
        await a_turn_elsewhere(port)
    assert capfd.readouterr() == ("", "")


# --- doors --------------------------------------------------------------------------------------


async def test_who_may_connect() -> None:
    async with adapter_server("voice", ToneVoice, api_key="s3cret") as port:
        headers: list[dict[str, str]] = [{}, {"Authorization": "Bearer"}, {"Authorization": "Bearer s"}]
        for header in headers:
            with pytest.raises(InvalidStatus, match="401"):
                async with dial(port, additional_headers=header):
                    pass
        url = f"ws://127.0.0.1:{port}/"
        with pytest.raises(ConnectionFailed, match="401.*SPECSTREAM_ADAPTER_KEY") as caught:
            await RemoteStage(url + "?token=guess", "voice").connect()
        assert "guess" not in str(caught.value)
        for stage in (
            RemoteStage(url, "voice", api_key="s3cret"),
            RemoteStage(url + "?token=s3cret", "voice"),
        ):
            async with stage:
                assert await feed(stage, PHRASES)
    for host, key in (("0.0.0.0", None), ("example.org", None), ("::", None), ("127.0.0.1", "")):
        with pytest.raises(ConfigError, match="set an api key|must be one word"):
            adapter_server("voice", ToneVoice, host=host, api_key=key)
    async with adapter_server("voice", ToneVoice) as port:
        with pytest.raises(InvalidStatus, match="403"):  # any web page could, otherwise
            async with dial(port, origin=Origin("https://example.org")):
                pass
        with pytest.raises(InvalidStatus, match="400"):
            async with dial(port, subprotocols=[Subprotocol("chat")]):
                pass
        await a_turn_elsewhere(port)


async def test_a_full_server_says_so_and_recovers() -> None:
    async with adapter_server("voice", ToneVoice, max_connections=2) as port:
        stage = at(port)
        async with dial(port), dial(port):
            with pytest.raises(AdapterUnavailable, match="full"):
                await feed(stage, PHRASES)
        async with stage:
            assert await feed(stage, PHRASES)


async def begin(make: Callable[[], Any], **options: Any) -> None:
    """Start a server that must fail."""
    async with adapter_server("voice", make, **options):
        raise AssertionError("it listens")


async def test_a_port_that_is_taken() -> None:
    async with adapter_server("voice", ToneVoice) as port:
        with pytest.raises(PortUnavailable, match=f"127.0.0.1:{port}: Address already in use; choose"):
            await begin(ToneVoice, port=port)
    for host, number in (("127.0.0.1", 70_000), ("203.0.113.7", 0)):
        with pytest.raises(PortUnavailable, match=str(number)):
            await asgi.check_address(host, number, True)


async def test_serving_until_cancelled() -> None:
    ports: list[int] = []
    async with anyio.create_task_group() as group:

        async def serve() -> None:
            async with adapter_server("prompt", Board) as port:
                ports.append(port)
                await anyio.sleep_forever()

        group.start_soon(serve)
        await wait_for(lambda: bool(ports))
        async with at(ports[0], "prompt") as stage:
            assert len(await feed(stage, PHRASES)) == len(PHRASES)
        group.cancel_scope.cancel()
    with pytest.raises(ConnectionFailed):
        await at(ports[0], "prompt").connect()


async def test_an_adapter_that_can_not_be_made() -> None:
    def typed() -> Any:
        raise AdapterUnavailable("no such voice")

    def untyped() -> Any:
        raise OSError("libnoise.so not found")

    for make, why in ((typed, "no such voice"), (untyped, "can't be made: libnoise.so")):
        with pytest.raises(AdapterUnavailable, match=why):
            await begin(make)
    with pytest.raises(AdapterUnavailable, match="no voice adapter: it lacks capabilities"):
        await begin(Face)
    numbers: list[tuple[str, Any]] = [("window", 0), ("window", 1025), ("window", "8")]
    for name, wrong in [*numbers, ("max_connections", 0)]:
        with pytest.raises(ConfigError, match=f"{name} must be a number from 1 "):
            adapter_server("voice", ToneVoice, **{name: wrong})
    with pytest.raises(ConfigError, match="there are: voice, avatar, prompt"):
        adapter_server("smell", ToneVoice)  # type: ignore[arg-type]

    made = 0

    def only_once() -> ToneVoice:
        nonlocal made
        made += 1
        if made == 2:
            typed()
        return ToneVoice()

    async with adapter_server("voice", only_once) as port, dial(port):
        with pytest.raises(AdapterUnavailable, match="no such voice"):
            await at(port).connect()
        await a_turn_elsewhere(port)


async def test_a_buffer_that_is_too_long_for_a_message_says_what_to_do() -> None:
    class Windbag(ToneVoice):
        async def synthesize(self, phrase: Any) -> Any:
            async for buffer in super().synthesize(phrase):
                yield type(buffer)(bytes(MAX_MESSAGE), buffer.marks)

    async with adapter_server("voice", Windbag) as port:
        with pytest.raises(AdapterFailed, match="smaller pieces"):
            await feed(at(port), PHRASES)


# --- what is left behind ------------------------------------------------------------------------


def live_channels() -> int:
    gc.collect()
    return sum(type(thing) is Channel for thing in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_clients_that_vanish_leave_nothing_and_disturb_nobody(seed: int) -> None:
    """Killed at any moment, with a stage at work, stalled, or waiting for room."""
    rng = random.Random(seed)
    scripts: list[Script] = []

    def make() -> ToneVoice:
        scripts.append(Script(stall_at=rng.choice([None, None, 0, 3])))
        return ToneVoice(scripts[-1])

    async with adapter_server("voice", make) as port:
        await wait_for(lambda: len(scripts) == 1)
        scripts[0].stall_at = None
        bystander = at(port)
        whole = await spoken(PHRASES)
        async with bystander:
            assert await feed(bystander, PHRASES) == whole
            tasks, threads = len(asyncio.all_tasks()), threading.active_count()
            before = live_channels()

            async def vanish() -> None:
                async with dial(port) as socket:
                    script = [START, CHUNK, CHUNK, encode(FlushFrame()), encode(EndFrame())]
                    for message in script[: rng.randint(0, 5)]:
                        await socket.send(message)
                    for _ in range(rng.randint(0, 40)):
                        await anyio.lowlevel.checkpoint()
                    socket.transport.abort()

            for _ in range(5):
                async with anyio.create_task_group() as group:
                    for _ in range(8):
                        group.start_soon(vanish)
                    assert await feed(bystander, PHRASES) == whole
            await wait_for(lambda: all(s.running == 0 for s in scripts))
            await wait_for(lambda: sum(s.closed for s in scripts) == 40)
            await wait_for(lambda: len(asyncio.all_tasks()) == tasks)
            assert threading.active_count() <= threads + 40  # idle workers, kept for reuse
            assert live_channels() <= before, "the bystander's, and what failed tests hold"
            assert await feed(bystander, PHRASES) == whole
    assert [script.closed for script in scripts] == [1] * 41


async def test_a_stage_that_works_does_not_keep_others_waiting() -> None:
    """One connection's stalled voice is nothing to the next connection, nor to its own cancel."""
    stalled = Script(stall_at=2)
    fresh = [ToneVoice(stalled)]
    async with adapter_server("voice", lambda: fresh.pop() if fresh else ToneVoice()) as port:
        async with dial(port) as socket:
            await socket.send(START)
            await socket.send(CHUNK)
            with anyio.fail_after(20):
                await stalled.stalled.wait()
            await a_turn_elsewhere(port)
            await socket.send(encode(CancelFrame()))
            seen = []
            with anyio.fail_after(20):
                while "cancelled" not in seen:
                    message = await socket.recv()
                    if isinstance(message, str):
                        seen.append(json.loads(message)["type"])
            assert stalled.running == 0
            stalled.stall_at = None
            await socket.send(START)  # and the connection is as good as new
            await socket.send(CHUNK)
            assert json.loads(await socket.recv())["type"] == "speech"


async def test_what_was_made_but_not_written_is_dropped_by_a_cancel() -> None:
    """A client that reads nothing fills the sockets; a cancel doesn't wait for all that."""
    script = Script()

    class Loud(ToneVoice):
        async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
            for _ in range(400):
                await script.step()
                yield SpeechBuffer(bytes(1 << 16))

    async with adapter_server("voice", Loud) as port, dial(port, max_queue=1) as socket:
        await socket.send(encode(StartFrame(window=1024)))
        await socket.send(CHUNK)
        with anyio.fail_after(20):
            await script.when_made(400).wait()
        await socket.send(encode(CancelFrame()))
        async with dial(port):
            pass  # by now the cancel was heard
        heard = 0
        while not isinstance(message := await socket.recv(), str) or "cancelled" not in message:
            heard += isinstance(message, bytes)
        assert 0 < heard < 400


async def test_a_face_is_told_how_to_rest_even_if_done_and_cancel_cross() -> None:
    async def next_frame() -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(await socket.recv())
        return frame

    client = StageRules("client", "avatar")
    client.receive(encode(ReadyFrame(kind="avatar", adapter="x", window=8)))
    speech = next(s for s in await spoken(PHRASES) if s.pcm and s.marks)
    async with adapter_server("avatar", Face) as port, dial(port) as socket:
        for what in (StartFrame(window=8), speech, EndFrame()):
            for message in client.send(what):
                await socket.send(message)
        cues = []
        while (frame := await next_frame())["type"] != "done":
            cues.append(frame["cue"])
        assert cues[-1]["name"] == "sil"
        await socket.send(encode(CancelFrame()))
        assert await next_frame() == {"type": "cancelled", "cues": cues[-2:]}
