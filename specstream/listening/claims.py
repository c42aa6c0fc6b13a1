"""Do the words so far claim the turn, or do they only show that somebody listens?

People say "mm-hm" and "right" while another one speaks (backchannels, Yngve 1970), and a recogniser
makes a word of a noise. A word claims the turn when a second one follows, or when it is there again in
the next transcript.
"""

from __future__ import annotations

import re

__all__ = ["claims_turn", "is_backchannel"]

# A word of a text, or a character of a script that has no spaces.
_ANY_WORD = re.compile(r"[぀-ヿ㐀-鿿]|[^\W_]+(?:['’-][^\W_]+)*")
_BACKCHANNELS = frozenset(
    """mm mmm mhm mm-hm mm-hmm mmhm mmhmm hm hmm hmmm uh-huh uhuh huh uh um ah aha a-ha oh ooh right
    yeah yep yup okay ok sure ja genau ach so aja hm-hm""".split()
)
_MOST = 3  # words


def is_backchannel(text: str) -> bool:
    """Whether the words are such as a listener says: "Mm hmm.", "Right, right.", "Ja, genau."."""
    words = [word.lower() for word in _ANY_WORD.findall(text)]
    return 0 < len(words) <= _MOST and all(word in _BACKCHANNELS for word in words)


def claims_turn(text: str, *, again: bool) -> bool:
    """Whether words so far should interrupt a reply. ``again``: the transcript before was the same."""
    words = len(_ANY_WORD.findall(text))
    return words >= (1 if again else 2) and not is_backchannel(text)
