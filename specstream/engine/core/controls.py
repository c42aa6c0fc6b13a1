"""Encodes prompts so that a message that spells a control token yields text, never the token."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import Any

from specstream.errors import PromptError

__all__ = ["ControlTokens"]

_PRIVATE = range(0xF0000, 0xFFFFE)  # private-use code points, which have no meaning of their own


class ControlTokens:
    """The control tokens of one tokenizer: special tokens, and added tokens that its template contains.

    Added tokens count because some models' role markers are not declared special. Tokens of white space
    never count.
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
        # The longest first, since a token may be the prefix of another.
        longest = sorted(tokens.values(), key=lambda token: -len(token.content))
        self._spelled = re.compile("|".join(re.escape(t.content) for t in longest) or r"(?!)")
        # As the tokenizer matches them: some also swallow the white space beside them.
        own = (r"\s*" * t.lstrip + re.escape(t.content) + r"\s*" * t.rstrip for t in longest)
        self._own = "|".join(own)

    def spelled_in(self, value: Any) -> bool:
        """Whether a text in ``value`` (a text, or lists and mappings of texts) spells one."""
        return any(self._spelled.search(text) for text in _texts(value))

    def render(self, values: Any, template: Callable[[Any], str]) -> tuple[str, list[int]]:
        """Return text and ids of ``template(values)``.

        A control token that is spelled in a value is enclosed in two private code points while the
        template is rendered. The spelling itself stays, so that the template can still search for it.
        """
        everything = "\n".join(_texts(values))
        marks = (chr(code) for code in _PRIVATE if chr(code) not in everything)
        begin, end = next(marks), next(marks)
        text = template(_mapped(values, lambda t: self._spelled.sub(rf"{begin}\g<0>{end}", t)))
        ids, clean = list[int](), ""
        # The template's tokens split the text: a stretch that spells one can be encoded on its own.
        for stretch, spells, token in self._stretches(text, begin, end):
            if spells:
                ids += [*self._encode(clean), *self.encode(stretch)]
                clean = token
            else:
                clean += stretch + token
        return re.sub(f"[{begin}{end}]", "", text), [*ids, *self._encode(clean)]

    def _stretches(self, text: str, begin: str, end: str) -> Iterator[tuple[str, bool, str]]:
        """Yield each text between template tokens, whether it spells a token, and the token after it."""
        token = self._spelled.pattern
        # A template may drop a mark.
        marked = f"{begin}({token}){end}?|({token}){end}|[{begin}{end}]"
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
        """Encode a text so that spelled control tokens become ordinary tokens.

        Raises:
            PromptError: the tokenizer gives a control token's id however the text is split.
        """
        if not self._spelled.search(text):
            return self._encode(text)
        ids = self._encode(text, split_special_tokens=True)
        if self._ids.isdisjoint(ids):
            return ids
        # Tokens that aren't declared special are matched anyway, but not if the text is cut inside them.
        cuts = [match.start() + 1 for match in re.finditer(f"(?={self._spelled.pattern})", text)]
        pieces = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
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
    elif isinstance(value, dict | list | tuple):
        for part in chain.from_iterable(value.items()) if isinstance(value, dict) else value:
            yield from _texts(part)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(part, change) for part in value]
    return value
