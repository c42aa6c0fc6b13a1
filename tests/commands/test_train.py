"""``specstream train``: its table and JSON, Ctrl-C, and going on with the same command."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from specstream import cli
from specstream.commands import train as command
from tests.train.made import options


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
    args = cli._arguments(words(tmp_path))

    async def interrupted() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        shown, noticed = command._Shown.tell, threading.Event()

        async def cancel() -> None:
            task.cancel()
            for _ in range(5):  # until the command has seen it
                await asyncio.sleep(0)
            noticed.set()

        def tell(self: command._Shown, what: str, done: float, says: str) -> None:
            shown(self, what, done, says)
            if what == "training" and not noticed.is_set():
                asyncio.run_coroutine_threadsafe(cancel(), loop)
                noticed.wait()

        with monkeypatch.context() as patch:
            patch.setattr(command._Shown, "tell", tell)
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
