"""The card of a trained folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["write_card"]


def write_card(folder: Path, card: Mapping[str, str]) -> None:
    """Write ``README.md``: a heading and a paragraph for each fact; the first is the title.

    Raises:
        OSError: it can't be written.
    """
    title, *rest = card.items()
    lines = [f"# {title[1]}", ""]
    for name, text in rest:
        lines += [f"## {name}", "", text, ""]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")
