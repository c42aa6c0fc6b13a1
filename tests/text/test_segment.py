import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from specstream.text import segmenter as segment_module, stops as segment_stops
from specstream.text.marks import LOOK_BACK, Decision, StopReading, Undecided
from specstream.text.segmenter import Segmenter
from specstream.text.window import Stretch
from specstream.types import Chunk, Phrase, Span

CORPUS = Path(__file__).with_name("boundaries.txt")
SOUP = (
    ".|!|?|...|…| |  |\n|\n\n|\r\n|\t|\u00a0|[smile]|[shake head]|[sigh][nod]|[a b|[|]|] |(|)|“|”"
    '|«|»| »|"|`|```\n|`x. Y`|Dr. |U.S. |p.m. |etc. |e.g. |Sunday |The |word|Word |a|I |I. |1. |2'
    "|3.5|12. |Oktober |。|！|」|「|と|你好|，|、|—| — |–| - |-|,|, |;|: |[x](http://a.b/c. D)|[1]"
    "|😀|👨\u200d👩\u200d👧|é|e\u0301|؟|।|नम|𠀀|*|**|_|# |- |said |Tom |asked |°|$|'|’|iv. |ii) "
    "|b. |Inc. |Ltd. |No. |XIV |V |. . .|Τι; |\0|www.x.y |a@b.c|.Next |.com |and |which |ways "
    "|1.000. |Im |und |Gehen |Sie |[so][1] |[12|][ "
).split("|")


def chunk(text: str, start: int, t_ms: float = 0.0) -> Chunk:
    return Chunk(text, (), Span(0, 0), Span(start, start + len(text)), t_ms=t_ms)


def cut(text: str, at: Sequence[int] = (), **options: Any) -> list[Phrase]:
    """Segment ``text``, dealt out in chunks that end at the offsets ``at``."""
    segmenter = Segmenter(**options)
    edges = [0, *at, len(text)]
    pieces = [chunk(text[a:b], a) for a, b in zip(edges, edges[1:], strict=False)]
    return [phrase for piece in pieces for phrase in segmenter.add(piece)] + segmenter.close()


def corpus() -> Iterator[tuple[str, str]]:
    """(category, marked reply) pairs."""
    category = ""
    for line in CORPUS.read_text("utf-8").splitlines()[1:]:
        if line.startswith("## ") and "⏎" not in line:
            category = line[3:]
        elif line:
            yield category, line.replace("⏎", "\n")


def f1(category: Callable[[str], bool] = lambda _: True) -> float:
    hits = wrong = 0
    for name, line in corpus():
        if not category(name):
            continue
        want, end = set(), 0
        for sentence in line.split("‖"):
            end += len(sentence)
            want.add(end)
        got = {phrase.chars.end for phrase in cut(line.replace("‖", ""), first_clause_chars=None)}
        hits += len((got & want) - {end})  # the end of the reply is no decision
        wrong += len(got ^ want)
    return 2 * hits / (2 * hits + wrong)


def test_the_corpus_is_large_and_wide() -> None:
    names = {name for name, _ in corpus()}
    assert sum(line.count("‖") + 1 for _, line in corpus()) >= 500
    assert len(names & {"de", "fr", "es", "ru", "zh", "ja", "ko", "hi"}) == 8


def test_boundaries_are_found_in_the_corpus() -> None:
    assert f1() >= 0.985
    for name in {name for name, _ in corpus()} - {"hard"}:
        assert f1(lambda other, name=name: other == name) >= 0.97, name  # type: ignore[misc]


def test_the_corpus_notices_a_segmenter_without_abbreviations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_stops, "stop_after", lambda *_, **__: StopReading.PLAIN)
    assert f1() < 0.9


def random_text(rng: random.Random) -> str:
    if rng.random() < 0.3:
        lines = [line.replace("‖", "") for _, line in corpus()]
        return rng.choice(["", " ", "\n", " [nod] "]).join(rng.choices(lines, k=rng.randrange(1, 7)))
    return "".join(rng.choices(SOUP, k=rng.randrange(1, rng.choice([20, 60, 200]))))


def random_options(rng: random.Random) -> dict[str, Any]:
    return {
        "first_clause_chars": rng.choice([None, 1, 10, 24]),
        "first_words_chars": rng.choice([None, 1, 10, 36]),
        "max_chars": rng.choice([64, 80, 240]),
    }


def splits_that_matter(count: int, seed: int) -> int:
    """Count the texts, of ``count`` random ones, that are cut otherwise when they come in pieces."""
    rng = random.Random(seed)
    different = 0
    for _ in range(count):
        text, options = random_text(rng), random_options(rng)
        whole = cut(text, **options)
        assert "".join(phrase.text for phrase in whole) == text
        assert all(len(phrase.text) <= options["max_chars"] for phrase in whole)
        assert all(text[slice(*phrase.chars)] == phrase.text for phrase in whole)
        assert [phrase.index for phrase in whole] == list(range(len(whole)))
        some = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(1, 12)))
        singly = range(1, len(text))
        different += cut(text, some, **options) != whole or cut(text, singly, **options) != whole
    return different


@pytest.mark.slow
def test_chunking_never_matters() -> None:
    assert splits_that_matter(1500, seed=1) == 0  # 3000 splits


@pytest.mark.parametrize("rule", ["stop", "newline", "bracket", "clause", "backticks", "word_break"])
def test_a_rule_that_does_not_wait_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = getattr(segment_module, rule)

    def hasty(text: str, at: int, *rest: Any, **options: Any) -> Decision:
        try:
            return cast("Decision", honest(text, at, *rest, **options))
        except Undecided:
            return Decision(at + 1)

    monkeypatch.setattr(segment_module, rule, hasty)
    assert splits_that_matter(150, seed=2) > 0


def random_chunks(text: str, rng: random.Random) -> tuple[list[Chunk], list[int]]:
    """Chunks whose tokens end anywhere, some with no character of their own, some text held back.

    Also returns the token that each character came from.
    """
    ends = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(1, len(text) + 2)))
    ends.append(len(text))
    ends += [len(text)] * rng.randrange(3)  # an end-of-sequence token writes nothing
    owner = [next(token for token, end in enumerate(ends) if end > at) for at in range(len(text))]
    chunks, shown, token = [], 0, 0
    while token < len(ends):
        stop = min(len(ends), token + rng.randrange(1, 6))
        held = 0 if stop == len(ends) else rng.choice([0, 0, 1, 3])
        upto = max(shown, ends[stop - 1] - held)
        tokens = Span(token, stop)
        chars, slots = Span(shown, upto), tuple(ends[token:stop])
        chunks.append(Chunk(text[shown:upto], tuple(range(*tokens)), tokens, chars, slots))
        shown, token = upto, stop
    return chunks, owner


def first_blank(ends: Sequence[Chunk], owner: int) -> int:
    """The first of the tokens without characters right before ``owner``, or ``owner`` itself."""
    flat = [end for piece in ends for end in piece.ends]
    while owner > 0 and flat[owner - 1] == (flat[owner - 2] if owner > 1 else 0):
        owner -= 1
    return owner


def test_token_spans_are_the_smallest_that_cover_the_characters() -> None:
    rng = random.Random(3)
    for _ in range(800):
        text, options = random_text(rng), random_options(rng)
        chunks, owner = random_chunks(text, rng)
        segmenter = Segmenter(**options)
        phrases = [phrase for piece in chunks for phrase in segmenter.add(piece)]
        phrases += segmenter.close()
        plain = cut(text, **options)
        assert [(p.text, p.tags, p.reason) for p in phrases] == [
            (p.text, p.tags, p.reason) for p in plain
        ]
        for phrase in phrases:
            owners = owner[slice(*phrase.chars)]
            assert phrase.tokens == (first_blank(chunks, owners[0]), owners[-1] + 1)


def test_tokens_without_ends_stand_for_their_whole_chunk() -> None:
    segmenter = Segmenter()
    segmenter.add(Chunk("Yes. N", (1, 2), Span(0, 2), Span(0, 6)))
    segmenter.add(Chunk("", (3,), Span(2, 3), Span(6, 6)))
    (second,) = segmenter.add(Chunk("o! Go", (4, 5), Span(3, 5), Span(6, 11)))
    assert (second.text, second.tokens) == ("No! ", (0, 5))


@pytest.mark.parametrize(
    ("before", "decisive"),
    [
        ("It is late. ", "W"),
        ("It is late.  \n ", "W"),
        ("Is it? ", "y"),
        ("今日はいい天気です。", "明"),
        ("Buy tea, etc. W", "e "),
        ("Meet at 5 p.m. S", "he "),
        ('"Why?" T', "om left "),
        ("I have 3. Y", "ou "),
        ("A line\n", "A"),
        ("Wow![nod", "] "),
        ("It is late. ", "["),
    ],
)
def test_a_boundary_is_given_at_the_first_character_that_decides_it(before: str, decisive: str) -> None:
    text = before + decisive
    segmenter = Segmenter()
    given = [len(segmenter.add(chunk(char, at))) for at, char in enumerate(text)]
    assert given == [0] * (len(text) - 1) + [1]


def test_waiting_costs_little() -> None:
    waits = []
    for _, line in corpus():
        text = line.replace("‖", "")
        segmenter = Segmenter(first_clause_chars=None)
        for at, char in enumerate(text):
            for phrase in segmenter.add(chunk(char, at)):
                waits.append(at + 1 - phrase.chars.end)
    assert sum(waits) / len(waits) < 1.75
    assert max(waits) <= 24


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["a", " ", ".", "\n", "[", "`", ', "', "a. ", "Dr. ", "[a]", "[a ", '."[', "1 ", "](", "的"]
)
def test_work_is_linear_and_the_window_bounded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size, options = 20_000, {"max_chars": 120}
    windows: list[int] = []
    rules = ("stop", "newline", "bracket", "clause", "backticks", "word_break")
    for owner, name in (*((segment_module, rule) for rule in rules), (Stretch, "length_break")):
        honest = getattr(owner, name)

        def counted(window: Any, *rest: Any, honest: Any = honest, **options: Any) -> Any:
            windows.append(len(window.text if isinstance(window, Stretch) else window))
            return honest(window, *rest, **options)

        monkeypatch.setattr(owner, name, counted)
    reply = (text * size)[:size]
    phrases = cut(reply, range(1, size), **options)
    assert "".join(phrase.text for phrase in phrases) == reply
    assert len(windows) < 3 * size
    assert max(windows) <= 120 + LOOK_BACK + 1


def places(phrases: Sequence[Phrase], text: str) -> set[int]:
    """Where phrases end, white space behind them included."""
    ends = [phrase.chars.end for phrase in phrases]
    return {end + len(text[end:]) - len(text[end:].lstrip()) for end in ends}


@pytest.mark.parametrize("right", [1.0, 0.5])
def test_drafted_text_decides_as_the_real_text_does_or_cuts_where_a_deadline_could(right: float) -> None:
    """Cut with a look at drafted text, which is what really comes with probability ``right``."""
    rng = random.Random(5)
    sooner = wrong = 0
    replies = [marked.replace("‖", "") for _, marked in corpus()]
    for _ in range(250):
        text = rng.choice(replies)[:200] if rng.random() < 0.5 else "".join(rng.choices(SOUP, k=20))
        segmenter, found, at = Segmenter(), list[Phrase](), 0
        whole = places(cut(text), text)
        while at < len(text):
            size = rng.randint(1, 9)
            found += segmenter.add(chunk(text[at : at + size], at))
            at += size
            ahead = text[at : at + 20] if rng.random() < right else "".join(rng.choices(SOUP, k=3))
            late = segmenter.fork()
            decided = segmenter.look(ahead)
            for phrase in decided[:1]:
                sooner += 1
                late.revoke(phrase.chars.end)
                again = late.add(chunk("", phrase.chars.end))  # looks for directions and code again
                assert [p.chars for p in (*again, *late.flush())] == [phrase.chars]
            found += decided
        found += segmenter.close()
        assert "".join(phrase.text for phrase in found) == text
        wrong += len(places(found, text) - whole)
        if right == 1.0:
            assert places(found, text) == whole
    assert sooner > 50
    assert (wrong == 0) == (right == 1.0)
