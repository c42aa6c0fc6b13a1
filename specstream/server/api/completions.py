"""``/v1/completions``: texts that the model goes on with as they are, without its chat template."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from math import isnan
from typing import Annotated, Any, Literal

import anyio
from pydantic import Field, PlainValidator

from specstream.realtime.wire import new_id
from specstream.server.api.body import SamplingBody, StreamOptions, able
from specstream.server.api.errors import ApiError
from specstream.server.api.logprobs import Entry, text_of
from specstream.server.api.replies import (
    ApiReply,
    ReplyRequest,
    merged,
    round_of,
    speculation_of,
    usage_of,
)
from specstream.server.sessions.request import Service
from specstream.types import RawPrompt

__all__ = ["CompletionBody", "completion_events", "completion_whole"]

_MOST = 4  # replies to one request
_MOST_TOKENS = 16  # of a reply whose request names no limit, as at OpenAI


def _prompts(given: Any) -> tuple[RawPrompt, ...]:
    """A text, a list of token ids, or a list of several such prompts."""
    several = isinstance(given, list) and given and isinstance(given[0], str | list)
    return tuple(_prompt(one) for one in given) if several else (_prompt(given),)


def _prompt(given: Any) -> RawPrompt:
    if isinstance(given, str):
        return RawPrompt(given)
    if isinstance(given, list) and given and all(type(one) is int for one in given):
        return RawPrompt(tokens=tuple(given))
    raise ValueError("a prompt is a text or a list of token ids, or a list of such prompts")


class CompletionBody(SamplingBody):
    """The body: one prompt or several, texts or lists of tokens; each gets ``n`` replies."""

    prompt: Annotated[tuple[RawPrompt, ...], PlainValidator(_prompts)]
    max_tokens: Annotated[int, Field(ge=1)] = _MOST_TOKENS
    n: Annotated[int, Field(ge=1, le=_MOST)] = 1
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    stream_options: StreamOptions | None = None
    echo: bool = False
    best_of: Literal[1] = 1


@asynccontextmanager
async def _begun(body: CompletionBody, service: Service) -> AsyncGenerator[list[ApiReply], None]:
    able(service, "raw_prompts", "prompt")
    if any(prompt.tokens for prompt in body.prompt):
        able(service, "token_prompts", "prompt")
    if body.logprobs is not None:
        able(service, "logprobs", "logprobs")
    if not 1 <= len(body.prompt) * body.n <= _MOST:
        why = f"a request gets 1 to {_MOST} replies, for all prompts together"
        raise ApiError(400, why, param="prompt", code="invalid_value")
    params = body.params(service.params, body.max_tokens)
    of_prompt = body.logprobs if body.echo else None
    params = replace(params, logprobs=body.logprobs, prompt_logprobs=of_prompt)
    async with AsyncExitStack() as stack:
        replies = list[ApiReply]()
        for prompt in body.prompt:
            ask = ReplyRequest(prompt, params, speculate=body.speculate)
            replies += await stack.enter_async_context(ApiReply.begin_all(service, ask, body.n))
        yield replies


async def completion_whole(body: CompletionBody, service: Service, model: str) -> dict[str, Any]:
    """Write all replies and return the whole answer."""
    async with _begun(body, service) as replies:
        async with anyio.create_task_group() as group:
            for reply in replies:
                group.start_soon(reply.whole)
        choices = [
            _choice(
                index,
                _given(body, index, reply) + reply.generation.report.text,
                [*_given_entries(reply), *reply.entries],
                0,
                body,
                reply.finish,
            )
            for index, reply in enumerate(replies)
        ]
        usage = usage_of(replies, body.n)
        return {**_head(model), "choices": choices, "usage": usage, **speculation_of(replies)}


async def completion_events(
    body: CompletionBody, service: Service, model: str
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the chunks of all replies as they are committed; a chunk is a round."""
    head, options = _head(model), body.stream_options
    async with _begun(body, service) as replies, aclosing(merged(replies)) as chunks:
        told = [0] * len(replies)
        async for index, chunk in chunks:
            reply = replies[index]
            if chunk is None:
                if given := _given(body, index, reply):
                    entries = _given_entries(reply)
                    yield {**head, "choices": [_choice(index, given, entries, 0, body, None)]}
                continue
            new = reply.entries[told[index] :]
            told[index] = len(reply.entries)
            before = [*_given_entries(reply), *reply.entries[: told[index] - len(new)]]
            at = sum(len(text_of(entry)) for entry in before)
            choice = _choice(index, chunk.text, new, at, body, chunk.finish_reason)
            yield {**head, "choices": [choice], "specstream": round_of(chunk)}
        last = {**head, "choices": [], **speculation_of(replies)}
        if options is not None and options.include_usage:
            yield {**last, "usage": usage_of(replies, body.n)}


def _given(body: CompletionBody, index: int, reply: ApiReply) -> str:
    """The prompt of a reply that is under way, if the request wants it before the reply."""
    if not body.echo:
        return ""
    return body.prompt[index // body.n].text or reply.generation.report.prompt


def _given_entries(reply: ApiReply) -> list[Entry]:
    return list(reply.generation.report.prompt_logprobs)


def _head(model: str) -> dict[str, Any]:
    now = int(time.time())
    return {"id": new_id("cmpl"), "object": "text_completion", "created": now, "model": model}


def _choice(
    index: int,
    text: str,
    entries: list[Entry],
    at: int,
    body: CompletionBody,
    finish: str | None,
) -> dict[str, Any]:
    told = None if body.logprobs is None else _logprobs(entries, at)
    return {"index": index, "text": text, "logprobs": told, "finish_reason": finish}


def _logprobs(entries: list[Entry], at: int) -> dict[str, Any]:
    """The older shape: lists side by side; ``at`` is where the first token begins in the text."""
    texts, offsets = [text_of(entry) for entry in entries], list[int]()
    for text in texts:
        offsets.append(at)
        at += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [None if isnan(entry.logprob) else entry.logprob for entry in entries],
        "top_logprobs": [
            None if isnan(entry.logprob) else {text_of(one): one.logprob for one in entry.top}
            for entry in entries
        ],
        "text_offset": offsets,
    }
