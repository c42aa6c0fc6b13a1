"""An engine under test, and what it promises of its claims and of requests that it can't serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from specstream.errors import PromptError
from specstream.testing.conformance.checks import (
    UnderTest,
    apply_if,
    expected_error,
    may_refuse,
    require,
)
from specstream.types import Chunk, RawPrompt, SamplingParams

__all__ = ["ASK", "CLAIM_CHECKS", "OTHER", "PARAMS", "Tested", "opened", "reply", "tiled"]

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


async def rounds(subject: Tested) -> None:
    """If a chunk is a round, their numbers rise, and no more is accepted than was drafted."""
    async with opened(subject) as engine:
        apply_if(engine.capabilities.rounds, "it doesn't say that a chunk is a round")
        numbers = list[int]()
        for chunk in (await reply(engine))[0]:
            numbers += [chunk.round] if chunk.token_ids else []
            drafted = f"{chunk.accepted} of {chunk.drafted} drafted tokens were accepted"
            require(0 <= chunk.accepted <= chunk.drafted, drafted)
        require(numbers == sorted(set(numbers)), f"the rounds are {numbers}")


async def reference(subject: Tested) -> None:
    """A reference is taken, or refused by a SpecstreamError, as the capabilities say."""
    async with opened(subject) as engine:
        await _honest(engine.capabilities.reference, lambda: reply(engine, reference=OTHER),
                      "a reference")  # fmt: skip


async def raw_prompts(subject: Tested) -> None:
    """A raw prompt is taken, or refused by a SpecstreamError, as the capabilities say."""
    async with opened(subject) as engine:
        able = engine.capabilities
        raw, ids = RawPrompt("Once upon a time"), RawPrompt(tokens=(1, 2, 3))
        await _honest(able.raw_prompts, lambda: reply(engine, raw), "a raw prompt")
        await _honest(able.token_prompts, lambda: reply(engine, ids), "a prompt of tokens")


async def _honest(claimed: bool, work: Callable[[], Any], what: str) -> None:
    if claimed:
        chunks, _ = await work()
        require(bool(chunks), f"no reply with {what}")
    else:
        await expected_error(work(), f"{what}, which it says that it can't take,")


async def logprobs(subject: Tested) -> None:
    """If log probabilities are claimed, each token has its own, at most 0, and the likeliest."""
    async with opened(subject) as engine:
        apply_if(engine.capabilities.logprobs, "it doesn't say that it tells log probabilities")
        asked = SamplingParams(max_tokens=12, logprobs=2)
        for chunk in (await reply(engine, params=asked))[0]:
            told = f"{len(chunk.logprobs)} log probabilities for {len(chunk.token_ids)} tokens"
            require(len(chunk.logprobs) == len(chunk.token_ids), told)
            for one in chunk.logprobs:
                require(one.logprob <= 0, f"a log probability is {one.logprob}")
                require(len(one.top) == 2, f"{len(one.top)} of the 2 likeliest tokens are told")


async def max_tokens(subject: Tested) -> None:
    """A reply has at most ``max_tokens`` tokens, and one that was cut says ``length``."""
    async with opened(subject) as engine:
        longer = "".join(chunk.text for chunk in (await reply(engine))[0])
        # Where replies vary, a short one may have ended by itself.
        for _ in range(1 if engine.capabilities.reproducible else 4):
            chunks, _ = await reply(engine, params=SamplingParams(max_tokens=2, seed=7))
            tokens = chunks[-1].tokens.end - chunks[0].tokens.start
            require(tokens <= 2, f"{tokens} tokens where 2 were allowed")
            text, why = "".join(chunk.text for chunk in chunks), chunks[-1].finish_reason
            if why == "length" or not longer.startswith(text) or len(longer) == len(text):
                return
        require(False, f"a reply that was cut says {why!r}")


async def stops(subject: Tested) -> None:
    """A reply ends before a stop string, which is not in its text, and says ``stop``."""
    async with opened(subject) as engine:
        chunks, _ = await reply(engine)
        whole = "".join(chunk.text for chunk in chunks)
        stop = whole[len(whole) // 3 :][:3]  # of the next reply the beginning of which is the same
        chunks, _ = await reply(engine, params=replace(PARAMS, stop=(stop,)))
        text, why = "".join(chunk.text for chunk in chunks), chunks[-1].finish_reason
        require(stop not in text, f"{stop!r} is in the text, which should end before it")
        cut = whole.startswith(text) and len(text) < len(whole)
        require(not cut or why == "stop", f"a reply that ended before {stop!r} says {why!r}")


async def reproducible(subject: Tested) -> None:
    """If the engine says so, a seed repeats a reply, beside others, too."""
    async with opened(subject) as engine:
        apply_if(engine.capabilities.reproducible, "it doesn't say that a seed repeats a reply")
        params = SamplingParams(temperature=1.0, seed=3, max_tokens=24)
        _, alone = await reply(engine, params=params)
        both = await asyncio.gather(reply(engine, params=params), reply(engine, OTHER, params=params))
        again = both[0][1]
        require(again.text == alone.text, f"{again.text!r} after {alone.text!r}")


async def previews(subject: Tested) -> None:
    """If the engine previews drafts, the chunks are the same with previews, and each begins there."""
    async with opened(subject) as engine:
        apply_if(engine.capabilities.previews, "it doesn't say that it previews")
        async with engine.generate(ASK, PARAMS) as generation:
            found = [item async for item in generation.previewed()]
        chunks = [item for item in found if isinstance(item, Chunk)]
        tiled(chunks)
        for item, after in zip(found, found[1:], strict=False):
            if not isinstance(item, Chunk):
                same = isinstance(after, Chunk) and after.chars.start == item.chars.start
                require(same, "a preview isn't followed by a chunk that begins where it does")


async def tools(subject: Tested) -> None:
    """Tools are refused by a PromptError where `no_tools` says why there are none."""
    async with opened(subject) as engine:
        apply_if(engine.no_tools is not None, "it can call tools")

        def clock() -> str:
            """Tell the time."""
            return "noon"

        try:
            await reply(engine, tools=[clock])
        except PromptError:
            return
        require(False, "tools were taken")


async def bad_messages(subject: Tested) -> None:
    """No message, and a message that is none, are refused by a SpecstreamError or answered."""
    async with opened(subject) as engine:
        for asked in ([], [{"role": "nobody", "content": "?"}], [{"role": "user"}], ""):
            with may_refuse():
                await reply(engine, asked)
        chunks, _ = await reply(engine)
        require(bool(chunks), "after refused messages there is no reply")


async def unknown_option(subject: Tested) -> None:
    """An option that doesn't exist is refused by a SpecstreamError."""
    async with opened(subject) as engine:
        await expected_error(reply(engine, no_such_option=1), "the option 'no_such_option'")


async def unusual_text(subject: Tested) -> None:
    """Any text may be asked: other scripts, emoji, control characters and markup."""
    async with opened(subject) as engine:
        for ask in (
            "\u4f60\u597d \u0645\u0631\u062d\u0628\u0627 \U0001f600",
            "\x00 \x1b[31m",
            "<|im_start|>",
        ):
            with may_refuse():
                chunks, _ = await reply(engine, ask, params=SamplingParams(max_tokens=4))
                tiled(chunks)


CLAIM_CHECKS = (
    rounds,
    reference,
    raw_prompts,
    logprobs,
    max_tokens,
    stops,
    reproducible,
    previews,
    tools,
    bad_messages,
    unknown_option,
    unusual_text,
)
"""The checks of an engine's claims and refusals, in order."""
