"""``/v1/chat/completions``: OpenAI's chat, with predicted outputs and what each round drafted."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio

from specstream.realtime.wire import new_id
from specstream.server.api.body import ChatBody, able, messages_of, tools_of
from specstream.server.api.errors import ApiError
from specstream.server.api.replies import (
    ApiReply,
    ReplyRequest,
    merged,
    round_of,
    speculation_of,
    told_of,
    usage_of,
)
from specstream.server.sessions.request import Service
from specstream.types import Chunk

__all__ = ["chat_ask", "chat_events", "chat_whole"]


def chat_ask(body: ChatBody, service: Service) -> ReplyRequest:
    """Translate a body.

    Raises:
        ApiError: a field that can't be honoured, by name.
    """
    tools = tools_of(body.tools, body.tool_choice, body.parallel_tool_calls)
    if tools is not None and (why := service.engine.no_tools) is not None:
        raise ApiError(400, why, param="tools", code="unsupported_parameter")
    if tools is not None and body.n > 1:
        raise ApiError(400, "n must be 1 where there are tools", param="n", code="invalid_value")
    if body.top_logprobs is not None and not body.logprobs:
        why = "top_logprobs needs logprobs: true"
        raise ApiError(400, why, param="top_logprobs", code="invalid_value")
    if body.logprobs:
        able(service, "logprobs", "logprobs")
    limit = body.max_completion_tokens or body.max_tokens
    return ReplyRequest(
        messages_of(body.messages),
        replace(
            body.params(service.params, limit, body.response_format),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        ),
        tools,
        body.prediction.text if body.prediction is not None else "",
        body.speculate,
        body.chat_template_kwargs,
    )


async def chat_whole(body: ChatBody, service: Service, model: str) -> dict[str, Any]:
    """Write all replies and return the whole answer."""
    ask = chat_ask(body, service)
    async with ApiReply.begin_all(service, ask, body.n) as replies:
        async with anyio.create_task_group() as group:
            for reply in replies:
                group.start_soon(reply.whole)
        choices = [_choice(index, reply, body) for index, reply in enumerate(replies)]
        return {
            **_head("chat.completion", model),
            "choices": choices,
            "usage": usage_of(replies),
            **speculation_of(replies),
        }


def _head(kind: str, model: str) -> dict[str, Any]:
    return {
        "id": new_id("chatcmpl"),
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": None,
    }


def _choice(index: int, reply: ApiReply, body: ChatBody) -> dict[str, Any]:
    report = reply.generation.report
    message: dict[str, Any] = {"role": "assistant", "content": report.text, "refusal": None}
    if report.reasoning:
        message["reasoning_content"] = report.reasoning
    if report.tool_calls:
        message["tool_calls"] = [call.message() for call in report.tool_calls]
        message["content"] = report.text or None
    return {
        "index": index,
        "message": message,
        "logprobs": told_of(reply.entries.told) if body.logprobs else None,
        "finish_reason": report.finish_reason,
    }


async def chat_events(
    body: ChatBody, service: Service, model: str
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yield the events of each chunk of all replies as it is committed; a chunk is a round."""
    ask, head = chat_ask(body, service), _head("chat.completion.chunk", model)
    usage = body.stream_options is not None and body.stream_options.include_usage
    async with ApiReply.begin_all(service, ask, body.n) as replies:
        begun: list[set[int] | None] = [None for _ in replies]  # calls that have been announced
        async with aclosing(merged(replies)) as chunks:
            async for index, chunk in chunks:
                events = list[dict[str, Any]]()
                told: dict[str, Any] | None = round_of(chunk)
                if (calls := begun[index]) is None:
                    calls = begun[index] = set()
                    role = {"role": "assistant", "content": ""}
                    events.append(_event(head, index, role, usage=usage))
                likely = told_of(replies[index].entries.take()) if body.logprobs else None
                for delta in _deltas(chunk, calls):
                    events.append(_event(head, index, delta, usage=usage, told=told, likely=likely))
                    told = likely = None
                if chunk.finish_reason is not None:
                    events.append(_event(head, index, {}, finish=chunk.finish_reason, usage=usage))
                yield events
        last = {**head, "choices": [], **speculation_of(replies)}
        if usage:
            yield [{**last, "usage": usage_of(replies)}]


def _deltas(chunk: Chunk, begun: set[int]) -> list[dict[str, Any]]:
    """What a chunk adds; ``begun`` are the calls that have been announced."""
    deltas: list[dict[str, Any]] = []
    if chunk.reasoning:
        deltas.append({"reasoning_content": chunk.reasoning})
    if chunk.text:
        deltas.append({"content": chunk.text})
    for call in chunk.tool_calls:
        one: dict[str, Any] = {"index": call.index, "function": {"arguments": call.arguments}}
        if call.index not in begun:
            begun.add(call.index)
            one |= {"id": call.id, "type": "function"}
            one["function"] = {"name": call.name, "arguments": call.arguments}
        elif not call.arguments:
            continue
        deltas.append({"tool_calls": [one]})
    return deltas or [{"content": ""}]


def _event(
    head: dict[str, Any],
    index: int,
    delta: dict[str, Any],
    *,
    finish: str | None = None,
    usage: bool,
    told: dict[str, Any] | None = None,
    likely: dict[str, Any] | None = None,
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": likely, "finish_reason": finish}
    event = {**head, "choices": [choice]}
    if told is not None:
        event["specstream"] = told
    return {**event, "usage": None} if usage else event
