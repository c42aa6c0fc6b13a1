"""Numbers, dates, money and other written forms in words, and what each word stands for."""

import logging
import random
import re
import sys
from collections.abc import Iterator

import pytest

from specstream.errors import ConfigError
from specstream.stages.interfaces import VoiceCapabilities
from specstream.stages.stages import VoiceStage
from specstream.text.rules import Edit, Mapped
from specstream.text.segmenter import Segmenter
from specstream.text.spoken import LINE_START, Readout
from specstream.text.wording import Wording, wording_for
from specstream.types import Chunk, Phrase, Span, Speech, Tag
from tests.support.standins import ToneVoice, feed
from tests.text.spoken_forms import ENGLISH, forms, phrase, plain, said, words

pytestmark = pytest.mark.slow

pytest.importorskip("normt2s")


# --- what is said -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "language", "least"),
    [("spoken_en.txt", "en-us", 0.99), ("spoken_de.txt", "de", 0.99), ("spoken_new.txt", "en", 0.8)],
)
def test_written_forms_are_read_as_people_read_them(name: str, language: str, least: float) -> None:
    all_forms = forms(name)
    wrong = [f.written for f in all_forms if plain(said(f.written, language)) not in f.accepted]
    assert len(wrong) <= (1 - least) * len(all_forms), wrong


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("The run took 1h 30m.", "The run took one hour thirty minutes."),
        ("2h15m 30s in all", "two hours fifteen minutes thirty seconds in all"),
        ("It is 24h 10 m away.", "It is twenty-four hours ten meters away."),
        ("Born in the 30s, a 30m wall.", "Born in the thirties, a thirty meter wall."),
        ("So 10 – 3 = 7 here.", "So ten minus three equals seven here."),
        ("Pages 10 – 30 here.", "Pages ten to thirty here."),
    ],
)
def test_spans_of_time_and_sums_with_dashes(written: str, heard: str) -> None:
    assert said(written) == heard


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("Wait 30s. It took 2.5s.", "Wait thirty seconds. It took two point five seconds."),
        (
            "In her 30s, in the 80s, in 80s style.",
            "In her thirties, in the eighties, in eighties style.",
        ),
        ("Boeing 747s in 1s.", "Boeing seven hundred forty-sevens in one second."),
        (
            "A fleet of 747s, a pair of 20s.",
            "A fleet of seven hundred forty-sevens, a pair of twenties.",
        ),
        ("In 90s Japan, hits of 80s radio.", "In nineties Japan, hits of eighties radio."),
        (
            "30s left, back in 45s or after 5s.",
            "thirty seconds left, back in forty-five seconds or after five seconds.",
        ),
        ("ISBN 0-306-40615-2", "ISBN zero, three zero six, four zero six one five, two"),
        ("Call 0044 20 794 now.", "Call zero zero four four, two zero, seven nine four now."),
        ("Version v2 or v3.1", "version two or version three point one"),
        ("At 12 Elm Dr. in Rye.", "At twelve Elm Drive in Rye."),
        ("Dr. Elm is at 7 Oak Hill Dr.", "Doctor Elm is at seven Oak Hill Drive."),
        ("He is 6' 2\" tall.", "He is six foot two tall."),
        ("(>50%) or ≤7 but a <- b", "(more than fifty percent) or at most seven but a <- b"),
    ],
)
def test_seconds_books_streets_and_comparisons(written: str, heard: str) -> None:
    assert said(written) == heard


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("ab 5. Mai, bis 3. Juni", "ab fünftem Mai, bis dritten Juni"),
        ("vom 1. bis 3. Mai", "vom ersten bis dritten Mai"),
        ("1/2 Liter und 1/2 Stunde", "ein halber Liter und eine halbe Stunde"),
        ("mit 1/2 TL, 1/2 Kilo", "mit einem halben Teelöffel, ein halbes Kilo"),
        ("Es kostet EUR 50.", "Es kostet fünfzig Euro."),
        ("$5 und 5$ im Monat", "fünf Dollar und fünf Dollar im Monat"),
        ("Hauptstr. 12, in der Hauptstr.", "Hauptstraße zwölf, in der Hauptstraße."),
        (">100 oder <5 %", "über einhundert oder unter fünf Prozent"),
        ("PIN 0815, PLZ 10115", "PIN null acht eins fünf, PLZ eins null eins eins fünf"),
        ("Saison 2024/25", "Saison zweitausendvierundzwanzig fünfundzwanzig"),
        (
            "DE89 3704 0044 0532",
            "DE acht neun, drei sieben null vier, null null vier vier, null fünf drei zwei",
        ),
    ],
)
def test_german_dates_halves_amounts_and_codes(written: str, heard: str) -> None:
    assert said(written, "de") == heard


def test_there_are_many_forms_and_the_library_alone_reads_fewer() -> None:
    import normt2s

    english, german = forms("spoken_en.txt"), forms("spoken_de.txt")
    assert len(english) >= 80 and len(german) >= 20 and len(forms("spoken_new.txt")) >= 30
    alone = sum(plain(normt2s.normalize(f.written)) in f.accepted for f in english)
    assert alone < 0.7 * len(english)  # else our table can go


@pytest.mark.parametrize(
    "text",
    [
        "Hello there, how are you?",
        "I think that Malcolm X and I agree - mostly.",
        "He said: \u201cI'd rather not!\u201d (But why?)",
        "The mix of US and UK teams, in May or in March.",
    ],
)
def test_plain_prose_is_left_alone(text: str) -> None:
    assert ENGLISH.read(phrase(text)).phrase == phrase(text)


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        (r"So $x = 5$ and $y^2$ is 4.", "So x equals five and y squared is four."),
        ("It costs $5, not 6$.", "It costs five dollars, not six dollars."),
        ("An F-16, not U-235.", "An F sixteen, not uranium two hundred thirty-five."),
        ("CO₂ is 10⁻³.", "C O two is ten to the power of minus three."),
        ("5-3=2, in 1-on-1 talks.", "five minus three equals two, in one-on-one talks."),
        ("He lives at 12 Main St.", "He lives at twelve Main Street."),
        ("A 3-year-old, 5G and x86_64.", "A three-year-old, five G and x86_64."),
        ("１２ or ५ of them", "twelve or five of them"),
        ("(-3, 4) and ages 3-5-7", "(minus three, four) and ages three-five-seven"),
        ("See [the docs][1]: 0x1F, 4x4.", "See the docs: zero X one F, four by four."),
        ("At 2024-05-01T10:30:05+02:00.", "At May first, twenty twenty-four, ten thirty and five"
         " seconds UTC plus two."),
        ("½ tsp, 2½ tbsp. of it, 1 lb.", "one half teaspoon, two and a half tablespoons of it, one"
         " pound."),
        ("Is it 10:30 or 10:3?", "Is it ten thirty or ten to three?"),
    ],
)  # fmt: skip
def test_traps(written: str, heard: str) -> None:
    assert said(written) == heard


def test_a_date_in_figures_follows_the_region() -> None:
    assert "March fourth" in said("On 3/4/2025.", "en-us")
    assert "April third" in said("On 3/4/2025.", "en-GB")
    assert "March thirteenth" in said("On 3/13/2025.", "en_GB")
    assert said("On 77/99/2025.", "en-us").startswith("On ")
    assert "On February first, twenty twenty-four" in said("On 1.2.2024.", "en-us")
    assert "point" in said("At 10.5.10.200.", "en-us")


def test_a_sentence_keeps_its_full_stop() -> None:
    assert said("We close at 6 p.m. ") == "We close at six p m. "
    assert said("Tea, coffee, etc.") == "Tea, coffee, et cetera."


# --- what it stands for -------------------------------------------------------------------------


def test_every_word_of_a_form_stands_for_the_form() -> None:
    assert words("It is $5.50 and $6.50 now.") == [
        ("It", "It"), ("is", "is"),
        *((word, "$5.50") for word in ("five", "dollars", "and", "fifty", "cents")),
        ("and", "and"),
        *((word, "$6.50") for word in ("six", "dollars", "and", "fifty", "cents")),
        ("now", "now"),
    ]  # fmt: skip


def test_digits_that_are_said_one_by_one_stand_each_for_itself() -> None:
    spoken = words("Call (555) 123-4567, or the card ending in 4242.")
    digits = "five five five one two three four five six seven".split()
    assert spoken[1:11] == list(zip(digits, "5551234567", strict=True))
    assert spoken[-4:] == [("four", "4"), ("two", "2"), ("four", "4"), ("two", "2")]


def test_parts_of_an_address_stand_for_themselves() -> None:
    assert words("Write to jo@my-site.org.")[2:] == [
        ("J", "jo"), ("O", "jo"), ("at", "@"), ("my", "my"), ("dash", "-"), ("site", "site"),
        ("dot", "."), ("org", "org"),
    ]  # fmt: skip


def test_markdown_and_forms_map_to_what_was_written() -> None:
    assert words("It **costs $5** [here](u), 2–3 *kg*.") == [
        ("It", "It"), ("costs", "costs"), ("five", "$5"), ("dollars", "$5"), ("here", "here"),
        ("two", "2"), ("to", "–"), ("three", "3 *kg"), ("kilograms", "3 *kg"),
    ]  # fmt: skip


def test_a_tag_inside_moves_along() -> None:
    text = "It costs $5 [smile] or 3 kg."
    read = ENGLISH.read(phrase(text, 7, (Tag("smile", Span(19, 26)),)))
    assert read.phrase.text == "It costs five dollars [smile] or three kilograms."
    assert read.phrase.tags == (Tag("smile", Span(29, 36)),)
    assert read.written(Span(29, 36)) == (19, 26)
    assert read.phrase.spoken == "It costs five dollars         or three kilograms."


def test_mapped_text_composes() -> None:
    once = Mapped("ab 12 c").edited([Edit(3, 5, "one two")])
    twice = once.edited([Edit(0, 2), Edit(3, 6, "1")])
    assert (twice.text, twice.written(0, 1), twice.written(1, 2)) == (" 1 two c", (2, 3), (3, 5))
    assert once.edited([]) is once


# --- streaming ----------------------------------------------------------------------------------

BITS = [
    *(form.written + " " for form in forms("spoken_en.txt")), "[smile] ", "**bold 5** ", "\n",
    "- item 3\n", "Well, so. ", "`x = 1.5` ", "and 3/4 of ", "$1,2", "(555", "..5.", "1/", "°C ",
    "IV", "@", "#", "Dr. ", "p.m. ", "№ ", "１２ ", "५ ", "\u00a0", "1e9 ", "9" * 30 + " ",
]  # fmt: skip


def phrases_in(text: str, cuts: Iterator[int] | list[int]) -> list[Phrase]:
    segmenter, edges = Segmenter(), [0, *cuts, len(text)]
    made: list[Phrase] = []
    for start, end in zip(edges, edges[1:]):
        made += segmenter.add(Chunk(text[start:end], (), Span(0, 0), Span(start, end)))
    return [*made, *segmenter.close()]


def read_all(phrases: list[Phrase], readout: Readout = ENGLISH) -> list[tuple[str, Span]]:
    """Every spoken word and where it is written; checks that the places never go back."""
    place, heard, last = LINE_START, list[tuple[str, Span]](), 0
    for one in phrases:
        reading = readout.read(one, place)
        place, origin = reading.place, reading.phrase.chars.start
        assert len(reading.phrase.text) == reading.phrase.chars.length
        for found in re.finditer(r"\S+", reading.phrase.spoken):
            span = reading.written(Span(origin + found.start(), origin + found.end()))
            assert one.chars.start <= span.start <= span.end <= one.chars.end
            assert span.start >= last, (one.text, found[0])
            last = span.start
            heard.append((found[0], span))
    return heard


def test_any_chunking_is_read_alike() -> None:
    rng = random.Random(5)
    for _ in range(200):
        text = "".join(rng.choices(BITS, k=rng.randrange(1, 6)))
        whole = phrases_in(text, [])
        wanted = read_all(whole)
        for number in range(10):
            cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(1, 20)))
            pieces = phrases_in(text, cuts)
            assert pieces == whole, text
            if number == 0:  # reading is a function of the phrases, whatever was read before
                assert read_all(pieces) == wanted


def test_the_hard_sentence_in_every_chunking() -> None:
    text = "Dr. Smith paid $1,234.56 on 3/4/2025 at 5:30 p.m."
    whole = phrases_in(text, [])
    assert " ".join(word for word, _ in read_all(whole)) == (
        "Doctor Smith paid one thousand two hundred thirty-four dollars and fifty-six cents on"
        " March fourth, twenty twenty-five at five thirty p m."
    )
    for size in range(1, len(text)):
        for first in range(1, size + 1):
            assert phrases_in(text, list(range(first, len(text), size))) == whole


@pytest.mark.parametrize(
    ("name", "language"), [("spoken_en.txt", "en"), ("spoken_new.txt", "en"), ("spoken_de.txt", "de")]
)
def test_forms_are_whole_in_one_phrase_and_among_others(name: str, language: str) -> None:
    readout = Readout(language=language)
    beginnings = {
        "en": ("", "As we said before in the meeting, and so on, ", "Well. Then ", "Well, "),
        "de": ("", "Soweit ich das hier von mir aus sagen kann, ", "Ja. ", "Nun, "),
    }[language]
    for form in forms(name):
        for before in beginnings:
            text = before + form.written
            parts = [word for word, _ in read_all(phrases_in(text, []), readout)]
            assert plain(" ".join(parts)) == plain(said(text, language)), text


def test_a_phrase_that_a_deadline_cut_is_read_with_what_was_said_before_it() -> None:
    segmenter, text = Segmenter(), "It began in 1905. World War II, on August 15."
    made: list[Phrase] = []
    for at in range(len(text)):
        made += segmenter.add(Chunk(text[at], (), Span(0, 0), Span(at, at + 1)))
        if text[at].isspace():
            made += segmenter.flush()
    made += segmenter.close()
    assert any(one.text.startswith("1905") for one in made) and any("II" in p.text for p in made)
    heard = " ".join(word for word, _ in read_all(made))
    assert heard == "It began in nineteen oh five. World War two, on August fifteenth."


# --- the stage ----------------------------------------------------------------------------------


class Speaker(ToneVoice):
    """A voice with a language."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self.language = language

    @property
    def capabilities(self) -> VoiceCapabilities:
        return VoiceCapabilities("speaker", 8000, words=True, language=self.language)


async def marks(voice: ToneVoice, text: str, readout: Readout = Readout()) -> list[tuple[str, str]]:  # noqa: B008
    speech = await feed(VoiceStage(voice, readout), [phrase(text)])
    found = [mark for piece in speech if isinstance(piece, Speech) for mark in piece.marks]
    return [(mark.text, text[slice(*mark.chars)]) for mark in found if mark.kind == "word"]


async def test_a_voice_is_given_words_of_its_language() -> None:
    assert await marks(Speaker("en-us"), "Pay $5.") == [
        ("Pay", "Pay"), ("five", "$5"), ("dollars.", "$5."),
    ]  # fmt: skip
    assert [word for word, _ in await marks(Speaker("de"), "Es kostet 5 €.")][2:] == ["fünf", "Euro."]
    spoken = await marks(Speaker("de"), "Pay $5.", Readout(language="en"))
    assert [word for word, _ in spoken] == ["Pay", "five", "dollars."]


@pytest.mark.parametrize("language", ["", "fr", "xx-yy", "klingon"])
async def test_a_language_without_words_of_ours_is_left_to_the_voice(language: str) -> None:
    assert await marks(Speaker(language), "Pay $5.50.") == [("Pay", "Pay"), ("$5.50.", "$5.50.")]


def test_a_language_is_a_tag() -> None:
    with pytest.raises(ConfigError, match="language"):
        Readout(language=5)  # type: ignore[arg-type]


# --- what can go wrong --------------------------------------------------------------------------


def test_a_library_that_breaks_costs_no_phrase(caplog: pytest.LogCaptureFixture) -> None:
    def broken(text: str) -> str:
        raise ZeroDivisionError(text)

    made = Wording(broken)
    with caplog.at_level(logging.WARNING):
        assert [made.read(Mapped(text)).text for text in ("It is 5.", "Or 6.")] == ["It is 5.", "Or 6."]
    assert len(caplog.records) == 1 and "ZeroDivisionError" in caplog.text


def test_a_library_whose_words_can_not_be_placed_still_maps_inside() -> None:
    made = Wording(lambda text: text.upper()[::-1] if " " in text else text)
    read = made.read(Mapped("one 2 three"))
    assert read.text == "EERHT 2 ENO"
    assert all(0 <= span.start < span.end <= 11 for span in read.sources)


def test_without_the_library_forms_are_left_to_the_voice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "normt2s", None)
    wording_for.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert said("It is $5.") == said("It is $5.") == "It is $5."
        assert len(caplog.records) == 1 and "normt2s" in caplog.text
    finally:
        wording_for.cache_clear()


@pytest.mark.parametrize("language", ["en", "de"])
def test_odd_text_is_read_in_linear_time(language: str) -> None:
    for odd in (
        "1 ",
        "$",
        "5.",
        "a.b",
        "1/2 ",
        "3-",
        "IV ",
        "(555) ",
        "@a",
        "p.m. ",
        "0",
        "½",
        "_1",
        "Mon ",
        "Mo - ",
        "1. und ",
        "am 3. ",
        "Karl V. ",
        "1 Ei ",
        "0x",
        "1e5",
        "2⅓",
        "2024-05-01T",
        "1-800-A",
        "May 5 ",
        "5 - ",
        "5 x ",
        "$5-",
        "5 kg-",
        "Elm Dr. ",
        "737-8",
        "no. ",
        "9/30-",
        "Otto der II. ",
    ):
        read = Readout(language=language).read(phrase(odd * 3000))
        assert read.phrase.chars.length == len(read.phrase.text)


@pytest.mark.parametrize("language", ["en", "de"])
def test_no_character_breaks_the_reading(caplog: pytest.LogCaptureFixture, language: str) -> None:
    rng = random.Random(9)
    alphabet = "0123456789.,:/-–$€%°'\"()[]{}@#&*_~^=+<> \n\u00a0½⅔²IVXLC ap.m.kgDram1T\ud7ff\u200d१"
    with caplog.at_level(logging.WARNING):
        for _ in range(600):
            text = "".join(rng.choices(alphabet, k=rng.randrange(1, 60)))
            read_all([phrase(text)], Readout(language=language))
    assert not caplog.records


def test_pieces_of_a_long_text_are_all_read() -> None:
    text = "It is 5 km. " * 200
    assert said(text) == "It is five kilometers. " * 200
    assert said("") == ""
