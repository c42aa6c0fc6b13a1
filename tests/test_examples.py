"""The examples run as they stand, in this process: a start of Python and torch for each is slow."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
from pathlib import Path

import pytest

from specstream.testing import check_proposer
from tests.support.missing import needs_installation

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
SPEAKING = {"03_speak", "04_websocket", "05_remote_voice", "08_agent"}
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_and_is_short(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(path.read_text().splitlines()) <= 60
    if path.stem in SPEAKING:
        needs_installation()
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", ["avatar", "drafting", "pipeline", "prompts"])
def test_a_document_s_first_program_runs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_installation()
    program = tmp_path / "program.py"
    program.write_text(_snippets(ROOT / "docs" / f"{name}.md")[0])
    made = runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out.strip()
    if name == "drafting":
        check_proposer(made["Phrase"], n=300)


def _snippets(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.M | re.S)


PUBLIC = {
    "specstream",
    *(
        f"specstream.{name}"
        for name in "agent client drafting errors listening playback server stages testing".split()
    ),
    "specstream_adapters.avatar",
    "specstream_adapters.prompt.sinks",
}
OTHERS = {"openai", "my_package"}  # packages that the tests do without


@pytest.mark.parametrize("path", [*DOCUMENTS, *EXAMPLES], ids=lambda path: path.stem)
def test_what_it_imports_is_there_and_public(path: Path) -> None:
    """A snippet is copied as it stands, so a name that has moved fails in its first line."""
    snippets = _snippets(path) if path.suffix == ".md" else [path.read_text("utf-8")]
    for snippet in snippets:
        for node in ast.walk(ast.parse(snippet)):
            if not isinstance(node, ast.ImportFrom) or node.module in OTHERS | {None}:
                continue
            assert node.module is not None
            if node.module.split(".")[0] in ("specstream", "specstream_adapters"):
                assert node.module in PUBLIC, f"users can't import from {node.module}"
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing, f"{node.module} has no {missing}"
