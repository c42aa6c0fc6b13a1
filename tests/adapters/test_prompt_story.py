"""Phrases back to sentences, sentences to shots, and who is meant in them."""

import random
import re

import pytest

from specstream.types import Phrase, Span, Tag
from specstream_adapters.prompt.story import Sentence, Story
from tests.adapters.test_prompt_template import final, shoot

TEXT = (
    '[smile] Dr. Reed opened the door. "Stop! Who is there?" she asked. [wide eyes] It was 5.30 in '
    "the morning... The U.S. flag hung still!\n\nNobody spoke. “Really?” said Tom, and left."
)


def phrase(text: str, start: int, end: int, reason: str = "clause") -> Phrase:
    piece = text[start:end]
    tags = [
        Tag(m[1], Span(start + m.start(), start + m.end())) for m in re.finditer(r"\[([a-z ]+)\]", piece)
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


MARA = "Mara, a lighthouse keeper, stands on a pier. "
LEO = "Leo, a tired baker, stands at the door of a barn. "


@pytest.mark.parametrize(
    ("before", "sentence", "told"),
    [
        (MARA, "A grey wolf follows her through a field of snow.", "wolf follows Mara through"),
        (MARA, "An old man with a lantern takes her hand.", "man with a lantern takes Mara's hand."),
        (LEO, "A black cat watches him from a wall.", "cat watches Leo from a wall."),
        (LEO, "An old woman drinks from his bucket in the yard.", "drinks from Leo's bucket"),
        (LEO, "Behind him, a fire glows in the oven.", "Behind Leo, a fire glows"),
        (LEO, "His hands lift a lantern and a shovel from the wall.", "Leo's hands lift a lantern"),
        (LEO, "Halfway up a ladder he lifts a lantern.", "Halfway up a ladder Leo lifts"),
        (
            "Ana and Tom sat on a bench. ",
            "A black cat looks at them from a wall.",
            "looks at Ana and Tom from",
        ),
        ("Two men sat on a bench. ", "A black cat watches them from a wall.", "watches the two men"),
        ("Two men sat on a bench. ", "A dog stole their bread from a basket.", "stole the two men's"),
    ],
)
async def test_a_pronoun_that_is_an_object_is_replaced_by_who_is_meant(
    before: str, sentence: str, told: str
) -> None:
    last = final(await shoot(f"{before}Snow fell on the roof of a house. {sentence}"))[-1]
    assert told in last.prompt
    assert not re.search(r"\b(?:him|his|her|them|their)\b", last.action)


async def test_whoever_was_named_in_a_shot_may_be_meant_by_a_pronoun_in_it() -> None:
    text = f"{LEO}Snow fell on the roof of a house. He lifted a lantern from his table."
    assert "Leo lifted a lantern from his table." in final(await shoot(text))[-1].prompt


async def test_a_pronoun_that_nobody_known_is_meant_by_brings_what_was_told_or_makes_no_shot() -> None:
    text = "It was full of young cats. A black dog watches them from a wall."
    assert "Same scene as: It was full of young cats." in final(await shoot(text))[-1].prompt
    text = "Snow fell on the roof of a house. A black dog looks at him from a wall."
    assert [shot.action for shot in await shoot(text)] == ["Snow fell on the roof of a house."]
    assert await shoot("A black cat watches them from a wall.") == []


async def test_what_is_only_thought_of_is_not_shown_with_the_next_shot() -> None:
    text = f"{MARA}She thought of Paris. A dog slept under a table."
    assert all("Paris" not in shot.prompt for shot in await shoot(text))
    text = "She thought of a village in the mountains. She opened the door with a key."
    assert all("mountains" not in shot.prompt for shot in await shoot(text))
