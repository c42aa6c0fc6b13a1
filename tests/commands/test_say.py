"""What `specstream say` tells behind the reply's text, and texts that it speaks without a model."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specstream.commands.main import main
from specstream.commands.say import _tell
from specstream.trace import read_trace
from tests.commands.doubles import piped


def told(ttfa_ms: float | None, *failures: Exception) -> list[str]:
    turn: Any = SimpleNamespace(ttfa_ms=ttfa_ms, audio_seconds=1.5, failures=failures)
    counts = Counter({"Phrase": 2, "AvatarCue": 3})
    made: Any = SimpleNamespace(counts=counts, written=["trace.json"])
    return _tell(turn, made, Path("out"), None)


def test_a_voice_that_makes_no_sound_is_told() -> None:
    assert told(None)[0] == "no speech: the voice made no sound of 2 phrases"
    assert "1.5 s of speech, 2 phrases" in told(80.0)[0]
    assert len(told(None, ValueError("told elsewhere"))) == 1


def test_a_text_is_spoken_verbatim_without_a_model(tmp_path: Path) -> None:
    """It is read like a reply: tags are directions, amounts are put into words."""
    code = """
import sys
from specstream.commands.main import main
code = main(["say", "--verbatim", "[smile] It costs $5. Thank you.", "--voice", "reference",
             "--speed", "2", "--json", "--out", sys.argv[1]])
assert "torch" not in sys.modules and "transformers" not in sys.modules
sys.exit(code)
"""
    argv = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown, figures = done.stdout.splitlines()
    assert shown == "It costs $5. Thank you."
    values = json.loads(figures)
    assert values["phrases"] == 2 and values["audio_seconds"] > 1 and values["ttfa_ms"] > 0
    assert "first audible sample after" in done.stderr and "token" not in done.stderr
    trace = read_trace(tmp_path / "trace.json")
    words = [mark["text"] for e in trace.events if e["type"] == "Speech" for mark in e["marks"]]
    assert "dollars" in words and "smile" in words
    assert trace.at(trace.samples - 1).tokens == ()
    assert "smile" in (tmp_path / "avatar.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--compare"], "--verbatim loads no model: leave out --compare"),
        (["--target", "smollm2"], "leave out --target"),
        (["--prompts", "model"], "'model' needs a language model"),
        (["--voice", "ws://127.0.0.1:9", "--speed", "2"], "--speed is set where that voice runs"),
    ],
)
def test_what_only_a_model_could_do_is_refused(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "new")]
    assert main(["say", "--verbatim", "Hello.", *out, "--voice", "reference", *options]) == 2
    assert says in capsys.readouterr().err


def test_a_verbatim_text_may_come_from_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, b"Guten Tag.\nNoch etwas.\n")
    argv = ["say", "-", "--verbatim", "--voice", "reference", "--out"]
    assert main([*argv, str(tmp_path / "a.wav")]) == 2, "it names a folder"
    argv.append(str(tmp_path))
    assert main(argv) == 0
    assert capsys.readouterr().out == "Guten Tag.\nNoch etwas.\n"
