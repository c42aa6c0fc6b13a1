"""``specstream train``: its table and JSON, Ctrl-C, and going on with the same command."""

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from specstream.commands import main as cli, train as command
from tests.commands.test_progress import Terminal
from tests.training.made import options, prompts_file


def words(root: Path) -> list[str]:
    made = options(root, "out")
    return [
        "train", "draft", "--out", str(made.out), "--target", made.target, "--data", str(made.data),
        "--steps", "6", "--max-reply", "12", "--batch-tokens", "128", "--size", "1x16",
        "--threads", "1", "--json",
    ]  # fmt: skip


def test_an_interrupt_saves_and_the_same_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = cli.read_arguments(words(tmp_path))

    async def interrupted() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        shown, noticed = command.TrainingLine.tell, threading.Event()

        async def cancel() -> None:
            task.cancel()
            for _ in range(5):  # until the command has seen it
                await asyncio.sleep(0)
            noticed.set()

        def tell(self: command.TrainingLine, what: str, done: float, says: str) -> None:
            shown(self, what, done, says)
            if what == "training" and not noticed.is_set():
                asyncio.run_coroutine_threadsafe(cancel(), loop)
                noticed.wait()

        with monkeypatch.context() as patch:
            patch.setattr(command.TrainingLine, "tell", tell)
            await command.run(args)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(interrupted())
    said = capsys.readouterr()
    assert "the same command goes on from there" in said.err and not said.out
    assert (tmp_path / "out.training" / "checkpoint.pt").exists()

    assert cli.main(words(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    assert found["steps"] == 6 and f"{found['acceptance'][0]:.3f}" in lines[3]
    assert "mean acceptance length" in "\n".join(lines)
    assert cli.main(words(tmp_path)) == 2  # the folder is there now
    assert "exists: choose another --out, or --force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "more", "code", "says"),
    [
        ("draft", ["--out", "here"], 2, "here exists: choose another --out"),
        ("draft", ["--data", "nowhere.jsonl"], 2, "can't read nowhere.jsonl"),
        ("draft", ["--data", "empty.jsonl"], 2, "is empty"),
        ("draft", ["--data", "few.jsonl"], 2, "too few prompts (3;"),
        ("draft", ["--data", "bad.jsonl"], 2, "bad.jsonl, line 2: not JSON"),
        ("draft", ["--data", "array.json"], 2, "is one JSON array"),
        ("draft", ["--eval", "nowhere.jsonl"], 2, "can't read nowhere.jsonl"),
        ("draft", ["--target", "no/such/model"], 1, "no such model folder"),
        ("draft", ["--target", "here"], 1, "without a config.json"),
        ("draft", ["--device", "abacus"], 2, "is no device"),
        ("draft", ["--size", "2by3"], 2, "is not layers x width"),
        ("draft", ["--size", "2x7"], 2, "a multiple of 8"),
        ("draft", ["--set", "heads=2"], 2, "train draft has no setting"),
        ("medusa", ["--set", "head=2"], 2, "train medusa has no setting 'head'; did you mean"),
        ("medusa", ["--size", "2x192"], 2, "--size is an option of train draft"),
        ("eagle", ["--init", "nowhere"], 2, "--init nowhere: there is no such folder"),
        ("draft", ["--replies", "nowhere"], 2, "--replies nowhere: there is no such folder"),
    ],
)
def test_bad_inputs_are_refused_before_torch_is_loaded(
    kind: str,
    more: list[str],
    code: int,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "specstream.training.run", None)  # imports torch
    Path("here").mkdir()
    Path("here", "a").touch()
    prompts_file(Path("good.jsonl"))
    prompts_file(Path("few.jsonl"), count=3)
    Path("empty.jsonl").touch()
    Path("bad.jsonl").write_text('{"prompt": "a"}\n{"prom')
    Path("array.json").write_text('[\n{"prompt": "a"}\n]')
    argv = ["train", kind, "--out", "new", "--data", "good.jsonl", *more]
    assert cli.main(argv) == code
    assert says in capsys.readouterr().err


def test_what_is_checked_before_is_checked_without_torch(tmp_path: Path) -> None:
    """In a process of its own: here it is loaded already."""
    script = "import sys; from specstream.training import inputs; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_time_that_is_left_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    now = [100.0]
    shown = command.TrainingLine(screen := Terminal(), lambda: now[0])
    for what, done, after_s in (
        ("replies", 0.5, 30.0),
        ("training", 0.4, 5.0),  # resumed: what was done before took no time now
        ("training", 0.5, 60.0),
        ("training", 1.0, 300.0),
    ):
        now[0] += after_s
        shown.tell(what, done, "loss 1")
    lines = screen.getvalue().split("\r\033[K")
    # In front of the figures: a narrow terminal cuts the end off.
    assert [line.strip().partition("] ")[2] for line in lines if "%" in line] == [
        *("loss 1", "loss 1", "about 5 min left, loss 1", "loss 1")
    ]


def test_what_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    made = options(tmp_path)
    start = ["train", "draft", "--out", str(tmp_path / "o"), "--target", made.target]
    for more, message in (
        ([], "needs --data"),
        (["--data", str(empty)], "is empty"),
        (["--data", str(made.data), "--set", "x"], "give NAME=VALUE"),
        (["--data", str(made.data), "--minutes", "0"], "--minutes must be more than 0"),
    ):
        assert cli.main([*start, *more]) == 2
        err = capsys.readouterr().err
        assert message in err and "Traceback" not in err
