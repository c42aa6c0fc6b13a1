"""One sentence to what a camera could show: who, doing what, where, when, and what is said.

A rule-based reading of plain narrative English. It takes every word of its answer from the sentence;
where the rules find no subject or verb they say so instead of guessing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from specstream_adapters.prompt.lexicon import (
    AUXILIARIES,
    BE,
    CONNECTIVES,
    DAYTIMES,
    DETERMINERS,
    MOTION,
    POSITION,
    PREPOSITIONS,
    PRONOUNS,
    RELATIVES,
    SPEECH,
    SUBORDINATORS,
    TIMES,
)
from specstream_adapters.prompt.nouns import (
    NounPhrase,
    PlacePhrase,
    noun_phrase,
    noun_phrase_end,
    prepositional_end,
    read_place,
)
from specstream_adapters.prompt.predicates import find_verb, starts_clause
from specstream_adapters.prompt.verbs import base_of, form_of
from specstream_adapters.prompt.words import Words, is_adverb

__all__ = ["Clause", "Place", "Scene", "read_scene"]

_SLUG = re.compile(r"\s*(?:INT|EXT)\b[./ ]+(?P<place>\w[^–—]*?)(?:\s+[-–—]\s+(?P<time>.+?))?[.\s]*")
_QUOTE = re.compile(r"[\"“]([^\"“”]*)(?:[\"”]|\Z)")
_ALONE = frozenset("outside inside upstairs downstairs underwater backstage".split())
_ONLY_BEFORE_COMMA = frozenset(
    "no yes first second third next last well sure still once third okay ok oh ah however"
    " there here all so".split()
)
_HOW_FAR = frozenset("deep high far right halfway somewhere straight".split())
_HOW = frozenset(("how", "why", "when", "where"))
_GOALS = frozenset("into onto inside to toward towards through".split())
_How = Literal["opening", "goal", "position", "mention"]
_PRESENTING = frozenset(("this", "here", "that"))
_STANDING = frozenset(
    "come go be stand sit lie live hang rise appear wait run stretch walk fly step emerge grow burn"
    " sleep lead float shine swim dwell".split()
)


@dataclass(frozen=True, slots=True)
class Clause:
    """A subject (None where the sentence has none) and its verb phrase; ``verb`` is its base form."""

    subject: NounPhrase | None
    verb: str
    action: str
    complement: NounPhrase | None = None  # of "be": "a lighthouse keeper"
    there: bool = False  # "there is ..."


@dataclass(frozen=True, slots=True)
class Place:
    """A place and how the sentence brings it up: as its setting, as a goal, or in passing."""

    phrase: PlacePhrase
    how: _How


@dataclass(slots=True)
class Scene:
    """What one sentence shows. Empty strings and tuples where it says nothing of the kind.

    ``topic`` is the sentence without its first connectives; ``time`` is a time of day or
    season, ``era`` a year; ``later`` is true where time moves on ("one day"). ``addressed`` is true
    where somebody speaks to the listener (a question, "I", "you", an order) rather than telling of
    something.
    """

    topic: str
    clauses: list[Clause] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    mentioned: list[NounPhrase] = field(default_factory=list)
    time: str = ""
    era: str = ""
    later: bool = False
    opening: str = ""
    quote: str = ""
    addressed: bool = False
    question: bool = False
    presents: bool = False
    fronted: str = ""


def read_scene(text: str, names: frozenset[str] = frozenset()) -> Scene:
    """Read one sentence; ``names`` (lower case) are known to be proper names."""
    if slug := _SLUG.fullmatch(text):
        place = PlacePhrase(slug["place"].lower(), True)
        return Scene("", places=[Place(place, "opening")], time=(slug["time"] or "").lower())
    quotes = [found[1].strip() for found in _QUOTE.finditer(text)]
    told = _QUOTE.sub(lambda found: " " * len(found[0]), text)
    words = Words(told, names)
    end = len(words)
    while end and words.at(end - 1).mark:
        end -= 1
    start = _skip_connectives(words, 0, end)
    scene = Scene(words.slice(start, end), quote=" ".join(q for q in quotes if q))
    scene.question = told.rstrip().endswith("?")
    scene.addressed = _is_addressed(words, start, end, told)
    if _is_order(words, start, end):
        _finish(words, None, start, end, scene)
    elif not told.rstrip().endswith("?"):
        _read_main(words, _read_openers(words, start, end, scene), end, scene)
    return scene


def _is_addressed(words: Words, start: int, end: int, told: str) -> bool:
    lows = [words.low(j) for j in range(start, end)]
    if told.rstrip().endswith("?") or any(w in ("you", "your", "i", "my") for w in lows):
        return True
    return lows[:1] == ["let"] or _is_order(words, start, end)


def _is_order(words: Words, start: int, end: int) -> bool:
    """Whether the clause begins with its verb: "Slice the tomatoes"."""
    low, after = words.low(start), words.low(start + 1)
    if form_of(low) != "base" or low in ("meet", "welcome", "thank") or words.is_name(start):
        return False
    takes_object = after in DETERMINERS or after in PRONOUNS or is_adverb(after)
    return takes_object or find_verb(words, start, end) is None


def _skip_connectives(words: Words, i: int, end: int) -> int:
    while i < end:
        low = words.low(i)
        comma = words.low(i + 1) == ","
        if words.at(i).mark or (low == "just" and words.low(i + 1) in ("then", "as")):
            i += 1
        elif low in _HOW_FAR and words.low(i + 1) in PREPOSITIONS:
            i += 1
        elif low in ("step", "tip", "note") and ":" in (words.low(i + 1), words.low(i + 2)):
            i += 2
        elif low in ("that", "this") and words.low(i + 1) in BE and words.low(i + 2) in _HOW:
            i += 3
        elif low in _ONLY_BEFORE_COMMA and not comma:
            return i
        elif low in CONNECTIVES or low in _ONLY_BEFORE_COMMA:
            i += 1
        else:
            return i
    return i


def _read_openers(words: Words, i: int, end: int, scene: Scene) -> int:
    """Read what stands before the main clause (when, where, how); return where that begins."""
    for _ in range(6):
        i = _skip_connectives(words, i, end)
        after = (
            _read_time(words, i, end, scene)
            or _read_subordinate(words, i, end, scene)
            or _read_fronted(words, i, end, scene)
            or _skip_adverb(words, i, end, scene)
        )
        if not after or after >= end:
            return i
        i = after
    return i


def _read_time(words: Words, i: int, end: int, scene: Scene) -> int | None:
    """ "Late one evening", "at midnight", "all her life", "two days later"."""
    unknown, noun = 0, None
    for j in range(i, min(i + 8, end)):
        low = words.low(j)
        if low in TIMES and not (j == i and words.low(j + 1) in PREPOSITIONS):
            noun = j
        elif noun is not None:
            break
        elif (
            low in PREPOSITIONS or low in DETERMINERS or is_adverb(low) or low in ("late", "early")
        ):
            continue
        else:
            unknown += 1
            if unknown > 2 or words.at(j).mark or low in AUXILIARIES or form_of(low) == "past":
                return None
    if noun is None:
        return None
    after = noun + 1
    if words.low(after) in ("later", "ago", "before", "after", "earlier", "long"):
        after += 1
    if words.low(after) == "of":
        after = prepositional_end(words, after, end)
    if words.low(after) != "," and find_verb(words, after, end) is None:
        return None  # it is the subject: "Night fell", "The day was cold"
    phrase = words.slice(i, after)
    if any(words.low(j) in DAYTIMES for j in range(i, after)):
        scene.time = phrase[0].lower() + phrase[1:]
    else:
        scene.later = words.low(i) not in ("for", "all")
    return after + (words.low(after) == ",")


def _read_subordinate(words: Words, i: int, end: int, scene: Scene) -> int | None:
    """ "When the storm came, ...", "Holding her breath, ..."."""
    low = words.low(i)
    if low not in SUBORDINATORS and form_of(low) != "ing":
        return None
    comma = words.find(",", i, end)
    if comma is None or comma + 1 >= end:
        return None
    phrase = words.slice(i, comma)
    phrase = phrase[0].lower() + phrase[1:]
    if any(words.low(j) in DAYTIMES or words.low(j) == "sun" for j in range(i, comma)):
        scene.time = phrase
    else:
        scene.opening = phrase
    return comma + 1


def _read_fronted(words: Words, i: int, end: int, scene: Scene) -> int | None:
    """ "In a dusty workshop, ...", "Out of the dark came ..."."""
    low = words.low(i)
    if low in _ALONE and words.low(i + 1) == ",":
        scene.places.append(Place(PlacePhrase(low, True), "opening"))
        return i + 2
    if low not in PREPOSITIONS:
        return None
    after = prepositional_end(words, i, end)
    while words.low(after) in PREPOSITIONS and after < end:
        after = prepositional_end(words, after, end)
    comma = words.low(after) == ","
    inverted = form_of(words.low(after)) or words.low(after) in BE
    if not comma and not inverted and find_verb(words, after, end) is None:
        return None
    if re.fullmatch(r"[12]\d\d\d", words.low(after - 1)):
        scene.era = f"{low} {words.low(after - 1)}"
    _read_places(words, i, after, "", scene, "opening")
    scene.fronted = words.slice(i, after)
    scene.fronted = scene.fronted[0].lower() + scene.fronted[1:]
    return after + comma


def _skip_adverb(words: Words, i: int, end: int, scene: Scene) -> int | None:
    adverb = is_adverb(words.low(i)) and words.low(i) != "there" and not words.is_name(i)
    return i + 1 + (words.low(i + 1) == ",") if adverb else None


def _read_main(words: Words, i: int, end: int, scene: Scene) -> None:
    first, second = words.low(i), words.low(i + 1)
    base = base_of(first) if form_of(first) else ("be" if first in BE else "")
    if first == "meet" or (first in _PRESENTING and _presents(words, i)):
        scene.presents = True
        _read_presented(words, i + (1 if first == "meet" else 2), end, scene)
    elif first == "there" and (second in BE or base_of(second) in _STANDING):
        _read_there(words, i + 1, end, scene)
    elif scene.quote and base in SPEECH and not words.is_name(i):
        _read_said(words, i, end, scene)
    elif base in _STANDING and scene.fronted and _is_noun_start(words, i + 1):
        _read_there(words, i, end, scene)
    else:
        _read_clauses(words, i, end, scene)


def _presents(words: Words, i: int) -> bool:
    verb = words.low(i + 1)
    if not (verb in ("is", "'s", "was", "are") or base_of(verb) in ("come", "stand", "live")):
        return False
    found = noun_phrase(words, i + 2, noun_phrase_end(words, i + 2, len(words)))
    return found is not None and (bool(found.name) or found.animate)


def _is_noun_start(words: Words, i: int) -> bool:
    return words.low(i) in DETERMINERS or words.is_name(i)


def _read_presented(words: Words, i: int, end: int, scene: Scene) -> None:
    """ "This is Mara, a lighthouse keeper, waiting on a rocky island"."""
    after = noun_phrase_end(words, i, end)
    subject = noun_phrase(words, i, after)
    rest = after + (words.low(after) == ",")
    rest += words.low(rest) in RELATIVES
    _finish(words, subject, rest, end, scene)
    if not scene.clauses:
        scene.clauses.append(Clause(subject, "be", ""))


def _read_there(words: Words, verb: int, end: int, scene: Scene) -> None:
    """ "There lived a girl ...", "Out of the dark came a white owl ..."."""
    start = verb + 1
    while is_adverb(words.low(start)) or words.low(start) in ("been",):
        start += 1
    after = noun_phrase_end(words, start, end)
    subject = noun_phrase(words, start, after)
    rest = after + (words.low(after) == ",")
    rest += words.low(rest) in RELATIVES
    base = "be" if words.low(verb) in BE else base_of(words.low(verb))
    tail = words.slice(rest, end)
    if base == "be" and tail and words.low(rest) not in PREPOSITIONS:
        _finish(words, subject, rest, end, scene)
        return
    verb_text = "" if base == "be" else words.slice(verb, start)
    parts = [part for part in (verb_text, scene.fronted, tail) if part]
    scene.clauses.append(Clause(subject, base, " ".join(parts), there=True))
    _read_places(words, rest, end, base, scene)


def _read_said(words: Words, verb: int, end: int, scene: Scene) -> None:
    """ "..." said Omar."""
    after = noun_phrase_end(words, verb + 1, end)
    subject = noun_phrase(words, verb + 1, after)
    said = words.slice(verb, verb + 1)
    rest = after + (words.low(after) == ",")
    more = _clause_starts(words, rest - 1, end)
    stop = more[0] if more else end
    action = f"{said} {words.slice(rest, stop)}".rstrip(" ,")
    scene.clauses.append(Clause(subject, base_of(words.low(verb)), action))
    for index, start in enumerate(more):
        _one_clause(words, start, more[index + 1] if index + 1 < len(more) else end, scene)


def _read_clauses(words: Words, i: int, end: int, scene: Scene) -> None:
    verb = find_verb(words, i, end)
    if verb is None:
        subject = noun_phrase(words, i, noun_phrase_end(words, i, end))
        if subject is not None and words.low(i) in DETERMINERS and not scene.addressed:
            _finish(words, subject, noun_phrase_end(words, i, end), end, scene)
            if not scene.clauses:
                scene.clauses.append(Clause(subject, "", ""))
        return
    _finish(words, _subject(words, i, verb), verb, end, scene)


def _subject(words: Words, i: int, verb: int) -> NounPhrase | None:
    """The noun phrase before the verb, without where it is ("the boy on the bridge")."""
    stop = min(noun_phrase_end(words, i, verb), verb)
    return noun_phrase(words, i, stop if stop > i else verb)


def _finish(words: Words, subject: NounPhrase | None, verb: int, end: int, scene: Scene) -> None:
    """Read the verb phrase at ``verb`` and the clauses that follow it."""
    starts = [start for start in _clause_starts(words, verb, end) if start > verb]
    stop = starts[0] if starts else end
    if words.slice(verb, stop):
        scene.clauses.append(_clause(words, subject, verb, stop, scene))
    for index, start in enumerate(starts):
        _one_clause(words, start, starts[index + 1] if index + 1 < len(starts) else end, scene)


def _one_clause(words: Words, i: int, end: int, scene: Scene) -> None:
    while i < end and (
        words.at(i).mark or words.low(i) in ("and", "but", "so", "or", "yet", "while", "as", "when")
    ):
        i += 1
    if words.low(i) == "there" and words.low(i + 1) in BE:
        _read_there(words, i + 1, end, scene)
        return
    verb = find_verb(words, i, end)
    if verb is not None:
        scene.clauses.append(_clause(words, _subject(words, i, verb), verb, end, scene))


def _clause(words: Words, subject: NounPhrase | None, verb: int, end: int, scene: Scene) -> Clause:
    main = verb
    while main + 1 < end and (words.low(main) in AUXILIARIES or is_adverb(words.low(main))):
        if (
            words.low(main) in AUXILIARIES
            and not form_of(words.low(main + 1))
            and not (words.low(main + 1) in AUXILIARIES or is_adverb(words.low(main + 1)))
        ):
            break
        main += 1
    low = words.low(main)
    base = "be" if low in BE else base_of(low)
    if any(words.low(j) in BE for j in range(verb, main)) and form_of(low) != "ing":
        base = "be"
    _read_places(words, main, end, base, scene)
    _read_objects(words, main + 1, end, scene)
    complement = None
    if base == "be" and (words.low(main + 1) in ("a", "an", "the") or words.is_name(main + 1)):
        complement = noun_phrase(words, main + 1, noun_phrase_end(words, main + 1, end))
    return Clause(subject, base, words.slice(verb, end).rstrip(" ,;:—–"), complement)


def _read_places(
    words: Words, i: int, end: int, base: str, scene: Scene, how: _How | None = None
) -> None:
    """Note the places (and the time of day) that prepositional phrases in ``[i, end)`` name."""
    j, last_end = i, -1
    while j < end:
        low = words.low(j)
        if low not in PREPOSITIONS or low == "of":
            j += 1
            continue
        after = max(prepositional_end(words, j, end), j + 1)
        place = read_place(words, j, after)
        if place is not None and place.text.lower().startswith("to ") and base not in MOTION:
            place = None
        if place is not None and j == last_end:  # "on a pier" "by the sea": one place
            before = scene.places.pop()
            sure = before.phrase.sure or place.sure
            text = f"{before.phrase.text} {place.text}"
            scene.places.append(Place(PlacePhrase(text, sure), before.how))
        elif place is not None:
            goal = base in MOTION and place.text.split()[0].lower() in _GOALS
            here: _How = "goal" if goal else "position" if base in POSITION else "mention"
            text = place.text[0].lower() + place.text[1:]
            scene.places.append(Place(PlacePhrase(text, place.sure), how or here))
        elif not scene.time and any(words.low(k) in DAYTIMES for k in range(j, after)):
            scene.time = words.slice(j, after)
        last_end = after if place is not None else -1
        j = after


def _read_objects(words: Words, i: int, end: int, scene: Scene) -> None:
    """Somebody new who is met in the verb phrase: "... saw an old woman with kind eyes"."""
    for j in range(i, end):
        if words.low(j) in ("a", "an"):
            found = noun_phrase(words, j, noun_phrase_end(words, j, end))
            if found is not None and found.animate:
                scene.mentioned.append(found)


def _clause_starts(words: Words, i: int, end: int) -> list[int]:
    """Where further clauses with a subject of their own begin (at their conjunction)."""
    starts = []
    for j in range(i + 1, end):
        if starts_clause(words, j, end):
            starts.append(j - 1 if words.low(j - 1) == "," else j)
    return [s for k, s in enumerate(starts) if k == 0 or s > starts[k - 1] + 1]
