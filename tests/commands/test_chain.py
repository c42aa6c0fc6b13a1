"""The chain's parts are loaded when it is opened, whether an engine runs or not."""

from importlib import metadata
from importlib.metadata import EntryPoint

import pytest

from specstream.commands.shared import chain
from specstream.commands.shared.chain import load_voice, open_pipeline, stage_or_adapter
from specstream.engine.engine import Engine
from specstream.errors import AdapterUnavailable, ConfigError
from specstream.remote.server import adapter_server
from specstream.stages import adapters
from specstream.stages.adapters import DefaultVoice
from specstream.testing import chunks_of
from tests.support.standins import ToneVoice, events_by_source, stream


async def test_an_adapter_of_another_kind_is_refused_at_once() -> None:
    async with adapter_server("voice", ToneVoice) as port:
        with pytest.raises(ConfigError, match="serves: voice, not: prompt"):
            async with open_pipeline(Engine.load(), "reference", "viseme", f"ws://127.0.0.1:{port}"):
                pass


def test_speed_and_pitch_reach_any_voice() -> None:
    made = stage_or_adapter("voice", "reference", speed=2.0, pitch=1.5)
    assert (made.speed, made.pitch_hz) == (2.0, 165.0)
    pytest.importorskip("hibari")
    with pytest.raises(ConfigError, match="pitch.*hibari"):
        stage_or_adapter("voice", "auto", pitch=1.5)  # no other voice takes its place
    assert load_voice("auto", speed=1.5).capabilities.name == "hibari"


def test_a_voice_that_has_no_speed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(group: str) -> list[EntryPoint]:
        return [EntryPoint("tone", "tests.support.standins:ToneVoice", group)]

    monkeypatch.setattr(adapters, "entry_points", entry_points)
    with pytest.raises(ConfigError, match="the voice 'tone' can't be set with --speed: .*'speed'"):
        load_voice("tone", speed=1.5)


def test_an_adapter_may_be_named_with_an_address() -> None:
    pytest.importorskip("openai")
    made = stage_or_adapter("voice", "openai=http://127.0.0.1:9/v1?voice=ann", speed=1.2)
    assert made.capabilities.name == "openai:ann"
    with pytest.raises(AdapterUnavailable, match="write ws://127.0.0.1:9"):
        stage_or_adapter("voice", "http://127.0.0.1:9")


def test_the_speed_of_a_voice_elsewhere_is_set_there() -> None:
    with pytest.raises(ConfigError, match="specstream adapter voice --speed"):
        stage_or_adapter("voice", "ws://127.0.0.1:9", speed=2.0)
    with pytest.raises(ConfigError, match="--speed is for voices"):
        stage_or_adapter("avatar", "viseme", speed=2.0)


@pytest.mark.parametrize("name", ["reference", "espeak"])
def test_only_the_test_voice_is_announced(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = (AdapterUnavailable("no hibari"), AdapterUnavailable("no espeak"))
    chosen = DefaultVoice(name, ToneVoice(), missed)
    monkeypatch.setattr(chain, "default_voice", lambda **options: chosen)
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
    monkeypatch.setattr(chain, "default_voice", lambda **options: chosen)
    assert load_voice("auto") is chosen.voice
    wanted = "can't be used; espeak speaks instead\n" if told else ""
    assert capsys.readouterr().err == wanted


async def test_a_mark_by_name_and_the_names_of_what_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(group: str) -> list[EntryPoint]:
        mark = EntryPoint("bit", "tests.support.standins:BitMark", group)
        return [mark] if group == "specstream.mark" else list(metadata.entry_points(group=group))

    monkeypatch.setattr(adapters, "entry_points", entry_points)
    names = dict[str, str]()
    parts = ("reference", "viseme", "template")
    async with open_pipeline(None, *parts, mark="bit", names=names) as pipeline:
        async with pipeline.run(stream(chunks_of("One two. "))) as run:
            said = (await events_by_source(run))["voice"]
    pcm = b"".join(item.pcm for item in said)
    assert pcm and all(byte & 1 for byte in pcm[::2])
    assert (names["voice"], names["mark"]) == ("reference", "bit")
    with pytest.raises(AdapterUnavailable, match="no mark adapter is called 'ink'"):
        async with open_pipeline(None, *parts, mark="ink"):
            pass
    with pytest.raises(ConfigError, match="bit has no such choice"):
        async with open_pipeline(None, *parts, mark="bit=7"):
            pass
