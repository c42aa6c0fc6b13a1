"""Re-encoding of a request's text in the tokens of a draft model with another tokenizer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from specstream.model.spelling import whole
from specstream.model.vocabulary import Translation

__all__ = ["Rendering"]

_REDONE = 8  # last draft tokens that are encoded anew, together with the text appended to them
_CONTEXTS = (8, 64)  # tokens before those that are encoded along to find the seam, tried in order


class Rendering:
    """One request's text in the draft's tokens, extended as the request grows, with bounded work.

    Text between control tokens is encoded as one string. Appended text is encoded together with the last
    few tokens before it; the new tokens replace the old ones from a character on at which a token begins
    in both encodings. Control tokens are translated, or left out if the draft has no counterpart. An
    incomplete character at the end is spelled in single bytes.

    Attributes:
        request_id: The request.
        ids: The draft's tokens, without those of ``half``.
        half: The bytes of an incomplete character at the end of the text.
    """

    def __init__(self, translation: Translation, request_id: int) -> None:
        self._translation = translation
        self.request_id = request_id
        self.ids: list[int] = []
        self.half = b""
        self._read = 0  # the request's tokens that are rendered
        self._text = ""  # since the last control token
        self._starts: list[int] = []  # the character at which each token of that text begins

    def read(self, token_ids: Sequence[int]) -> None:
        """Render the request's new tokens; ``token_ids`` are all of them, and only grow."""
        data, target = bytearray(), self._translation.target
        for token in itertools.islice(token_ids, self._read, None):
            piece = target.piece(token)
            if piece is not None:
                data += piece
                continue
            self._extend(bytes(data))
            self._close(self._translation.to_draft.get(token))
            data.clear()
        self._extend(bytes(data))
        self._read = len(token_ids)

    @property
    def context(self) -> list[int] | None:
        """The draft's tokens of the whole text; None: it can't spell the incomplete character."""
        if not self.half:
            return self.ids
        half = self._translation.draft.spelled(self.half)
        return None if half is None else self.ids + half

    def _close(self, control: int | None) -> None:
        """End the text at a control token (None: left out); nothing before it is encoded again."""
        if self.half:
            self.ids += self._translation.draft.spelled(self.half) or []
        if control is not None:
            self.ids.append(control)
        self._text, self._starts, self.half = "", [], b""

    def _extend(self, data: bytes) -> None:
        text, self.half = whole(self.half + data)
        if not text:
            return
        self._text += text
        count = len(self._starts)
        keep = max(0, count - _REDONE)
        while 0 < keep and self._starts[keep] == self._starts[keep - 1]:
            keep -= 1  # the token begins within a character
        for before in _CONTEXTS:
            if 0 < keep - before and self._splice(keep, keep - before):
                return
        self._splice(0, 0)

    def _splice(self, keep: int, begin: int) -> bool:
        """Encode the text from token ``begin`` on, and replace the tokens from ``keep`` on.

        False, and no change, if no token begins there in the new encoding or the token before differs.
        """
        offset = self._starts[begin] if begin else 0
        ids, starts = self._translation.draft.encode(self._text[offset:])
        starts = [offset + start for start in starts]
        first = 0
        if keep:
            seam = self._starts[keep]
            if seam not in starts:
                return False
            first = starts.index(seam)
            if first == 0 or ids[first - 1] != self.ids[keep - len(self._starts) - 1]:
                return False
        del self.ids[len(self.ids) - len(self._starts) + keep :]
        self.ids += ids[first:]
        self._starts[keep:] = starts[first:]
        return True
