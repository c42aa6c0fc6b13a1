"""Cuts drafted text into phrases ahead of a segmenter, and judges them by the verified text."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from specstream.pipeline.life import Confirmed, Drafted, Withdrawn
from specstream.pipeline.segment import Segmenter
from specstream.types import Chunk, Phrase, Preview

__all__ = ["DraftedPhrases"]

_MAX_DRAFTED = 4  # phrases that are cut ahead at most


class DraftedPhrases:
    """The phrases of one reply that are cut from drafted text and not confirmed yet.

    ``segmenter`` cuts the verified text; its phrases are authoritative. A drafted phrase is confirmed
    when the segmenter cuts the very same phrase. It is withdrawn as soon as one of its tokens is
    rejected, or verified or newly drafted text is cut in another way.
    """

    def __init__(self, segmenter: Segmenter) -> None:
        self._segmenter = segmenter
        self._out: list[Phrase] = []
        self._preview: Preview | None = None

    def preview(self, preview: Preview) -> list[Drafted | Withdrawn]:
        """Cut the verified text that waits and the drafted text behind it; return what has changed."""
        self._preview = preview
        cut = self._segmenter.fork().add(preview.chunk)[:_MAX_DRAFTED]
        same = 0
        while same < min(len(cut), len(self._out)) and _same(cut[same], self._out[same]):
            same += 1
        told: list[Drafted | Withdrawn] = []
        if same < min(len(cut), len(self._out)):
            told += self._withdraw(same)
        new = cut[len(self._out) :] if same == len(self._out) else []
        self._out += new
        return [*told, *(Drafted(phrase, preview.round) for phrase in new)]

    def verified(self, phrases: list[Phrase]) -> list[Phrase | Confirmed | Withdrawn]:
        """Take the phrases that the segmenter cut; return them, the drafted ones as `Confirmed`."""
        told: list[Phrase | Confirmed | Withdrawn] = []
        for phrase in phrases:
            if self._out and _same(self._out[0], phrase):
                del self._out[0]
                told.append(Confirmed(phrase))
            else:
                told += [*self._withdraw(0), phrase]
        return told

    def judged(self, chunk: Chunk) -> list[Withdrawn]:
        """Withdraw the phrases with tokens that the target rejected in the round of ``chunk``."""
        preview, self._preview = self._preview, None
        if preview is None:
            return []
        pairs = zip(preview.token_ids, chunk.token_ids, strict=False)
        end = preview.tokens.start + sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)
        )
        void = (at for at, phrase in enumerate(self._out) if phrase.tokens.end > end)
        return self._withdraw(next(void, len(self._out)))

    def clear(self) -> list[Withdrawn]:
        """Withdraw everything."""
        return self._withdraw(0)

    def _withdraw(self, first: int) -> list[Withdrawn]:
        gone = self._out[first:]
        del self._out[first:]
        return [Withdrawn(gone[0].chars.start)] if gone else []


def _same(one: Phrase, other: Phrase) -> bool:
    return replace(one, t_ms=other.t_ms) == other
