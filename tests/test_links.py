"""Every relative link of the documents leads to a file, and every anchor to a heading."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(path: Path) -> str:
    """The text without blocks of code and without code in sentences."""
    text = re.sub(r"^( *)```.*?^\1```", "", path.read_text("utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`(?!\])", "", text)


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a document's headings."""
    found: set[str] = set()
    text = re.sub(r"^( *)```.*?^\1```", "", path.read_text("utf-8"), flags=re.M | re.S)
    for heading in re.findall(r"^#{1,6} (.+)$", text, flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        same = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", one) is not None for one in found)
        found.add(f"{name}-{same}" if same else name)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            wrong.append(target)
    assert not wrong


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs/README.md"
    text = index.read_text("utf-8")
    pages = [path.relative_to(index.parent).as_posix() for path in DOCUMENTS[1:] if path != index]
    assert [page for page in pages if f"({page})" not in text] == []
