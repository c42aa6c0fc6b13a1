"""The clauses of a sentence: each with its subject, its verb phrase, and the places in it."""

from __future__ import annotations

from specstream_adapters.prompt.lexicon import (
    AUXILIARIES,
    BE,
    DAYTIMES,
    DETERMINERS,
    MOTION,
    POSITION,
    PREPOSITIONS,
    RELATIVES,
    SPEECH,
)
from specstream_adapters.prompt.nouns import NounPhrase, noun_phrase, noun_phrase_end
from specstream_adapters.prompt.phrases import (
    STANDING,
    PlacePhrase,
    prepositional_end,
    read_place,
)
from specstream_adapters.prompt.predicates import find_verb, starts_clause
from specstream_adapters.prompt.scene import Clause, How, Place, Scene
from specstream_adapters.prompt.verbs import base_of, form_of
from specstream_adapters.prompt.words import Words, is_adverb

__all__ = ["read_main", "read_order", "read_places"]

_JOINTS = frozenset("and but so or yet while as when".split())
_GOALS = frozenset("into onto inside to toward towards through".split())
_PRESENTING = frozenset(("this", "here", "that"))


def read_main(words: Words, i: int, end: int, scene: Scene) -> None:
    """Read the main clause, which begins at ``i``, and what follows it."""
    first, second = words.low(i), words.low(i + 1)
    base = base_of(first) if form_of(first) else ("be" if first in BE else "")
    if first == "meet" or (first in _PRESENTING and _presents(words, i)):
        scene.presents = True
        _read_presented(words, i + (1 if first == "meet" else 2), end, scene)
    elif first == "there" and (second in BE or base_of(second) in STANDING):
        _read_there(words, i + 1, end, scene)
    elif scene.quote and base in SPEECH and not words.is_name(i):
        _read_said(words, i, end, scene)
    elif base in STANDING and scene.fronted and _is_noun_start(words, i + 1):
        _read_there(words, i, end, scene)
    else:
        _read_clauses(words, i, end, scene)


def read_order(words: Words, i: int, end: int, scene: Scene) -> None:
    """Read a clause that begins with its verb."""
    _finish(words, None, i, end, scene)


def _presents(words: Words, i: int) -> bool:
    verb = words.low(i + 1)
    if not (verb in ("is", "'s", "was", "are") or base_of(verb) in ("come", "stand", "live")):
        return False
    found = noun_phrase(words, i + 2, noun_phrase_end(words, i + 2, len(words)))
    return found is not None and (bool(found.name) or found.animate)


def _is_noun_start(words: Words, i: int) -> bool:
    return words.low(i) in DETERMINERS or words.is_name(i)


def _read_presented(words: Words, i: int, end: int, scene: Scene) -> None:
    """As in: "This is Mara, a lighthouse keeper, waiting on a rocky island"."""
    after = noun_phrase_end(words, i, end)
    subject = noun_phrase(words, i, after)
    rest = after + (words.low(after) == ",")
    rest += words.low(rest) in RELATIVES
    _finish(words, subject, rest, end, scene)
    if not scene.clauses:
        scene.clauses.append(Clause(subject, "be", ""))


def _read_there(words: Words, verb: int, end: int, scene: Scene) -> None:
    """As in: "There lived a girl ...", "Out of the dark came a white owl ..."."""
    start = verb + 1
    while is_adverb(words.low(start)) or words.low(start) in ("been",):
        start += 1
    after = noun_phrase_end(words, start, end)
    subject = noun_phrase(words, start, after)
    rest = after + (words.low(after) == ",")
    relative = words.low(rest) in RELATIVES
    rest += relative
    base = "be" if words.low(verb) in BE else base_of(words.low(verb))
    tail = words.slice(rest, end)
    if base == "be" and tail and words.low(rest) not in PREPOSITIONS:
        _finish(words, subject, rest, end, scene)
        return
    tail = "" if relative else tail
    verb_text = "" if base == "be" else words.slice(verb, start)
    parts = [part for part in (verb_text, scene.fronted, tail) if part]
    scene.clauses.append(Clause(subject, base, " ".join(parts), there=True))
    read_places(words, rest, end, base, scene)


def _read_said(words: Words, verb: int, end: int, scene: Scene) -> None:
    """As in: "..." said Omar."""
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
    while i < end and (words.at(i).mark or words.low(i) in _JOINTS or _leads(words.low(i))):
        i += 1
    if words.low(i) == "there" and words.low(i + 1) in BE:
        _read_there(words, i + 1, end, scene)
        return
    verb = find_verb(words, i, end)
    if verb is not None:
        scene.clauses.append(_clause(words, _subject(words, i, verb), verb, end, scene))


def _leads(low: str) -> bool:
    return low == "then" or (is_adverb(low) and low != "there")


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
    read_places(words, main, end, base, scene)
    _read_objects(words, main + 1, end, scene)
    complement = None
    if base == "be" and (words.low(main + 1) in ("a", "an", "the") or words.is_name(main + 1)):
        complement = noun_phrase(words, main + 1, noun_phrase_end(words, main + 1, end))
    return Clause(subject, base, words.slice(verb, end).rstrip(" ,;:—–"), complement)


def _clause_starts(words: Words, i: int, end: int) -> list[int]:
    """Where further clauses with a subject of their own begin (at their conjunction)."""
    starts = []
    for j in range(i + 1, end):
        if starts_clause(words, j, end):
            starts.append(j - 1 if words.low(j - 1) == "," else j)
    return [s for k, s in enumerate(starts) if k == 0 or s > starts[k - 1] + 1]


def read_places(
    words: Words, i: int, end: int, base: str, scene: Scene, how: How | None = None
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
            here: How = "goal" if goal else "position" if base in POSITION else "mention"
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
