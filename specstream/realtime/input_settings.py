"""The settings of audio input, and settings of the protocol that this server doesn't serve."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from specstream.realtime.wire import Ignored, Sparse, Strict

__all__ = [
    "NO_PROMPTS",
    "NO_TOOLS",
    "AudioFormat",
    "AudioInput",
    "Group",
    "Transcription",
    "TurnDetection",
    "leave_out",
]

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


class Group(Strict):
    """Settings that an update merges one by one; any other value is replaced whole."""

    def merged(self, update: Self) -> Self:
        """Return these settings with every field that ``update`` names replaced."""
        changes: dict[str, Any] = {}
        for name in update.model_fields_set:
            old, new = getattr(self, name), getattr(update, name)
            changes[name] = old.merged(new) if isinstance(old, Group) else new
        return self.model_copy(update=changes)


class AudioFormat(Sparse, Strict):
    """Mono audio: s16 little-endian PCM at 24 kHz, or G.711 (one byte a sample, 8 kHz)."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: Literal[24000] | None = None

    @model_validator(mode="after")
    def _rate_of_pcm(self) -> Self:
        if self.type == "audio/pcm":
            self.rate = 24000
        elif self.rate is not None:
            raise ValueError(f"{self.type} has no 'rate'; it is 8000")
        return self


_SERVER_VAD: dict[str, Any] = {"threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500}


class TurnDetection(Sparse, Strict):
    """Who ends a turn: ``server_vad`` by silence alone, ``semantic_vad`` also by the words."""

    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float | None = Field(default=None, ge=0, le=1)
    prefix_padding_ms: int | None = Field(default=None, ge=0, le=5000)
    silence_duration_ms: int | None = Field(default=None, ge=0, le=10_000)
    eagerness: Literal["low", "medium", "high", "auto"] | None = None
    create_response: bool = True
    interrupt_response: bool = True

    @model_validator(mode="after")
    def _fields_of_type(self) -> Self:
        if self.type == "semantic_vad":
            wrong = [name for name in _SERVER_VAD if getattr(self, name) is not None]
            self.eagerness = self.eagerness or "auto"
        else:
            wrong = ["eagerness"] if self.eagerness is not None else []
            for name, value in _SERVER_VAD.items():
                if getattr(self, name) is None:
                    setattr(self, name, value)
        if wrong:
            raise ValueError(f"{self.type} has no {wrong[0]!r}")
        return self


class Transcription(Sparse, Strict):
    """Asks for transcripts of the user's speech. ``model`` is only echoed: there is one recogniser."""

    model: str | None = Field(default=None, max_length=256)
    language: str | None = None

    @field_validator("language")
    @classmethod
    def _code(cls, value: str | None) -> str | None:
        code = value.partition("-")[0].lower() if value else None  # "en-US" is "en"
        if code is not None and not (code.isascii() and code.isalpha() and 2 <= len(code) <= 3):
            raise ValueError("an ISO 639 code such as 'en'")
        return code


class AudioInput(Group):
    """Audio input; all None on a server without it. ``turn_detection`` None: the client ends turns."""

    format: AudioFormat | None = None
    noise_reduction: None = None
    transcription: Transcription | None = None
    turn_detection: TurnDetection | None = None
