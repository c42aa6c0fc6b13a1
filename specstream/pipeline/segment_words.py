"""Where a long first phrase may end without a mark: before an English conjunction or preposition.

A speaker may breathe there, and the words before it are understood without the rest. As in
`segment_marks`, `Undecided` is raised while more text could change the decision: until the word behind
the white space has ended.
"""

from __future__ import annotations

import re

from specstream.pipeline.abbreviations import WORDS
from specstream.pipeline.segment_marks import Decision, end_of

__all__ = ["word_break"]

_LONGEST = 9  # letters; no opener is longer
_LETTERS = re.compile(r"[^\W\d_]*")
# Words, light punctuation and nothing else: no quote, bracket, emphasis, link or table is open.
_PROSE = re.compile(
    r"\s*(?:[^\W_]+(?:['’.,:-][^\W_]+)*[,;:.!?]?\s+)*([^\W\d_]+(?:['’-][^\W\d_]+)*)"
)
_ENGLISH = re.compile(
    r"\b(?:and|are|because|been|between|does|during|from|how|it's|should|that|the|their|there|these|they|"
    r"this|through|which|while|who|whose|with|without|would|you|your)\b",
    re.IGNORECASE,
)
_OPENERS = WORDS["breaths"]
_OPEN = _OPENERS | WORDS["open_words"]


def word_break(text: str, at: int, before: str) -> Decision:
    """Decide whether the phrase may end after the white space at ``at``.

    ``before`` is the phrase so far, without directions, links and code.
    """
    after = at + 1
    end = end_of(_LETTERS, text, after, after + _LONGEST)
    if text[after:end] not in _OPENERS or text[end] != " ":
        return Decision(after)
    prose = _PROSE.fullmatch(before)
    if prose is None or not prose[1].islower() or prose[1] in _OPEN:
        return Decision(after)
    if text[after:end] in ("and", "or") and before.lower().split()[-2:][0] in _OPEN:
        return Decision(after)  # "a rare and precious stone"
    english = _ENGLISH.search(f"{before} {text[after:end]}")
    return Decision(after, cut=english is not None, reason="clause")
