"""A server that others wrote: ``transformers serve`` with the bundled target."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from specstream import OpenAIEngine, SamplingParams
from specstream.config import DEFAULT_TARGET
from specstream.errors import ConnectionFailed, PromptError, SpecstreamError

for needed in ("openai", "accelerate", "fastapi", "uvicorn"):
    pytest.importorskip(needed)

pytestmark = pytest.mark.slow  # some ten seconds until it is loaded

STORY = "Tell me a story about a brave little fox."


@asynccontextmanager
async def served() -> AsyncGenerator[tuple[str, asyncio.subprocess.Process], None]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", DEFAULT_TARGET]
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)),
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        while b"startup complete" not in (line := await process.stderr.readline()):
            assert line, "it ended"
        yield f"http://127.0.0.1:{port}/v1", process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_reply_a_refusal_a_cancel_and_a_server_that_is_killed() -> None:
    async with served() as (url, process), OpenAIEngine(url) as engine:
        assert engine.kind == "" and engine.model == DEFAULT_TARGET
        async with engine.generate(STORY, SamplingParams(max_tokens=24)) as reply:
            chunks = [chunk async for chunk in reply]
        assert len(reply.text) > 40 and chunks[-1].finish_reason == "length"
        assert reply.report.completion_tokens == 24 and reply.report.prompt_tokens > 5
        with pytest.raises(PromptError, match="chat template"):
            async with engine.generate(STORY, chat_template_kwargs={"a": 1}):
                pass
        async with engine.generate(STORY, SamplingParams(max_tokens=1_500)) as left:
            await anext(left)
        # The one that was left no longer holds the next one up: the server serves one at a time.
        async with engine.generate(STORY, SamplingParams(max_tokens=2)) as reply:
            assert [chunk async for chunk in reply][-1].finish_reason == "length"
        async with engine.generate(STORY, SamplingParams(max_tokens=1_500)) as cut:
            await anext(cut)
            process.kill()
            with pytest.raises(SpecstreamError) as caught:
                async for _ in cut:
                    pass
        assert isinstance(caught.value, ConnectionFailed)
