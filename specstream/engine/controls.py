"""Keeps control tokens that a message spells as text: only the chat template writes control tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from specstream.errors import PromptError

__all__ = ["ControlTokens"]

_PRIVATE = range(0xF0000, 0xFFFFE)  # code points without a meaning of their own


class ControlTokens:
    """The control tokens of one tokenizer: special tokens, and added tokens in its chat template.

    Some models' role markers are not declared special. White space is never a control token.
    """

    def __init__(self, tokenizer: Any, template: str) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        tokens = {
            number: token
            for number, token in added.items()
            if not token.content.isspace() and (token.special or token.content in template)
        }
        self._ids = frozenset(tokens)
        # The longest first: one token may begin as another does.
        longest = sorted(tokens.values(), key=lambda token: -len(token.content))
        self._spelled = re.compile("|".join(re.escape(t.content) for t in longest) or r"(?!)")
        # As the tokenizer finds them: some take the white space beside them along.
        self._own = "|".join(
            r"\s*" * token.lstrip + re.escape(token.content) + r"\s*" * token.rstrip
            for token in longest
        )

    def spelled_in(self, value: Any) -> bool:
        """Whether a text in ``value`` (a text, or lists and mappings of texts) spells one."""
        return any(self._spelled.search(text) for text in _texts(value))

    def render(self, values: Any, template: Callable[[Any], str]) -> tuple[str, list[int]]:
        """Text and ids of ``template(values)``.

        Where a value spells a control token, private code points mark its both ends while the template
        is rendered, so that the template can still search the values.
        """
        everything = "\n".join(_texts(values))
        marks = (chr(code) for code in _PRIVATE if chr(code) not in everything)
        begin, end = next(marks), next(marks)
        text = template(_mapped(values, lambda t: self._spelled.sub(rf"{begin}\g<0>{end}", t)))
        ids: list[int] = []
        clean = ""
        # Tokens of the template separate the text, so a stretch that spells one can be encoded alone.
        for stretch, spells, token in self._stretches(text, begin, end):
            if spells:
                ids += [*self._encode(clean), *self.encode(stretch)]
                clean = token
            else:
                clean += stretch + token
        return re.sub(f"[{begin}{end}]", "", text), [*ids, *self._encode(clean)]

    def _stretches(self, text: str, begin: str, end: str) -> Iterator[tuple[str, bool, str]]:
        """Text between the template's tokens, whether it spells one, and the token behind it."""
        token = self._spelled.pattern
        marked = (
            f"{begin}({token}){end}?|({token}){end}|[{begin}{end}]"  # a template may cut marks off
        )
        stretch, spells, at = "", False, 0
        for found in re.finditer(f"{marked}|({self._own})", text):
            spelled = found[1] or found[2] or ""
            stretch += text[at : found.start()] + spelled
            spells |= bool(spelled)
            at = found.end()
            if found[3]:
                yield stretch, spells, found[3]
                stretch, spells = "", False
        yield stretch + text[at:], spells, ""

    def encode(self, text: str) -> list[int]:
        """The ids of a text in which every control token is only spelled."""
        if not self._spelled.search(text):
            return self._encode(text)
        ids = self._encode(text, split_special_tokens=True)
        if self._ids.isdisjoint(ids):
            return ids
        # What isn't declared special can't be switched off, but a half of it is no token.
        pieces, at = [], 0
        while match := self._spelled.search(text, at):
            pieces.append(text[at : match.start() + 1])
            at = match.start() + 1
        pieces.append(text[at:])
        ids = [i for piece in pieces for i in self._encode(piece, split_special_tokens=True)]
        if self._ids.isdisjoint(ids):
            return ids
        raise PromptError("a text spells a control token of the model and can't be told from it")

    def _encode(self, text: str, **options: bool) -> list[int]:
        if not text:
            return []
        return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=False, **options)]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _texts(key)
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(part, change) for part in value]
    return value
