"""Phrases back to sentences, and sentences to shots."""

import random
import re

import pytest

from specstream.types import Phrase, Span, Tag
from specstream_adapters.prompt.story import Sentence, Story

TEXT = (
    '[smile] Dr. Reed opened the door. "Stop! Who is there?" she asked. [wide eyes] It was 5.30 in '
    "the morning... The U.S. flag hung still!\n\nNobody spoke. “Really?” said Tom, and left."
)


def phrase(text: str, start: int, end: int, reason: str = "clause") -> Phrase:
    piece = text[start:end]
    tags = [
        Tag(m[1], Span(start + m.start(), start + m.end()))
        for m in re.finditer(r"\[([a-z ]+)\]", piece)
    ]
    span, tokens = Span(start, end), Span(start // 4, -(-end // 4))
    return Phrase(piece, span, tokens, tags=tuple(tags), reason=reason)  # type: ignore[arg-type]


def pieces(text: str, rng: random.Random | None = None) -> list[Phrase]:
    """Cut where the segmenter would, and before some of the words, never inside a tag."""
    tags = [range(m.start() + 1, m.end()) for m in re.finditer(r"\[[a-z ]+\]", text)]
    ends = [m.end() for m in re.finditer(r"(?<!Dr)(?<!U.S)[.!?]+\s+(?=[A-Z\[\"“]|she)", text)]
    words = [m.start() for m in re.finditer(r"(?<=\s)\S", text)]
    some = [c for c in words if rng and rng.random() < 0.4 and not any(c in t for t in tags)]
    cuts = sorted({*ends, *some})
    reasons = ["sentence" if cut in ends else "clause" for cut in cuts] + ["end"]
    bounds = zip([0, *cuts], [*cuts, len(text)], reasons, strict=True)
    return [phrase(text, a, b, reason) for a, b, reason in bounds]


def read(phrases: list[Phrase]) -> list[Sentence]:
    found = [Sentence(Story(), phrases[0].chars.start)]
    for piece in phrases:
        if found[-1].ended:
            found.append(Sentence(Story(), found[-1].spoken_after))
        found[-1] = found[-1].add(piece)
    return found


def test_sentences_laid_end_to_end_are_the_reply_however_it_was_cut() -> None:
    whole = read(pieces(TEXT))
    assert [TEXT[s.span.start : s.span.end].strip()[:12] for s in whole] == [
        "[smile] Dr. ", '"Stop! Who i', "[wide eyes] ", "The U.S. fla", "Nobody spoke", "“Really?” sa",
    ]  # fmt: skip
    for seed in range(60):
        sentences = read(pieces(TEXT, random.Random(seed)))
        assert "".join(TEXT[s.span.start : s.span.end] for s in sentences) == TEXT
        assert [s.span for s in sentences] == [s.span for s in whole]
        for sentence in sentences:
            assert len(sentence.text) == sentence.span.length
            assert "[" not in sentence.text
            first, last = sentence.span.start // 4, -(-sentence.span.end // 4)
            assert sentence.tokens.start <= first
            assert sentence.tokens.end >= last
        assert [s.tags for s in sentences if s.tags] == [("smile",), ("wide eyes",)]


def test_what_was_spoken_before_counts_no_tags() -> None:
    sentences = read(pieces(TEXT))
    for sentence in sentences:
        spoken = re.sub(r"\[[a-z ]+\]", "", TEXT[: sentence.span.start])
        assert sentence.spoken_before == len(spoken)


@pytest.mark.parametrize(
    "machine",
    [
        '{"name": "Find", "arguments": {"city": "A } B", "n": 2}}',
        '<|call|>{"name": "x", "arguments": {}}',
        '[{"a": "said \\"no\\""}, {"b": {}}]',
        "```\nprint('hello there')\n```",
    ],
)
def test_machine_text_is_never_read(machine: str) -> None:
    text = f"One moment. {machine} Done now."
    for seed in range(60):
        sentences = read(pieces(text, random.Random(seed)))
        words = re.findall(r"\w+", " ".join(s.text for s in sentences))
        assert words == ["One", "moment", "Done", "now"]
        assert sentences[-1].spoken_before <= len("One moment.  []")


def test_a_brace_alone_is_no_json() -> None:
    sentences = read([phrase("The set {one, two} is small.", 0, 28, "end")])
    assert "one, two" in sentences[0].text


def test_a_sentence_that_is_cut_goes_on_with_other_text() -> None:
    text, right = "The dog [nod] ran off.", "The dog slept."
    (sentence,) = read(pieces(text))
    assert (sentence.ended, sentence.tags) == (True, ("nod",))
    cut = sentence.until(8)
    assert (cut.text, cut.span, cut.tags, cut.ended) == ("The dog ", Span(0, 8), (), False)
    again = cut.add(phrase(right, 8, len(right), "end"))
    assert (again.text, again.span, again.ended) == (right, Span(0, len(right)), True)


def test_an_endless_sentence_is_taken_in_parts() -> None:
    text = "and on it went " * 200
    sentences = read([phrase(text, a, min(a + 200, len(text))) for a in range(0, len(text), 200)])
    assert "".join(s.text for s in sentences) == text
    assert max(len(s.text) for s in sentences) <= 600  # three phrases of 200
