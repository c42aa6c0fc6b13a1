"""Forms of English words."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["stems"]

_ENDINGS = (
    ("ies", "y"), ("es", ""), ("s", ""), ("ied", "y"), ("ed", ""), ("ed", "e"),
    ("ing", ""), ("ing", "e"),
)  # fmt: skip


def stems(word: str) -> Iterator[str]:
    """The word and those that it may be a form of: "nodding", "nods" and "nodded" give "nod", too."""
    yield word
    for ending, instead in _ENDINGS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= (2 if instead == "y" else 3):
            yield stem + instead
            if ending in ("ed", "ing") and stem[-1] == stem[-2]:
                yield stem[:-1]
