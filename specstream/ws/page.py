"""The demo page: one HTML file without outside parts."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

__all__ = ["page"]


@cache
def page() -> str:
    """The page's HTML."""
    return files("specstream.ws").joinpath("page.html").read_text(encoding="utf-8")
