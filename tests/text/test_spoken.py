"""What is read out of what is written, and that every word read knows what it stands for."""

import random
import re
from collections.abc import Iterable
from typing import Any

import pytest

from specstream.errors import ConfigError
from specstream.stages.stages import VoiceStage
from specstream.text.segmenter import Segmenter
from specstream.text.spoken import LINE_START, Readout
from specstream.types import Chunk, Mark, Phrase, Revoke, Span, Speech, Tag
from tests.support.standins import ToneVoice, feed


def phrase(text: str, start: int = 0, tags: tuple[Tag, ...] = ()) -> Phrase:
    return Phrase(text, Span(start, start + len(text)), Span(0, 1), tags=tags)


def said(text: str, readout: Readout = Readout()) -> str:  # noqa: B008
    return " ".join(readout.read(phrase(text)).phrase.spoken.split())


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("See [the docs](https://a.b/c_(d)?e=1) now.", "See the docs now."),
        ('A [**bold** link](u "A title"), too.', "A bold link, too."),
        ("![a fox](fox.png) and [that][1].[^2]", "a fox and that."),
        ("Not [a link] (here), nor a[0](x).", "Not [a link] (here), nor a0."),
        ("# Title\n## Two #s\nText", "Title Two #s Text"),
        ("- one\n* two\n+ three\n  - four\n> quoted\n- [x] done", "one two three four quoted done"),
        ("1. one\n2. two", "1. one 2. two"),
        ("**Bold**, *it*, __b__, ~~gone~~, ***both***.", "Bold, it, b, gone, both."),
        ("un**believ**able, 2**3, __init__", "unbelievable, 2**3, init"),
        ("snake_case, 2 * 3, a*b, -5 - 3", "snake_case, 2 * 3, a*b, -5 - 3"),
        ("Use `ls -l`, ``a`` and `*x*`.", "Use ls -l, a and *x*."),
        ("Title\n=====\none\n---\n* * *\ntwo", "Title one two"),
        ("| Name | Age |\n|---|:-:|\n| Ann | 3 |\n", "Name , Age Ann , 3"),
        ("a | b", "a b"),
        ("Ok \U0001f44d\U0001f3fd! \U0001f1e9\U0001f1ea 1\ufe0f\u20e3", "Ok ! 1"),
        ("Run:\n```py\nprint('hi')\n```\nDone.", "Run: code. Done."),
        ("Run:\n~~~\nx = `1`\n```\n~~~~\nDone.", "Run: code. Done."),
        ("```never\nends **here**", "code."),
        ("20\u00b0 \u00a9", "20\u00b0 \u00a9"),
        ("", ""),
    ],
)
def test_markdown_is_read_by_what_it_says(written: str, heard: str) -> None:
    assert said(written) == heard


def test_code_can_be_left_out_and_emoji_be_named() -> None:
    assert said("Run:\n```py\nx\n```\nDone.", Readout(code="silent")) == "Run: Done."
    named = Readout(emoji="name")
    assert said("Ok \U0001f44d\U0001f3fd!", named) == "Ok thumbs up !"
    assert said("\U0001f1e9\U0001f1ea", named) == "flag D E"
    assert said("\U0001f468\u200d\U0001f469\u200d\U0001f467 go", named) == "man woman girl go"


@pytest.mark.parametrize("option", [{"code": "aloud"}, {"emoji": True}])
def test_an_option_that_is_none_is_named(option: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        Readout(**option)  # type: ignore[arg-type]


@pytest.mark.slow
def test_hostile_markup_is_read_in_linear_time() -> None:
    for bad in ("*", "[", "`", "[a](", "| ", "a*", "\U0001f44d\u200d", "> "):
        said(bad * 100_000)


def test_a_phrase_without_markup_is_given_as_it_is() -> None:
    plain = phrase("Hello [smile] there.", 5, (Tag("smile", Span(11, 18)),))
    assert Readout().read(plain).phrase is plain


def test_tags_move_along_with_the_text() -> None:
    tag = Tag("smile", Span(19, 26))
    read = Readout().read(phrase("**Hello** [smile] *there*.", 9, (tag,)))
    assert read.phrase.text == "Hello [smile] there."
    assert read.phrase.spoken == "Hello         there."
    assert read.phrase.tags == (Tag("smile", Span(15, 22)),)
    assert read.phrase.chars == (9, 29)


def test_what_is_read_knows_what_is_written() -> None:
    written = "A [link](u) \U0001f44d and\n```\nx\n```\n**end**."
    read = Readout(emoji="name").read(phrase(written, 100))
    where = {
        word[0]: written[
            slice(*(at - 100 for at in read.written(Span(*(100 + e for e in word.span())))))
        ]
        for word in re.finditer(r"\w+", read.phrase.spoken)
    }
    assert where == {
        "A": "A",
        "link": "link",
        "thumbs": "\U0001f44d",
        "up": "\U0001f44d",
        "and": "and",
        "code": "```\nx\n```\n",
        "end": "end",
    }
    assert read.written(Span(100, 100)) == (100, 100)
    assert read.written(Span(106, 106)) == (107, 107)  # behind "link"


# --- any chunking -------------------------------------------------------------------------------

BITS = [
    "Well, so. ", "**bold** ", "[a link](https://x.y/z) ", "\n", "\n\n", "- item\n", "# Head\n",
    "```py\nx = 1. Or 2.\n```\n", "```\n", "| a | b. |\n", "|---|---|\n", "\U0001f44d ", "`c d` ",
    "[smile] ", "It is 3 * 4! ", "> said he.\n", "plain words here ", "\U0001f468\u200d\U0001f469 ",
]  # fmt: skip


def heard(phrases: Iterable[Phrase], readout: Readout) -> list[tuple[str, Span]]:
    """Every word that is read, and the written characters that it stands for."""
    place, words = LINE_START, []
    for one in phrases:
        reading = readout.read(one, place)
        place, origin = reading.place, reading.phrase.chars.start
        for word in re.finditer(r"\w+", reading.phrase.spoken):
            span = Span(origin + word.start(), origin + word.end())
            words.append((word[0], reading.written(span)))
    return words


def phrases_in(text: str, rng: random.Random | None, *, flushing: bool = False) -> list[Phrase]:
    segmenter, made, at = Segmenter(), list[Phrase](), 0
    while at < len(text):
        end = len(text) if rng is None else min(len(text), at + rng.randrange(1, 12))
        made += segmenter.add(Chunk(text[at:end], (), Span(0, 0), Span(at, end)))
        at = end
        if flushing and rng is not None and rng.random() < 0.3:
            made += segmenter.flush()  # a deadline has passed
    return [*made, *segmenter.close()]


def test_any_chunking_is_read_alike_and_every_word_is_where_it_is_written() -> None:
    rng = random.Random(11)
    readout = Readout(emoji="name")
    for _ in range(300):
        text = "".join(rng.choices(BITS, k=rng.randrange(1, 9)))
        wanted = heard(phrases_in(text, None), readout)
        for word, span in wanted:
            assert 0 <= span.start < span.end <= len(text)
            shown = text[slice(*span)]
            assert shown == word or not shown.isascii() or (word == "code" and shown[:3] == "```")
        assert heard(phrases_in(text, rng), readout) == wanted, text
        late = heard(phrases_in(text, rng, flushing=True), readout)
        assert [word for word, _ in late] == [word for word, _ in wanted], text


# --- the stage ----------------------------------------------------------------------------------


async def words(items: list[Any], readout: Readout = Readout()) -> list[Mark]:  # noqa: B008
    speech = await feed(VoiceStage(ToneVoice(), readout), items)
    pieces = [piece for piece in speech if isinstance(piece, Speech)]
    return [mark for piece in pieces for mark in piece.marks if mark.kind == "word"]


async def test_the_voice_stage_gives_the_voice_what_is_read_and_tells_what_is_written() -> None:
    text = "See [the docs](https://x.y/z) now.\n```\nx. y.\n```\n**Done** so."
    marks = await words(phrases_in(text, None))
    assert [mark.text for mark in marks] == ["See", "the", "docs", "now.", "code.", "Done", "so."]
    shown = [text[slice(*mark.chars)] for mark in marks]
    assert shown == ["See", "the", "docs", "now.", "```\nx. y.\n```\n", "Done", "so."]
    silent = await words(phrases_in(text, None), Readout(code="silent"))
    assert [mark.text for mark in silent] == ["See", "the", "docs", "now.", "Done", "so."]


@pytest.mark.parametrize(
    ("first", "revoke", "heard"),
    [
        ("```\nx.\n", 5, ["Yes.", "code.", "Well."]),
        ("So.\n```\nx\n", 9, ["Yes.", "So.", "code.", "Well."]),
    ],
    ids=["all of a phrase", "a part"],
)
async def test_a_revoke_takes_reading_back(first: str, revoke: int, heard: list[str]) -> None:
    items = [phrase("Yes.\n"), phrase(first, 5), Revoke(revoke), phrase("Well.", revoke)]
    assert [mark.text for mark in await words(items)] == heard
