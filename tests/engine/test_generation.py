"""One reply: what its report says before its end, and how a wrong argument is answered."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from specstream import Engine, SamplingParams
from specstream.errors import EngineError, RequestError, SamplingError
from specstream.testing import ScriptedEngine
from specstream.types import Chunk, Preview
from tests.support.tiny import save_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"), seed=5, scale=4.0, eos=False)


@pytest.fixture
def engine(pair: tuple[Path, Path]) -> Engine:
    return Engine.load(*pair, proposer="off", dtype="float32", max_unread_chunks=2)


async def test_a_reply_under_way_has_no_reason_to_have_ended(engine: Engine) -> None:
    params = SamplingParams(max_tokens=8)
    async with engine:
        async with engine.generate("hello", params) as generation:
            assert generation.report.finish_reason is None
            assert generation.report.to_dict()["finish_reason"] is None
            await anext(generation)
            assert generation.report.finish_reason is None
            async for _ in generation:
                pass
            assert generation.report.finish_reason == "length"
        assert generation.report.finish_reason == "length", "leaving later changes nothing"


async def test_a_second_reader_is_refused_and_takes_nothing(engine: Engine) -> None:
    """Two tasks would each get some of the chunks."""
    async with engine, engine.generate("hello", SamplingParams(max_tokens=8)) as generation:
        first = asyncio.create_task(anext(generation))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="another task"):
            await anext(generation)
        chunks = [await first, *[chunk async for chunk in generation]]
        assert sum(len(chunk.token_ids) for chunk in chunks) == 8


async def test_previews_come_ahead_of_their_chunks_and_change_nothing(pair: tuple[Path, Path]) -> None:
    params = SamplingParams(max_tokens=24)
    async with Engine.load(*pair, proposer="draft", dtype="float32", max_unread_chunks=2) as engine:
        async with engine.generate("hello", params) as generation:
            plain = [chunk async for chunk in generation]
        async with engine.generate("hello", params) as generation:
            shown = [item async for item in generation.previewed()]
    chunks = [item for item in shown if isinstance(item, Chunk)]
    assert [chunk.token_ids for chunk in chunks] == [chunk.token_ids for chunk in plain]
    assert generation.text_read == generation.report.text == "".join(chunk.text for chunk in chunks)
    previews = [pair for pair in pairwise(shown) if isinstance(pair[0], Preview)]
    assert previews and all(
        isinstance(chunk, Chunk) and chunk.round == preview.round for preview, chunk in previews
    )


async def test_a_reply_that_was_left_is_cancelled_from_then_on(engine: Engine) -> None:
    async with engine:
        async with engine.generate("hello", SamplingParams(max_tokens=100)) as generation:
            await anext(generation)
        assert generation.report.finish_reason == "cancelled"


async def test_a_reply_that_failed_has_no_reason_either(engine: Engine) -> None:
    def breaks(ids: list[int], text: str) -> bool:
        raise ValueError("oh")

    async with engine:
        params = SamplingParams(max_tokens=8, stop_when=(breaks,))
        async with engine.generate("hello", params) as generation:
            with pytest.raises(RequestError, match="criterion broke"):
                await anext(generation)
        assert generation.report.finish_reason is None


async def test_the_double_is_as_honest() -> None:
    engine = ScriptedEngine(["one two three"])
    async with engine.generate("hello") as generation:
        assert generation.report.finish_reason is None
        await anext(generation)
        assert generation.report.finish_reason is None
    assert generation.report.finish_reason == "cancelled"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_tokens": 4}, r"params=SamplingParams\(max_tokens=4\)"),
        (
            {"temperature": 0.5, "stop": ("a",)},
            r"params=SamplingParams\(temperature=0.5, stop=\('a',\)\)",
        ),
        ({"max_token": 4}, "no parameter max_token.*SamplingParams"),
        ({"params": {"max_tokens": 4}}, "params must be SamplingParams"),
        ({"params": 4}, "params must be SamplingParams"),
    ],
)
async def test_a_sampling_parameter_in_the_wrong_place_is_told_where_to_go(
    engine: Engine, wrong: dict[str, Any], says: str
) -> None:
    async with engine, engine.session() as session:
        for ask in (engine.generate, session.generate, session.reply):
            with pytest.raises(SamplingError, match=says):
                async with ask("hello", **wrong):
                    raise AssertionError("never entered")
        assert session.messages == []
