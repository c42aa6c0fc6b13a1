"""The chain's parts are loaded when it is opened, whether an engine runs or not."""

from __future__ import annotations

import pytest

from specstream.commands import chain
from specstream.commands.chain import load_voice, open_pipeline
from specstream.errors import AdapterUnavailable, ConfigError
from specstream.pipeline.adapters import DefaultVoice
from specstream.session import Engine
from specstream.ws.stage.server import adapter_server
from tests.standins import ToneVoice


async def test_an_adapter_of_another_kind_is_refused_at_once() -> None:
    async with adapter_server("voice", ToneVoice) as port:
        with pytest.raises(ConfigError, match="serves: voice, not: prompt"):
            async with open_pipeline(
                Engine.load(), "reference", "viseme", f"ws://127.0.0.1:{port}"
            ):
                pass


@pytest.mark.parametrize("name", ["reference", "espeak"])
def test_only_the_test_voice_is_announced(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = (AdapterUnavailable("no hibari"), AdapterUnavailable("no espeak"))
    chosen = DefaultVoice(name, ToneVoice(), missed)
    monkeypatch.setattr(chain, "default_voice", lambda: chosen)
    assert load_voice("auto") is chosen.voice
    said = capsys.readouterr().err
    assert ("no hibari; no espeak; a test voice babbles" in said) == (name == "reference")


@pytest.mark.parametrize(("cause", "told"), [(OSError("bad file"), True), (None, False)])
def test_a_voice_that_is_installed_but_broken_is_announced(
    cause: Exception | None,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken, absent = AdapterUnavailable("can't be used"), AdapterUnavailable("not here")
    broken.__cause__, absent.__cause__ = cause, ModuleNotFoundError("hibari")
    chosen = DefaultVoice("espeak", ToneVoice(), (broken, absent))
    monkeypatch.setattr(chain, "default_voice", lambda: chosen)
    assert load_voice("auto") is chosen.voice
    wanted = "can't be used; espeak speaks instead\n" if told else ""
    assert capsys.readouterr().err == wanted
