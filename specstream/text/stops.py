"""Where sentences end: pure functions from a stop and the text around it to a decision.

As in `segment_marks`, `Undecided` is raised while more text could change a decision. What is waited for:

- mostly: the first character after the stop that is not white space
- after an abbreviation, an initial, a number of one or two digits, a German ordinal: the word after
  it (two after an ordinal, as the first may be a verb: "am 5. Ruf mich an")
- after a closing quote, before a capital letter: two words (``"Why?" Tom asked.``)
- where no white space follows ("over.Then"): the word that does, or a bracket's end
"""

from __future__ import annotations

import re

from specstream.text.marks import (
    CLAUSE_MARKS,
    CLOSERS,
    DASHES,
    END,
    LOOK_BACK,
    OPENERS,
    ORDINAL_LEADS,
    ORDINAL_OPENERS,
    SPACE,
    TIME_WORDS,
    WIDE,
    WORDS,
    Decision,
    StopReading,
    bracket,
    char_at,
    end_of,
    is_listed,
    opens_line,
    stop_after,
)

__all__ = ["FIRST_MARKS", "MARKS", "STOPS", "is_stop", "may_end", "stop"]

_FULL_STOPS = "。！？｡．؟۔।॥።။។։\u037e"  # they need no white space after them
STOPS = ".!?…‥" + _FULL_STOPS
MARKS = re.compile(f"[{re.escape(STOPS)};\n\\[`]")
FIRST_MARKS = re.compile(f"[{re.escape(STOPS + CLAUSE_MARKS + DASHES)} \n\\[`]")
_GREEK = re.compile("[\u0370-\u03ff\u1f00-\u1fff]")
_LONGEST_WORD = 20
_QUOTES = "\"'”’“»«›"
_BEFORE_WORD = frozenset(OPENERS + STOPS.replace(".", "") + CLAUSE_MARKS + DASHES + "/*_~`|")
_WITHIN_WORD = "'’-"
_TAIL = re.compile(f"[{re.escape(STOPS + CLOSERS)}]*")
_LETTERS = re.compile(r"[^\W\d_]*")
_JOINED_LETTERS = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_DIGITS = re.compile(r"\d*")
_WHOLE_NUMBER = re.compile(r"\d+|\d{1,3}\.\d{3}")
_DATE = re.compile(r"[0-3]?\d\.[01]?\d")  # "am 1.5.", behind what makes an ordinal
_ORDINAL_BEFORE = re.compile(r"\d\.(?:\s(?:und|oder|bis|sowie)|\s?[-–/])$")
_AFTER_A_VERB = frozenset("Sie wir du ich er es man mich mir dich dir uns euch".split())
"""What stands behind the verb that opens a sentence ("am 5. Ruf mich an"), but not behind a noun."""
_ROMAN = re.compile(r"[IVXL]{2,}|[VX]")
_ON = re.compile(  # "am So.", "Sa. und So."; else "So." is no Sunday
    r"\b(?:(?i:am|vom|zum|bis|ab)|(?:Mo|Di|Mi|Do|Fr|Sa)\.?(?: und| oder| bis|,)) $"
)
_SPACED = re.compile(r"(?<![^\W_])(?<![^\W_]\.)(?:[^\W\d_]\.\s){1,3}[^\W\d_]{1,3}$")
_STREET = re.compile(r"[^\W\d_A-Z] (?:[A-Z][a-z]+ )+Dr$|\d (?:[A-Z][a-z]+ )+Dr$")
"""A name within a sentence, which a title doesn't follow: "on Rodeo Dr."."""


def word_before(text: str, at: int) -> str:
    """The word that ends right before ``at``, inner stops, hyphens and apostrophes included."""
    start = at
    while start > max(0, at - LOOK_BACK):
        char = text[start - 1]
        inner = char in _WITHIN_WORD and start > 1 and text[start - 2].isalnum()
        if not inner and (char in _BEFORE_WORD or char.isspace()):
            break
        start -= 1
    return text[start:at]


def may_end(text: str, at: int) -> bool:
    """Whether a sentence may end with the stop at ``at``, as far as the word before it tells."""
    return stop_after(word_before(text, at)) in (StopReading.PLAIN, StopReading.MAY_END)


def is_stop(text: str, at: int) -> bool:
    """Whether the mark ends sentences: a semicolon does in Greek, where it is the question mark."""
    return text[at] in STOPS or (text[at] == ";" and _GREEK.match(text, at - 1) is not None)


def stop(text: str, at: int) -> Decision:
    """Judge a full stop, question mark, exclamation mark or ellipsis, in any script."""
    end, after = _run(text, at)
    run, follow = text[at:end], text[after]
    if follow == END:
        return Decision(end)
    if not set(run).isdisjoint(_FULL_STOPS):
        goes_on = (follow == "と" and run[-1] in CLOSERS) or (run == "．" and follow.isdigit())
        return Decision(end) if goes_on else Decision(after, cut=True)
    if after == end:
        cut = _glued(text, at, end)
    elif text.count("\n", end, after) > (1 if follow.islower() else 0):
        cut = True
    else:
        cut = _ends_sentence(text, at, run, after)
    return Decision(after, cut=True) if cut else Decision(end)


def _run(text: str, at: int) -> tuple[int, int]:
    """Return where the stops and closing marks end, and the next visible character."""
    end = at + 1
    while True:
        end = end_of(_TAIL, text, end)
        if text[end].isalnum() and text[end - 1] in "“«":
            end -= 1  # these close in German only; here one opens what follows
        after = end_of(SPACE, text, end)
        follow = text[after]
        if follow == "[" and after == end:  # a footnote's number belongs to its sentence
            inner = end_of(_DIGITS, text, end + 1)
            if inner == end + 1 or text[inner] != "]":
                return end, after
            end = inner + 1
        elif follow in ".»" and after > end:  # ". . ." and the French closing quote
            if char_at(text, after + 1).isalnum() or text[end:after] != text[end]:
                return end, after
            end = after + 1
        else:
            return end, after


def _glued(text: str, at: int, end: int) -> bool:
    """Whether a sentence ends without white space: not if it can be a name, a number or a URL."""
    follow, dots = text[end], text[at:end].strip(".…") == ""
    if follow in CLAUSE_MARKS:
        return False
    if WIDE.match(follow):
        return not (dots and (end - at > 1 or text[at] == "…" or text[at - 1].isdigit()))
    if follow == "[":
        return bracket(text, end).tag is not None and may_end(text, at)
    words = text[max(0, at - LOOK_BACK) : at].rsplit(None, 1)
    word = words[-1].lstrip("\"'“‘(*_") if words and not text[at - 1].isspace() else ""
    if (
        not (follow.isupper() and word.isalpha() and len(word) > 1)
        or (text[at] == "." and not word[-1].islower())
        or text[at:end].strip(".!?…")
        or stop_after(word) is not StopReading.PLAIN
    ):
        return False
    next_word = _word(text, end)
    then = text[end + len(next_word)]
    return (next_word[1:].islower() or len(next_word) == 1) and (then.isspace() or then in "'’,;!?")


def _ends_sentence(text: str, at: int, run: str, after: int) -> bool:
    """Whether a sentence ends at a stop that white space and then ``text[after]`` follow."""
    follow = text[after]
    closed = run[-1] in CLOSERS
    if closed and (text[at - 1] in OPENERS or follow.islower()):
        return False  # the mark itself was quoted, or the quote is only a part of the sentence
    if closed and follow.isupper() and not set(run).isdisjoint(_QUOTES):
        if _reported(text, after):
            return False
    if follow in "—–":  # a dash before a small letter goes on with the sentence
        if text[end_of(SPACE, text, after + 1)].islower():
            return False
    if "!" in run or "?" in run or ";" in run:
        return not (follow.islower() and _is_name(text, at))
    if ".." in run or "…" in run or ". ." in run:
        return not (follow.islower() or (follow.isdigit() and text[at - 1].isdigit()))
    return _dot_ends(text, at, after)


def _is_name(text: str, at: int) -> bool:
    """Whether the mark at ``at`` is part of a name within a sentence, as in "at Yahoo! in"."""
    word = word_before(text, at)
    left = at - len(word)
    return text[at] == "!" and word.istitle() and left > 1 and text[left - 2].isalnum()


def _reported(text: str, at: int) -> bool:
    """Whether ``Tom asked`` or the like stands at ``at``."""
    space = at + len(_word(text, at))
    return text[space] == " " and _word(text, space + 1).lower() in WORDS["reporting_verbs"]


def _dot_ends(text: str, at: int, after: int) -> bool:
    """Whether a sentence ends at one full stop that white space and then ``text[after]`` follow."""
    word, follow = word_before(text, at), text[after]
    left = at - len(word)
    kind = _kind(text, at, word)
    if _WHOLE_NUMBER.fullmatch(word) or (
        (_ROMAN.fullmatch(word) or _DATE.fullmatch(word)) and _ordinal(text, left)
    ):
        return _number_ends(text, at, word, after)
    if follow.isdigit() or (follow in "$€£¥" and word.lower() in ("max", "avg", "est")):
        return kind is StopReading.PLAIN
    if follow.islower():
        return kind is StopReading.PLAIN and _ordinary(word)
    label = len(word) == 1 or (len(word) <= 4 and _ROMAN.fullmatch(word))
    if label and opens_line(text, left):
        return False  # "A." or "IV." at the beginning of a line
    if kind in (StopReading.PLAIN, StopReading.BINDS):
        return kind is StopReading.PLAIN
    return _next_word_decides(text, kind, word, at, after)


def _kind(text: str, at: int, word: str) -> StopReading:
    """How to read the stop at ``at`` by the word before it, or by the words of "i. d. R."."""
    left = at - len(word)
    before = text[max(0, at - LOOK_BACK) : at]
    spaced = _SPACED.search(before)
    if spaced and is_listed(joined := "".join(spaced[0].split())):
        return stop_after(joined)
    kind = stop_after(word, after_number=_number_before(text, left))
    if (
        word.istitle()
        and word.lower() in WORDS["days"]
        and _ON.search(before, 0, len(before) - len(word))
    ):
        return StopReading.MAY_END
    earlier = word_before(text, left - 1) if left and text[left - 1] == " " else ""
    if word in WORDS["words_too"] and earlier.lower() in WORDS["open_words"]:
        return StopReading.PLAIN
    if word == "Dr" and _STREET.search(before):
        return StopReading.GOES_ON
    return kind


def _number_ends(text: str, at: int, number: str, after: int) -> bool:
    if _numbers_an_item(text, at - len(number), number):
        return False
    follow, ordinal = text[after], _ordinal(text, at - len(number))
    if len(number) > (5 if ordinal else 2) or not (follow.isdigit() or follow.isupper()):
        return not (follow.islower() or (ordinal and follow in OPENERS))
    if follow.isdigit():  # "3. 4. 2024"
        end = end_of(_DIGITS, text, after)
        return not (text[end] == "." and end - after <= 2)
    following = _word(text, after)
    if not ordinal:
        return following.lower() not in WORDS["ordinal_nouns"]
    end = after + len(following)
    if following.lower() in ORDINAL_OPENERS or text[end] != " ":
        return following.lower() in ORDINAL_OPENERS
    return _word(text, end + 1) in _AFTER_A_VERB


def _ordinal(text: str, at: int) -> bool:
    """Whether the number at ``at`` is an ordinal by what stands before it: "im 2." in German."""
    before = text[max(0, at - LOOK_BACK) : at].rstrip(" *_")
    if before[-1:] in "([" or _ORDINAL_BEFORE.search(before):
        return True
    lead = word_before(before, len(before))
    if lead.lower() not in ORDINAL_LEADS:
        return False
    return not (lead == "am" and word_before(before, len(before) - 3) == "I")  # English


def _next_word_decides(text: str, kind: StopReading, word: str, at: int, after: int) -> bool:
    if not text[after].isalpha():
        return kind is not StopReading.GOES_ON and text[after] not in "([{&/-–—"
    following = _word(text, after)
    low, then = following.lower(), text[after + len(following)]
    if kind is StopReading.NUMBERS:
        letter = len(following) == 1 and following not in "AI"
        return not (letter or _ROMAN.fullmatch(following))
    if kind is StopReading.MAY_END:
        if following in ("NE", "NW", "SE", "SW"):
            return False  # "Pennsylvania Ave. NW"
        if word in ("Min", "Std"):  # "10 Min. Fußweg"
            return low in WORDS["german_openers"] or low in WORDS["sentence_openers"]
        return low not in TIME_WORDS and not (
            then == "." and stop_after(following) is StopReading.MAY_END
        )
    initial = then == "." and len(following) == 1
    if len(word) == 1 and text[at - 2].isspace():  # an initial, or the label of a noun before it
        noun = word_before(text, at - 2)
        german = noun in ORDINAL_LEADS and noun != "am"  # "nach dem I. Weltkrieg"
        if noun in WORDS["lettered_nouns"] or (word == "I" and noun.islower() and not german):
            return not initial  # "We need a plan B. Nobody has one, nor do I. Bob might."
    return low in WORDS["sentence_openers"] and not initial


def _word(text: str, at: int) -> str:
    """The letters that stand at ``at``; raises `Undecided` while more may come."""
    return text[at : end_of(_LETTERS, text, at, at + _LONGEST_WORD)]


def _ordinary(word: str) -> bool:
    """Whether a word ends its sentence even before a small letter."""
    if not _JOINED_LETTERS.fullmatch(word) or (word.isupper() and len(word) > 1):
        return False
    return len(word) >= 4 or word.lower() in WORDS["short_words"]


def _number_before(text: str, at: int) -> bool:
    return at > 1 and text[at - 1].isspace() and text[at - 2].isdigit()


def _numbers_an_item(text: str, at: int, number: str) -> bool:
    """Whether a number at ``at`` is the label of a list item ("2." in "Mix. 2. Stir.")."""
    if len(number) <= 3 and opens_line(text, at):
        return True
    before = text[max(0, at - LOOK_BACK) : at].rstrip(" *_")
    if not before or text[at - 1] not in " *_":
        return False
    if before[-1] == ":":
        return number == "1"
    ended = before[-1] in STOPS and stop_after(word_before(before, len(before) - 1)) is StopReading.PLAIN
    return len(number) <= 2 and ended
