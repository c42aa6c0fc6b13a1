"""The demo page: one HTML file without outside parts."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

__all__ = ["CONTENT_POLICY", "page"]

CONTENT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:;"
    " connect-src 'self' ws: wss:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: nothing but itself and its WebSocket."""


@cache
def page() -> str:
    """The page, its style and its scripts laid into one."""

    def read(name: str) -> str:
        return files("specstream.ws").joinpath(name).read_text(encoding="utf-8")

    html = read("page.html").replace("/*PAGE.CSS*/", read("page.css"))
    return html.replace("/*PAGE.JS*/", read("page_face.js") + read("page.js"))
