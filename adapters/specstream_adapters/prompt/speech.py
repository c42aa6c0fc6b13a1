"""Find what in a text is no narration: quoted speech, and what was written for programs."""

from __future__ import annotations

import re

__all__ = ["MachineText", "narration", "open_quote", "quotations"]

_CLOSING = {'"': '"', "“": "”", "„": "“”", "«": "»", "»": "«"}
_NAMED = re.compile(r"\b(?:an?|the|called|named|as|of|als|ein|eine|el|la|un|una)\s$", re.IGNORECASE)
_VERBS = (
    "said says? asked asks cried cries replied replies answered answers whispered whispers shouted "
    "shouts called returned remarked thought murmured exclaimed added continued pleaded muttered told "
    "repeated sagte sagt fragte fragt rief ruft sprach spricht antwortete dachte dijo dice preguntó "
    "pregunta gritó grita respondió responde"
).split()
_SAY = f"(?:{'|'.join(_VERBS)})"
_BEFORE = re.compile(  # "…, they all said," or "… and cried,": what leads to a quotation
    rf",?\s*(?:\b(?:and|then|und|y|to)\s+|(?<=, )(?:[\w’'-]+ ){{1,3}}?)*"
    rf"\b(?:{_SAY}|say|cry|ask|call|tell)\b[^,;.!?]{{0,30}}?[,:]?\s*$"
)
_BETWEEN = re.compile(r"[\s,;]*(?:and|or|also|und|y)?(?:\s+also)?\s*")
_AFTER = re.compile(  # where narration goes on after "said Tom", "a voice said" or "cried a voice"
    r",\s+(?:and|while|as|then|und|während|y|mientras)\s+(?=\S+ \S+ \S+)"
    r"|[.!?;:] (?=[A-ZÄÖÜÉ“\"])|; (?=\S+ \S+ \S+)"
)
_INVERTED = re.compile(rf"^{_SAY} (?=(?:the|an?) [^,.]*, \w+ing \w+ \w+)")
_TAG_WORDS = 5  # a verb of speech further behind is a part of the narration
_DASH = re.compile(r"^\s*[—–]")
_SAID = re.compile(rf"\b{_SAY}\b")
_MAX_JSON = 20_000  # characters after a brace; text without an end by then isn't taken for JSON
_TOKEN = re.compile(r"```|<\|[^|<>]{1,40}\|>|\\.|.", re.DOTALL)
_JSON = re.compile(r"\s*(?:[\"'}]|\Z)|[^\S\n]*\n")  # what follows the first brace


class MachineText:
    """Blanks text for programs (JSON, fenced code, special tokens), which may span several calls."""

    def __init__(self) -> None:
        self._depth = self._inside = 0
        self._quoted = self._fenced = False

    def blank(self, text: str) -> tuple[str, int]:
        """The text with a space for each character written for programs, and the number of those.

        "```" and "<|...|>" must not be split between two calls.
        """
        shown, hidden = "", 0
        for found in _TOKEN.finditer(text):
            token, hide = found[0], True
            if self._depth:
                self._in_json(token)
            elif token == "```":
                self._fenced = not self._fenced
            elif not self._fenced and token == "{" and _JSON.match(text, found.end()):
                self._depth, self._inside, self._quoted = 1, 0, False
            else:
                hide = self._fenced or len(token) > 2
            shown += " " * len(token) if hide else token
            hidden += len(token) if hide else 0
        return shown, hidden

    def _in_json(self, token: str) -> None:
        self._inside += len(token)
        if self._inside > _MAX_JSON:
            self._depth = 0
        elif token == '"':
            self._quoted = not self._quoted
        elif not self._quoted:
            self._depth += (token == "{") - (token == "}")


def quotations(text: str) -> list[tuple[int, int]]:
    """Where speech is quoted, marks included; a quotation that is still open ends past the text.

    Quotation marks around a name or a term ("known as a “Penang lawyer”") are no speech.
    """
    found: list[tuple[int, int]] = []
    start, closing = 0, ""
    for at, char in enumerate(text):
        if closing:
            if char in closing or char == "\n":
                found.append((start, at + 1))
                closing = ""
        elif char in _CLOSING and not (char == "”" or (char == '"' and _inch(text, at))):
            start, closing = at, _CLOSING[char]
    if closing:
        found.append((start, len(text) + 1))
    return [q for q in found if not _is_name(text, *q)]


def open_quote(text: str) -> bool:
    """Whether a quotation is open at the end of ``text``."""
    return any(end > len(text) for _, end in quotations(text))


def narration(text: str) -> str:
    """The sentence without quoted speech; "" if only words such as "said Tom" are left."""
    text = " ".join(text.split())
    if _DASH.match(text):  # —¿Quién es? —preguntó ella.
        parts = re.split(r"[—–]", text)
        kept = " ".join(p for p in parts if p[:1].islower())
        return "" if _SAID.search(kept) and len(kept.split()) < 8 else _sentence(kept)
    spans = quotations(text)
    if not spans:
        return text
    out, at = "", 0
    for start, end in spans:
        between = text[at:start]
        if at and _BETWEEN.fullmatch(between):
            between = ""
        out += _BEFORE.sub("", between) + " "
        at = end
    rest = " ".join((out + text[at:]).split()).strip(" ,;—–-")
    return _sentence(re.sub(r"\s+([,;.!?])", r"\1", _untagged(rest)))


def _untagged(rest: str) -> str:
    """What follows the words that tell who spoke, if they come first; "" if nothing does.

    "asks the boy at the door, clutching a lamp" gives "the boy at the door, clutching a lamp".
    """
    said = _SAID.search(rest)
    if said is None or len(rest[: said.start()].split()) >= _TAG_WORDS:
        return rest
    found = _INVERTED.match(rest) or _AFTER.search(rest, said.end())
    return rest[found.end() :] if found else ""


def _sentence(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip(" ,;:—–-")
    if not any(c.isalnum() for c in text):
        return ""
    text = text[:1].upper() + text[1:]
    return text if text[-1] in ".!?…" else f"{text}."


def _is_name(text: str, start: int, end: int) -> bool:
    return bool(_NAMED.search(text[:start])) and len(text[start:end].split()) <= 3


def _inch(text: str, at: int) -> bool:
    return at > 0 and text[at - 1].isdigit() and text.count('"', 0, at) % 2 == 0
