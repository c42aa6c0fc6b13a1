"""Drafted text in the target's tokens, proposed without probabilities (SLEM, Timor et al. 2025).

The draft writes greedily in its own tokens; their text is encoded with the target's tokenizer, together
with the last committed tokens. The draft's distribution isn't used, so the two vocabularies needn't have
anything in common.
"""

from __future__ import annotations

from collections.abc import Sequence

from specstream.model.spelling import Spelling, whole
from specstream.model.vocabulary import Translation

__all__ = ["retokenised"]

_LOOK_BEHIND = 16  # committed tokens that are encoded together with the drafted text
# Put before text that is encoded alone, tried in order: a tokenizer may add a space at a text's start.
_APART = ("", "\n", "\x02")


def retokenised(
    translation: Translation, committed: Sequence[int], half: bytes, drafted: Sequence[int]
) -> list[int]:
    """The target's tokens for a drafted text, without an incomplete character at its end.

    Args:
        translation: Between the two vocabularies.
        committed: The target's tokens so far.
        half: The bytes of an incomplete character at the end of ``committed``.
        drafted: The draft's tokens, which first complete that character. They are used up to the first
            control token, which is translated (such as the end of a turn) or dropped.
    """
    written, end = bytearray(), None
    for token in drafted:
        piece = translation.draft.piece(token)
        if piece is None:
            end = translation.to_target.get(token)
            break
        written += piece
    text, rest = whole(half + bytes(written))
    added = bytes(written[: len(written) - len(rest)])
    if len(written) < len(rest):
        return []  # the drafted bytes don't even complete the first character
    found = _behind(translation.target, committed, added) if text and added else []
    if found is None:
        found = _alone(translation.target, half, added)
        if found is None:
            return []
    return found if end is None or rest else [*found, end]


def _behind(target: Spelling, committed: Sequence[int], added: bytes) -> list[int] | None:
    """Tokens of ``added``, encoded with the text before it; None if no token begins at the border."""
    pieces: list[bytes] = []
    for token in reversed(committed[-_LOOK_BEHIND:]):
        piece = target.piece(token)
        if piece is None:
            break
        pieces.append(piece)
    pieces.reverse()
    before = b"".join(pieces)
    while before and before[0] & 0xC0 == 0x80:  # the rest of a character that began earlier
        before = before[1:]
    return _after(target, before, added)


def _alone(target: Spelling, half: bytes, added: bytes) -> list[int] | None:
    """Tokens of ``added`` encoded alone; the rest of a begun character is spelled byte by byte."""
    open_bytes = 0
    if half:
        while open_bytes < len(added) and added[open_bytes] & 0xC0 == 0x80:
            open_bytes += 1
    head, tail = target.spelled(added[:open_bytes]), added[open_bytes:]
    if head is None or not tail:
        return head or None
    for apart in _APART:
        found = _after(target, apart.encode(), tail)
        if found is not None:
            return head + found
    return head or None


def _after(target: Spelling, before: bytes, added: bytes) -> list[int] | None:
    """The tokens of ``added`` behind ``before``; None if the encoding doesn't reproduce the bytes."""
    data = before + added
    try:
        ids, _ = target.encode(data.decode())
    except UnicodeDecodeError:
        return None  # the committed bytes aren't valid UTF-8
    pieces = [target.piece(token) or b"" for token in ids]
    if not target.faithful:
        pieces, data, before = (
            [_squeezed(one) for one in pieces],
            _squeezed(data),
            _squeezed(before),
        )
    written, at = b"".join(pieces), len(before)
    if before and written == b" " + data:
        at += 1
    elif written != data:
        return None
    passed = 0
    for place, piece in enumerate(pieces):
        if passed == at:
            return ids[place:]
        passed += len(piece)
    return None


def _squeezed(data: bytes) -> bytes:
    """The part of a text that survives a tokenizer which lowers case and changes blanks."""
    return b"".join(data.split()).lower()
