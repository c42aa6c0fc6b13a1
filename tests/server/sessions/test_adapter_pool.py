"""Sets of adapters: made on first use, one for each response at a time, used again, closed."""

import pytest

from specstream.errors import AdapterUnavailable
from specstream.server.sessions.request import AdapterPool, Factories
from specstream.testing import chunks_of
from tests.server.doubles import OneCueFace, OneShotBoard, WordVoice
from tests.support.standins import BitMark, events_by_source, stream

made: list[WordVoice] = []


def voice() -> WordVoice:
    made.append(WordVoice())
    return made[-1]


async def test_a_released_set_serves_the_next_response_and_all_are_closed() -> None:
    made.clear()
    pool = AdapterPool(Factories(voice, OneCueFace, OneShotBoard))
    text = await pool.pipeline(audio=False, avatar=True, prompt=True)
    assert not made, "nobody speaks in a text response"
    first = await pool.pipeline(audio=True, avatar=True, prompt=True)
    second = await pool.pipeline(audio=True, avatar=True, prompt=False)
    assert len(made) == 2, "one set for each response at a time"
    for pipeline in (text, second, first):
        pool.release(pipeline)
    third = await pool.pipeline(audio=True, avatar=False, prompt=False)
    assert len(made) == 2
    assert third not in (first, second)
    await pool.aclose()
    assert all(voice.closed for voice in made), "the one that is in use as well"


async def test_an_adapter_that_can_not_be_made_is_tried_again_and_the_others_stay() -> None:
    made.clear()
    broken = [True]

    def face() -> OneCueFace:
        if broken.pop():
            raise AdapterUnavailable("no face today")
        return OneCueFace()

    pool = AdapterPool(Factories(voice, face))
    with pytest.raises(AdapterUnavailable):
        await pool.pipeline(audio=True, avatar=True, prompt=True)
    broken.append(False)
    await pool.pipeline(audio=True, avatar=True, prompt=True)
    assert len(made) == 1
    await pool.aclose()


async def test_an_adapter_that_can_not_be_closed_keeps_no_other_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(WordVoice):
        async def aclose(self) -> None:
            raise OSError("stuck")

    mark = BitMark()
    pool = AdapterPool(Factories(Stuck, mark=lambda: mark))
    await pool.pipeline(audio=True, avatar=False, prompt=False)
    await pool.aclose()
    assert mark.closed == 1 and "stuck" in caplog.text


async def test_the_voice_of_a_set_is_marked_by_its_own_mark() -> None:
    marks: list[BitMark] = []

    def mark() -> BitMark:
        marks.append(BitMark())
        return marks[-1]

    pool = AdapterPool(Factories(WordVoice, mark=mark))
    text = await pool.pipeline(audio=False, avatar=False, prompt=False)
    assert not marks, "nothing is said in a text response"
    pool.release(text)
    pipeline = await pool.pipeline(audio=True, avatar=False, prompt=False)
    async with pipeline.run(stream(chunks_of("One two. "))) as run:
        said = (await events_by_source(run))["voice"]
    pcm = b"".join(item.pcm for item in said)
    assert pcm and all(byte & 1 for byte in pcm[::2])
    pool.release(pipeline)
    assert pool.names() == {"voice": "words", "mark": "bit"}
    await pool.pipeline(audio=True, avatar=False, prompt=False)
    assert len(marks) == 1
    await pool.aclose()
    assert marks[0].closed == 1
