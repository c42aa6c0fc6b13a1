"""The table of docs/contributing/structure.md names tests that are there."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_test_that_the_document_names_exists() -> None:
    document = (TESTS.parent / "docs/contributing/structure.md").read_text("utf-8")
    rows = document.split("## What is proven where")[1].split("|---|---|\n")[1].splitlines()
    named = [row.split("|")[2] for row in rows if row.startswith("|")]
    assert len(named) > 20
    for cell in named:
        found = re.findall(r"`([\w/]+\.py)`(?: \(([^)]*)\))?", cell)
        assert found, cell
        for file, parts in found:
            text = (TESTS / file).read_text("utf-8")
            for part in re.findall(r"`(\w+)`", parts):
                assert re.search(rf"def test_\w*{part}", text), (file, part)
