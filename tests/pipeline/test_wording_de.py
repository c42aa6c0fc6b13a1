"""German forms whose words depend on the words around them."""

import pytest

from specstream.pipeline.spoken import Readout
from tests.pipeline.spoken_forms import said, words

pytest.importorskip("normt2s")

GERMAN = Readout(language="de")


def test_german_decades_and_products() -> None:
    assert said("Die 1990er.", "de") == "Die neunzehnhundert neunziger."
    assert said("Ein Feld von 3x4 m.", "de") == "Ein Feld von drei mal vier Meter."


def test_german_ordinals_stand_for_the_number_and_the_dot() -> None:
    assert words("Im 2. Quartal.", GERMAN) == [
        ("Im", "Im"), ("zweiten", "2."), ("Quartal", "Quartal"),
    ]  # fmt: skip
    assert words("Ludwig XIV. war.", GERMAN) == [
        ("Ludwig", "Ludwig"), ("der", "XIV."), ("Vierzehnte", "XIV."), ("war", "war"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("Ich bin 30. Maria auch.", "Ich bin dreißig. Maria auch."),
        ("Sie kommt am 3. Dann gehen wir.", "Sie kommt am dritten. Dann gehen wir."),
        ("Das war Ludwig XIV.", "Das war Ludwig der Vierzehnte."),
        ("Plan V ist gut, Teil II auch.", "Plan V ist gut, Teil zwei auch."),
        ("Peter X sah Karl V. und Papst Leo X", "Peter X sah Karl der Fünfte und Papst Leo der Zehnte"),
        ("1. Wasser kochen", "eins. Wasser kochen"),
        ("Es ist 1 Uhr, um 12:30 Uhr.", "Es ist ein Uhr, um zwölf Uhr dreißig."),
        ("Am 24.12.2024 kamen 1.500 Leute.", "Am vierundzwanzigsten Dezember "
         "zweitausendvierundzwanzig kamen eintausendfünfhundert Leute."),
        ("Ein Paar mit 1 oder 2 Kindern.", "Ein Paar mit eins oder zwei Kindern."),
    ],
)  # fmt: skip
def test_german_traps(written: str, heard: str) -> None:
    assert said(written, "de") == heard
