"""The GPU figures run without a GPU: every part on fake tensors and with real numbers; the driver."""

import json
import os
import runpy
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.context import Context, NotRehearsed
from tests.gpu.parts import PARTS
from tests.gpu.report import LINES, WIDTH, table, write_files
from tests.gpu.running import Outcome, Part, run_all, run_part

# Python 3.12 warns of forks in a process with threads; the driver has none.
pytestmark = [pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
QUICK = {
    "fake": "kernels,passes,cells,profile,sanitizer",
    "cpu": "env,decoder,graphs,equality,halves,speed8,speed1,peers,cells,bits,memory,doctor",
}


def figures(out: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    command = [sys.executable, "scripts/gpu_figures.py", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    with tarfile.open(out / "results.tar.gz") as archive:
        file = archive.extractfile("results.jsonl")
        assert file is not None
        return done, [json.loads(line) for line in file]


def check(out: Path, names: str, *options: str) -> None:
    done, found = figures(out, *options)
    said = [(one["part"], one["state"], one["why"]) for one in found]
    assert done.returncode == 0, (said, done.stdout[-6000:], done.stderr[-6000:])
    assert [one["part"] for one in found] == names.split(",")
    assert {one["state"] for one in found} <= {"done", "not rehearsed"}, said
    assert sorted(path.name for path in out.iterdir()) == ["report.md", "results.tar.gz"]
    lines = done.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("GPU figures"))
    assert (out / "report.md").read_text().splitlines()[1:-1] == lines[at:]
    assert len(lines) - at <= LINES and max(map(len, lines[at:])) <= WIDTH


def test_parts_run_on_fake_tensors(tmp_path: Path) -> None:
    check(tmp_path, QUICK["fake"], "--device", "fake", "--only", QUICK["fake"])


def test_parts_find_what_is_right_on_a_cpu(tmp_path: Path) -> None:
    check(tmp_path, QUICK["cpu"], "--device", "cpu", "--tiny", "--only", QUICK["cpu"])


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("device", ["fake", "cpu"])
def test_all_parts_run(device: str, tmp_path: Path) -> None:
    check(tmp_path, ",".join(part.name for part in PARTS), "--device", device, "--tiny")


def test_every_part_is_tried_by_one_of_the_quick_runs() -> None:
    assert {part.name for part in PARTS} == {*",".join(QUICK.values()).split(",")}


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "gpu_figures.py"))
    with pytest.raises(SystemExit, match="no part is called sped"):
        script["main"](["--out", str(tmp_path), "--only", "sped"])


# The driver.


def raises(context: Context) -> dict[str, Any]:
    context.row("before", "a value")
    raise ValueError("no such thing\nmore of it")


def hangs(context: Context) -> dict[str, Any]:
    context.row("before", "a value")
    child = subprocess.Popen(["sleep", "60"])
    (context.folder / "child").write_text(str(child.pid))
    time.sleep(60)
    return {}


def crashes(context: Context) -> dict[str, Any]:
    context.row("before", "a value")
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def leaves(context: Context) -> dict[str, Any]:
    os._exit(3)


def declines(context: Context) -> dict[str, Any]:
    raise NotRehearsed("it needs a card")


def works(context: Context) -> dict[str, Any]:
    context.check("right", True, "1")
    context.bar("fast", "2", False)
    return {"all": [1, 2]}


def misses(context: Context) -> dict[str, Any]:
    context.check("right", False, "0")
    return {}


def run(*parts: Part, folder: Path, seconds: float = 60.0) -> list[Outcome]:
    return run_all(parts, "cpu", True, folder, time.monotonic() + seconds, keep=0.0)


def test_a_part_that_fails_stops_no_other(tmp_path: Path) -> None:
    named = {f.__name__: Part(f.__name__, f, 20) for f in (raises, crashes, leaves, works)}
    found = {one.part: one for one in run(*named.values(), folder=tmp_path)}
    assert found["raises"].state == "failed"
    assert found["raises"].why.startswith("ValueError at test_figures.py:")
    assert found["raises"].why.endswith("no such thing")
    assert (found["crashes"].state, found["crashes"].why) == ("died", "by signal SIGKILL")
    assert (found["leaves"].state, found["leaves"].why) == ("died", "with exit status 3")
    assert found["works"].state == "done" and found["works"].result == {"all": [1, 2]}
    # What was told until then is kept.
    for name in ("raises", "crashes"):
        assert [row["what"] for row in found[name].rows] == ["before"] and found[name].wrong
    assert not found["works"].wrong
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["part"] for line in lines] == list(named)


def test_a_part_is_killed_at_its_limit_with_all_that_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    found = run_part(Part("hangs", hangs, 20), "cpu", True, tmp_path, 1.0)
    assert time.monotonic() - began < 10
    assert (found.state, found.why) == ("killed", "at its limit of 1 s") and found.wrong
    assert [row["what"] for row in found.rows] == ["before"]
    child = int((tmp_path / "child").read_text())
    for _ in range(100):  # it is a zombie until its adopter has noticed
        try:
            state = Path(f"/proc/{child}/stat").read_text().split()[2]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.02)
    raise AssertionError("what the part started is still running")


def test_parts_that_the_budget_has_no_room_for_are_left_out(tmp_path: Path) -> None:
    parts = Part("first", works, 20, least=1), Part("long", works, 90, least=50)
    found = run(*parts, Part("last", works, 20, least=1), folder=tmp_path, seconds=40)
    assert [one.state for one in found] == ["done", "left out", "done"]
    assert found[1].why.endswith("s of the budget left") and not found[1].wrong


def test_what_cannot_be_rehearsed_says_so(tmp_path: Path) -> None:
    parts = Part("a", declines, 20), Part("b", works, 20, unrehearsed={"cpu": "no card"})
    found = run(*parts, folder=tmp_path)
    assert [(one.state, one.why) for one in found] == [
        ("not rehearsed", "it needs a card"),
        ("not rehearsed", "no card"),
    ]
    assert not any(one.wrong for one in found)


def test_a_check_that_is_missed_is_wrong_and_a_bar_is_not(tmp_path: Path) -> None:
    found = run(Part("a", misses, 20), Part("b", works, 20), folder=tmp_path)
    assert [one.wrong for one in found] == [True, False]
    assert found[1].rows[1]["bar"] == "-"  # without a GPU nothing is fast or slow


def test_the_table_fits_and_keeps_what_matters(tmp_path: Path) -> None:
    rows: list[dict[str, Any]]
    rows = [{"what": f"figure {i} " + "w" * 90, "value": "v" * 200} for i in range(40)]
    rows[20] |= {"bar": "missed"}
    rows[30] |= {"left_out": True}
    outcomes = [Outcome(f"part{i}", "done", seconds=100.0, rows=list(rows)) for i in range(8)]
    outcomes += [Outcome("late", "left out", "3 s of the budget left"), Outcome("none", "done")]
    lines = table(outcomes, "GPU figures " + "x" * 300)
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH
    assert sum("missed" in line for line in lines) == 8
    assert sum("figure 30" in line for line in lines) == 8
    assert any("3 s of the budget left" in line for line in lines)
    assert any("nothing was found" in line for line in lines)
    (tmp_path / "trace.json.gz").write_bytes(b"1")
    (tmp_path / "log.txt").write_text("the caller's")
    write_files(tmp_path, lines)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt", "report.md", "results.tar.gz"]
    with tarfile.open(tmp_path / "results.tar.gz") as archive:
        assert archive.getnames() == ["report.md", "trace.json.gz"]
