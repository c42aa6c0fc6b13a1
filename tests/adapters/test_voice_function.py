"""`voice_from_function`: functions that block, wait, are given up or break."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from specstream.errors import AdapterFailed, ConfigError
from specstream.stages.interfaces import SpeechSynthesizer, voice_from_function
from specstream.types import Phrase, Span


def phrase(text: str) -> Phrase:
    return Phrase(text, Span(0, len(text)), Span(0, 1))


async def pcm_of(voice: SpeechSynthesizer, what: Phrase) -> bytes:
    async with aclosing(voice.synthesize(what)) as buffers:
        return b"".join([buffer.pcm async for buffer in buffers])


async def test_a_function_does_not_hold_up_the_event_loop() -> None:
    go_on = threading.Event()

    def slow(text: str) -> bytes:
        assert go_on.wait(60)
        return text.encode("utf-16-le")

    voice = voice_from_function(slow, 8000)
    saying = asyncio.create_task(pcm_of(voice, phrase("hello")))
    await asyncio.sleep(0)  # the loop runs while the function waits
    go_on.set()
    assert (await saying) == "hello".encode("utf-16-le")
    await voice.aclose()


async def test_a_function_given_up_does_not_overlap_with_the_next_call() -> None:
    go_on, running, most = threading.Event(), list[str](), list[int]()

    def slow(text: str) -> bytes:
        running.append(text)
        most.append(len(running))
        assert go_on.wait(60)
        running.remove(text)
        return b"\0\0"

    voice = voice_from_function(slow, 8000)
    first = asyncio.create_task(pcm_of(voice, phrase("one")))
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(pcm_of(voice, phrase("two")))
    await asyncio.sleep(0)
    go_on.set()
    assert len(await second) == 2
    assert set(most) == {1}
    await voice.aclose()


async def test_a_coroutine_function_is_a_voice_too() -> None:
    async def remote(text: str) -> bytes:
        await asyncio.sleep(0)
        return b"\1\0" * len(text)

    assert len(await pcm_of(voice_from_function(remote, 8000), phrase("hello"))) == 10


@pytest.mark.parametrize(("given", "says"), [("PCM", "returned str"), (OSError("no key"), "no key")])
async def test_a_function_that_breaks_is_reported(given: object, says: str) -> None:
    def broken(text: str) -> bytes:
        if isinstance(given, Exception):
            raise given
        return given  # type: ignore[return-value]

    with pytest.raises(AdapterFailed, match=f"'cloud'.*{says}"):
        await pcm_of(voice_from_function(broken, 8000, name="cloud"), phrase("hello"))
    with pytest.raises(ConfigError, match="sample_rate"):
        voice_from_function(broken, 0)
