"""Word error rate against counts made by hand."""

import pytest

from specstream.bench.questions import WordErrors, plain_words


@pytest.mark.parametrize(
    ("said", "understood", "errors"),
    [
        ("the cat sat", "the cat sat", 0),
        ("The cat sat.", "the CAT, sat", 0),
        ("the cat sat", "a cat sat down", 2),
        ("the cat sat", "", 3),
        ("", "hello", 1),
        ("one two three four", "two three four one", 2),
        ("seven of them", "7 of them", 0),
        ("don't", "dont", 0),
    ],
)
def test_errors_are_substitutions_insertions_and_deletions(
    said: str, understood: str, errors: int
) -> None:
    if any(char.isdigit() for char in understood):
        pytest.importorskip("normt2s")
    counted = WordErrors()
    counted.add(said, understood)
    assert counted.errors == errors
    assert counted.words == len(plain_words(said))


def test_the_rate_is_over_all_utterances() -> None:
    counted = WordErrors()
    assert counted.rate == 0
    counted.add("a b c d", "a b c")
    counted.add("e f g h", "e f g h")
    assert counted.to_dict() == {"words": 8, "errors": 1, "rate": 0.125}
