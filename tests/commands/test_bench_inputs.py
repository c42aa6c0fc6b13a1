"""Bad input of ``specstream bench``: one line about what to do, before anything heavy is imported."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# What each command line did, in one process: a module imported by one would be seen in all that follow.
_SCRIPT = """
import contextlib, io, json, sys
from specstream.commands.main import main
heavy = ("torch", "transformers", "numpy", "matplotlib", "tokenizers")
for argv in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            code = main(["bench", *argv])
        except SystemExit as error:
            code = error.code
    loaded = [name for name in heavy if name in sys.modules]
    print(json.dumps({"code": code, "said": said.getvalue(), "loaded": loaded}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("inputs")
    good = {"id": "a", "domain": "chat", "messages": [{"role": "user", "content": "Hello."}]}
    (made / "good.jsonl").write_text(json.dumps(good))
    (made / "second.jsonl").write_text(json.dumps(good) + '\n{"id": "b", \n')
    (made / "empty.jsonl").write_text("\n\n")
    (made / "binary.jsonl").write_bytes(json.dumps(good).encode() + b"\n\xff\xfe\x00\x80")
    (made / "model.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    (made / "model.bin").write_bytes(b"PK\x03\x04")
    (made / "taken" / "bench.json").mkdir(parents=True)
    return made


CASES: list[tuple[str, int, str]] = [
    ("--prompts none.jsonl", 2, "can't read the prompts"),
    ("--prompts .", 2, "Is a directory"),
    ("--prompts empty.jsonl", 2, "empty.jsonl holds no prompts"),
    ("--prompts binary.jsonl", 2, "binary.jsonl, line 2: not UTF-8 text"),
    ("--prompts second.jsonl", 2, "second.jsonl, line 2: not JSON"),
    ("--prompts good.jsonl --domains poems", 2, "no prompts of 'poems'; it has chat"),
    ("--padded huge", 2, "--padded takes a size such as 100M"),
    ("--padded=", 2, "--padded takes a size such as 100M"),
    ("--arms own,,auto", 2, "unknown arm ''; known"),
    ("--arms=", 2, "unknown arm ''"),
    ("--arms draft-33", 2, "unknown arm 'draft-33'"),
    ("--arms own,llama.cpp", 2, "takes a GGUF file of the target: --llama-cpp FILE"),
    ("--concurrency 0", 2, "--concurrency must be at least 1"),
    ("--concurrency 100000", 2, "--concurrency can be 256 at most"),
    ("--concurrency x", 2, "invalid int value: 'x'"),
    ("--limit 0", 2, "--limit must be at least 1"),
    ("--limit 2.5", 2, "invalid int value: '2.5'"),
    ("--out=", 2, "--out must name a folder"),
    ("--out good.jsonl", 1, "can't write good.jsonl"),
    ("--out good.jsonl/below", 1, "can't write good.jsonl/below"),
    ("--out taken", 1, "can't write taken/bench.json: Is a directory"),
    ("--llama-cpp none.gguf", 2, "--llama-cpp: can't read none.gguf: No such file"),
    ("--llama-cpp=", 2, "--llama-cpp: can't read"),
    ("--llama-cpp model.bin", 2, "model.bin is not a GGUF file"),
    ("--llama-cpp model.gguf --arms own", 2, "pip install llama-cpp-python"),
    ("--llama-cpp model.gguf --padded 100M", 2, "--llama-cpp and --padded exclude each other"),
]


@pytest.fixture(scope="module")
def answers(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.modules['llama_cpp'] = None\n{_SCRIPT}"],
        input=json.dumps([argv.split() for argv, _, _ in CASES]),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        timeout=60,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[argv for argv, _, _ in CASES])
def test_bad_input_is_told_before_anything_heavy_is_imported(
    number: int, answers: list[dict[str, Any]]
) -> None:
    _, code, says = CASES[number]
    answer = answers[number]
    assert says in answer["said"]
    assert answer["code"] == code
    assert answer["loaded"] == []
    if "usage:" not in answer["said"]:
        assert len(answer["said"].splitlines()) == 1


def test_files_of_an_earlier_run_outlast_a_run_that_measures_nothing(tmp_path: Path) -> None:
    from specstream.bench.document import Files

    (tmp_path / "runs.jsonl").write_text("earlier\n")
    Files(tmp_path).close()
    assert (tmp_path / "runs.jsonl").read_text() == "earlier\n"
    assert [path.name for path in tmp_path.iterdir()] == ["runs.jsonl"]
