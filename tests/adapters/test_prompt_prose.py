"""How many prompts are usable on prose that the rules were made with, and on prose they were not."""

import pytest

from specstream_adapters.prompt import TemplateRewriter
from specstream_adapters.prompt.speech import narration, open_quote
from specstream_adapters.prompt.visible import sight
from tests.adapters.prose import figures, judge, read


@pytest.mark.parametrize(
    "name", ["tuning", "unseen", "heldout", "fresh", "tuning_de_es", "unseen_de_es"]
)
async def test_the_share_of_usable_prompts(name: str) -> None:
    verdicts = [await judge(piece, TemplateRewriter()) for piece in read(f"{name}.txt")]
    found = figures(verdicts)
    assert found["usable"] >= 0.83, [v.faults for v in verdicts]
    assert found["visible sentences told"] >= 0.95
    for verdict in verdicts:  # the first usable prompt comes as soon as the text shows something
        if verdict.visible:
            seen = verdict.visible[0].span.end / len(verdict.piece.text)
            assert verdict.first_at <= 0.3 or seen > 0.3, verdict.piece.title


async def test_the_sentences_alone_are_worse() -> None:
    """The judgement can tell: with every sentence a shot, far fewer are usable."""
    for name in ("unseen.txt", "unseen_de_es.txt"):
        lines = [line for piece in read(name) for line in piece.lines]
        alone = sum(line.label in "VM" and not line.needs for line in lines) / len(lines)
        assert alone < 0.6


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("“My dear,” said his lady, “have you heard?”", ""),
        (
            '"Come out," a voice said, and a light swept over the wall.',
            "A light swept over the wall.",
        ),
        ("“Hold your noise!” cried a voice, as a man rose.", "A man rose."),
        (
            "He flung down his brush, said “Bother!” and “O blow!” and ran.",
            "He flung down his brush and ran.",
        ),
        ("It is known as a “Penang lawyer.”", "It is known as a “Penang lawyer.”"),
        ("„Guten Tag“, sprach er.", ""),
        ("—¿Quién es? —preguntó ella.", ""),
        ("Christmas Eve—old Scrooge sat busy.", "Christmas Eve—old Scrooge sat busy."),
        ("“And so it went on", ""),
    ],
)
def test_what_a_sentence_tells_without_quoted_speech(text: str, told: str) -> None:
    assert narration(text) == told


def test_a_quotation_is_open_until_its_own_mark_closes_it() -> None:
    for text in ("“Stop", "„Halt", "«Alto", '"Stop', "„Ja“ und „nein"):
        assert open_quote(text)
    for text in ("“Stop.”", "„Halt.“", "«Alto.»", '"Stop."', "„Ja“ und „nein“", "Don’t"):
        assert not open_quote(text)


@pytest.mark.parametrize(
    ("text", "language", "shows"),
    [
        ("A small girl stands on the stairs.", "en", True),
        ("Rain ran down the windows.", "en", True),
        ("He had never thought of that.", "en", False),
        ("Would you like a slice of bread?", "en", False),
        ("There is no dog in the yard.", "en", False),
        ("Ein Hund schläft unter dem Tisch.", "de", True),
        ("Es war kein Traum.", "de", False),
        ("少女在雪地里行走。", "", True),
    ],
)
def test_what_can_be_seen(text: str, language: str, shows: bool) -> None:
    assert (sight(text, language).weight > 1) is shows
