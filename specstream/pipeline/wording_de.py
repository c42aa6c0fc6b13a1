"""German rules and words that `specstream.pipeline.wording` needs in addition to the library's."""

from __future__ import annotations

from specstream.pipeline.wording_rules import (
    Vocabulary,
    address,
    each_digit,
    link,
    look_up,
    plain_digit,
    roman,
    rule,
)

__all__ = ["german"]

_SIGNS = {
    ".": "Punkt", "/": "Schrägstrich", "@": "at", "-": "minus", "_": "Unterstrich",
    ":": "Doppelpunkt", "?": "Fragezeichen", "=": "gleich", "#": "Raute", "&": "und",
}  # fmt: skip
_PHONE = (
    r"(?<![\w.,/+-])(?P<digits>(?:\+\d{1,3}[ -]?|0)\d{2,4}[ /-]\d{3,}(?:[ -]\d{2,})*)(?!\w|[.,]\d)"
)
_DECADES = {
    "20er": "zwanziger", "30er": "dreißiger", "40er": "vierziger", "50er": "fünfziger",
    "60er": "sechziger", "70er": "siebziger", "80er": "achtziger", "90er": "neunziger",
}  # fmt: skip
_CENTURIES = {
    "11": "elfhundert ", "12": "zwölfhundert ", "13": "dreizehnhundert ", "14": "vierzehnhundert ",
    "15": "fünfzehnhundert ", "16": "sechzehnhundert ", "17": "siebzehnhundert ",
    "18": "achtzehnhundert ", "19": "neunzehnhundert ",
}  # fmt: skip
_ORDINALS = (
    "nullte erste zweite dritte vierte fünfte sechste siebte achte neunte zehnte elfte zwölfte"
    " dreizehnte vierzehnte fünfzehnte sechzehnte siebzehnte achtzehnte neunzehnte zwanzigste"
).split()
_KINGS = "Ludwig|Heinrich|Karl|Friedrich|Wilhelm|Otto|Georg|Johannes|Paul|Pius|Benedikt|Franz|Leo"
_digits = each_digit("null eins zwei drei vier fünf sechs sieben acht neun", "plus")


_king = roman(lambda value: f"der {_ORDINALS[value]}")


def german(language: str) -> Vocabulary:
    """Return the vocabulary of German, which is the same for every region."""
    rules = (
        rule(r"(?![0-9])\d", plain_digit),
        rule(address("de|at|ch|com|org|net|eu"), link(_SIGNS)),
        rule(_PHONE, _digits),
        rule(r"(?<=\d)(?:\s?[–—]\s?|(?<!\d-\d)-)(?=\d+(?![\d-]*-\d))", " bis "),
        rule(r"(?<![\d,.])(?P<century>1[1-9])(?=[2-9]0er\b)", look_up(_CENTURIES, "century")),
        rule(r"(?<!\w)(?P<decade>[2-9]0er)\b", look_up(_DECADES, "decade")),
        rule(r"(?<=\d)\s?[x×]\s?(?=\d)", " mal "),
        rule(
            r"(?<![\w.,-])(?P<century>1[1-9])(?=(?!00)\d\d(?![\w,-]|\.\d))",
            look_up(_CENTURIES, "century"),
        ),
        rule(rf"\b(?:{_KINGS}) (?P<roman>X?(?:IX|IV|V?I{{1,3}}|[VX]))\.(?=\s)", _king),
        rule(r"(?<=\b1 )Std\.", "Stunde"),
        rule(r"(?<=\b1 )Min\.", "Minute"),
        rule(r"(?<=\d )Min\.(?=\s\S)", "Minuten"),
    )
    return Vocabulary(
        rules,
        abbreviations={"Str.": "Straße", "St.": "Sankt", "Nr.": "Nummer"},
        units={"Min": ("Minute", "Minuten", "f"), "Sek": ("Sekunde", "Sekunden", "f")},
    )  # fmt: skip
