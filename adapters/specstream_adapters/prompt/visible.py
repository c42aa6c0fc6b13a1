"""What of a text can be shown, and how much: English by words from WordNet, other languages by form."""

from __future__ import annotations

import bz2
import re
from collections import Counter
from functools import cache, lru_cache
from importlib.resources import files

from specstream.types import ScenePrompt
from specstream_adapters.checks import stems

__all__ = [
    "fault",
    "gender",
    "is_someone",
    "is_something",
    "kind",
    "language_of",
    "machine_text",
    "narration",
    "open_quote",
    "sight",
    "stem",
]

_FUNCTION_WORDS = {  # by language
    "en": "the and of to was were with he she his her is it at they had that as from into",
    "de": "der die das und ist nicht ein eine einen sich er sie den dem mit war zu auf im ich es wie",
    "es": "el la los las de que y en un una se no con por su al del lo es era",
}
_WORDS_OF = {language: frozenset(words.split()) for language, words in _FUNCTION_WORDS.items()}
_NOT = frozenset(  # words by which something is denied, wished or thought: it can't be seen
    "not never no nothing nobody none neither nor seldom scarcely won't don't didn't cannot "
    "wanted wants hoped hopes wished wishes knew knows thought thinks believed believes wondered "
    "wonders remembered remembers recalled dreamed dreamt dreams imagined imagines missed planned "
    "forgot seemed seems nicht kein keine keinen keiner nie niemand "
    "nichts niemals scheint schien weiß wusste nada nadie nunca ningún ninguna parece parecía sabe "
    "sabía".split()
)
_MODAL = frozenset("can could may might must would should shall will".split())
# A question, words between speaker and listener, or several numbers.
_TALK = re.compile(r"\?\W*$|\b(?:you|your|let me|I can|I'll|I'm|I am|I've)\b|\d\D+\d", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_MARKS = re.compile(r"[=#_{}\\<>]|\w\(")  # sums and code
_WORDS_PER_WEIGHT = 13  # words per point of weight: a sentence with more begins no shot
_STATEMENT = 5  # least words of a statement to be shown (characters, in scripts without spaces)
_SPACELESS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]")
_FEMALE = frozenset(
    "woman girl lady mother sister wife daughter queen princess aunt grandmother nun widow actress "
    "waitress hostess maid witch mare hen women she her hers".split()
)
_MALE = frozenset(
    "man boy gentleman father brother husband son king prince uncle grandfather monk nephew "
    "actor waiter fisherman policeman soldier sailor knight men he him his".split()
)
_QUOTED = re.compile(
    r"(?<!\d)\"[^\"\n]*+(?:[\"\n]|(\Z))|“[^”\n]*+(?:[”\n]|(\Z))|„[^“”\n]*+(?:[“”\n]|(\Z))"
    r"|«[^»\n]*+(?:[»\n]|(\Z))|»[^«\n]*+(?:[«\n]|(\Z))"
    # Single ones, whose right mark is an apostrophe, too: ‘I don’t know,’ said the boy.
    r"|(?<![^\s(\[“\"—–-])‘(?!(?i:twas|tis|twere|til|em|round|bout|cause|\d\ds?)\b)"
    r"(?:[^’\n]|’(?=\w))*+(?:[’\n]|(\Z))|‚[^‘\n]*+(?:[‘\n]|(\Z))"
    r"|(?<!\w)'(?=[A-Z])(?:[^'\n]|'(?=\w))*+(?<=[,.!?…—])'(?!\w)"
)
_TERM = re.compile(r"\b(?:an?|the|called|named|as)\s$")  # before marks around a name or a term
_SAID = re.compile(
    r"\b(?:say|said|says|ask|asked|asks|cry|cried|cries|replied|replies|answered|answers|whispered|"
    r"whispers|shouted|shouts|call|called|returned|remarked|thought|murmured|exclaimed|added|continued|"
    r"pleaded|muttered|tell|told|repeated|sagte|sagt|fragte|fragt|rief|ruft|sprach|spricht|antwortete|"
    r"dachte|brummte|murmelte|dijo|dice|preguntó|pregunta|gritó|grita|respondió|responde)\b"
)
_JOIN = re.compile(r"([,;]? (?:and|while|as|then|und|während|y|mientras)\b|[.!?;]+(?= |$)|,(?= |$))")
_DID = re.compile(  # a clause that begins with a verb
    r"\s*(?!(?:hundred|naked|wicked|ragged|sacred|indeed)\b)(?:[a-z]{3,}ed|ran|went|came|took|sat|stood|rose|fell|threw|caught"
    r"|held|left|swung|drew|broke|bent|kept|drove|flew|swam|sang|blew|shook|tore|hid|led|knelt|leapt|climbed"
    r"|crept|dug|fed|fought|gave|hung|laid|lay|lit|made|rode|shot|slid|spun|stole|struck|swept|wept|woke|wore)\b"
)
_MANNER = re.compile(
    r"(?<!\bthe)(?<!\b(?:his|her|our))(?<!\b(?:an|my))(?<!\ba) [a-z]+ly\b"
)  # "said softly"
_SPEAKER = 4  # most words of who speaks
_MACHINE = re.compile(r"(```)|<\|[^|<>]{1,40}\|>|\{(?=\s*(?:[\"'}]|\Z)|[^\S\n]*\n)")
_ANYBODY = frozenset(
    "man woman person people figure child girl boy lady gentleman someone somebody viewer hero "
    "heroine character protagonist silhouette crowd couple pair group subject adult kid youth "
    "elder stranger animal creature beast cub pup fur paw tail".split()
)
_CRAFT = frozenset(
    "shot camera view frame scene close wide medium low high angle light lens film still focus "
    "style colour color cinematic photo photograph image picture video footage background "
    "foreground model master director extra".split()
)
_NIGHT = frozenset(("night", "midnight", "moonlit", "moonlight", "starlight"))
_DAY = frozenset("noon midday sunny sunlit sunlight daylight sunshine".split())
_LETTERS = re.compile(r"[^\W\d_]+")
_LABEL = re.compile(r"\b(?:Story so far|Text|Prompt):")  # of what the model is given
_BRACE = re.compile(r'"(?:\\.|[^"\\])*+"|[{}]', re.DOTALL)


@cache
def _kinds() -> dict[str, str]:
    """The listed words, by the lines of `scripts/visible-words`."""
    packed = (files(__package__) / "visible_en.bz2").read_bytes()
    found: dict[str, str] = {}
    for name, coded in map(str.split, bz2.decompress(packed).decode().splitlines()):
        word = ""
        for same, rest in re.findall("([0-@])([^0-@]*)", coded):
            word = word[: ord(same) - ord("0")] + rest
            found[word[::-1]] = name
    return found


@lru_cache(maxsize=4096)
def stem(word: str) -> str:
    """The listed word of which an English word (lower case) is a form; without one, the word itself."""
    if word in _NOT:  # "hopes" is no form of "hop"
        return word
    # The longest root: a form of "star" is "starred", with a doubled letter; "stared" is one of "stare".
    return max((root for root in stems(word) if root in _kinds()), key=len, default=word)


def kind(word: str) -> str:
    """The kind of an English word, or of the word that it is a form of; "" if it names nothing to see.

    "someone" (a person), "animal", "site" (where a scene can be), "something" (another thing, a
    substance) or "doing".
    """
    word = word.lower()
    return "" if word in _NOT else _kinds().get(stem(word), "")


def is_something(word: str) -> bool:
    """Whether an English word names a thing, a place, a substance or an action."""
    return kind(word) in ("something", "site", "doing")


def is_someone(word: str) -> bool:
    """Whether an English word names a person, an animal or a group of them."""
    return kind(word) in ("someone", "animal")


def gender(text: str) -> set[str]:
    """Which of "he" and "she" a text speaks of, by its nouns and pronouns."""
    words = {word.lower() for word in _LETTERS.findall(text)}
    return {name for name, known in (("he", _MALE), ("she", _FEMALE)) if words & known}


def language_of(text: str) -> str:
    """Tell "en", "de" or "es" by a text's function words; "" where it has none of theirs."""
    words = re.findall(r"\w+", text.lower())
    counts = {name: sum(word in known for word in words) for name, known in _WORDS_OF.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else ""


def machine_text(text: str) -> list[tuple[int, int]]:
    """Where a text was written for programs: JSON, fenced code, special tokens.

    What is still open at the end of the text ends past it.
    """
    found: list[tuple[int, int]] = []
    end = 0
    while begin := _MACHINE.search(text, end):
        end = begin.end()
        if begin[1]:
            closing = text.find(begin[1], end)
            end = closing + len(begin[1]) if closing >= 0 else len(text) + 1
        elif begin[0] == "{":
            end = _closed(text, begin.start())
        found.append((begin.start(), end))
    return found


def _closed(text: str, start: int) -> int:
    """The end of the JSON object that begins at ``start``; past the text if it is open."""
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0:
            return brace.end()
    return len(text) + 1


def open_quote(text: str) -> bool:
    """Whether a quotation is open at the end of ``text``."""
    return any(quote.lastindex for quote in _QUOTED.finditer(text))


def unquoted(text: str) -> str:
    """The sentence without quoted speech."""
    return " ".join(_QUOTED.sub(" ", text).split()).strip(" ,;:")


def narration(text: str) -> str:
    """The sentence without quoted speech and the clauses that tell who spoke; "" if nothing is left."""
    text = " ".join(text.split())
    if text[:1] in ("—", "–"):  # —¿Quién es? —preguntó ella.
        rest = " ".join(re.split("[—–]", text)[2::2])
    else:
        rest = _QUOTED.sub(lambda q: q[0] if _TERM.search(text[: q.start()]) else " ", text)
        if rest == text:
            return text
    kept, spoken, speaker = "", False, ""
    joins, clauses = ["", *_JOIN.split(rest)[1::2]], _JOIN.split(rest)[::2]
    for join, clause in zip(joins, clauses, strict=True):
        if _SAID.search(clause):
            spoken = True
            speaker = _MANNER.sub("", _SAID.sub("", clause, count=1)).strip(" ,;:.!?")
        elif spoken and join.strip() == "and" and clause.istitle():
            speaker += join + clause  # "said Tom and Mary"
        elif not spoken:
            kept += join + clause
        elif join != ",":  # "said Tom, and he put down his cup"
            # "Paul shouted and ran": who ran stands before the clause that is left out.
            only_verb = join.strip(" ,;") in ("and", "then") and _DID.match(clause)
            if len(clause.split()) < (2 if only_verb or join[0] in ".!?;" else 3):
                continue
            who = f" {speaker}" if only_verb and len(speaker.split()) <= _SPEAKER else ""
            kept += join * bool(kept.strip()) + who + clause
            spoken = False
    kept = re.sub(r"\s+(?=[\s,;.!?])", "", kept).strip(" ,;:—–-")
    if not any(map(str.isalnum, kept)):
        return ""
    kept = kept[:1].upper() + kept[1:]
    return kept if kept[-1] in ".!?…" else f"{kept}."


def sight(text: str, language: str, names: frozenset[str] = frozenset()) -> int:
    """How much a sentence (without quoted speech) shows.

    0: nothing to see; 1: something that may be added to a shot; 2 or more: enough for a shot of its own.
    English words are looked up; in other languages any statement of at least five words is enough.
    ``names`` are words that stand for somebody.
    """
    words = _WORD.findall(text)
    if not words or _MARKS.search(text):
        return 0
    clauses = re.split(r"[,;:—–]", text)
    denied = _denies(_WORD.findall(clauses[0]))
    if language != "en":
        if denied or re.search(r"\?\W*$", text):
            return 0
        enough = len(words) >= _STATEMENT or len(_SPACELESS.findall(text)) >= _STATEMENT
        return 2 if enough else int(len(words) > 2)
    weight = sum(_weight(clause, names) for clause in clauses) - 2 * bool(_TALK.search(text))
    if weight < max(len(words) / _WORDS_PER_WEIGHT, 4 * denied):
        weight = min(weight, 1)
    return max(0, weight)


def _weight(clause: str, names: frozenset[str]) -> int:
    """How many of an English clause's words name something visible; of its people one counts."""
    words = _WORD.findall(clause)
    kinds = [
        "someone" if word in names else kind(word) if word[0].islower() or at == 0 else ""
        for at, word in enumerate(words)
    ]
    somebody = kinds.count("someone") + kinds.count("animal")
    things = kinds.count("something") + kinds.count("site")
    weight = min(things + somebody, 1 + things) + kinds.count("doing")
    return max(0, weight - 2 * _denies(words))


def _denies(words: list[str]) -> bool:
    """Whether a clause says that something isn't so, may be so or is thought.

    At its end, "can" is a noun ("a little can"), or only repeats a verb ("as fast as he can").
    """
    lower = [word.lower() for word in words]
    return not (_NOT.isdisjoint(lower) and _MODAL.isdisjoint(lower[:-1]))


def fault(prompt: str, shot: ScenePrompt, story: str = "", *, max_chars: int, task: str = "") -> str:
    """Return what is wrong with ``prompt`` as a new prompt for ``shot``; "" if nothing is.

    It must be one line of at least five words and at most ``max_chars`` characters, without markup
    or quoted speech. No four words may stand in it three times, or be those of the ``task``. It must
    show somebody if the shot does, otherwise something that the shot or the story mentions; and an
    action, a thing or a place. It must not bring in people or animals that neither the shot nor
    ``story`` (the text so far) has, nor turn a man into a woman or night into day. It may use other
    words than the text. A prompt that is not English is judged by its form alone.
    """
    if why := _form(prompt, max_chars) or _echo(prompt, task):
        return why
    told = f"{shot.action} {shot.subject}"
    if language_of(prompt) != "en" or language_of(told) not in ("en", ""):
        return ""
    written = set(_LETTERS.findall(prompt))
    words = {stem(word.lower()) for word in written}
    known = {stem(word.lower()) for word in _LETTERS.findall(f"{told} {shot.setting} {story}")}
    names = {word for word in _LETTERS.findall(told) if word[0].isupper()}
    people = {word for word in _LETTERS.findall(told) if is_someone(word)}
    somebody = names & written or any(is_someone(word) or word in _ANYBODY for word in words)
    seen = {word for word in words - _CRAFT if is_something(word)}
    if people and not somebody:
        return "the answer shows nobody"
    if not people and not seen & known:
        return "the answer is about something else"
    if not seen:
        return "the answer has no action, thing or place"
    common = {stem(word) for word in re.findall(r"\b[a-z]+\b", prompt)}
    new = sorted(word for word in common - known - _ANYBODY - _CRAFT if is_someone(word))
    # One noun may say who somebody without a name is, or stand for the text's own.
    spare = not people or not (people | names) & written
    if "animal" in map(kind, new) or len(new) > spare:
        return f"the answer brings in somebody: {', '.join(new)}"
    was, now = gender(told), gender(prompt)
    if was and now and not was & now:
        return "the answer changes a man into a woman or a woman into a man"
    for here, there in ((_NIGHT, _DAY), (_DAY, _NIGHT)):
        if known & here and not known & there and words & there:
            return f"the answer contradicts the text: {sorted(words & there)[0]}"
    return ""


def _echo(prompt: str, task: str) -> str:
    """What a small model gives instead of an answer: the same again and again, or what it was asked."""
    said, asked = Counter(_fours(prompt)), set(_fours(task))
    if said and max(said.values()) > 2:
        return f"the answer repeats itself: {' '.join(said.most_common(1)[0][0])}"
    if echo := next((four for four in said if four in asked), None) or _LABEL.search(prompt):
        return f"the answer repeats the task: {' '.join(echo) if isinstance(echo, tuple) else echo[0]}"
    return ""


def _fours(text: str) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())
    return list(zip(words, words[1:], words[2:], words[3:], strict=False))


def _form(prompt: str, max_chars: int) -> str:
    if not prompt:
        return "the answer is empty"
    if "\n" in prompt or "\r" in prompt:
        return "the answer has more than one line"
    spaceless = len(_SPACELESS.findall(prompt))
    if len(prompt.split()) + spaceless < 5 or len(prompt) > max_chars:
        return f"the answer has {len(prompt)} characters"
    if re.search(r"[][{}<>|*`_]|https?:|^#|^\d+\. ", prompt):
        return "the answer holds markup"
    if re.search(r"[\"“”„«»]", prompt):
        return "the answer quotes speech"
    return ""
