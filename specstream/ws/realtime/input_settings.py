"""The settings of audio input: its format, who ends a turn, and whether transcripts are sent."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from specstream.ws.realtime.strict import Strict
from specstream.ws.realtime.wire import Sparse

__all__ = ["AudioFormat", "AudioInput", "Group", "Transcription", "TurnDetection"]


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


_SERVER_VAD: dict[str, Any] = {
    "threshold": 0.5,
    "prefix_padding_ms": 300,
    "silence_duration_ms": 500,
}


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
