import random
import re
from pathlib import Path
from typing import Any

import pytest

from specstream.errors import ConfigError, ProtocolError
from specstream.testing import chunks_of
from specstream.text.segmenter import Segmenter
from specstream.types import Chunk, Phrase, Span

PIECES = (
    "Yes. |No? |Dr. |Kim |1 000 |3.5 |$5|12:30|, |; |: | — |\n|\n- |[smile] |[shake head] |Wow!|so "
    "|a |word|he |said |“|” |(|) |https://a.b/c |jo@x.org |`x y` |e.g. |你好|，|。|[1] |... |😀 "
).split("|")


def chunk(text: str, start: int, t_ms: float = 0.0) -> Chunk:
    return Chunk(text, (), Span(0, 0), Span(start, start + len(text)), t_ms=t_ms)


def cut(text: str, **options: Any) -> list[Phrase]:
    segmenter = Segmenter(**options)
    return segmenter.add(chunk(text, 0)) + segmenter.close()


def marked(text: str, **options: Any) -> str:
    return "‖".join(phrase.text for phrase in cut(text, **options))


@pytest.mark.parametrize(
    "reply",
    [
        "Of course I can help you, ‖and gladly so, my friend. ‖Well, then, let us begin, shall we?",
        "Sure, no problem. ‖I will do that right away, as you asked.",
        "About 1,000,000 people came there; ‖nobody had expected it.",
        "He was certainly born on May 3, 1990, ‖in Oslo.",
        "She said “the quick fox, the lazy dog, the end” to us, ‖and left.",
        "The three of them (Ana, Bob, and little Cy) went out, ‖it seems.",
        "There is only one thing left — ‖you have to go.",
        "The trip takes 10–20 minutes or so—‖not more than that.",
        "[look around] [shake head] Oh, I see, you are here. ‖Fine.",
        "今天天气很好，你看，‖我们去公园吧。",
        "Open it at 10:30 or so: ‖then wait.",
        "Your visit is set for Thu, Jan 15, ‖and he comes.",
        "Das Treffen ist am Mi., 5. Juni, ‖und er kommt.",
    ],
)
def test_only_the_first_phrase_may_end_with_a_clause(reply: str) -> None:
    text = reply.replace("‖", "")
    assert marked(text) == reply
    reasons = [phrase.reason for phrase in cut(text)]
    assert set(reasons[1:]) <= {"sentence", "end"}
    assert "clause" not in {phrase.reason for phrase in cut(text, first_clause_chars=None)}


@pytest.mark.parametrize(
    "reply",
    [
        "A very skilled conductor of an orchestra ‖who leads it all is needed here.",
        "Our cats sleep so much during the day ‖because they hunt at night.",
        "[smile] Our cats sleep so much during the day ‖because they hunt at night.",
        "The call of `sort` in these two lines ‖with its key is all that you need here.",
        "The bicycle stays upright with the steady help of a rider.",
        "The path that leads along the river is rare and precious ‖in a dry land.",
        "The bus that goes there every morning leaves ‖at 6 in winter.",
        "The film that they saw last summer was called Lost in Translation.",
        "The ship that they built there had between 20 and 30 sails.",
        "She says that they never saw a “house of stone and glass” there.",
        "The one that they call **the house of stone and glass** is new.",
        "The one that they call [the house of stone and glass](https://x.y) is new.",
        "To answer this we need to look at the data step by step.",
        "Der Zug nach Hamburg fährt heute leider von Gleis sieben in wenigen Minuten ab.",
        "De trein naar Utrecht rijdt vandaag helaas niet van spoor zeven in de ochtend.",
    ],
)
def test_a_long_first_phrase_ends_before_a_word_that_joins_clauses(reply: str) -> None:
    text = reply.replace("‖", "")
    assert marked(text) == reply
    assert marked(text, first_words_chars=None) == text


def test_words_end_no_phrase_but_the_first_and_only_in_english() -> None:
    english = "She tends the garden that lies behind the house because it calms her. "
    first, *rest = cut(english * 3)
    assert first.text == "She tends the garden that lies behind the house "
    assert {phrase.reason for phrase in rest} <= {"sentence", "end"}
    lines = (Path(__file__).parent / "boundaries.txt").read_text("utf-8").split("## de\n")[1]
    foreign = lines.split("## assistant")[0].splitlines()
    assert len(foreign) > 50
    for line in foreign:
        text = line.replace("‖", "").replace("⏎", "\n")
        assert cut(text, first_words_chars=1) == cut(text, first_words_chars=None)


def test_a_long_sentence_ends_after_a_clause_or_between_words() -> None:
    words = "and so the river ran on, "
    phrases = cut(words * 40, max_chars=100)
    assert all(p.text.endswith(", ") and p.reason == "length" for p in phrases[1:-1])
    plain = cut("wander " * 100 + "10 000 000 km", max_chars=64)
    assert all(p.text.endswith("wander ") for p in plain[:-1])
    assert "10 000 000 km" in plain[-1].text
    tagged = cut("的" * 90 + "[shake head]" + "的" * 90, max_chars=96)
    assert [tag.name for p in tagged for tag in p.tags] == ["shake head"]
    numbers = cut("170 " * 100, max_chars=64)
    assert all(p.text.startswith("170 ") and p.text.endswith("170 ") for p in numbers)
    family = "👨‍👩‍👧"
    assert all(not p.text[0] == "\u200d" != p.text[-1] for p in cut(family * 90, max_chars=64))


TAGS = [
    ("[smile] Hi. [Shake  Head] No.", ["smile", "shake head"]),
    ("[look around]", ["look around"]),
    ("Wow![laugh] Yes.[deep-breath] Go.", ["laugh", "deep-breath"]),
    ("Hm [sigh][nod] yes", ["sigh", "nod"]),
    ("好的[微笑]走吧。[笑]", ["微笑", "笑"]),
    ("[1] [42 results] [see https://x.y] [a.b] [ ] [x] [] [smile\n] [-a] [" + "a" * 33 + "]", []),
    ("see [the docs][1], [more][], [smile][", ["smile"]),
    ("read [the docs](https://x.y/z) or list[index], grid[a][bc], \\[x y]", []),
    ("`[smile]` ``a [nod] ` b`` [wave]", ["wave"]),
    ("```toml\n[server]\n```\n[nod] Done.", ["nod"]),
    ("```toml\n" + "[server]\n" * 40 + "```\n[nod] Done.", ["nod"]),
    ("half a [smi", []),
]


@pytest.mark.parametrize(("reply", "names"), TAGS)
def test_directions_are_told_from_other_brackets(reply: str, names: list[str]) -> None:
    tags = [tag for phrase in cut(reply) for tag in phrase.tags]
    assert [tag.name for tag in tags] == names
    for tag in tags:
        assert " ".join(reply[slice(*tag.chars)][1:-1].lower().split()) == tag.name


def test_silence_joins_the_phrase_that_follows() -> None:
    assert marked("[smile] \n\n [nod]\n\nHello.\n\n---\n\nBye. ") == (
        "[smile] \n\n [nod]\n\nHello.\n\n‖---\n\nBye. "
    )
    (only,) = cut("  [nod] ")
    assert (only.reason, [tag.name for tag in only.tags]) == ("end", ["nod"])
    assert cut("") == []


def test_a_line_is_more_than_a_clause() -> None:
    first, *_ = cut("Here is what you will need for it:\n- an egg\n- a pan")
    assert (first.text, first.reason) == ("Here is what you will need for it:\n", "sentence")


@pytest.mark.parametrize("opened", ["[so", "[so](http://x", "`so", "(so", "“so", "*so"])
def test_the_end_settles_what_was_never_closed(opened: str) -> None:
    assert marked(f"Yes. It is {opened} it is. Good. Bye.") == (
        f"Yes. ‖It is {opened} it is. ‖Good. ‖Bye."
    )


def test_the_clock_is_that_of_the_chunk_that_completed_the_phrase() -> None:
    segmenter = Segmenter()
    assert segmenter.add(chunk("One. ", 0, 10)) == []
    (first,) = segmenter.add(chunk("Two", 5, 20))
    segmenter.add(chunk(".", 8, 30))
    (last,) = segmenter.close()
    assert [(p.text, p.t_ms, p.index, p.reason) for p in (first, last)] == [
        ("One. ", 20, 0, "sentence"),
        ("Two.", 30, 1, "end"),
    ]
    assert not segmenter.pending


def test_the_chunks_of_a_reply_are_taken_as_they_come() -> None:
    segmenter = Segmenter()
    reply = "[smile] Good morning! The train, I am afraid, is late by 12 min. today."
    phrases = [p for piece in chunks_of(reply, [1, 3, 5]) for p in segmenter.add(piece)]
    assert [p.text for p in phrases] == ["[smile] Good morning! "]
    assert [p.text for p in segmenter.close()] == [reply[22:]]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_chars must be at least 64"):
        Segmenter(max_chars=10)
    with pytest.raises(ConfigError, match="first_clause_chars must be at least 1"):
        Segmenter(first_clause_chars=0)
    with pytest.raises(ConfigError, match="first_words_chars must be at least 1"):
        Segmenter(first_words_chars=0)
    segmenter = Segmenter()
    segmenter.add(chunk("One", 0))
    with pytest.raises(ProtocolError, match="text so far ends at 3"):
        segmenter.add(chunk("two", 4))
    with pytest.raises(ProtocolError, match="2 tokens has 1 ends"):
        segmenter.add(Chunk("ab", (0, 1), Span(0, 2), Span(3, 5), ends=(5,)))


@pytest.mark.parametrize(
    ("waiting", "spoken"),
    [
        ("Hello wor", "Hello "),
        ("Hello there. ", "Hello there. "),
        ("Hello there.", "Hello there."),
        ("Well,", "Well,"),
        ('He said "Stop!"', 'He said "Stop!"'),
        ("Hello", ""),
        ("I can\u2019", "I "),
        ("It costs $1,", "It costs "),
        ("It is 3.", "It is "),
        ("Call +1 555 ", "Call "),
        ("It takes 10 min. ", "It takes 10 min. "),
        ("Go to https://exa.mp/le.", "Go to "),
        ("Mail jo@x.", "Mail "),
        ("Hello [smi", "Hello "),
        ("Hello [shake ", "Hello "),
        ("Hello [smile] ", "Hello "),
        ("[smile] ", ""),
        ("[smile] Oh, [shake head] we", "[smile] Oh, "),
        ("Wait.[shake he", "Wait."),
        ("Read [the do", "Read "),
        ("Read [the docs](https://x.y) no", "Read [the docs](https://x.y) "),
        ("Type `ls -", "Type "),
        ("I met Dr. ", "I met "),
        ("I met J. R. ", "I met "),
        ("See no. ", "See "),
        ("He said (", "He said "),
        ("我们去公园，然后", "我们去公园，"),
        ("我们去公园", ""),
        (" \n ", ""),
        ("", ""),
    ],
)
def test_a_deadline_tears_nothing_apart(waiting: str, spoken: str) -> None:
    segmenter = Segmenter()
    assert segmenter.add(chunk(waiting, 0)) == []
    phrases = segmenter.flush()
    assert [(p.text, p.reason) for p in phrases] == ([(spoken, "deadline")] if spoken else [])
    assert segmenter.pending == (spoken != waiting)
    rest = segmenter.add(chunk("x", len(waiting))) + segmenter.close()
    assert "".join(p.text for p in phrases + rest) == waiting + "x"


def test_deadlines_at_any_moment_keep_words_numbers_and_directions_whole() -> None:
    rng = random.Random(4)
    flushed = 0
    for _ in range(400):
        text = "".join(rng.choices(PIECES, k=rng.randrange(1, 60)))
        segmenter = Segmenter(first_clause_chars=None)
        phrases = []
        for at, char in enumerate(text):
            phrases += segmenter.add(chunk(char, at))
            if rng.random() < 0.2:
                phrases += segmenter.flush()
        phrases += segmenter.close()
        assert "".join(p.text for p in phrases) == text
        tags = [tag for p in phrases for tag in p.tags]
        assert tags == [tag for p in cut(text) for tag in p.tags]
        for phrase in phrases:
            if phrase.reason == "deadline":
                flushed += 1
                before, after = phrase.text, text[phrase.chars.end :]
                assert re.search(r"[^\W_]", before)
                assert not (before[-1].isalnum() and after[:1].isalnum())
                assert not (re.search(r"(^|\s)\d+ $", before) and re.match(r"\d", after))
                assert not re.search(r"(^|\s)(Dr|e\.g)\. $", before)
    assert flushed > 1000


def test_text_that_is_taken_back_leaves_no_trace() -> None:
    rng = random.Random(5)
    tried = 0
    for _ in range(400):
        kept, wrong, right = ("".join(rng.choices(PIECES, k=rng.randrange(1, 20))) for _ in "abc")
        segmenter = Segmenter()
        phrases = segmenter.add(chunk(kept + wrong, 0))
        if phrases != Segmenter().add(chunk(kept, 0)):
            continue  # what is taken back had decided a boundary that is out already
        tried += 1
        segmenter.revoke(len(kept))
        phrases += segmenter.add(chunk(right, len(kept))) + segmenter.close()
        assert phrases == cut(kept + right)
    assert tried > 100


def test_what_was_spoken_stays_spoken_and_tokens_are_counted_anew() -> None:
    segmenter = Segmenter()
    first, second = segmenter.add(
        Chunk("One. Two. Thr", (7, 8, 9), Span(0, 3), Span(0, 13), ends=(5, 10, 13))
    )
    segmenter.revoke(99)  # nothing there yet
    segmenter.revoke(7)
    assert not segmenter.pending
    segmenter.add(Chunk("en. ", (5,), Span(1, 2), Span(7, 11), ends=(11,)))
    (third,) = segmenter.close()
    assert [p.text for p in (first, second, third)] == ["One. ", "Two. ", "en. "]
    assert (third.index, third.chars, third.tokens) == (2, (7, 11), (1, 2))


def test_a_reply_that_is_taken_back_whole_begins_anew() -> None:
    segmenter = Segmenter()
    segmenter.add(chunk("Nothing of this remains, as we will see. A", 0))
    segmenter.revoke(0)
    reply = "1. Open the door, please, and then the window."
    phrases = segmenter.add(chunk(reply, 0))
    assert [(p.text, p.reason) for p in phrases] == [("1. Open the door, please, ", "clause")]


def test_tokens_are_taken_back_with_their_text() -> None:
    # Token 1 is the first half of a character that token 2 completes; then token 2 is replaced.
    segmenter = Segmenter()
    segmenter.add(Chunk("So. é", (7, 8, 9), Span(0, 3), Span(0, 5), ends=(4, 4, 5)))
    segmenter.revoke(4)
    segmenter.add(Chunk("è!", (6, 5), Span(2, 4), Span(4, 6), ends=(5, 6)))
    (last,) = segmenter.close()
    assert (last.text, last.tokens) == ("è!", (1, 4))
    # Without ends, the kept part of a chunk keeps the tokens that were not written anew.
    segmenter = Segmenter()
    segmenter.add(Chunk("Tea etc. A", (7, 8, 9), Span(0, 3), Span(0, 10)))
    segmenter.revoke(9)
    (first,) = segmenter.add(Chunk("Bob ", (6,), Span(2, 3), Span(9, 13)))
    assert (first.text, first.tokens) == ("Tea etc. ", (0, 2))
