"""Settings of the protocol that this server can't serve: they are left out, and the client is told."""

from __future__ import annotations

from typing import Any

from specstream.ws.realtime.wire import Ignored

__all__ = ["NO_PROMPTS", "NO_TOOLS", "leave_out"]

NO_PROMPTS = "this server stores no prompt templates"
NO_TOOLS = "this model calls no tools"
_NO_AUDIO = "this server hears no audio; send text with 'conversation.item.create'"
# Settings that the server can't serve, with the reason that the client is told.
_UNSERVED: dict[str, Any] = {
    "prompt": NO_PROMPTS,
    "reasoning": "the model's reasoning can't be set",
    "tracing": "this server sends no traces anywhere",
    "include": "there is nothing more to include",
    "audio": {
        "input": dict.fromkeys(
            ("format", "noise_reduction", "transcription", "turn_detection"), _NO_AUDIO
        ),
        "output": {"speed": "the server sets the speed, for all clients (serve --speed)"},
    },
}
_TOOLS = dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls"), NO_TOOLS)
_UNHEARD: dict[str, Any] = {
    "noise_reduction": "this server does not reduce noise",
    "turn_detection": {"idle_timeout_ms": "this server does not speak when nobody does"},
    "transcription": {
        "prompt": "the recogniser takes no prompt",
        "delay": "transcripts come as soon as they are there",
    },
}
"""Settings of ``audio.input`` that a server with audio input can't serve."""
_NOTHING: tuple[Any, ...] = (None, "", [], {}, "auto", "none", 1)
"""Values of such settings that ask for nothing; they are not reported."""


def leave_out(
    update: dict[str, Any], *, tools: bool = False, hears: bool = False
) -> tuple[dict[str, Any], list[Ignored]]:
    """Remove the standard settings that this server can't serve from a ``session``, and list them.

    ``tools``: the model can call tools; hosted tools are left out even then. ``hears``: the server
    takes audio input. Clients routinely send settings that can't be served (tools, turn detection),
    and some end the session at the first ``error``; so the rest of the update is applied, and the
    answer lists the ignored settings. A value that asks for nothing is not listed.
    """
    ignored: list[Ignored] = []
    unserved_here = _UNSERVED if tools else _TOOLS | _UNSERVED
    if hears:
        unserved_here = unserved_here | {"audio": _UNSERVED["audio"] | {"input": _UNHEARD}}

    def served(settings: Any, unserved: dict[str, Any], at: str) -> Any:
        if not isinstance(settings, dict):
            return settings
        kept: dict[str, Any] = {}
        for key, value in settings.items():
            why = unserved.get(key)
            if why is None:
                kept[key] = value
            elif isinstance(why, dict):
                kept[key] = served(value, why, f"{at}.{key}")
            elif value not in _NOTHING:
                ignored.append(Ignored(param=f"{at}.{key}", message=f"Ignored: {why}."))
        return kept

    kept = served(update, unserved_here, "session")
    if "tools" in kept:
        kept["tools"], hosted = _without_hosted(kept["tools"], "session.tools")
        ignored += hosted
    return kept, ignored


def _without_hosted(tools: Any, at: str) -> tuple[Any, list[Ignored]]:
    """Remove the tools that a server would have to call itself (MCP) from a list, and list them."""
    if not isinstance(tools, list):
        return tools, []
    kept, ignored = [], []
    for index, tool in enumerate(tools):
        if isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] == "mcp":
            message = "Ignored: this server calls no tools itself; offer functions."
            ignored.append(Ignored(param=f"{at}[{index}]", message=message))
        else:
            kept.append(tool)
    return kept, ignored
