"""Where and when the story is, and what the air is like: carried on until the text changes it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specstream_adapters.prompt.bible import Subject
from specstream_adapters.prompt.captions import caption, trimmed
from specstream_adapters.prompt.lexicon import VAGUE, WEATHER
from specstream_adapters.prompt.scene import Clause, Place, Scene

__all__ = ["World"]

_WITHIN = {
    "into": "in", "through": "in", "over": "in", "across": "in", "around": "in", "onto": "on",
    "to": "at", "toward": "near", "towards": "near",
}  # fmt: skip
_DUMMY_VERBS = frozenset("be seem become get work happen rain snow take feel".split())
_AIR_SHOTS = 2  # how many more shots weather is carried into


@dataclass(slots=True)
class World:
    """The setting of the next shot."""

    default_place: str
    place: str = ""
    time: str = ""
    era: str = ""
    air: str = ""
    air_left: int = 0

    @property
    def where(self) -> str:
        """The place, or what stands in for it."""
        return self.place or self.default_place

    @property
    def when(self) -> str:
        """Time of day and year, as far as they are known."""
        return ", ".join(part for part in (self.time, self.era) if part)

    def move(self, scene: Scene) -> bool:
        """Follow the story to where the sentence sets it; return whether that is somewhere else."""
        habit = scene.time.startswith("every")
        if not habit and (scene.time or scene.later):
            self.time = scene.time
        self.era = scene.era or self.era
        place = self._setting(scene.places)
        if place is None:
            return False
        text = place.phrase.text
        if place.how != "opening":  # where one is after walking "into the shop"
            first, _, rest = text.partition(" ")
            text = f"{_WITHIN.get(first, first)} {rest}"
        moved = bool(self.place) and text.lower() != self.place.lower()
        if moved or not self.place:
            self.place = text
        if moved:
            self.air = ""
        return moved

    def _setting(self, places: list[Place]) -> Place | None:
        """The place that the sentence plays at, if it says so; a mere mention only at first."""
        for how in ("opening", "goal", "position", "mention"):
            for place in places:
                known, sure = bool(self.place), place.phrase.sure
                vague = how in ("mention", "goal") or place.phrase.text.startswith("on ")
                if place.how != how or (not sure and (known or vague)):
                    continue
                if not (known and how == "mention"):
                    return place
        return None

    def breathe(self, scene: Scene, *, begun: bool) -> list[Clause]:
        """Take the clauses about weather and light into the air; return the others.

        ``begun`` is whether there is a shot to put them in; "it worked, and the sky opened" is an
        event all the same.
        """
        vague = any(c.subject and c.subject.head == "it" and c.verb in VAGUE for c in scene.clauses)
        sets_in = not vague and (begun or len(scene.clauses) > 1)
        air: list[str] = []
        others: list[Clause] = []
        for clause in scene.clauses:
            subject, shown = clause.subject, caption(clause, trimmed(clause.action))
            if subject is None or subject.kind in ("name", "possessive"):
                others.append(clause)
            elif subject.head == "it" and clause.verb in _DUMMY_VERBS:
                air.append(shown if clause.verb == "be" else "")
            elif subject.head in WEATHER and sets_in:
                air.append(f"{subject.text} {shown}".strip())
            else:
                others.append(clause)
        if air and all(c.there and c.subject and c.subject.kind == "bare" for c in others):
            air += [f"{c.subject.text} {c.action}" for c in others if c.subject]
            others = []  # "the wind is bitter, and there is little to eat"
        if any(air):
            self.air = ", ".join(a for a in air if a)
            self.air_left = _AIR_SHOTS + bool(others)  # the others make a shot of their own
        return others

    def next_shot(self) -> None:
        """Weather doesn't last for ever."""
        self.air_left -= 1
        if self.air_left < 0:
            self.air = ""

    def settle(self, owner: Subject) -> None:
        """In "her kitchen" it must still be hers when others are in it."""
        if owner.name:
            self.place = re.sub(r"\b(?:his|her|its)\b", f"{owner.short}'s", self.place)
