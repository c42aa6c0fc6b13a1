"""The ears of ``serve``: ``auto`` uses them if available, a name that is unavailable is an error."""

from typing import Any

import pytest

from specstream.commands import serve
from specstream.commands.serve import load_ears
from specstream.errors import AdapterUnavailable, ConfigError
from specstream.listening.interfaces import TurnCapabilities
from specstream.testing import ScriptedRecognizer, ScriptedTurnDetector


class Whistles(ScriptedTurnDetector):
    capabilities = TurnCapabilities("whistles", (44_100,))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, Any]]]:
    """Names of the loaded adapters; the only recogniser is ``whisper``."""
    calls: list[tuple[str, str, dict[str, Any]]] = []

    def load(kind: str, name: str, **options: Any) -> object:
        calls.append((kind, name, options))
        if name.partition("=")[0] != "whisper":
            raise AdapterUnavailable(f"no {kind} adapter is called {name!r}")
        return ScriptedRecognizer([""])

    monkeypatch.setattr(serve, "load_adapter", load)
    monkeypatch.setattr(serve, "default_turns", ScriptedTurnDetector)
    return calls


def test_by_name(asked: list[Any]) -> None:
    assert load_ears("off") is None
    assert asked == []
    assert load_ears("auto") is not None
    assert load_ears("whisper=/models/small") is not None
    assert asked[0] == ("recognizer", "whisper", {})
    assert asked[1] == ("recognizer", "whisper=/models/small", {})
    with pytest.raises(AdapterUnavailable, match="'parrot'"):
        load_ears("parrot")


def test_auto_without_ears_is_said_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def load(kind: str, name: str) -> object:
        raise AdapterUnavailable("faster-whisper is needed")

    monkeypatch.setattr(serve, "load_adapter", load)
    monkeypatch.setattr(serve, "note", said.append)
    assert load_ears("auto") is None
    assert "faster-whisper is needed" in said[0]


def test_a_pair_without_a_common_rate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "load_adapter", lambda kind, name: ScriptedRecognizer([""]))
    monkeypatch.setattr(serve, "default_turns", Whistles)
    with pytest.raises(ConfigError, match="share no rate"):
        load_ears("auto")
