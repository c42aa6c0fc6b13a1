"""What `specstream say` tells behind the reply's text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specstream.commands.say import _tell


def told(ttfa_ms: float | None, *failures: Exception) -> list[str]:
    turn: Any = SimpleNamespace(ttfa_ms=ttfa_ms, audio_seconds=1.5, failures=failures)
    counts = Counter({"Phrase": 2, "AvatarCue": 3})
    made: Any = SimpleNamespace(counts=counts, written=["trace.json"])
    return _tell(turn, made, Path("out"), None)


def test_a_voice_that_makes_no_sound_is_told() -> None:
    assert told(None)[0] == "no speech: the voice made no sound of 2 phrases"
    assert "1.5 s of speech, 2 phrases" in told(80.0)[0]
    assert len(told(None, ValueError("told elsewhere"))) == 1
