"""``specstream bench`` on a small pair in folders: every arm, for real, on a few tokens."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from specstream.bench import plots
from specstream.bench.arms.transformers_peers import PeerArm
from specstream.commands.main import main
from specstream.commands.shared.progress import Progress
from tests.bench.llama import gguf_file, install_llama_cpp
from tests.support.tiny import save_pair

SUMMARY = {
    "ar_vs_generate",
    "speculation_vs_own",
    "speculation_vs_assisted",
    "speculation_vs_best_peer",
    "worst_domain_vs_own",
}
PROMPTS = [
    {"id": f"{domain}-{i}", "domain": domain, "messages": [{"role": "user", "content": f"{i} ab ab"}]}
    for domain in ("chat", "tools", "math", "code", "scene")
    for i in range(2)
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A model pair as folders and a file of prompts, and the options that name them."""
    target, draft = save_pair(tmp_path_factory.mktemp("pair"))
    options = ["--target", str(target), "--draft", str(draft)]
    prompts = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, PROMPTS)))
    return [*options, "--prompts", str(prompts), "--threads", "1", "--device", "cpu"]


def bench(*argv: str) -> int:
    return main(["bench", "--dtype", "float32", "--max-tokens", "10", "--json", *argv])


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return values


@pytest.mark.slow
def test_all_arms_on_a_small_pair(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = "own,auto,draft-2,suffix,generate,assisted,lookup"
    assert bench(*pair, "--quick", "--arms", arms, "--concurrency", "2", "--out", str(tmp_path)) == 0
    values = last_line(capsys)
    assert values["summary"].keys() >= SUMMARY
    assert all(values["summary"][key] > 0 for key in SUMMARY)
    assert list(values["domains"]) == ["chat", "tools", "math", "code", "scene"]
    for rows in values["domains"].values():
        assert {row["arm"] for row in rows.values()} == set(arms.split(","))
        for row in rows.values():
            assert row["prompts"] == row["runs"] == 2
            assert 0 < row["decode_tokens"] < row["tokens"] <= 20
            # In float32 every arm must write the very same tokens, drafts or not, theirs or ours.
            for other in ("own", "generate"):
                same = row[f"same_tokens_as_{other}"]
                assert same is None or same["share"] == 1.0, (row["arm"], row["setting"])
        assert rows["auto"]["drafted"] == rows["auto"]["accepted"] + rows["auto"]["rejected"]
        assert rows["own"]["drafted"] == 0
        assert sum(rows["auto"]["time_split"].values()) == pytest.approx(1, abs=1e-3)
    assert values["concurrency"]["at_once"] == 2
    assert values["complete"] is True
    assert values["cells"] == 10
    assert values["provenance"]["options"]["prompts"]["domains"]["math"] == 2
    assert json.loads((tmp_path / "bench.json").read_text()) == values
    runs = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert len(runs) == 10 * len(values["domains"]["chat"])
    assert (tmp_path / "bench.png").stat().st_size > 10_000
    assert "auto / own" in (tmp_path / "bench.txt").read_text()


def test_sampled_runs_take_a_seed(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--arms", "own,generate", "--limit", "1", "--domains", "chat", "--repeats", "2"]
    tokens = []
    for folder in ("a", "b"):
        sampled = ["--temperature", "1.5", "--seed", "4", "--out", str(tmp_path / folder)]
        assert bench(*pair, *argv, *sampled) == 0
        lines = (tmp_path / folder / "runs.jsonl").read_text().splitlines()
        tokens.append([json.loads(line)["token_ids"] for line in lines])
        values = last_line(capsys)
        assert values["summary"]["speculation_vs_own"] is None
        assert values["domains"]["chat"]["generate"]["same_tokens_as_own"] is None
    assert tokens[0] == tokens[1]
    assert len({tuple(ids) for ids in tokens[0]}) == 4  # two arms, two repeats: other noise each


def test_a_padded_target_says_so(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--padded", "1M:3", "--arms", "own,auto", "--limit", "1", "--domains", "math"]
    assert bench(*pair, *argv, "--out", str(tmp_path)) == 0
    values = last_line(capsys)
    assert values["provenance"]["target_padded"].startswith("1M parameters, 3 layers")
    assert values["provenance"]["target"]["parameters"] == pytest.approx(1e6, rel=0.2)
    assert any("padded" in note for note in values["notes"])
    assert "padded to 1M" in (tmp_path / "bench.txt").read_text()


def test_without_matplotlib_there_is_one_line_instead_of_pictures(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "can_plot", lambda: False)
    argv = ["--arms", "own,auto", "--limit", "1", "--domains", "chat", "--out", str(tmp_path)]
    assert bench(*pair, *argv) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("no plots")]
    assert lines == ["no plots: matplotlib isn't installed (pip install matplotlib)"]
    assert not (tmp_path / "bench.png").exists()


def test_llama_cpp_is_measured_and_compared(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install_llama_cpp(tmp_path, monkeypatch)
    argv = ["--arms", "own,auto", "--limit", "1", "--out", str(tmp_path / "out")]
    assert bench(*pair, *argv, "--llama-cpp", str(gguf_file(tmp_path))) == 0
    printed = capsys.readouterr().out
    values = json.loads(printed.splitlines()[-1])
    assert values["summary"]["speculation_vs_llama_cpp"] > 0
    assert values["ratios"]["math"]["own / llama.cpp"]["decode"] > 0
    assert values["domains"]["chat"]["llama.cpp (tiny-f16)"]["tokens"] == 10
    assert "llama.cpp's plain decoding: " in " ".join(values["verdict"])
    assert "  llama.cpp (tiny-f16) " in printed
    assert "  auto / llama.cpp " in printed
    assert "was not measured" not in printed


def test_what_is_in_the_notes_is_printed_and_progress_is_not(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--dtype", "bfloat16", "--arms", "own,auto", "--limit", "1", "--out", str(tmp_path)]
    assert bench(*pair, *argv, "--budget", "0.001") == 0
    captured = capsys.readouterr()
    *printed, last = captured.out.splitlines()
    notes = json.loads(last)["notes"]
    assert [line for line in printed if line.startswith("note: ")] == [f"note: {n}" for n in notes]
    assert any("greedy texts in bfloat16 may differ from transformers'" in n for n in notes)
    assert "prompt 1 of" not in captured.out + captured.err  # a pipe is told after a minute only


def test_a_terminal_is_shown_how_far_it_is_and_stdout_is_not(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    argv = ["--arms", "own", "--limit", "1", "--out", str(tmp_path)]
    assert bench(*pair, *argv) == 0
    shown = terminal.getvalue().split("\r\x1b[K")
    for begin in ("warm-up reply 1 of 3, about", "prompt 4 of 5, about"):
        assert any(line.startswith(begin) for line in shown), begin
    assert "\r" not in capsys.readouterr().out


def test_an_interrupt_leaves_what_was_measured(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(self: Progress, line: str) -> None:
        if line.startswith("prompt 2 of 10"):  # the second cell is complete
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "show", show)
    assert bench(*pair, "--arms", "own,auto,generate", "--out", str(tmp_path)) == 130
    values = json.loads((tmp_path / "bench.json").read_text())
    assert list(values["domains"]) == ["chat", "tools"]
    assert values["complete"] is False
    assert any("ended early" in note for note in values["notes"])


def test_a_peer_that_breaks_is_told_and_left_out(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: PeerArm, *asked: object) -> None:
        raise ValueError("a static cache is not supported")

    monkeypatch.setattr(PeerArm, "run", broken)
    argv = ["--arms", "own,auto,generate", "--limit", "1", "--domains", "chat"]
    assert bench(*pair, *argv, "--out", str(tmp_path)) == 0
    values = last_line(capsys)
    assert any("generate failed and was left out" in note for note in values["notes"])
    assert values["summary"]["ar_vs_generate"] is None


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--repeats", "-1"], "--repeats must be at least 1"),
        (["--serve", "1", "--repeats", "0"], "--repeats must be at least 1"),
        (["--budget", "nan"], "--budget"),
        (["--padded", "1M:500"], "at most 200 layers"),
        (["--stop", "x"], "bench can't use stop"),
        (["--target", "./no-such-folder"], "no such model folder"),
    ],
)
def test_bad_usage_is_one_line(
    argv: list[str], says: str, pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = bench(*pair, "--arms", "own,auto", "--out", str(tmp_path), *argv)
    assert code == (1 if "--target" in argv else 2)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("specstream:")]
    assert says in line


def test_a_prompt_that_does_not_fit_the_model_is_named(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = {"id": "long", "domain": "chat", "messages": [{"role": "user", "content": "x" * 600}]}
    (tmp_path / "p.jsonl").write_text(json.dumps(long))
    argv = ["--arms", "own", "--prompts", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / "out")]
    assert bench(*pair, *argv) == 2
    assert "specstream: prompt long: the prompt has 600 tokens" in capsys.readouterr().err


def test_its_options_load_no_torch() -> None:
    import subprocess

    code = "import sys, specstream.commands.bench.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.broken_proposer
def test_what_the_engine_logs_as_an_error_is_in_the_notes(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specstream.drafting.proposers.suffix import SuffixProposer

    def broken(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(SuffixProposer, "propose", broken)
    argv = ["--arms", "own,auto", "--proposer", "suffix", "--limit", "1", "--domains", "chat"]
    assert bench(*pair, *argv, "--out", str(tmp_path)) == 0
    values = last_line(capsys)
    assert any("the engine reported an error" in note for note in values["notes"])
    assert values["domains"]["chat"]["auto"]["drafted"] == 0
    assert "note: the engine reported an error" in (tmp_path / "bench.txt").read_text()
