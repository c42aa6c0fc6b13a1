"""How many prompts are usable on prose that the rules were made with, and on prose they were not."""

import pytest

from specstream_adapters.prompt import TemplateRewriter
from specstream_adapters.prompt.visible import narration, open_quote, sight
from tests.adapters.prose import figures, judge, read, shown

FILES = ("tuning", "unseen", "heldout", "fresh", "tuning_de_es", "unseen_de_es")


@pytest.mark.parametrize("name", FILES)
async def test_the_share_of_usable_prompts(name: str) -> None:
    verdicts = [await judge(piece, TemplateRewriter()) for piece in read(f"{name}.txt")]
    found = figures(verdicts)
    assert found["usable"] >= 0.83, [v.faults for v in verdicts]
    assert found["visible sentences told"] >= 0.94


async def test_the_first_usable_prompt_comes_before_30_percent_of_the_text() -> None:
    """Where the text shows something by then."""
    counted = 0
    for name in FILES:
        for piece in read(f"{name}.txt"):
            verdict = await judge(piece, TemplateRewriter())
            if verdict.visible and verdict.visible[0].span.end <= 0.3 * len(piece.text):
                counted += 1
                assert verdict.first_at <= 0.3, piece.title
    assert counted >= 28


async def test_no_shot_tells_of_nothing_but_speech() -> None:
    for name in FILES:
        for piece in read(f"{name}.txt"):
            for shot in (await judge(piece, TemplateRewriter())).shots:
                assert [line for line in shown(shot, piece) if line.label != "S"], shot.prompt


@pytest.mark.parametrize("language", ["de", "es"])
async def test_german_and_spanish_are_not_worse_than_the_sentence_itself(language: str) -> None:
    """Of what a sentence by itself would do as a prompt nothing is lost, and more is usable."""
    pieces = [p for name in FILES for p in read(f"{name}.txt") if p.title.startswith(language)]
    usable = shots = alone = lines = 0
    for piece in pieces:
        verdict = await judge(piece, TemplateRewriter())
        usable, shots = usable + verdict.usable, shots + len(verdict.shots)
        good = [line for line in piece.lines if line.label in "VM" and not line.needs]
        alone, lines = alone + len(good), lines + len(piece.lines)
        sound = [shot for shot in verdict.shots if not verdict.faults[shot.shot_id]]
        told = {line for shot in sound for line in shown(shot, piece)}
        assert {*good} <= told, [line.text for line in good if line not in told]
    assert len(pieces) >= 4
    assert usable / shots > alone / lines


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
        ('"Come out," a voice said, and a light swept over the wall.', "A light swept over the wall."),
        ('"Stop!" Paul shouted and ran across the street.', "Paul ran across the street."),
        ('"No," the guard said and lifted his lantern.', "The guard lifted his lantern."),
        (
            '"Fire!" the sergeant shouted and smoke rose over the harbour.',
            "Smoke rose over the harbour.",
        ),
        ('"Fine," said the family softly and went back home.', "The family went back home."),
        ('"Go," said Lily and Mary, and walked off.', "Lily and Mary walked off."),
        ('"Come in," said the old gardener. He swept', "He swept."),
        ("‘I don’t know,’ said the boy, and he put down his cup.", "He put down his cup."),
        ("'Come here,' said the old wizard and raised his staff.", "The old wizard raised his staff."),
        ("‚Komm!‘ rief er, und der Hund lief los.", "Der Hund lief los."),
        ("‘Twas a dark night. A wolf ran by.", "‘Twas a dark night. A wolf ran by."),
        ("The boy's dog and the dogs' owner ran home.", "The boy's dog and the dogs' owner ran home."),
        ("“Hold your noise!” cried a voice, as a man rose.", "A man rose."),
        ("He flung down his brush, said “Bother!” and “O blow!” and ran.", "He flung down his brush."),
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
        ("Smoke curled from the little can.", "en", True),
        ("The dog in the yard may bark.", "en", False),
        ("He had never thought of that.", "en", False),
        ("Would you like a slice of bread?", "en", False),
        ("There is no dog in the yard.", "en", False),
        ("Ein Hund schläft unter dem Tisch.", "de", True),
        ("Es war kein Traum.", "de", False),
        ("少女在雪地里行走。", "", True),
    ],
)
def test_what_can_be_seen(text: str, language: str, shows: bool) -> None:
    assert (sight(text, language) > 1) is shows


@pytest.mark.parametrize("text", ["They stared at her.", "They ran as fast as they could."])
def test_what_somebody_known_does_can_be_seen(text: str) -> None:
    assert sight(text, "en") == 1
    assert sight(text, "en", frozenset(["They"])) > 1
