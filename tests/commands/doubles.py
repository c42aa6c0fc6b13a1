"""Doubles for tests of commands: a scripted engine and a scripted stdin."""

import io
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from specstream.testing import ScriptedEngine
from specstream.types import Chunk


def scripted(
    monkeypatch: pytest.MonkeyPatch, command: str, *replies: str | Sequence[Chunk], **options: Any
) -> ScriptedEngine:
    """Replace the engine of ``command`` by one without models."""
    engine = ScriptedEngine(list(replies), **options)
    maker = "text_engine_of" if command in ("chat", "serve") else "engine_of"
    monkeypatch.setattr(f"specstream.commands.{command}.{maker}", lambda args: engine)
    return engine


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Replace stdin by these bytes."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
