"""Answers that are sent as they are made, to a host that is a function."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from specstream.errors import EngineFailed
from specstream.server.api.answering import Events, Streamed

HTTP = {"type": "http"}


async def stays() -> dict[str, Any]:
    """What a client sends who neither asks for more nor goes."""
    await anyio.sleep_forever()
    raise AssertionError


async def takes_nothing(message: Any) -> None:
    """A host whose client reads the headers only."""
    if message["type"] == "http.response.body":
        await anyio.sleep_forever()


async def served(response: Streamed) -> list[dict[str, Any]]:
    """What a response sends; its client stays."""
    sent = list[dict[str, Any]]()

    async def send(message: Any) -> None:
        sent.append(message)

    await response(HTTP, stays, send)
    return sent


@pytest.mark.virtual_time
async def test_silence_is_filled_with_comments() -> None:
    async def slow() -> AsyncGenerator[list[dict[str, Any]], None]:
        await anyio.sleep(12)
        yield [{"a": 1}, {"b": 2}]

    sent = await served(Events(slow()))
    assert sent[0]["status"] == 200
    assert [part["body"] for part in sent[1:]] == [
        b": ping\n\n",
        b": ping\n\n",
        b'data: {"a":1}\n\ndata: {"b":2}\n\n',
        b"data: [DONE]\n\n",
    ]


@pytest.mark.virtual_time
@pytest.mark.parametrize(("silent", "seconds"), [(False, 20), (True, 25)])
async def test_a_client_that_takes_nothing_is_dropped(silent: bool, seconds: float) -> None:
    """Not even a comment, which is sent after five silent seconds."""
    ended = anyio.Event()

    async def events() -> AsyncGenerator[list[dict[str, Any]], None]:
        try:
            if silent:
                await anyio.sleep_forever()
            while True:
                yield [{"a": 1}]
        finally:
            ended.set()

    began = anyio.current_time()
    await Events(events())(HTTP, stays, takes_nothing)
    assert ended.is_set() and anyio.current_time() - began == pytest.approx(seconds)


@pytest.mark.virtual_time
async def test_parts_wait_for_a_comment_that_is_on_its_way() -> None:
    async def slow() -> AsyncGenerator[list[dict[str, Any]], None]:
        await anyio.sleep(6)
        yield [{"a": 1}]

    sent, busy = list[bytes](), False

    async def send(message: Any) -> None:
        nonlocal busy
        assert not busy, "two parts at once"
        busy = True
        await anyio.sleep(3)
        busy = False
        sent.append(message.get("body", b""))

    await Events(slow())(HTTP, stays, send)
    assert sent == [b"", b": ping\n\n", b'data: {"a":1}\n\n', b"data: [DONE]\n\n"]


async def test_parts_that_are_there_already_leave_others_their_turns() -> None:
    turns, busy = 0, True

    async def other() -> None:
        nonlocal turns
        while busy:
            turns += 1
            await asyncio.sleep(0)

    async def events() -> AsyncGenerator[list[dict[str, Any]], None]:
        for number in range(200):
            yield [{"a": number}]

    beside = asyncio.create_task(other())
    sent = await served(Events(events()))
    busy = False
    await beside
    assert len(sent) == 202 and turns > 100


@pytest.mark.virtual_time
async def test_without_a_comment_the_headers_end_the_silence() -> None:
    moments, began = list[tuple[str, float]](), anyio.current_time()

    async def late() -> AsyncGenerator[bytes, None]:
        await anyio.sleep(12)
        yield b"sound"

    async def send(message: Any) -> None:
        moments.append((message.get("body", "headers"), anyio.current_time() - began))

    await Streamed(late(), "audio/wav")(HTTP, stays, send)
    assert moments == [("headers", 5), (b"", 5), (b"sound", 12), (b"", 12)]


@pytest.mark.virtual_time
async def test_a_cleanup_that_fails_where_the_client_takes_nothing_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def events() -> AsyncGenerator[list[dict[str, Any]], None]:
        try:
            yield [{"a": 1}]
        finally:
            raise EngineFailed("broken at its end")

    with caplog.at_level(logging.INFO), pytest.raises(EngineFailed):
        await Events(events())(HTTP, stays, takes_nothing)
    assert "takes nothing of its answer" in caplog.text


async def test_who_has_gone_gets_no_answer_to_a_failure() -> None:
    """So that the request counts as one whose client went, not as an error of the server's."""
    sent, gone = list[Any](), asyncio.Event()

    async def events() -> AsyncGenerator[list[dict[str, Any]], None]:
        gone.set()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            raise EngineFailed("broken by its cancelling") from None
        yield []

    async def goes() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await Events(events())(HTTP, goes, send)
    assert sent == []
