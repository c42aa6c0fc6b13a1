"""Drafted text in the target's tokens, proposed without probabilities (SLEM, Timor et al. 2025).

The draft writes greedily in its own tokens; their text is encoded with the target's tokenizer behind
the last committed tokens. The target accepts what it would have written itself, whatever the two
vocabularies have in common: nothing of the draft's distribution is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from specstream.model.spelling import Spelling, whole
from specstream.model.vocabulary import Translation

__all__ = ["retokenised"]

_LOOK_BEHIND = 16  # committed tokens that the drafted text is encoded with
_APART = ("", "\n", "\x02")  # put before a text that is encoded alone; a tokenizer may add a space


def retokenised(
    translation: Translation, committed: Sequence[int], half: bytes, drafted: Sequence[int]
) -> list[int]:
    """The target's tokens for what the draft wrote; a character that isn't complete is left out.

    Args:
        translation: The vocabularies.
        committed: The target's tokens so far.
        half: The bytes at their end that begin a character.
        drafted: The draft's tokens; they complete that character first. From a control token on they
            are dropped, but the end of a turn is kept.
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
        return []  # not even the first character is complete
    found = _behind(translation.target, committed, added) if text and added else []
    if found is None:
        found = _alone(translation.target, half, added)
        if found is None:
            return []
    return found if end is None or rest else [*found, end]


def _behind(target: Spelling, committed: Sequence[int], added: bytes) -> list[int] | None:
    """``added`` encoded with the text before it; None if no token begins where it begins."""
    pieces: list[bytes] = []
    for token in reversed(committed[-_LOOK_BEHIND:]):
        piece = target.piece(token)
        if piece is None:
            break
        pieces.append(piece)
    pieces.reverse()
    before = b"".join(pieces)
    while before and before[0] & 0xC0 == 0x80:  # cut within a character
        before = before[1:]
    return _after(target, before, added)


def _alone(target: Spelling, half: bytes, added: bytes) -> list[int] | None:
    """``added`` encoded by itself; the rest of a character that was begun, byte by byte."""
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
    """The tokens of ``added`` behind ``before``; None if they write anything else."""
    data = before + added
    try:
        ids, _ = target.encode(data.decode())
    except UnicodeDecodeError:
        return None  # the committed text is no text itself
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
    """What a tokenizer keeps that lowers cases and doesn't keep blanks."""
    return b"".join(data.split()).lower()
