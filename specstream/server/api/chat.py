"""``/v1/chat/completions``: OpenAI's chat, with predicted outputs and what each round drafted."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from specstream.metrics import Report
from specstream.realtime.wire import new_id
from specstream.server.api.body import ChatBody
from specstream.server.api.errors import ApiError
from specstream.server.api.messages import messages_of, tools_of
from specstream.server.api.replies import ApiReply, ReplyRequest, speculation_of, usage_of
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
    limit = body.max_completion_tokens or body.max_tokens
    return ReplyRequest(
        messages_of(body.messages),
        body.params(service.params, limit, body.response_format),
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
        choices = [_choice(i, reply.generation.report) for i, reply in enumerate(replies)]
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


def _choice(index: int, report: Report) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": report.text, "refusal": None}
    if report.reasoning:
        message["reasoning_content"] = report.reasoning
    if report.tool_calls:
        message["tool_calls"] = [call.message() for call in report.tool_calls]
        message["content"] = report.text or None
    return {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": report.finish_reason,
    }


async def chat_events(
    body: ChatBody, service: Service, model: str
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the chunks of all replies as they are committed; a chunk is a round."""
    ask, head = chat_ask(body, service), _head("chat.completion.chunk", model)
    usage = body.stream_options is not None and body.stream_options.include_usage
    async with ApiReply.begin_all(service, ask, body.n) as replies:
        begun = [set[int]() for _ in replies]
        async with aclosing(_merged(replies)) as merged:
            async for index, chunk in merged:
                if chunk is None:
                    yield _event(head, index, {"role": "assistant", "content": ""}, usage=usage)
                    continue
                told: dict[str, Any] | None = _round(chunk)
                for delta in _deltas(chunk, begun[index]):
                    yield _event(head, index, delta, usage=usage, told=told)
                    told = None
                if chunk.finish_reason is not None:
                    yield _event(head, index, {}, finish=chunk.finish_reason, usage=usage)
        last = {**head, "choices": [], **speculation_of(replies)}
        if usage:
            yield {**last, "usage": usage_of(replies)}


async def _merged(
    replies: list[ApiReply],
) -> AsyncGenerator[tuple[int, Chunk | None], None]:
    """The chunks of all replies as they come; None before the first one of each."""
    if len(replies) == 1:
        first = True
        async with aclosing(replies[0].chunks()) as chunks:
            async for chunk in chunks:
                if first:
                    yield 0, None
                    first = False
                yield 0, chunk
        return
    put, take = anyio.create_memory_object_stream[tuple[int, Chunk | None]](0)

    async def read(index: int, out: MemoryObjectSendStream[tuple[int, Chunk | None]]) -> None:
        async with out, aclosing(replies[index].chunks()) as chunks:
            await out.send((index, None))
            async for chunk in chunks:
                await out.send((index, chunk))

    async with anyio.create_task_group() as group, take:
        async with put:
            for index in range(len(replies)):
                group.start_soon(read, index, put.clone())
        async for item in take:
            yield item


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


def _round(chunk: Chunk) -> dict[str, Any]:
    return {
        "round": chunk.round,
        "drafted": chunk.drafted,
        "accepted": chunk.accepted,
        "chars": list(chunk.chars),
        "proposer": chunk.proposer,
        "t_ms": round(chunk.t_ms, 3),
    }


def _event(
    head: dict[str, Any],
    index: int,
    delta: dict[str, Any],
    *,
    finish: str | None = None,
    usage: bool,
    told: dict[str, Any] | None = None,
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    event = {**head, "choices": [choice]}
    if told is not None:
        event["specstream"] = told
    return {**event, "usage": None} if usage else event
