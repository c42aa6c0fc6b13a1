"""The demo page: one HTML text that loads no other files."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files

__all__ = ["CONTENT_POLICY", "GENERAL", "SUGGESTIONS", "page"]

CONTENT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data:;"
    " connect-src 'self' ws: wss:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: nothing but itself and its WebSocket."""


SUGGESTIONS = (
    "Tell me a story about a fox in a snowy forest.",
    "Tell me a story about a small robot in a dusty workshop.",
    "I'd like to reserve a table for four tomorrow at seven.",
)
"""Opening messages that the bundled model pair answers well."""

GENERAL = (
    "Why is the sky blue?",
    "List five things to pack for a weekend by the sea.",
    "Tell me a short story about a lighthouse.",
)
"""Opening messages for any other model."""

_NEUTRAL = "<p>Say something to the model that this server runs, such as:</p>"
_BUNDLED = """<p>A small test pair answers here (14 and 1.6 million parameters). It tells scenes
      and books tables, taxis and the like, and knows nothing else. Try:</p>"""


_SCRIPTS = (
    "page_face.js",  # the face
    "page_parts.js",  # the sound, and the figures
    "page_ears.js",  # the microphone
    "page_markdown.js",  # how a line of a reply looks
    "page_turns.js",  # where time went, and where a word came from
    "page_transcript.js",  # the conversation
    "page_board.js",  # the storyboard
    "page_race.js",  # with and without speculation
    "page_link.js",  # the way to the server
    "page.js",  # what happens when
)
"""Laid in in this order: a script may use those before it at once, and all of them later."""


@cache
def page(*, bundled: bool = False) -> str:
    """Return the page's HTML with its style and scripts inlined.

    ``bundled``: the package's own model pair answers, so the page suggests what that can do.
    """
    told, texts = (_BUNDLED, SUGGESTIONS) if bundled else (_NEUTRAL, GENERAL)
    offers = "".join(f'<button type="button">{escape(text)}</button>' for text in texts)
    hint = f'{told}\n      <p class="offers">{offers}</p>'

    def read(name: str) -> str:
        return files("specstream.server.page").joinpath(name).read_text(encoding="utf-8")

    html = read("page.html").replace("/*PAGE.CSS*/", read("page.css"))
    html = html.replace("<!--PAGE.HINT-->", hint)
    return html.replace("/*PAGE.JS*/", "".join(map(read, _SCRIPTS)))
