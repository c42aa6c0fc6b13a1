"""German forms whose words depend on the words around them."""

import pytest

from specstream.text.spoken import Readout
from tests.text.spoken_forms import said, words

pytest.importorskip("normt2s")

GERMAN = Readout(language="de")


def test_german_decades_and_products() -> None:
    assert said("Die 1990er.", "de") == "Die neunzehnhundert neunziger."
    assert said("Ein Feld von 3x4 m.", "de") == "Ein Feld von drei mal vier Meter."


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("10 – 3 = 7", "zehn minus drei gleich sieben"),
        ("Also 8-3=5.", "Also acht minus drei gleich fünf."),
        ("Seite 8-30.", "Seite acht bis dreißig."),
        ("Es steht 50/50.", "Es steht fünfzig fünfzig."),
        ("Das dauert 2h 30m.", "Das dauert zwei Stunden dreißig Minuten."),
        ("1 Frau und 1 Mann.", "eine Frau und ein Mann."),
        ("Nur 1 Stadt und 1 Tochter.", "Nur eine Stadt und eine Tochter."),
        ("1 Gesicht, 1 Start.", "ein Gesicht, ein Start."),
    ],
)
def test_german_sums_halves_times_and_feminine_nouns(written: str, heard: str) -> None:
    assert said(written, "de") == heard


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
        ("Der Zug steht ab 12:30 am Tor.", "Der Zug steht ab zwölf Uhr dreißig am Tor."),
        ("Der Doktor kommt 14:30.", "Der Doktor kommt vierzehn Uhr dreißig."),
        ("Das Spiel endet um 17:00.", "Das Spiel endet um siebzehn Uhr."),
        ("Noch 1 Sekunde, 1 Adresse, 1 Rechnung.", "Noch eine Sekunde, eine Adresse, eine Rechnung."),
        ("In 1 Woche, mit 1 Klick.", "In einer Woche, mit einem Klick."),
        ("Punkt 1 Uhr. Heft 1 Seite 3", "Punkt ein Uhr. Heft eins Seite drei"),
        ("1. Stelle den Ofen an.", "eins. Stelle den Ofen an."),
        ("Wir feiern zum 1.000.", "Wir feiern zum eintausendsten."),
        ("Heute ist der 25.", "Heute ist der fünfundzwanzigste."),
        ("Er ist einer der 3.", "Er ist einer der drei."),
        ("Es kostet € 5 Mio.", "Es kostet fünf Millionen Euro."),
        ("Die 3. / 4. Klasse liest Kapitel 3.2.1.",
         "Die dritte und vierte Klasse liest Kapitel drei Punkt zwei Punkt eins."),
        ("Die USB-3.0-Buchse.", "Die USB-drei Punkt null-Buchse."),
        ("Ich kam um 12:30 am Tor vor Raum 5 am Ende an.",
         "Ich kam um zwölf Uhr dreißig am Tor vor Raum fünf am Ende an."),
        ("Am 01.05.24 und 1. 5. 98.", "Am ersten Mai zweitausendvierundzwanzig und erster Mai "
         "neunzehnhundertachtundneunzig."),
        ("Version 1.2.24", "Version eins Punkt zwei Punkt vierundzwanzig"),
        ("Nimm 3x täglich 2, dann 3x und 2y.", "Nimm drei mal täglich zwei, dann drei x und zwei y."),
        ("Er will 2x Pommes und 1x Cola.", "Er will zwei mal Pommes und ein mal Cola."),
        ("Ein Maßstab von 1:1000.", "Ein Maßstab von eins zu eintausend."),
        ("Bei 1 Mio. Versuchen.", "Bei einer Million Versuchen."),
        ("Er braucht 5,4 l/100 km.",
         "Er braucht fünf Komma vier Liter auf einhundert Kilometer."),
        ("Noch 1 Phase, 1 Giraffe und 1 Armee.", "Noch eine Phase, eine Giraffe und eine Armee."),
        ("Nimm Node 1.2.3.", "Nimm Node eins Punkt zwei Punkt drei."),
        ("Die IP ist 10.0.1.1 heute.", "Die IP ist zehn Punkt null Punkt eins Punkt eins heute."),
        ("Python 3.11.12", "Python drei Punkt elf Punkt zwölf"),
        ("Kapitel 3.2.10", "Kapitel drei Punkt zwei Punkt zehn"),
        ("Bis 1.5.24.", "Bis erster Mai zweitausendvierundzwanzig."),
        ("Art. 5 Abs. 1 S. 2", "Artikel fünf Absatz eins Satz zwei"),
        ("1. bis 3. Mai", "erster bis dritter Mai"),
        ("1., 2. und 3. Platz", "erster, zweiter und dritter Platz"),
        ("1. Mehl, 2. Eier", "eins. Mehl, zwei. Eier"),
        ("1. FC Köln", "erster FC Köln"),
        ("Ein Paar mit 1 oder 2 Kindern.", "Ein Paar mit eins oder zwei Kindern."),
    ],
)  # fmt: skip
def test_german_traps(written: str, heard: str) -> None:
    assert said(written, "de") == heard
