"""What the Python client can't send: refused before the server would close the connection."""

from typing import Any

import pytest

from specstream.client.client import RealtimeClient
from specstream.errors import RequestError, SamplingError
from specstream.testing import ScriptedEngine
from specstream.types import ToolCall
from tests.server.doubles import Stand, read

UNSENDABLE = {"x" * 1_100_000: "shorten", "é" * 600_000: "shorten", "\ud800": "Unicode", b"x": "bytes"}


@pytest.mark.parametrize(("text", "reason"), UNSENDABLE.items(), ids=["long", "bytes", "half", "type"])
async def test_what_cannot_be_sent_is_refused_and_the_client_stays_usable(
    text: Any, reason: str
) -> None:
    engine = ScriptedEngine(["five.", "six."])
    async with Stand(engine, voice=None).python(events=()) as client:
        await read(client.respond("Hi", audio=False))
        reply = client.respond(text, audio=False)
        with pytest.raises(RequestError, match=reason):
            await read(reply)
        assert await read(reply) == []
        with pytest.raises(RequestError, match=reason):
            await read(client.respond("Lost", audio=False, instructions=text))
        with pytest.raises(RequestError, match=reason):
            await client.update(instructions=text)
        with pytest.raises(RequestError, match=reason):
            await client.add_result(ToolCall("1", "f", "{}"), text)
        await read(client.respond("And?", audio=False))
    assert [[m["content"] for m in r[0]] for r in engine.requests] == [["Hi"], ["Hi", "five.", "And?"]]


async def test_a_server_may_take_only_smaller_frames() -> None:
    stand = Stand(ScriptedEngine(["five."]), voice=None, max_frame=4096)
    async with stand.running():
        async with RealtimeClient.connect(stand.url, max_size=4096) as client:
            with pytest.raises(RequestError, match="4096"):
                await client.update(instructions="x" * 5000)


async def test_only_sampling_parameters_say_how_to_sample() -> None:
    async with Stand(ScriptedEngine(["x"])).running() as stand:
        async with RealtimeClient.connect(stand.url) as client:
            with pytest.raises(SamplingError, match="must be SamplingParams"):
                client.respond("Hi", sampling={"temperature": 1})  # type: ignore[arg-type]
