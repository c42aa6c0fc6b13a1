"""What a boundary waits for: with drafts never more than without, and less than for the next word."""

import random
import re

import pytest

from specstream.text.segmenter import Segmenter
from specstream.types import Chunk, Preview
from tests.stages.voices import TEXTS, rounds
from tests.text.test_segment import corpus

REPLIES = (*TEXTS, *(line.replace("‖", "") for _, line in corpus()))


def ends(items: list[Preview | Chunk], text: str, *, look: bool) -> dict[int, int]:
    """Map each phrase's end, with white space, to the number of chunks after which it was cut."""
    segmenter, found, number, verified = Segmenter(), dict[int, int](), 0, 0
    for item in items:
        phrases = []
        if isinstance(item, Chunk):
            number, verified = number + 1, item.chars.end
            phrases = segmenter.add(item)
        elif look:
            phrases = segmenter.look(item.text)
        for phrase in phrases:
            assert phrase.chars.end <= verified
            rest = text[phrase.chars.end :]
            found[phrase.chars.end + len(rest) - len(rest.lstrip())] = number
    found.pop(len(text), None)
    return found


def waits(items: list[Preview | Chunk], text: str) -> list[tuple[int, int, int]]:
    """For each phrase, count target passes from its last mark to: next word, cut, cut with drafts."""
    known = [item.chars.end for item in items if isinstance(item, Chunk)]

    def passes(char: int) -> int:
        return 1 + next((n for n, end in enumerate(known) if end >= char), len(known) - 1)

    plain, drafted = (ends(items, text, look=look) for look in (False, True))
    out = []
    for end, number in plain.items():
        mark = len(text[:end].rstrip())
        word = re.compile(r"\s*\S+\s").match(text, mark)
        first = passes(mark)
        after = passes(word.end() if word else len(text))
        out.append((after - first, number - first, drafted.get(end, number) - first))
    return out


@pytest.mark.parametrize("accept", [0.0, 0.3, 0.6, 0.9])
def test_a_boundary_waits_for_fewer_passes_the_more_is_known(accept: float) -> None:
    rng = random.Random(7)
    found = [
        wait for text in REPLIES if len(text) > 20 for wait in waits(rounds(text, accept, rng), text)
    ]
    word, plain, drafted = (sum(wait) for wait in zip(*found, strict=True))
    assert len(found) > 100
    assert all(looking <= without for _, without, looking in found), "never later"
    assert 1.5 * drafted < plain < word / 1.5, (word, plain, drafted)
