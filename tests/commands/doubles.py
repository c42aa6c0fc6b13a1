"""Commands at work on a scripted engine, with a stdin of the test's own."""

from __future__ import annotations

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
    """The engine that ``command`` is given instead of one with models."""
    engine = ScriptedEngine(list(replies), **options)
    monkeypatch.setattr(f"specstream.commands.{command}.engine_of", lambda args: engine)
    return engine


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """What comes in on stdin."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
