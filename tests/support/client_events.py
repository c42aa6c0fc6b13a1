"""Client events, right and wrong, with the codes of their refusals, and a loop to play them on."""

import asyncio
from collections.abc import Callable
from typing import Any

NAMES = ["a", "b", "c", "d"]  # few, so that they meet
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
UPDATES: list[dict[str, Any]] = [
    {},
    {"instructions": "Be short."},
    {"output_modalities": ["text"]},
    {"output_modalities": ["audio"]},
    {"max_output_tokens": 7, "tracing": "auto", "prompt": {"id": "x"}},
    {"tools": [TOOL], "tool_choice": "auto"},
    {"tools": [], "parallel_tool_calls": False},
    {"truncation": {"type": "retention_ratio", "retention_ratio": 0.5}},
    {"audio": {"input": {"transcription": {"model": "any", "language": "en"}}}},
    {"audio": {"input": {"transcription": None}, "output": {"voice": "marin"}}},
    {"audio": {"output": {"format": {"type": "audio/pcmu"}}}},
    {"specstream": {"events": ["report", "avatar", "prompt", "revoke"]}},
    {"specstream": {"sampling": {"temperature": 0.5, "stop": ["x"]}, "events": []}},
]
WRONG_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"type": "realtime", "colour": "red"}, "unknown_parameter"),
    ({"type": "transcription"}, "invalid_value"),
    ({}, "missing_required_parameter"),
    ({"type": "realtime", "output_modalities": ["text", "audio"]}, "invalid_value"),
    ({"type": "realtime", "instructions": 5}, "invalid_type"),
    ({"type": "realtime", "max_output_tokens": 0}, "invalid_value"),
    ({"type": "realtime", "specstream": {"sampling": {"temperature": -1}}}, "invalid_value"),
    ({"type": "realtime", "tools": [TOOL, TOOL]}, "invalid_value"),
    ({"type": "realtime", "audio": {"input": {"format": {"type": "mp3"}}}}, "invalid_value"),
]
ASKED: list[dict[str, Any]] = [
    {},
    {"output_modalities": ["text"]},
    {"output_modalities": ["audio"], "metadata": {"for": "a test"}},
    {"instructions": "Greet the user.", "max_output_tokens": 50},
    {"input": [{"type": "message", "role": "user", "content": []}], "tools": [TOOL]},
    {"specstream": {"sampling": {"seed": 1}, "speculate": False}, "tool_choice": "none"},
    {"audio": {"output": {"format": {"type": "audio/pcma"}, "voice": {"id": "any"}}}},
]
WRONG_ASKED: list[tuple[dict[str, Any], str]] = [
    ({"colour": "red"}, "unknown_parameter"),
    ({"output_modalities": ["text", "audio"]}, "invalid_value"),
    ({"max_output_tokens": "many"}, "invalid_value"),
    ({"prompt": {"id": "x"}}, "invalid_value"),
    ({"metadata": {"x": "y" * 600}}, "invalid_value"),
    ({"specstream": {"sampling": {"top_p": 7}}}, "invalid_value"),
    ({"input": [{"type": "item_reference", "id": "nowhere"}]}, "item_not_found"),
    ({"instructions": ["x"]}, "invalid_type"),
]
WRONG_ITEMS: list[tuple[Any, str]] = [
    ({"type": "message", "role": "user", "content": [{"type": "text"}]}, "invalid_value"),
    ({"type": "message", "role": "robot", "content": []}, "invalid_value"),
    ({"type": "message", "role": "user"}, "missing_required_parameter"),
    ({"type": "message", "id": "a b", "role": "user", "content": []}, "invalid_value"),
    ({"type": "function_call", "name": "look", "arguments": ""}, "missing_required_parameter"),
    ({"type": "song", "role": "user", "content": []}, "invalid_value"),
]
WRONG_FRAMES = [
    ("{", "invalid_json"),
    ("[1, 2]", "invalid_json"),
    ('"\\ud800"', "invalid_json"),
    ("[" * 5000, "invalid_json"),
    ("{}", "missing_required_parameter"),
    ('{"type": "session.destroy"}', "invalid_value"),
    ('{"type": 7}', "invalid_value"),
    ('{"type": "output_audio_buffer.clear"}', "output_audio_buffer_not_supported"),
    ('{"type": "response.cancel", "at": 1}', "unknown_parameter"),
    ('{"type": "conversation.item.delete"}', "missing_required_parameter"),
    ('{"type": "response.create", "event_id": 5}', "invalid_type"),
]


class InlineLoop(asyncio.SelectorEventLoop):
    """Does at once what is given to threads, so that it can be seen when nothing moves any more."""

    def run_in_executor(  # type: ignore[override]
        self, executor: None, work: Callable[..., object], *of: Any
    ) -> asyncio.Future[object]:
        done = self.create_future()
        done.set_result(work(*of))
        return done


class Direct:
    """The same for `anyio.to_thread`."""

    @staticmethod
    async def run_sync(make: Callable[[], object]) -> object:
        return make()
