"""Marks and abbreviations: what a full stop, a quote or a bracket means in a dozen languages.

The lists are in ``words.toml``, which also has what is said for an abbreviation (`SPOKEN`). A reply may
change its language from one sentence to the next, so a full stop has no language option; words that mean
different things in two languages are distinguished by their case or left out.
"""

from __future__ import annotations

import re
import sys
import tomllib
from enum import Enum
from importlib.resources import files
from typing import Any, Literal, NamedTuple

__all__ = [
    "CLAUSE_MARKS",
    "CLOSERS",
    "DASHES",
    "END",
    "LOOK_BACK",
    "OPENERS",
    "ORDINAL_LEADS",
    "ORDINAL_OPENERS",
    "SPACE",
    "SPOKEN",
    "TIME_WORDS",
    "WIDE",
    "WIDE_CLAUSE_MARKS",
    "WORDS",
    "Decision",
    "Reason",
    "StopReading",
    "Undecided",
    "backticks",
    "bracket",
    "char_at",
    "clause",
    "end_of",
    "is_listed",
    "newline",
    "opens_line",
    "stop_after",
]

END = "\0"
LOOK_BACK = 48  # characters before a mark that a rule may look at

_LONGEST_LABEL, _LONGEST_URL = 80, 100
_LONGEST_CODE, _LONGEST_INFO = 100, 20

WIDE_CLAUSE_MARKS = "，、；："  # they need no white space after them
CLAUSE_MARKS = ",;:،؛" + WIDE_CLAUSE_MARKS
DASHES = "—–-"
CLOSERS = "\"'”’“»«›)]}）」』】〉》*_~"
OPENERS = "\"'“‘„«»‹([{（「『【〈《"

WIDE = re.compile("[\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
SPACE = re.compile(r"\s*")
_CLOSED = re.compile(f"[{re.escape(CLOSERS)}]*")
_REFERENCE = re.compile(r"\]\[\d{0,6}")  # what follows the text in [text][1] and [text][]
_TAG_NAME = re.compile(r"(?![A-Za-z]$)[^\W\d_](?:[^\W\d_]|[ -]){0,31}")
_LABEL = re.compile(r"[^\[\]\n\0]*")
_URL = re.compile(r"[^()\s\0]*")
_TICKS = re.compile("`+")
_TICKS_OR_END = re.compile("`+|[\n\0]")
_INFO = re.compile(r"[^`\n\0]*")
_LINE_LABEL = re.compile(r"[ivx]+|[^\W\d_]")
_BLOCK_LINE = re.compile(r"\s*(#{1,6}\s|```)")
_AMOUNT = re.compile(r"\d\S{0,8}(?: [^\s,;]{1,9})? ?$")  # "5 km – 10 km"
_COUNTS = re.compile(r"[\d$€£¥]")
_LINE_DRESS = re.compile(r"\[[\w -]*\]|[\s>#*_•·-]")


Reason = Literal["sentence", "clause", "deadline", "length", "end"]


class Decision(NamedTuple):
    """What a mark means.

    Attributes:
        resume: Where to search for the next mark.
        cut: Whether a phrase ends at ``resume``.
        reason: Why it does.
        whole: Whether the text from the mark to ``resume`` must not be cut.
        tag: The name of the direction, if this is one.
        fence: Whether a block of code begins or ends here.
    """

    resume: int
    cut: bool = False
    reason: Reason = "sentence"
    whole: bool = False
    tag: str | None = None
    fence: bool = False


class Undecided(Exception):
    """More text could change a decision."""


def end_of(pattern: re.Pattern[str], text: str, at: int, limit: int = sys.maxsize) -> int:
    """Where the match of ``pattern`` at ``at`` ends; ``at`` if there is none.

    Raises:
        Undecided: it ends with the text.
    """
    found = pattern.match(text, at, limit)
    end = found.end() if found else at
    if end == len(text):
        raise Undecided
    return end


def char_at(text: str, at: int) -> str:
    """Return a character; raises `Undecided` if it is still to come."""
    if at == len(text):
        raise Undecided
    return text[at]


def opens_line(text: str, at: int) -> bool:
    """Whether only white space, tags or Markdown marks stand before ``at`` on its line."""
    start = text.rfind("\n", max(0, at - LOOK_BACK), at)
    return start >= 0 and not _LINE_DRESS.sub("", text[start:at])


def newline(text: str, at: int) -> Decision:
    """Judge a line's end; a single newline before a small letter only wraps the line."""
    after = end_of(SPACE, text, at)
    follow = text[after]
    if follow == END:
        return Decision(after)
    if not follow.islower() or text.count("\n", at, after) > 1:
        return Decision(after, cut=True)
    label = end_of(_LINE_LABEL, text, after)
    item = label > after and text[label] in ".)"
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return Decision(after, cut=item or _BLOCK_LINE.match(line) is not None)


def clause(text: str, at: int, head: int) -> Decision:
    """Judge a comma, semicolon, colon or dash: whether the text before it may be spoken apart."""
    mark = text[at]
    end = end_of(_CLOSED, text, at + 1)
    after = end_of(SPACE, text, end)
    follow = text[after]
    number = text[max(0, at - 2) : at].rstrip()[-1:].isdigit()
    if mark in "–-":
        spaced = end == at + 1 and after > end and text[at - 1 : at].isspace()
    else:
        spaced = after > end or mark in WIDE_CLAUSE_MARKS or mark == "—"
    if not spaced or follow == END or "\n" in text[end:after]:
        return Decision(end)
    span = mark in DASHES and _AMOUNT.search(text[max(0, at - LOOK_BACK) : at]) is not None
    dated = mark == "," and (follow.isdigit() or follow.isupper())  # "Thu, Jan 15", "Mi., 5. Juni"
    if dated and _SHORT_DAY.search(text[max(0, at - 8) : at]):
        return Decision(end)
    if (number and follow.isdigit()) or (span and _COUNTS.match(follow)) or _inside(text[head:end]):
        return Decision(end)
    return Decision(after, cut=True, reason="clause")


def _inside(text: str) -> bool:
    """Whether a quote or a bracket is still open at the end of ``text``."""
    quotes, opened, closed = (
        sum(map(text.count, marks)) for marks in ('"“”„«»', "([{（「『【《", ")]}）」』】》")
    )
    return quotes % 2 == 1 or opened > closed


def bracket(text: str, at: int) -> Decision:
    """Judge a bracket: a direction such as ``[shake head]``, a Markdown link, or plain text."""
    label = end_of(_LABEL, text, at + 1, at + 1 + _LONGEST_LABEL)
    closed = text[label] == "]"
    reference = end_of(_REFERENCE, text, label)
    if reference > label and text[reference] == "]":
        return Decision(reference + 1, whole=True)
    if not (closed and char_at(text, label + 1) == "("):
        name = text[at + 1 : label]
        if closed and _TAG_NAME.fullmatch(name) and _may_open_tag(text, at):
            return Decision(label + 1, whole=True, tag=" ".join(name.lower().split()))
        return Decision(at + 1)
    url = end_of(_URL, text, label + 2, label + 2 + _LONGEST_URL)
    return Decision(url + 1, whole=True) if text[url] == ")" else Decision(at + 1)


def _may_open_tag(text: str, at: int) -> bool:
    """Whether a direction may open: not in ``list[index]`` or ``grid[a][bc]``; in ``[sigh][nod]``."""
    while text[at - 1 : at] == "]" and (before := text.rfind("[", 0, at)) >= 0:
        at = before
    left = text[at - 1 : at]
    return not (left.isalnum() and not WIDE.match(left)) and left not in ("\\", "_")


def backticks(text: str, at: int, *, fenced: bool) -> Decision:
    """Judge backticks: code on one line, in which no mark counts, or the edge of a block of code."""
    end = end_of(_TICKS, text, at)
    block = end - at >= 3 and opens_line(text, at)
    if fenced:
        return Decision(end, fence=block)
    if block:
        info = end_of(_INFO, text, end, end + _LONGEST_INFO)
        if text[info] != "`":
            return Decision(end, fence=True)
    limit = end + _LONGEST_CODE
    for found in _TICKS_OR_END.finditer(text, end, limit):
        if found[0] in ("\n", END):
            return Decision(end)
        if found[0] == text[at:end]:
            char_at(text, found.end())  # a longer run of backticks is another mark
            return Decision(found.end(), whole=True)
    if len(text) <= limit:
        raise Undecided
    return Decision(end)


class StopReading(Enum):
    """How a full stop after an abbreviation reads when a capital letter follows."""

    PLAIN = "no abbreviation: the sentence ends"
    BINDS = "the sentence goes on, whatever follows"
    NUMBERS = "goes on before a number, else the sentence ends"
    GOES_ON = "goes on, unless the next word opens sentences"
    MAY_END = "the sentence ends, unless the next word belongs to it"


def _read() -> dict[str, Any]:
    text = files("specstream.text").joinpath("words.toml").read_text("utf-8")
    return tomllib.loads(text)


def _said(entries: str) -> dict[str, str]:
    """What is said for each abbreviation; one without a capital may open a sentence with one."""
    pairs = [entry.split(": ") for entry in entries.replace("\n", " ").strip(" ;").split(";")]
    said = {short.strip(): words for short, words in pairs}
    return {_capital(short): _capital(words) for short, words in said.items()} | said


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _spoken(file: dict[str, Any]) -> dict[str, dict[str, dict[str, str]]]:
    spoken: dict[str, dict[str, dict[str, str]]] = {}
    for name, languages in file.items():
        if not isinstance(languages, str):
            for language in languages.keys() - {"other"}:
                spoken.setdefault(language, {})[name] = _said(languages[language])
    return spoken


def _words(name: str, entry: str | dict[str, str]) -> frozenset[str]:
    if isinstance(entry, str):
        return frozenset(entry.split())
    said = (short for kinds in SPOKEN.values() for short in kinds.get(name, ()))
    shorts = {short.lower().replace(" ", "") for short in said}
    return frozenset(shorts.union(entry.get("other", "").split()))


_FILE = _read()
SPOKEN = _spoken(_FILE)
"""What is said for abbreviations: by language, by the name of their list, and as they are written."""
WORDS = {name: _words(name, entry) for name, entry in _FILE.items()}
"""The lists by their names in the file, which says what they are for; abbreviations in small letters."""
_SHORT_DAY = re.compile(
    rf"\b(?:(?:{'|'.join(SPOKEN['en']['days'])})\.?|(?:{'|'.join(SPOKEN['de']['days'])})\.)$"
)
_VOWELS = frozenset("aeiouy")
_DATES = (WORDS["short_months"] | WORDS["days"]) - WORDS["sentence_openers"]  # "So.", "Do."
_NUMBERS = WORDS["numbers"] | WORDS["labels"]
_LISTED = frozenset(
    word for name, entry in _FILE.items() if isinstance(entry, dict) for word in WORDS[name]
)
TIME_WORDS = WORDS["time_words"].union(date for date in _DATES if len(date) > 2)  # not "Mi", "Di"
ORDINAL_LEADS = WORDS["ordinal_leads"] | frozenset(
    stem + ending for stem in WORDS["article_stems"] for ending in ("", "e", "em", "en", "er", "es")
)
ORDINAL_OPENERS = WORDS["german_openers"] | WORDS["sentence_openers"] - WORDS["not_after_ordinals"]
"""What opens a sentence in any language after "den 3." and the like."""


def is_listed(word: str) -> bool:
    """Whether a word (without its last stop and without spaces) is in one of the lists."""
    return word.lower() in _LISTED


def stop_after(word: str, *, after_number: bool = False) -> StopReading:
    """How to read a full stop after ``word`` (given without that stop, inner stops included).

    ``after_number``: "3 in." is a length, "come in." is not.
    """
    low = word.lower()
    capital = word[:1].isupper()
    if low in WORDS["binds"] or (capital and low in WORDS["titles"]):
        return StopReading.BINDS
    if (low in _NUMBERS and len(low) > 1) or low.endswith(("str", "nr")):  # "Hauptstr. 5"
        return StopReading.NUMBERS
    if (
        low in WORDS["may_end"]
        or (capital and low in _DATES)
        or (after_number and low in WORDS["units"])
    ):
        return StopReading.MAY_END
    if low in WORDS["goes_on"] or (capital and low in WORDS["names"]):
        return StopReading.GOES_ON
    return _by_shape(word)


def _by_shape(word: str) -> StopReading:
    """Judge a word that is in no table: initials, letters with stops, words without vowels."""
    letters = word.split(".")
    if len(word) == 1 and word.isalpha():
        return StopReading.GOES_ON  # an initial
    if len(letters) > 1 and all(len(part) == 1 and part.isalpha() for part in letters):
        return StopReading.BINDS if word.islower() else StopReading.GOES_ON  # "e.g", "U.S"
    consonants = word.isascii() and word.isalpha() and not _VOWELS & set(word.lower())
    if consonants and word.istitle() and 1 < len(word) <= 4 and word.lower() not in WORDS["sounds"]:
        return StopReading.GOES_ON  # "Sgt", "Bldg": too many for a table
    return StopReading.PLAIN
