"""A request's text in the tokens of a draft with another tokenizer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor

from specstream.model.spelling import whole
from specstream.model.vocabulary import Translation
from specstream.speculation.proposal import SpecRequest
from specstream.speculation.proposers.view import RequestView
from specstream.types import SamplingParams

__all__ = ["Rendered", "Rendering"]

_SETTLED = 8  # last tokens that are encoded anew with the text that follows them
_BEFORE = (8, 64)  # tokens before those, which are encoded along so that the seam fits
_versions = itertools.count()


class Rendering:
    """One request's tokens as the draft's, kept up to date with bounded look-behind.

    Text between control tokens is encoded as a whole. What is appended is encoded with some tokens
    before it; the new tokens replace the old ones from a place where both begin a token. Control tokens
    are mapped, or left out where the draft has none like them. Half a character at the end is given as
    single bytes.

    Attributes:
        request_id: Whose.
        ids: The draft's tokens, all but ``half``.
        half: Bytes at the end that begin a character.
    """

    def __init__(self, translation: Translation, request_id: int) -> None:
        self._translation = translation
        self.request_id = request_id
        self.ids: list[int] = []
        self.half = b""
        self._read = 0  # the request's tokens
        self._text = ""  # since the last control token
        self._starts: list[int] = []  # the character in it at which each token begins

    def read(self, token_ids: Sequence[int]) -> None:
        """Bring it up to the request's tokens, which only grow."""
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
        """What the draft reads; None: it can't write the half character at the end."""
        if not self.half:
            return self.ids
        half = self._translation.draft.spelled(self.half)
        return None if half is None else self.ids + half

    def _close(self, control: int | None) -> None:
        """A control token: nothing before it is encoded again."""
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
        keep = max(0, count - _SETTLED)
        while 0 < keep and self._starts[keep] == self._starts[keep - 1]:
            keep -= 1  # in the middle of a character
        for before in _BEFORE:
            if 0 < keep - before and self._splice(keep, keep - before):
                return
        self._splice(0, 0)

    def _splice(self, keep: int, begin: int) -> bool:
        """Encode from token ``begin`` on; take it from token ``keep`` on if both agree before it."""
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


class Rendered(RequestView):
    """A request as the draft sees it: over the draft's tokens.

    Its id is new each round, so that the draft compares its cache with the tokens: encoding anew may
    have changed some of them.
    """

    def __init__(self, request: SpecRequest, token_ids: list[int], params: SamplingParams) -> None:
        super().__init__(request, token_ids)
        self._params, self._id = params, next(_versions)

    @property
    def id(self) -> int:
        """See the class."""
        return self._id

    @property
    def params(self) -> SamplingParams:
        """How the draft draws."""
        return self._params

    @property
    def prompt_length(self) -> int:
        """All of it: nobody asks where the reply begins."""
        return len(self.token_ids)

    @property
    def reference_ids(self) -> list[int]:
        """None in the draft's tokens."""
        return []

    def draw(self, probs: Tensor, position: int, ids: Tensor | None = None) -> Tensor:
        """With the request's noise of the same place, counted in the target's tokens."""
        ahead = position - len(self.token_ids)
        return self.request.draw(probs, len(self.request.token_ids) + ahead, ids)
