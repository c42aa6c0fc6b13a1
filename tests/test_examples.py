"""The examples run as they stand, in this process: a start of Python and torch for each is slow.

A block of Python in a document runs, too, unless its info string is ``python fragment``: it then needs a
model, a running server or what its reader has.
"""

import ast
import importlib
import inspect
import re
import runpy
import shutil
from pathlib import Path

import pytest

from specstream.testing import check_proposer, run_virtual
from tests.support.missing import needs_installation

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
SPEAKING = {"03_speak", "04_websocket", "05_remote_voice", "08_agent"}
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_and_is_short(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(path.read_text().splitlines()) <= 60
    if path.stem in SPEAKING:
        needs_installation()
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


def _snippets(path: Path, *, whole: bool = False) -> list[str]:
    """The document's blocks of Python; ``whole``: those that run."""
    blocks = re.findall(r"^```python( fragment)?\n(.*?)^```", path.read_text("utf-8"), re.M | re.S)
    return [text for fragment, text in blocks if not (whole and fragment)]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


PROGRAMS = [
    pytest.param(path, number, id=f"{_name(path)}-{number}")
    for path in DOCUMENTS
    for number in range(len(_snippets(path, whole=True)))
]


@pytest.mark.parametrize(("path", "number"), PROGRAMS)
def test_a_document_s_program_runs(
    path: Path,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    needs_installation()
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(_snippets(path, whole=True)[number], "utf-8")
    made = runpy.run_path(str(program), run_name="__main__")
    tests = [value for name, value in made.items() if name.startswith("test_")]
    for test in tests:
        assert inspect.iscoroutinefunction(test)
        run_virtual(test())
    assert tests or capsys.readouterr().out.strip()
    if path.stem == "drafting":
        check_proposer(made["Phrase"], n=300)


def test_every_block_says_what_it_is() -> None:
    for path in DOCUMENTS:
        for info in re.findall(r"^ *```(\S.*)$", path.read_text("utf-8"), re.M):
            known = "python|python fragment|console|text|toml|json|js|mermaid"
            assert re.fullmatch(known, info), f"{path}: {info}"


PUBLIC = {
    "specstream",
    *(
        f"specstream.{name}"
        for name in "agent client drafting errors listening playback server stages testing".split()
    ),
    "specstream_adapters.avatar",
    "specstream_adapters.prompt.sinks",
}
OTHERS = {
    "livekit",
    "my_package",
    "openai",
    "pipecat",
    "pipecat_specstream",
}  # packages that the tests do without


@pytest.mark.parametrize("path", [*DOCUMENTS, *EXAMPLES], ids=_name)
def test_what_it_imports_is_there_and_public(path: Path) -> None:
    """A snippet is copied as it stands, so a name that has moved fails in its first line."""
    snippets = _snippets(path) if path.suffix == ".md" else [path.read_text("utf-8")]
    for snippet in snippets:
        for node in ast.walk(ast.parse(snippet)):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            if (package := node.module.split(".")[0]) in OTHERS:
                continue
            if package in ("specstream", "specstream_adapters"):
                assert node.module in PUBLIC, f"users can't import from {node.module}"
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing, f"{node.module} has no {missing}"
