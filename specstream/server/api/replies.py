"""Replies of the engine for the HTTP API: started and counted, with usage and log probabilities."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from specstream.engine.protocol import TextEngine, TextGeneration
from specstream.errors import PromptError
from specstream.metrics import Report
from specstream.params import SamplingParams
from specstream.server.api.errors import ApiError
from specstream.server.counters import Counters
from specstream.server.sessions.request import Service
from specstream.signals import finished
from specstream.types import Chunk, Message, RawPrompt, TokenLogprob as Entry, Tools

__all__ = [
    "ApiReply",
    "Entry",
    "ReplyEntries",
    "ReplyRequest",
    "merged",
    "round_of",
    "speculation_of",
    "text_of",
    "told_of",
    "usage_of",
]


class ReplyEntries:
    """The log probabilities of the tokens that belong to a reply's text, as its chunks come.

    Not those of reasoning and calls, nor tokens at the reply's end that have no text: a stop string, or
    an end-of-sequence token (with ``tells_end`` that one is told). A token waits until some of its text
    is final, so that what is told doesn't depend on how many tokens a round had.

    Attributes:
        told: All that belong to the text so far.
        tells_end: Whether an end-of-sequence token is told.
    """

    def __init__(self) -> None:
        self.told: list[Entry] = []
        self.tells_end = False
        self._waiting = deque[tuple[int, Entry]]()  # with the character that the token begins at
        self._end = 0
        self._taken = 0

    def add(self, chunk: Chunk) -> None:
        """Take those of a reply's next chunk."""
        if not chunk.logprobs:
            return
        skipped = max(0, chunk.reasoning_end - chunk.tokens.start)
        starts = [self._end, *chunk.ends[:-1]]
        self._waiting += list(zip(starts, chunk.logprobs, strict=True))[skipped:]
        self._end = chunk.ends[-1]
        final = chunk.chars.end
        while self._waiting and self._waiting[0][0] < final:
            self.told.append(self._waiting.popleft()[1])
        if chunk.finish_reason not in (None, "stop", "tool_calls"):
            self.told += [entry for _, entry in self._waiting]
        elif chunk.finish_reason and self.tells_end:
            self.told += [entry for _, entry in self._waiting if not entry.piece][-1:]

    def take(self) -> list[Entry]:
        """Those that were not taken yet."""
        new, self._taken = self.told[self._taken :], len(self.told)
        return new


def text_of(entry: Entry) -> str:
    """A token's text; U+FFFD stands for part of a character."""
    return entry.piece.decode(errors="replace")


def told_of(entries: list[Entry]) -> dict[str, Any]:
    """The chat API's shape."""
    return {
        "content": [
            {**_one(entry), "top_logprobs": [_one(other) for other in entry.top]} for entry in entries
        ],
        "refusal": None,
    }


def _one(entry: Entry) -> dict[str, Any]:
    return {"token": text_of(entry), "logprob": entry.logprob, "bytes": list(entry.piece)}


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """What a reply is asked for with."""

    messages: list[Message] | RawPrompt
    params: SamplingParams
    tools: Tools | None = None
    reference: str = ""
    speculate: bool | int = True
    variables: Mapping[str, Any] | None = None
    prompt: str = "messages"  # the field that it came in, for refusals

    def again(self, number: int) -> ReplyRequest:
        """The same for one of several replies: a seed is counted on, else all would be equal."""
        if self.params.seed is None or not number:
            return self
        return replace(self, params=replace(self.params, seed=(self.params.seed + number) % 2**63))


@dataclass(slots=True)
class ApiReply:
    """One reply under way."""

    generation: TextGeneration
    counters: Counters
    ask: ReplyRequest
    stood: int = 0  # tokens of the prediction that were accepted
    fell: int = 0  # and that were not
    # Drafted and accepted tokens of each round.
    steps: list[tuple[int, int]] = field(default_factory=list)
    entries: ReplyEntries = field(default_factory=ReplyEntries)  # if they are asked for

    @classmethod
    @asynccontextmanager
    async def begin(cls, service: Service, ask: ReplyRequest) -> AsyncGenerator[ApiReply, None]:
        """Start a reply; leaving the block stops it.

        Raises:
            ApiError: the prompt can't be used.
        """
        text_engine = cast(TextEngine, service.engine)
        options: dict[str, Any] = {
            "reference": ask.reference,
            "speculate": ask.speculate,
            "chat_template_kwargs": ask.variables,
            "tools": ask.tools,
        }
        try:
            async with text_engine.generate(ask.messages, ask.params, **options) as generation:
                try:
                    yield cls(generation, service.counters, ask)
                finally:
                    service.caller.account.spend(generation.report.completion_tokens)
        except PromptError as error:
            raise ApiError.of(error, ask.prompt) from None

    @classmethod
    @asynccontextmanager
    async def begin_all(
        cls, service: Service, ask: ReplyRequest, count: int
    ) -> AsyncGenerator[list[ApiReply], None]:
        """Start several replies to one request."""
        async with AsyncExitStack() as stack:
            asks = [ask.again(number) for number in range(count)]
            yield [await stack.enter_async_context(cls.begin(service, one)) for one in asks]

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks, counted; to be closed by whoever leaves early.

        Raises:
            ApiError: the prompt can't be used.
        """
        clock = asyncio.get_running_loop().time
        began, last = clock(), None
        try:
            async for chunk in self.generation:
                now = clock()
                self.counters.count_chunk(chunk, now - began, None if last is None else now - last)
                last = now
                self._count(chunk)
                yield chunk
        except PromptError as error:
            raise ApiError.of(error, self.ask.prompt) from None

    def _count(self, chunk: Chunk) -> None:
        if chunk.drafted:
            self.steps.append((chunk.drafted, chunk.accepted))
        if self.ask.reference and chunk.proposer == "suffix":
            self.stood += chunk.accepted
            self.fell += chunk.drafted - chunk.accepted
        self.entries.add(chunk)

    @property
    def finish(self) -> str | None:
        """How the reply ended."""
        return self.generation.report.finish_reason

    async def whole(self) -> Report:
        """Read to the end."""
        async with aclosing(self.chunks()) as chunks:
            async for _ in chunks:
                pass
        return self.generation.report


def usage_of(replies: list[ApiReply], each: int = 0, *, written: bool = True) -> dict[str, Any]:
    """Tokens of a request, of all its replies.

    ``each``: so many to each of several prompts; ``written``: whether replies were asked for at all.
    """
    reports = [reply.generation.report for reply in replies]
    read = reports[:: each or len(reports)]
    prompt = sum(report.prompt_tokens for report in read)
    tokens = sum(report.completion_tokens for report in reports) if written else 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": {
            "cached_tokens": sum(report.reused_tokens for report in read),
            "cache_write_tokens": 0,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": sum(report.reasoning_tokens for report in reports),
            "accepted_prediction_tokens": sum(reply.stood for reply in replies),
            "rejected_prediction_tokens": sum(reply.fell for reply in replies),
            "audio_tokens": 0,
        },
    }


def speculation_of(replies: list[ApiReply]) -> dict[str, Any]:
    """How drafting went: vLLM's ``metrics`` and llama.cpp's ``timings``."""
    steps = [step for reply in replies for step in reply.steps]
    drafted, accepted = sum(d for d, _ in steps), sum(a for _, a in steps)
    reports = [reply.generation.report for reply in replies]
    rounds, first = sum(report.rounds for report in reports), reports[0]
    taken = sum(report.accepted for report in reports)
    return {
        "metrics": {
            "speculative_decoding": {
                "mean_acceptance_length": round(1 + taken / rounds, 4) if rounds else 0.0,
                "draft_acceptance_rate": round(accepted / drafted, 4) if drafted else 0.0,
                "num_spec_steps": len(steps),
                "num_draft_tokens": drafted,
                "num_accepted_draft_tokens": accepted,
                "per_step_drafted": [d for d, _ in steps],
                "per_step_accepted": [a for _, a in steps],
            }
        },
        "timings": {
            "cache_n": first.reused_tokens,
            "prompt_n": first.prompt_tokens - first.reused_tokens,
            "prompt_ms": round(first.ttft_ms, 3),
            "predicted_n": sum(report.completion_tokens for report in reports),
            "predicted_ms": round(max(r.total_ms - r.ttft_ms for r in reports), 3),
            "draft_n": drafted,
            "draft_n_accepted": accepted,
        },
    }


async def merged(replies: list[ApiReply]) -> AsyncGenerator[tuple[int, Chunk], None]:
    """The chunks of all replies as they come, each with its reply's number."""
    if len(replies) == 1:
        async with aclosing(replies[0].chunks()) as chunks:
            async for chunk in chunks:
                yield 0, chunk
        return
    came = asyncio.Queue[tuple[int, Chunk] | Exception | None](1)  # None: one has ended

    async def read(index: int) -> None:
        try:
            async with aclosing(replies[index].chunks()) as chunks:
                async for chunk in chunks:
                    await came.put((index, chunk))
        except Exception as error:
            await came.put(error)
        else:
            await came.put(None)

    # No task group: who closes the generator early would close it inside of one.
    reading = [asyncio.create_task(read(index)) for index in range(len(replies))]
    try:
        left = len(reading)
        while left:
            item = await came.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in reading:
            task.cancel()
        await finished(asyncio.wait(reading))


def round_of(chunk: Chunk) -> dict[str, Any]:
    """What a chunk of an answer tells of its round."""
    return {
        "round": chunk.round,
        "drafted": chunk.drafted,
        "accepted": chunk.accepted,
        "chars": list(chunk.chars),
        "proposer": chunk.proposer,
        "t_ms": round(chunk.t_ms, 3),
    }
