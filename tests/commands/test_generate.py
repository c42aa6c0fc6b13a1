"""``specstream generate`` with a scripted engine: sources of the prompt, and output of the text."""

import json
import os
import subprocess
import sys
from io import UnsupportedOperation
from pathlib import Path

import pytest

from specstream.commands.main import main
from specstream.commands.shared import terminal as stdin
from specstream.testing import chunks_of
from tests.commands.doubles import piped, scripted


@pytest.mark.parametrize(
    ("data", "prompt"),
    [
        (b"Hello there\n", "Hello there"),
        ("Grüße,\r\nzwei Zeilen\r\n".encode(), "Grüße,\r\nzwei Zeilen"),
        (b"\xef\xbb\xbfHello", "Hello"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "say"])
def test_a_dash_reads_the_prompt_from_stdin(
    command: str, data: bytes, prompt: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = scripted(monkeypatch, command, "Yes.")
    piped(monkeypatch, data)
    argv = [command, "-", "--system", "Be brief."]
    if command == "say":
        argv += ["--voice", "reference", "--out", str(tmp_path)]
    assert main(argv) == 0
    messages, _ = engine.requests[0]
    assert [m["content"] for m in messages] == ["Be brief.", prompt]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\xff\xfeH\x00", "binary data; it must be text in UTF-8"),
        (b"a\0b", "binary"),
        (b"x" * 99, "longer than"),
    ],
)
def test_what_is_no_prompt_is_one_clear_line(
    data: bytes, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = scripted(monkeypatch, "generate", "Yes.")
    monkeypatch.setattr(stdin, "MAX_BYTES", 50)
    piped(monkeypatch, data)
    assert main(["generate", "-"]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("specstream: the prompt on stdin is ")
    assert says in error
    assert "\n" not in error
    assert not engine.requests


def test_a_stdin_that_is_not_there_or_breaks_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, "generate", "Yes.")
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["generate", "-"]) == 2
    assert "stdin is closed" in capsys.readouterr().err
    with open(os.devnull, "w") as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(UnsupportedOperation):
            file.read()
        assert main(["generate", "-"]) == 2
    assert "stdin can't be read" in capsys.readouterr().err


def test_runs_are_marked_in_a_pipe_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv, out in (([], "one two\n"), (["--show-runs"], "one│ two\n")):
        scripted(monkeypatch, "generate", "one two")
        assert main(["generate", "count", *argv]) == 0
        assert capsys.readouterr().out == out


def test_a_reply_that_was_cut_says_by_what(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = chunks_of("one two", finish_reason="length")
    for limit, note in (("2", "cut at 2 tokens; --max-tokens raises that"), ("9", "context")):
        scripted(monkeypatch, "generate", cut)
        assert main(["generate", "count", "--max-tokens", limit, "--json"]) == 0
        captured = capsys.readouterr()
        assert note in captured.err
        assert json.loads(captured.out.splitlines()[-1])["finish_reason"] == "length"
    scripted(monkeypatch, "generate", "one two")
    assert main(["generate", "count", "--max-tokens", "2", "--json"]) == 0
    captured = capsys.readouterr()
    assert "cut" not in captured.err
    assert json.loads(captured.out.splitlines()[-1])["finish_reason"] == "stop"


SCRIPTED = """
import sys
from specstream.commands.main import main
from specstream.commands import generate, say
from specstream.testing import ScriptedEngine
generate.engine_of = say.engine_of = lambda args: ScriptedEngine(["one two three."])
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["generate", "say"])
def test_a_reader_that_goes_away_ends_it_quietly(command: str, tmp_path: Path) -> None:
    """A reader such as ``| head -c 10`` closes stdout; here before the first word."""
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, "-c", SCRIPTED, command, "Hi"]
    if command == "say":
        argv += ["--voice", "reference", "--out", str(tmp_path)]
    try:
        done = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert done.returncode == 141
    if command == "generate":
        assert done.stderr == ""
    else:  # the files are the purpose of `say`, and they are complete
        assert "specstream: " not in done.stderr
        assert "Traceback" not in done.stderr
        assert (tmp_path / "speech.wav").stat().st_size > 1000
        assert json.loads((tmp_path / "trace.json").read_text())["report"]["text"]
