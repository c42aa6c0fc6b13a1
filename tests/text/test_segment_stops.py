"""What opens a sentence behind a number that may be a German ordinal, and behind an abbreviation."""

import pytest

from specstream.text.marks import SPOKEN, WORDS, StopReading, stop_after
from specstream.text.segmenter import Segmenter
from specstream.types import Chunk, Span


@pytest.mark.parametrize(
    "marked",
    [
        "Das Fest ist am 14. ‖Passt das?",
        "Sie kommt am 5. ‖Ruf mich an.",
        "Sie kommt am 5. ‖Backst du einen Kuchen?",
        "Wir sind die 3. ‖Wäre das gut?",
        "Der Termin ist am 2. ‖Welche Uhrzeit passt?",
        "Mein Buch ist das 1. ‖Deins ist das 2.",
        "Vi kommer den 3. ‖Det bliver godt.",
        "C'est l'un des 3. ‖Il est parti.",
        "Das 1. Los, der 2. See und der 3. Start.",
        "Geb. 1980, gest. 2020 bei der Fa. Müller. ‖Gut.",
        "Im 2. Stock das Zimmer ist frei.",
        "Am 3. Tag kam sie.",
        "Der Zug hat 10 Min. Verspätung. ‖Warte 5 Min. ‖Danach fährt er.",
        "Sie zahlen max. $20 am Tag.",
        "Take Pennsylvania Ave. NW there.",
    ],
)
def test_a_sentence_after_an_ordinal_begins_with_a_word_that_is_no_noun(marked: str) -> None:
    text = marked.replace("‖", "")
    segmenter = Segmenter(first_clause_chars=None)
    phrases = segmenter.add(Chunk(text, (), Span(0, 0), Span(0, len(text)))) + segmenter.close()
    assert "‖".join(phrase.text for phrase in phrases) == marked


@pytest.mark.parametrize("language", ["en", "de"])
def test_what_is_said_for_an_abbreviation_is_known_where_sentences_end(language: str) -> None:
    for kind, said in SPOKEN[language].items():
        for short in said:
            joined = short.replace(" ", "")
            opener = joined.lower() in WORDS["sentence_openers"]  # "So." is rarely a Sunday
            assert opener or stop_after(joined) is not StopReading.PLAIN, (kind, short)


@pytest.mark.parametrize("language", ["en", "de"])
def test_no_abbreviation_of_the_library_is_missing_in_the_list(language: str) -> None:
    normt2s = pytest.importorskip("normt2s")
    listed = {f"{short}." for said in SPOKEN[language].values() for short in said}
    theirs = {key for key in normt2s.Normalizer(language).lexicon.abbreviations if key[-1] == "."}
    assert theirs <= listed
