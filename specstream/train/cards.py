"""The card of a trained folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from transformers.utils import logging as hf_logging

__all__ = ["quietly", "write_card"]


@contextmanager
def quietly() -> Iterator[None]:
    """Without transformers' progress bars."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


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
