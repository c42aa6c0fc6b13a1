"""A whole training on tiny models: what it makes, that it goes on, what it refuses."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specstream.errors import ConfigError, ModelUnsupported, OutputError, TrainingStopped
from specstream.model.heads.base import read_head_config
from specstream.model.heads.recognise import told_acceptance
from specstream.training import files
from specstream.training.output import as_json, table_of
from specstream.training.run import train
from tests.training.made import options, other_target


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("training")
    options(made)
    return made


@pytest.fixture(scope="module")
def whole(root: Path) -> Path:
    """A training that nothing interrupted."""
    train(options(root, "whole"))
    return root / "whole"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_it_learns_and_makes_a_folder(root: Path) -> None:
    heard: list[str] = []
    trained = train(
        options(root, "learns", steps=40, lr=0.03, size="2x32"),
        lambda what, done, says: heard.append(what),
    )
    assert trained.held.positions[0] > trained.before + 0.03, trained.progress.curve
    assert list(dict.fromkeys(heard)) == [
        "loading", "held-out replies", "replies", "training", "saving"
    ]  # fmt: skip
    assert not (root / "learns.training").exists() and not list(root.glob("learns.*"))
    card = (root / "learns" / "README.md").read_text()
    assert str(root / "target") in card and f"{trained.held.positions[0]:.3f}" in card
    assert f"{trained.held.positions[0]:.3f}" in "\n".join(table_of(trained))
    assert as_json(trained)["acceptance"][0] == trained.held.positions[0]
    told = told_acceptance(read_head_config(root / "learns"))
    assert told == pytest.approx(trained.held.positions, abs=1e-3)


@pytest.mark.slow
def test_after_a_kill_it_goes_on_to_the_same_weights(root: Path, whole: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from specstream.training.run import train;"
        "from tests.training.made import options; seen = []\n"
        "def tell(what, done, says):\n"
        "    seen.append(what)\n"
        "    if seen.count('training') == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"train(options(Path({str(root)!r}), 'killed'), tell)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (root / "killed.training" / "checkpoint.pt").exists()
    steps: list[str] = []
    train(options(root, "killed"), lambda what, done, says: steps.append(what))
    # The fifth step was not saved: the last four of eight and it are taken again.
    assert steps.count("training") == 4 and same(root / "killed", whole)


def test_a_stop_saves_and_says_how_to_go_on(root: Path, whole: Path) -> None:
    steps: list[str] = []
    asked = options(root, "stopped", checkpoint_s=1e9)
    with pytest.raises(TrainingStopped, match="the same command goes on") as caught:
        train(asked, lambda what, done, says: steps.append(what), lambda: steps.count("training") == 3)
    assert caught.value.exit_code == 130 and not (root / "stopped").exists()
    with pytest.raises(KeyboardInterrupt):  # a crash: nothing is saved after the third step
        train(asked, lambda what, done, says: _crash_at(0.7, what, done))
    train(asked)
    assert same(root / "stopped", whole)


def _crash_at(when: float, what: str, done: float) -> None:
    if what == "training" and done > when:
        raise KeyboardInterrupt


def test_replies_that_are_written_are_used_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specstream.training.replies._AT_ONCE", 4)
    monkeypatch.setattr("specstream.training.replies._SHARD_BYTES", 1)
    written: list[str] = []
    with pytest.raises(TrainingStopped):
        train(
            options(root, "half"),
            lambda what, done, says: written.append(what),
            lambda: written.count("replies") > 14,
        )
    shards = sorted((root / "half.training" / "replies").glob("*.pt"))
    assert len(shards) == 1
    before = shards[0].read_bytes()
    trained = train(options(root, "half", keep=True))
    assert shards[0].read_bytes() == before
    assert trained.reply_tokens == 22 * 12  # of 24 prompts two are held out


def test_a_full_disk_keeps_the_checkpoint(
    root: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, real = options(root, "full"), os.fsync
    calls: list[int] = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 9:  # plan, two indices, two shards, their indices, two checkpoints
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left .* make room and give the same command"):
        train(asked)
    monkeypatch.undo()
    assert files.read_tensors(root / "full.training" / "checkpoint.pt")["state"]["step"] >= 1
    assert not list((root / "full.training").glob("*.part"))
    train(asked)
    assert same(root / "full", whole)


def test_an_existing_folder_is_kept(root: Path, whole: Path) -> None:
    with pytest.raises(ConfigError, match="exists: choose another --out"):
        train(options(root, "whole"))
    other = root / "letters"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="no model's folder"):
        train(options(root, "letters", force=True))
    shutil.copytree(whole, root / "replaced")
    train(options(root, "replaced", force=True, seed=1))
    assert not same(root / "replaced", whole)


def test_work_of_other_options_is_not_mixed_in(root: Path) -> None:
    with pytest.raises(TrainingStopped):
        train(options(root, "mixed"), stop=lambda: True)
    with pytest.raises(ConfigError, match=r"other options \(seed\).*--force to start anew"):
        train(options(root, "mixed", seed=5))
    train(options(root, "mixed", seed=5, force=True, steps=1))


def test_folders_of_others_are_kept(root: Path) -> None:
    """Those beside ``out`` whose names begin with its name, which aren't a training's."""
    for name in ("mine.training", "mine.new"):
        (root / name).mkdir()
        (root / name / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"mine\.training .* holds other files"):
        train(options(root, "mine", force=True))
    shutil.rmtree(root / "mine.training")
    train(options(root, "mine"))
    assert (root / "mine.new" / "letter.txt").read_text() == "dear"


def test_a_folder_that_appears_meanwhile_is_kept(root: Path) -> None:
    letter = root / "late" / "letter.txt"

    def tell(what: str, done: float, says: str) -> None:
        if what == "saving":
            letter.parent.mkdir(exist_ok=True)
            letter.write_text("dear")

    with pytest.raises(OutputError, match="the training is kept"):
        train(options(root, "late"), tell)
    assert letter.read_text() == "dear" and (root / "late.training" / "checkpoint.pt").exists()


def test_force_starts_anew_from_a_damaged_plan(root: Path) -> None:
    with pytest.raises(TrainingStopped):
        train(options(root, "torn"), stop=lambda: True)
    (root / "torn.training" / "plan.json").write_text("{")
    with pytest.raises(OutputError, match=r"plan\.json can't be read"):
        train(options(root, "torn"))
    train(options(root, "torn", force=True))


def test_data_in_folders_that_are_removed_are_refused(root: Path) -> None:
    train(options(root, "kept", keep=True))
    stored = root / "kept.training" / "replies"
    with pytest.raises(ConfigError, match=r"--replies .* lies in .*kept\.training"):
        train(options(root, "kept", force=True, data=None, replies=stored))
    assert list(stored.glob("*.pt"))


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_refused_before_the_training(root: Path, tmp_path: Path, there: bool) -> None:
    link = tmp_path / "link"
    link.symlink_to(root if there else tmp_path / "nowhere")
    heard: list[str] = []
    with pytest.raises(ConfigError, match="is a link"):
        train(
            replace(options(root, "linked"), out=link, force=True),
            lambda what, done, says: heard.append(what),
        )
    assert not heard


def test_data_that_cannot_be_read_leaves_nothing_behind(root: Path, tmp_path: Path) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_bytes(b'{"prompt": "one"}\n{"prompt": \n')
    with pytest.raises(ConfigError, match="line 2"):
        train(options(root, "mended", data=data))
    assert not list(root.glob("mended*"))


def test_prompts_that_are_all_too_long_are_told(root: Path, tmp_path: Path) -> None:
    data = tmp_path / "long.jsonl"
    data.write_text(f'{{"prompt": "{"word " * 500}"}}\n' * 9)
    with pytest.raises(ConfigError, match="no prompt for .* is short enough"):
        train(options(root, "long", data=data))


def test_prompts_that_are_too_long_among_others_are_told(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "mixed.jsonl"
    short = "".join(f'{{"prompt": "number {i}"}}\n' for i in range(20))
    data.write_text(f'{{"prompt": "{"word " * 500}"}}\n' * 2 + short)
    train(options(root, "partly", data=data, steps=1))
    told = "prompts for replies have more than"
    assert [one for one in caplog.messages if told in one and one.startswith("1 of 20 ")]


def test_two_trainings_do_not_share_a_folder(root: Path) -> None:
    def tell(what: str, done: float, says: str) -> None:
        with pytest.raises(ConfigError, match="another training is using"):
            train(options(root, "shared"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(options(root, "shared"), lambda *told: tell(*told) if told[0] != "loading" else None)
    train(options(root, "shared"))
    assert [one.name for one in root.glob("shared*")] == ["shared"]


def test_a_damaged_checkpoint_is_told_with_the_way_out(root: Path) -> None:
    with pytest.raises(TrainingStopped):
        train(options(root, "hurt"), stop=lambda: True)
    checkpoint = root / "hurt.training" / "checkpoint.pt"
    checkpoint.write_bytes(b"PK")
    with pytest.raises(OutputError, match=r"checkpoint\.pt can't be read: .*; remove this file to"):
        train(options(root, "hurt"))
    checkpoint.unlink()
    train(options(root, "hurt"))


def test_an_empty_file_is_told_before_the_target_loads(root: Path, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    heard: list[str] = []
    with pytest.raises(ConfigError, match="is empty"):
        train(
            replace(options(root, "empty"), data=tmp_path / "none.jsonl"),
            lambda what, done, says: heard.append(what),
        )
    assert not heard


def test_going_on_from_a_draft(root: Path, whole: Path, tmp_path: Path) -> None:
    trained = train(options(root, "further", init=whole, steps=1))
    assert trained.before > 0.01
    assert weights(root / "further").keys() == weights(whole).keys()
    with pytest.raises(ConfigError, match="no such folder"):
        train(options(root, "nowhere", init=tmp_path / "missing"))
    other = other_target(tmp_path / "other", 300)
    with pytest.raises(ModelUnsupported, match="another target: it has 300 output rows"):
        train(options(root, "nowhere", init=other))
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text('{"model_type": "medusa", "num_heads": 3}')
    with pytest.raises(ModelUnsupported, match="is no draft that this trainer makes"):
        train(options(root, "nowhere", init=head))


def test_options_that_cannot_be(root: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"data": None}, "--data .* or --replies"),
        ({"minutes": 0.0}, "--minutes must be more than 0"),
        ({"steps": 0}, "--steps must be more"),
        ({"optimizer": "sgd"}, "unknown optimizer"),
        ({"seed": 10**20}, "--seed must be below"),
        ({"threads": 100_000}, "--threads must be at most"),
    ]
    for wrong, message in refused:
        with pytest.raises(ConfigError, match=message):
            options(root, **wrong)
    refused = [
        ({"size": "big"}, "not layers x width"),
        ({"size": "2x7"}, "multiple of 8"),
        ({"size": "2x0"}, "multiple of 8"),
        ({"settings": {"depth": "3"}}, "no setting 'depth'"),
        ({"kind": "nothing"}, "can't be trained; there are: .*draft"),
    ]
    for wrong, message in refused:
        with pytest.raises(ConfigError, match=message):
            train(options(root, "never", **wrong))


def test_adamw_alone(root: Path) -> None:
    assert train(options(root, "adamw", steps=2, optimizer="adamw")).progress.step == 2


def test_replies_from_elsewhere(root: Path) -> None:
    train(options(root, "source", keep=True, steps=1))
    folder = root / "source.training" / "replies"
    (folder / "replies.json").write_text('{"depths": [2]}')  # as somebody else would write it
    trained = train(options(root, "imported", data=None, replies=folder))
    assert trained.progress.step == 8 and trained.held.tokens == 11 * 12  # half of one shard is held out
    (folder / "replies.json").write_text('{"depths": [1]}')
    with pytest.raises(ConfigError, match="no states after layer 2"):
        train(options(root, "never", data=None, replies=folder))
    (folder / "replies.json").unlink()
    with pytest.raises(ConfigError, match="replies.json is missing"):
        train(options(root, "never2", data=None, replies=folder))
