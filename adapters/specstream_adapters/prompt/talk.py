"""Tells a story from somebody who talks to the listener."""

from __future__ import annotations

import re

from specstream_adapters.prompt.lexicon import FEELING, MOTION, PERCEPTION, POSITION, SPEECH
from specstream_adapters.prompt.scene import Clause, Scene

__all__ = ["is_talk", "narrates"]

_STATIVE = re.compile(r"(?:is|are|has|have|costs?|starts?|['’]s|['’]re)\b")
_ACTS = (SPEECH | FEELING | PERCEPTION | MOTION | POSITION) - {"be"}
_TALKING = re.compile(r"\d|\b(?:you|your|can|will|would)\b|['’](?:m|ll|d|ve)\b", re.IGNORECASE)
_OWN_STATE = frozenset("am have do need want think see".split())


def is_talk(scene: Scene, *, story: bool, talk: bool) -> bool:
    """Whether the sentence is said to the listener rather than told of somebody.

    ``story`` says that characters are known, ``talk`` that the sentences before were talk. A
    statement of fact ("The ticket costs $20.") is talk as long as nobody lives in the text.
    """
    if scene.quote:
        return False
    if scene.addressed:
        return True
    if story or scene.presents or any(_is_tale(clause) for clause in scene.clauses):
        return False
    stative = bool(scene.clauses) and _STATIVE.match(scene.clauses[0].action) is not None
    figures = re.search(r"\d", scene.topic) is not None and not scene.era
    return talk or stative or figures


def _is_tale(clause: Clause) -> bool:
    """Whether the clause can only be about somebody in a story."""
    if clause.subject is None:
        return False
    human = re.search(r"\b(?:his|her|himself|herself)\b", clause.action) is not None
    named = clause.subject.kind == "name" and (clause.verb in _ACTS or human)
    return clause.subject.animate or named


def narrates(clause: Clause, scene: Scene) -> bool:
    """Whether "I ..." tells a story: what was done, with no word to the listener."""
    first = clause.action.split()[0].lower() if clause.action else ""
    return not _TALKING.search(scene.topic) and first not in _OWN_STATE
