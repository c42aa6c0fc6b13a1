"""An engine under test: made, entered, and asked for a reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from specstream.testing.conformance.checks import UnderTest, require
from specstream.types import Chunk, SamplingParams

__all__ = ["ASK", "OTHER", "PARAMS", "Tested", "opened", "reply", "tiled"]

ASK = "I need a taxi to the station."
OTHER = "Tell me a story about a fox."
PARAMS = SamplingParams(max_tokens=40, seed=7)

Tested: TypeAlias = UnderTest[Any]


@asynccontextmanager
async def opened(subject: Tested) -> AsyncGenerator[Any, None]:
    """Make an engine and enter it."""
    async with await subject.new() as engine:
        yield engine


async def reply(engine: Any, ask: Any = ASK, **options: Any) -> tuple[list[Chunk], Any]:
    """Read a reply to its end; return its chunks and the generation. Cancelling stops it."""
    async with engine.generate(ask, options.pop("params", PARAMS), **options) as generation:
        return [chunk async for chunk in generation], generation


def tiled(chunks: list[Chunk]) -> None:
    """Require that the characters of chunks tile the text."""
    at = 0
    for chunk in chunks:
        start, end = chunk.chars
        require(start == at, f"a chunk begins at character {start}, not at {at}")
        length = len(chunk.text)
        require(end - start == length, f"a text of {length} covers characters {start} to {end}")
        at = end
