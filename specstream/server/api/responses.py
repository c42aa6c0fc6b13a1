"""``/v1/responses``: OpenAI's Responses API for text and functions, without stored state."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from specstream.metrics import Report
from specstream.realtime.wire import at_most, new_id
from specstream.server.api.body import (
    Items,
    JsonFormat,
    JsonSchema,
    SamplingBody,
    ToolObjects,
    able,
    messages_of,
    tools_of,
)
from specstream.server.api.errors import ApiError
from specstream.server.api.replies import (
    ApiReply,
    Entry,
    ReplyRequest,
    speculation_of,
    told_of,
    usage_of,
)
from specstream.server.sessions.request import Service
from specstream.types import ToolCall

__all__ = ["ResponsesBody", "response_events", "response_whole"]

_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesBody(SamplingBody):
    """The body of ``/v1/responses``. Nothing is stored, so no earlier response can be named."""

    input: str | Items
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: ToolObjects = []
    tool_choice: str | dict[str, Any] = "auto"
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: Annotated[list[str], at_most(64)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncation: Literal["disabled"] | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None


def _ask(body: ResponsesBody, service: Service) -> ReplyRequest:
    for name in ("previous_response_id", "conversation", "background"):
        if getattr(body, name):
            message = f"{name} can't be honoured: no response is stored; send the whole input"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    tools = tools_of(body.tools, body.tool_choice, body.parallel_tool_calls)
    if tools is not None and (why := service.engine.no_tools) is not None:
        raise ApiError(400, why, param="tools", code="unsupported_parameter")
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    given = _messages(items)
    if body.instructions:
        given.insert(0, ("instructions", {"role": "system", "content": body.instructions}))
    places, messages = zip(*given, strict=True) if given else ((), ())
    likely = None
    if "message.output_text.logprobs" in (body.include or ()):
        able(service, "logprobs", "include")
        likely = body.top_logprobs or 0
    elif body.top_logprobs:
        why = "top_logprobs needs message.output_text.logprobs in include"
        raise ApiError(400, why, param="top_logprobs", code="invalid_value")
    params = body.params(service.params, body.max_output_tokens, _format(body))
    params = replace(params, logprobs=likely)
    return ReplyRequest(
        messages_of(messages, places),
        params,
        tools,
        "",
        body.speculate,
        body.chat_template_kwargs,
        "input",
    )


def _format(body: ResponsesBody) -> JsonFormat | None:
    told = (body.text or {}).get("format") or {"type": "text"}
    if not isinstance(told, dict):
        raise ApiError(400, "text.format must be an object", param="text.format")
    kind = told.get("type")
    if kind == "json_schema":
        if not isinstance(schema := told.get("schema"), dict):
            raise ApiError(400, "text.format.schema must be an object", param="text.format.schema")
        made = JsonSchema(name=str(told.get("name", "reply")), schema=schema)
        return JsonFormat(type="json_schema", json_schema=made)
    if kind not in ("text", "json_object"):
        raise ApiError(400, f"text.format can't be {kind}", param="text.format")
    return JsonFormat(type=kind)


def _messages(items: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The items of the input as messages, each with its place.

    The text and the calls of one turn are one message, as chat templates expect them.
    """
    made = list[tuple[str, dict[str, Any]]]()
    for number, item in enumerate(items):
        place = f"input.{number}"
        last = made[-1][1] if made and made[-1][1].get("role") == "assistant" else None
        match item.get("type", "message"):
            case "message" if item.get("role") == "assistant" and last and not last.get("content"):
                last["content"] = item.get("content")
            case "message":
                made.append((place, dict(item)))
            case "function_call":
                if last is None:
                    last = {"role": "assistant", "content": ""}
                    made.append((place, last))
                function = {"name": item.get("name", ""), "arguments": item.get("arguments", "{}")}
                call = {"id": item.get("call_id", ""), "type": "function", "function": function}
                last["tool_calls"] = [*last.get("tool_calls", ()), call]
            case "function_call_output":
                told = {"content": item.get("output", ""), "tool_call_id": item.get("call_id", "")}
                made.append((place, {"role": "tool", **told}))
            case "reasoning":  # no template reads that of an earlier turn
                continue
            case kind:
                message = f"{place}: {kind} can't be read here"
                raise ApiError(400, message, param=place, code="unsupported_content")
    return made


def _shell(body: ResponsesBody, model: str) -> dict[str, Any]:
    """A response before its output."""
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": body.temperature,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice,
        "tools": body.tools,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def _part(text: str, likely: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": likely}


def _text_item(id: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": content}


def _likely(entries: list[Entry]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = told_of(entries)["content"]
    return found


def _call_item(call: ToolCall) -> dict[str, Any]:
    return {
        "id": new_id("fc"),
        "type": "function_call",
        "status": "incomplete" if call.problem in ("cut_off", "no_name") else "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _ended(shell: dict[str, Any], reply: ApiReply, output: list[dict[str, Any]]) -> dict[str, Any]:
    report: Report = reply.generation.report
    why = _CUT.get(report.finish_reason or "")
    usage = usage_of([reply])
    return {
        **shell,
        "status": "incomplete" if why else "completed",
        "incomplete_details": {"reason": why} if why else None,
        "output": output,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
                "cache_write_tokens": 0,
            },
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": report.reasoning_tokens},
            "total_tokens": usage["total_tokens"],
        },
        **speculation_of([reply]),
    }


async def response_whole(body: ResponsesBody, service: Service, model: str) -> dict[str, Any]:
    """Write a response and return it whole."""
    last: dict[str, Any] = {}
    async with aclosing(response_events(body, service, model)) as events:
        async for together in events:
            last = together[-1] if together else last
    whole: dict[str, Any] = last["response"]
    return whole


async def response_events(
    body: ResponsesBody, service: Service, model: str
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yield the events of a response, those of a chunk together: its text, then its calls.

    Those of its end come one by one: each may repeat the whole text with all log probabilities.
    """
    written = _Written(_shell(body, model))
    async with ApiReply.begin(service, _ask(body, service)) as reply, aclosing(reply.chunks()) as chunks:
        async for chunk in chunks:
            yield [*written.chunk(chunk.text, reply.entries.take())]
        for event in (*written.text_done(reply), *written.calls(reply), written.ended(reply)):
            yield [event]


class _Written:
    """The events of a response, numbered, and its output so far."""

    def __init__(self, shell: dict[str, Any]) -> None:
        self._shell, self._numbers = shell, itertools.count()
        self._output = list[dict[str, Any]]()
        self._place: dict[str, Any] = {"item_id": new_id("msg"), "output_index": 0}
        self._begun = False
        self._untold = list[Entry]()  # a token without text of its own waits for the next

    def _event(self, type: str, **fields: Any) -> dict[str, Any]:
        return {"type": f"response.{type}", "sequence_number": next(self._numbers), **fields}

    def chunk(self, text: str, entries: list[Entry]) -> Iterator[dict[str, Any]]:
        """What a chunk adds."""
        if not self._begun:
            self._begun = True
            yield self._event("created", response=self._shell)
            yield self._event("in_progress", response=self._shell)
        self._untold += entries
        if not text:
            return
        if not self._output:
            item = _text_item(self._place["item_id"], [], "in_progress")
            self._output.append(item)
            yield self._event("output_item.added", output_index=0, item=item)
            part = _part("", [])
            yield self._event("content_part.added", **self._place, content_index=0, part=part)
        yield self._delta(text)

    def _delta(self, text: str) -> dict[str, Any]:
        told = {"content_index": 0, "delta": text, "logprobs": _likely(self._untold)}
        self._untold.clear()
        return self._event("output_text.delta", **self._place, **told)

    def text_done(self, reply: ApiReply) -> Iterator[dict[str, Any]]:
        """The end of the text, if there was any."""
        if not self._output:
            return
        if self._untold:
            yield self._delta("")
        text, likely = reply.generation.text, _likely(reply.entries.told)
        cut = reply.generation.report.finish_reason in _CUT
        status = "incomplete" if cut and not reply.generation.tool_calls else "completed"
        item = _text_item(self._place["item_id"], [_part(text, likely)], status)
        self._output[0] = item
        told = {"content_index": 0, "text": text, "logprobs": likely}
        yield self._event("output_text.done", **self._place, **told)
        part = _part(text, likely)
        yield self._event("content_part.done", **self._place, content_index=0, part=part)
        yield self._event("output_item.done", output_index=0, item=item)

    def calls(self, reply: ApiReply) -> Iterator[dict[str, Any]]:
        """The calls of the reply."""
        for call in reply.generation.tool_calls:
            item, index = _call_item(call), len(self._output)
            self._output.append(item)
            where = {"item_id": item["id"], "output_index": index}
            empty = {**item, "arguments": "", "status": "in_progress"}
            yield self._event("output_item.added", output_index=index, item=empty)
            yield self._event("function_call_arguments.delta", **where, delta=call.arguments)
            done = {"arguments": call.arguments, "name": call.name}
            yield self._event("function_call_arguments.done", **where, **done)
            yield self._event("output_item.done", output_index=index, item=item)

    def ended(self, reply: ApiReply) -> dict[str, Any]:
        """The last event."""
        ended = _ended(self._shell, reply, self._output)
        return self._event(ended["status"], response=ended)
