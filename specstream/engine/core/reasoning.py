"""Separates reasoning (text between tags such as ``<think>``) from the reply during generation.

A span opens with a tag as text at the very beginning of a reply (further in, the answer mentions the
tag), with a tag as a special token anywhere, or with a tag by which the chat template ends the prompt.
The first closing tag ends a span; a span that is never closed goes on to the end of the reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from specstream.engine.core.detokenizer import held_back

__all__ = ["Reasoning", "ReasoningTag", "markers_of", "opened_by"]


class ReasoningTag(NamedTuple):
    """How a reasoning span begins and ends."""

    open: str
    close: str


_TAGS = (
    ReasoningTag("<think>", "</think>"),  # DeepSeek-R1, Qwen3, GLM and most others
    ReasoningTag("<thinking>", "</thinking>"),
    ReasoningTag("<thought>", "</thought>"),
    ReasoningTag("<reasoning>", "</reasoning>"),
    ReasoningTag("<seed:think>", "</seed:think>"),  # Seed-OSS
    ReasoningTag("[THINK]", "[/THINK]"),  # Magistral
    ReasoningTag("<|START_THINKING|>", "<|END_THINKING|>"),  # Command-A
    ReasoningTag("<|channel>", "<channel|>"),  # Gemma 4
)
# gpt-oss: channels, of which only "final" is for the user.
_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"
_HARMONY = frozenset({_CHANNEL, _MESSAGE, "<|start|>", "<|end|>"})
_LONGEST_HEADER = 256  # characters kept of a gpt-oss channel header
_GAP = "\n\n"  # put between the texts of two reasoning spans


def opened_by(prompt: str) -> ReasoningTag | None:
    """Return the tag that a rendered prompt ends with, so that the reply begins inside its span."""
    end = prompt.rstrip()
    return next((tag for tag in _TAGS if end.endswith(tag.open)), None)


def markers_of(tokenizer: Any) -> dict[int, str]:
    """Return the tokens that are opening or closing tags by themselves, by id."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    paired = {side for tag in _TAGS for side in tag}
    names = {token.content for token in added.values()}
    harmony = _HARMONY if {_CHANNEL, _MESSAGE} <= names else frozenset()
    return {
        number: token.content
        for number, token in added.items()
        if token.content in harmony or (token.special and token.content in paired)
    }


class Reasoning:
    """Follows one reply, token by token; how the text is split into tokens changes nothing.

    A tag that contains a stop string is not recognised in text, so that the stop string ends the reply.

    Args:
        markers: The tokens that are tags by themselves; None turns the separation off.
        opened: Tag of the span that the prompt has opened, if any.
        stops: The request's stop strings.

    Attributes:
        text: The reasoning so far, without its tags.
        tokens: Number of tokens of reasoning, tags, and white space after tags.
        end: Index of the token after the last of these.
    """

    def __init__(
        self,
        markers: Mapping[int, str] | None,
        opened: ReasoningTag | None = None,
        stops: Sequence[str] = (),
    ) -> None:
        self._markers = markers or {}
        bare = [stop.lstrip() for stop in stops]
        self._tags = [tag for tag in _TAGS if not any(b and b in tag.open for b in bare)]
        self.text = ""
        self.tokens = self.end = 0
        self._count = self._known = 0  # tokens read; those known to be reasoning or reply
        self._state: Literal["start", "inside", "header", "reply"]
        self._state = "reply" if markers is None else "start"
        self._held = ""  # text that may be part of a tag; in a header, the whole header
        self._close = ""
        self._drop_space = False
        self._replied = False
        if opened is not None and markers is not None:
            self._enter(opened.close)

    def add(self, text: str, token: int | None = None) -> str:
        """Add the text that became final with a token; return the part of it that is the reply."""
        self._count += 1
        marker = self._markers.get(token) if token is not None else None
        reply = self._read(text.removesuffix(marker) if marker else text)
        if marker is not None:
            reply += self._obey(marker)
        self._replied |= bool(reply.strip())
        unsaid = bool(text) and self._state != "start"  # a tag, or white space after a tag
        aside = unsaid or marker is not None or self._state in ("inside", "header")
        if aside and not reply:
            self.tokens += self._count - self._known
            self.end = self._count
        if aside or reply:
            self._known = self._count
        return reply

    def finish(self, text: str = "") -> str:
        """Process the last ``text``; return what belongs to the answer of it and of text held back."""
        return self._read(text) + self._settle()

    def _settle(self) -> str:
        """Treat the text that was held back as no tag; return it if it belongs to the reply."""
        held, self._held = self._held, ""
        if self._state == "inside":
            self._think(held)
        return held if self._state == "start" else ""

    def _obey(self, marker: str) -> str:
        """Change state by a token that is a tag itself; return held-back text of the reply."""
        header, reply = self._held.strip(), self._settle()
        if marker == _MESSAGE and not header.startswith("final"):
            self._enter("")
        elif marker in _HARMONY - {_MESSAGE}:
            self._state = "header"
        elif close := next((tag.close for tag in _TAGS if tag.open == marker), ""):
            self._enter(close)
        else:
            self._leave()
        return reply

    def _enter(self, close: str) -> None:
        self._state, self._close, self._drop_space = "inside", close, True

    def _leave(self) -> None:
        self._state, self._drop_space = "reply", not self._replied

    def _read(self, text: str) -> str:
        match self._state:
            case "start":
                return self._start(text)
            case "inside":
                return self._inside(text)
            case "header":
                self._held = (self._held + text)[:_LONGEST_HEADER]
                return ""
            case "reply":
                return self._reply(text)

    def _start(self, text: str) -> str:
        """Read the beginning of a reply, where a tag may stand; white space is given out at once."""
        text = self._held + text
        body = text.lstrip()
        space = text[: len(text) - len(body)]
        self._held = ""
        for tag in self._tags:
            if body.startswith(tag.open):
                self._enter(tag.close)
                return space + self._inside(body[len(tag.open) :])
        if any(tag.open.startswith(body) for tag in self._tags):
            self._held = body
            return space
        self._state = "reply"
        return text

    def _inside(self, text: str) -> str:
        text = self._held + text
        self._held = ""
        at = text.find(self._close) if self._close else -1
        if at >= 0:
            self._think(text[:at])
            rest = text[at + len(self._close) :]
            self._leave()
            return self._reply(rest)
        sure = len(text) - held_back(text, [self._close])
        self._think(text[:sure])
        self._held = text[sure:]
        return ""

    def _think(self, text: str) -> None:
        if self._drop_space:
            text = text.lstrip()
            if text and self.text:
                self.text += _GAP
            self._drop_space = not text
        self.text += text

    def _reply(self, text: str) -> str:
        if self._drop_space:
            text = text.lstrip()
            self._drop_space = not text
        return text
