"""What is learnt of a story's people and places, and what is left alone."""

import pytest

from specstream_adapters.prompt.bible import Bible


@pytest.mark.parametrize(
    ("sentence", "subject"),
    [
        ("A brave little fox named Rusty lived in a cave.", "a brave little fox named Rusty"),
        ("This is Mara, a lighthouse keeper, waiting on a pier.", "Mara, a lighthouse keeper"),
        ("Once there was a shy baker called Anselm.", "a shy baker called Anselm"),
        ("Captain Ilya Voss floats in the dark.", "Captain Ilya Voss"),
        ("One evening he walked with Mr. Enfield.", "Mr. Enfield"),
        ("In July, a storm came, and the boats stayed.", ""),
        ("Yesterday, a letter arrived, and nobody spoke.", ""),
        ("Suddenly, a bird sang, and it was light.", ""),
        ("They flew to New York.", ""),
        ("Red lights blink.", ""),
        ("Ein kleiner Bär wandert durch den Wald.", ""),
    ],
)
def test_a_subject_is_learnt_where_it_is_introduced(sentence: str, subject: str) -> None:
    assert Bible().read(sentence).subject == subject


def test_a_pronoun_at_the_beginning_becomes_the_name_and_others_stay() -> None:
    bible = Bible()
    bible.read("A girl named Ana sang.")
    assert bible.read("She smiled at her cat.").text == "Ana smiled at her cat."
    assert bible.read("“She is late.”").text == "“Ana is late.”"
    assert bible.read("Then she left.").text == "Then she left."
    assert bible.read("Then she left.").subject == "a girl named Ana"


def test_a_first_name_stands_for_the_whole_one() -> None:
    bible = Bible()
    bible.read("Captain Ilya Voss sleeps.")
    assert bible.read("Ilya wakes up.").subject == "Captain Ilya Voss"


@pytest.mark.parametrize(
    ("sentence", "place"),
    [
        ("He slept in a cave.", "in a cave"),
        ("A horse waits behind an old stone barn, unseen.", "behind an old stone barn"),
        ("They met in the old library.", "in the old library"),
        ("He put it on the counter.", ""),
        ("She came in a hurry.", ""),
        ("It turned in the dark.", ""),
    ],
)
def test_a_place_is_a_short_phrase_that_ends_a_clause(sentence: str, place: str) -> None:
    assert Bible().read(sentence).place == place


def test_a_place_holds_until_another_is_named() -> None:
    bible = Bible()
    bible.read("He slept in a cave.")
    seen = bible.read("He woke up.")
    assert (seen.place, seen.new_place) == ("in a cave", False)
    seen = bible.read("He stood on a hill.")
    assert (seen.place, seen.new_place) == ("on a hill", True)


def test_what_is_remembered_is_bounded() -> None:
    bible = Bible()
    for number in range(100):
        bible.read(f"A girl named Ana{number}x sang.")
    assert len(bible.subjects) == 32
    assert "Ana99x" in bible.subjects
