"""``/v1/completions``: texts that the model goes on with as they are, without its chat template."""

from __future__ import annotations

import codecs
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from math import isnan
from typing import Annotated, Any, ClassVar, Literal

import anyio
from pydantic import Field, PlainValidator

from specstream.realtime.wire import new_id
from specstream.server.api.body import SamplingBody, StreamOptions, able
from specstream.server.api.errors import ApiError
from specstream.server.api.replies import (
    ApiReply,
    Entry,
    ReplyRequest,
    merged,
    round_of,
    speculation_of,
    text_of,
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
    return tuple(_prompt(one) for one in given[: _MOST + 1]) if several else (_prompt(given),)


def _prompt(given: Any) -> RawPrompt:
    if isinstance(given, str):
        return RawPrompt(given)
    if isinstance(given, list) and given and all(type(one) is int for one in given):
        return RawPrompt(tokens=tuple(given))
    raise ValueError("a prompt is a text or a list of token ids, or a list of such prompts")


class CompletionBody(SamplingBody):
    """The body: one prompt or several, texts or lists of tokens; each gets ``n`` replies.

    With ``max_tokens`` 0 prompts are read and nothing is written: what is told is ``echo``'s.
    """

    most_structure: ClassVar[int] = 2 << 20  # token ids are outside of strings

    prompt: Annotated[tuple[RawPrompt, ...], PlainValidator(_prompts)]
    max_tokens: Annotated[int, Field(ge=0)] = _MOST_TOKENS
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
    params = body.params(service.params, max(body.max_tokens, 1))
    of_prompt = body.logprobs if body.echo else None
    params = replace(params, logprobs=body.logprobs, prompt_logprobs=of_prompt)
    async with AsyncExitStack() as stack:
        replies = list[ApiReply]()
        for prompt in body.prompt:
            ask = ReplyRequest(prompt, params, speculate=body.speculate, prompt="prompt")
            replies += await stack.enter_async_context(ApiReply.begin_all(service, ask, body.n))
        for reply in replies:
            reply.entries.tells_end = True
        yield replies


async def completion_whole(body: CompletionBody, service: Service, model: str) -> dict[str, Any]:
    """Write all replies and return the whole answer."""
    async with _begun(body, service) as replies:
        async with anyio.create_task_group() as group:
            for reply in replies:
                group.start_soon(reply.whole)
        choices = []
        for index, reply in enumerate(replies):
            text = _given(body, index, reply)
            entries = _given_entries(reply, text)
            if body.max_tokens:
                text, entries = text + reply.generation.report.text, entries + reply.entries.told
            told = _Told(body).logprobs(entries)
            choices.append(_choice(index, text, told, reply.finish if body.max_tokens else "length"))
        usage = usage_of(replies, body.n, written=body.max_tokens > 0)
        return {**_head(model), "choices": choices, "usage": usage, **speculation_of(replies)}


async def completion_events(
    body: CompletionBody, service: Service, model: str
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yield the events of each chunk of all replies as it is committed; a chunk is a round."""
    head, options = _head(model), body.stream_options
    async with _begun(body, service) as replies, aclosing(merged(replies)) as chunks:
        told = [_Told(body) for _ in replies]
        begun = set[int]()
        async for index, chunk in chunks:
            reply, events = replies[index], list[dict[str, Any]]()
            if index not in begun and (given := _given(body, index, reply)):
                likely = told[index].logprobs(_given_entries(reply, given))
                events.append({**head, "choices": [_choice(index, given, likely, None)]})
            begun.add(index)
            if body.max_tokens:
                likely = told[index].logprobs(reply.entries.take())
                choice = _choice(index, chunk.text, likely, chunk.finish_reason)
                events.append({**head, "choices": [choice], "specstream": round_of(chunk)})
            elif chunk.finish_reason:
                events.append({**head, "choices": [_choice(index, "", None, "length")]})
            yield events
        last = {**head, "choices": [], **speculation_of(replies)}
        if options is not None and options.include_usage:
            yield [{**last, "usage": usage_of(replies, body.n, written=body.max_tokens > 0)}]


def _given(body: CompletionBody, index: int, reply: ApiReply) -> str:
    """The prompt of a reply that is under way, if the request wants it before the reply."""
    if not body.echo:
        return ""
    return body.prompt[index // body.n].text or reply.generation.report.prompt


def _given_entries(reply: ApiReply, text: str) -> list[Entry]:
    """The prompt's tokens; the first has a name where the prompt's text begins with it, as in ChatML."""
    entries = list(reply.generation.report.prompt_logprobs)
    if entries and not entries[0].piece:
        whole, rest = text.encode(), b"".join(entry.piece for entry in entries[1:])
        if whole.endswith(rest):  # else the tokenizer has put that token before the text
            entries[0] = replace(entries[0], piece=whole[: len(whole) - len(rest)])
    return entries


def _head(model: str) -> dict[str, Any]:
    now = int(time.time())
    return {"id": new_id("cmpl"), "object": "text_completion", "created": now, "model": model}


def _choice(index: int, text: str, told: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": told, "finish_reason": finish}


class _Told:
    """Tells one reply's log probabilities in the older shape, part by part: lists side by side."""

    def __init__(self, body: CompletionBody) -> None:
        self._wanted = body.logprobs is not None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at = 0  # whole characters so far; a token inside of one begins where that does

    def logprobs(self, entries: Sequence[Entry]) -> dict[str, Any] | None:
        """The next tokens; None if nobody asked."""
        if not self._wanted:
            return None
        offsets = list[int]()
        for entry in entries:
            offsets.append(self._at)
            self._at += len(self._decoder.decode(entry.piece))
        return {
            "tokens": [text_of(entry) for entry in entries],
            "token_logprobs": [None if isnan(one.logprob) else one.logprob for one in entries],
            "top_logprobs": [_top(entry) for entry in entries],
            "text_offset": offsets,
        }


def _top(entry: Entry) -> dict[str, float] | None:
    """The likeliest tokens in a place, and the one that is there."""
    if isnan(entry.logprob):
        return None
    # The tokens of two parts of characters have one text; the number of the one that is there counts.
    return {text_of(one): one.logprob for one in (*reversed(entry.top), entry)}
