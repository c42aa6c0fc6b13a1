"""What one sentence shows: who, doing what, where, when, and what is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from specstream_adapters.prompt.nouns import NounPhrase
from specstream_adapters.prompt.phrases import PlacePhrase

__all__ = ["Clause", "How", "Place", "Scene"]

How = Literal["opening", "goal", "position", "mention"]


@dataclass(frozen=True, slots=True)
class Clause:
    """A subject (None where the sentence has none) and its verb phrase; ``verb`` is its base form.

    ``complement`` is what "be" links the subject to ("a lighthouse keeper"); ``there`` marks "there
    is ..." and other clauses that bring their subject in from behind the verb.
    """

    subject: NounPhrase | None
    verb: str
    action: str
    complement: NounPhrase | None = None
    there: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A place and how the sentence brings it up: as its setting, as a goal, or in passing."""

    phrase: PlacePhrase
    how: How


@dataclass(slots=True)
class Scene:
    """What one sentence shows. Empty strings and lists where it says nothing of the kind.

    Attributes:
        whole: The sentence without quotations.
        topic: The same without its first connectives.
        clauses: In order; the first is the main one.
        places: In order.
        mentioned: Whom the verb phrases bring in.
        time: A time of day or a season.
        era: A year.
        later: Whether time moves on ("one day").
        opening: A subordinate clause in front.
        fronted: A phrase in front that the main clause's verb belongs to ("out of the dark").
        quote: What is spoken.
        addressed: Whether somebody speaks to the listener (a question, "you", an order).
        question: Whether it is one.
        presents: Whether it introduces somebody ("This is Mara, ...").
    """

    whole: str
    topic: str
    clauses: list[Clause] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    mentioned: list[NounPhrase] = field(default_factory=list)
    time: str = ""
    era: str = ""
    later: bool = False
    opening: str = ""
    fronted: str = ""
    quote: str = ""
    addressed: bool = False
    question: bool = False
    presents: bool = False
