"""From what a sentence shows to what the shot list does with it."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Literal

from specstream_adapters.prompt.bible import Bible, Subject
from specstream_adapters.prompt.captions import caption, first_person, speaking, trimmed
from specstream_adapters.prompt.lexicon import (
    FEELING,
    MOTION,
    PERCEPTION,
    PLACES,
    POSITION,
    SPEECH,
    VAGUE,
    WEATHER,
)
from specstream_adapters.prompt.look import Draft, Moment, camera_for, mood_of
from specstream_adapters.prompt.reading import Sentence
from specstream_adapters.prompt.scene import Clause, Scene, read_scene

__all__ = ["Step", "Story"]

Step = Literal["new", "refine", "none"]
_WITHIN = {
    "into": "in", "through": "in", "over": "in", "across": "in", "around": "in", "onto": "on",
    "to": "at", "toward": "near", "towards": "near",
}  # fmt: skip
_ACTS = SPEECH | FEELING | PERCEPTION | MOTION | POSITION - {"be"}
_DUMMY_VERBS = frozenset("be seem become get work happen rain snow take feel".split())
_PASSING = ("mention", "position")
_STATIVE = re.compile(r"(?:is|are|has|have|costs?|starts?|'s|'re)\b")
_DETAILS = 2  # how much description one shot collects
_AIR_SHOTS = 2  # how many more shots weather is carried into


@dataclass(slots=True)
class Story:
    """What is known after each sentence: the people, the place, and the shot on screen.

    A value: copy it to come back to it.
    """

    bible: Bible
    default_setting: str
    place: str = ""
    time: str = ""
    era: str = ""
    air: str = ""
    air_left: int = 0
    mood: str = ""  # from tags that stand before any word
    draft: Draft | None = None
    current: Subject | None = None
    speaking: bool = False  # whether the last sentence was nothing but speech
    talk: bool = False  # whether this is no story but somebody who talks to the listener

    def copy(self) -> Story:
        """An independent copy."""
        return deepcopy(self)

    def tell(self, sentence: Sentence) -> Step:
        """Take in one sentence; afterwards ``draft`` is the shot that it made or changed."""
        mood = mood_of(sentence.tags) or self.mood
        if not re.search(r"\w", sentence.text):
            self.mood = mood
            return "none"
        scene = read_scene(sentence.text, self.bible.names)
        before, self.mood = self.draft, mood
        step = self._step(scene, sentence.complete)
        if step == "none" or self.draft is None:
            return "none"
        if step == "refine" and mood:
            self.draft = replace(self.draft, mood=mood)
        self.mood = ""
        return "none" if step == "refine" and self.draft == before else step

    def say(self, text: str) -> None:
        """Make a shot of somebody who says ``text``, whatever it is."""
        words = re.sub(r"[*_`#\s]+", " ", text).strip()
        self._shoot(self.bible.speaker, Moment(words, "speaking", line=words, talk=True))

    def _step(self, scene: Scene, complete: bool) -> Step:
        if not scene.topic and not scene.quote:
            self._move(scene)
            return "none"
        if self._is_talk(scene):
            return self._talk(scene, complete)
        new_place = self._move(scene)
        clauses = self._weather(scene)
        if scene.quote and not clauses:
            return self._quote(scene)
        was_speaking, self.speaking = self.speaking, False
        if not scene.clauses:
            return self._unread(scene, complete)
        if not clauses:
            return self._refine_air(complete)
        main = clauses[0]
        if not complete and not (main.subject and trimmed(main.action)):
            return "none"
        if was_speaking and self._attributed(scene, main):
            return "refine"
        if self._describes(clauses, complete):
            return "refine"
        return self._event(scene, clauses, new_place, complete)

    # --- talk

    def _is_talk(self, scene: Scene) -> bool:
        if scene.quote:
            return False
        if scene.addressed:
            return True
        if self.bible.characters or scene.presents:
            return False
        if any(_is_tale(c) for c in scene.clauses):
            return False
        stative = scene.clauses and _STATIVE.match(scene.clauses[0].action)
        return self.talk or bool(stative) or (bool(re.search(r"\d", scene.topic)) and not scene.era)

    def _talk(self, scene: Scene, complete: bool) -> Step:
        clause = scene.clauses[0] if scene.clauses else None
        own = clause if clause is not None and first_person(clause) else None
        if self.bible.characters and (own is None or own.subject is None):
            return "none"  # a story's aside to the listener shows nothing new
        speaker = self.bible.speaker
        if own is not None and own.subject is not None and _narrates(own, scene):
            self.bible.enter(speaker)
            return self._event(scene, [own, *scene.clauses[1:]], self._move(scene), complete)
        self.talk = self.talk or not self.bible.characters
        topic = trimmed(scene.topic, complete)
        if len(topic.split()) < 2:
            return "none"
        self._move(scene)
        action = trimmed(own.action, complete) if own is not None else topic
        if own is not None and own.subject is None:
            moment = Moment(action, caption(own, action), own.verb, talk=self.talk, order=True)
        else:
            line = f"{topic}?" if scene.question else topic
            action = topic if action.startswith(("'", "’")) else action
            moment = Moment(action, "speaking", line=line, talk=self.talk)
        self._shoot(speaker, moment)
        return "new"

    # --- place and air

    def _move(self, scene: Scene) -> bool:
        """Follow the story to where the sentence sets it; whether that is somewhere new."""
        habit = scene.time.startswith("every")
        if scene.time and not habit:
            self.time = scene.time
        elif scene.later and not habit:
            self.time = ""
        self.era = scene.era or self.era
        for how in ("opening", "goal", "position", "mention"):
            for place in scene.places:
                if place.how != how or (self.place and (how == "mention" or not place.phrase.sure)):
                    continue
                vague = how == "mention" or place.phrase.text.startswith("on ")
                if vague and not place.phrase.sure:
                    continue
                first, _, rest = place.phrase.text.partition(" ")
                text = place.phrase.text
                if how != "opening":  # where one is after walking "into the shop"
                    text = f"{_WITHIN.get(first, first)} {rest}"
                moved = bool(self.place) and text.lower() != self.place.lower()
                self.place = text if moved or not self.place else self.place
                self.air = "" if moved else self.air
                return moved
        return False

    def _weather(self, scene: Scene) -> list[Clause]:
        """Take the clauses about weather and light into the air; return the others."""
        air, others = [], []
        vague = any(c.subject and c.subject.head == "it" and c.verb in VAGUE for c in scene.clauses)
        sets_in = not vague and (self.draft is not None or len(scene.clauses) > 1)
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
        idle = [c for c in others if c.there and c.subject and c.subject.kind == "bare"]
        if air and len(idle) == len(others):  # "... and there is little to eat"
            air += [c.subject.text + " " + c.action for c in idle if c.subject]
            others = []
        if any(air):
            self.air, self.air_left = ", ".join(a for a in air if a), _AIR_SHOTS + 1
        return others

    def _refine_air(self, complete: bool) -> Step:
        if self.draft is None or self.talk or not complete:
            return "none"
        place = self.place or self.default_setting
        self.draft = replace(self.draft, place=place, time=self._when(), air=self.air)
        return "refine"

    def _when(self) -> str:
        return ", ".join(part for part in (self.time, self.era) if part)

    # --- names, descriptions, states

    def _attributed(self, scene: Scene, main: Clause) -> bool:
        """A bare "he cried" after somebody's words tells who said them."""
        short = len(main.action.split()) <= 3
        if main.verb not in SPEECH or scene.quote or not short or self.draft is None:
            return False
        self.current = self._subject(main)
        self.draft = replace(self.draft, subject=self.current.description)
        return True

    def _describes(self, clauses: list[Clause], complete: bool) -> bool:
        """ "Her name was Mara", "Mara is a lighthouse keeper", "She was tired": no new action."""
        main, subject = clauses[0], clauses[0].subject
        if subject is None or main.verb != "be" or subject.kind == "quantified" or main.there:
            return False
        if subject.head == "name" and main.complement is not None and main.complement.name:
            owner = self.bible.owner(subject)
            if owner is None or owner.name:
                return False
            self.bible.rename(main.complement.name, owner)
            return self._redraw(owner)
        if subject.kind not in ("name", "pronoun", "definite"):
            return False
        if any(c.verb != "be" or c.subject is None for c in clauses):
            return False
        known = self.bible.find(subject)
        if known is None or known is not self.current or self.draft is None:
            return False
        if known.description == known.name and main.complement is not None:
            self.bible.describe(known, main.complement.text)
            return self._redraw(known)
        self.bible.touch(known)
        more, _ = self._others(clauses[1:], known, complete)
        details = (*self.draft.extras, caption(main, trimmed(main.action, complete)), *more)
        self.draft = replace(self.draft, extras=details[-_DETAILS:], air=self.air)
        return True

    def _redraw(self, subject: Subject) -> bool:
        """Show the new description, if its subject is on screen."""
        if self.draft is None or self.current is not subject:
            return False
        self.draft = replace(self.draft, subject=subject.description)
        return True

    # --- what happens

    def _quote(self, scene: Scene) -> Step:
        current = self.current if self.current is not None and self.current.animate else None
        subject = current or self.bible.lead or self.bible.speaker
        self.speaking = True
        line = scene.quote.strip(" ,")
        self._shoot(subject, Moment(line, "speaking", "say", line))
        return "new"

    def _unread(self, scene: Scene, complete: bool) -> Step:
        """Words without a verb that the rules know: the words themselves are the picture."""
        tiny = len(scene.topic.split()) < 3 and scene.topic.isascii()
        if tiny or not complete:
            return "none"
        self._shoot(Subject(scene.topic, set()), Moment(scene.topic, ""))
        self.current = None
        return "new"

    def _event(self, scene: Scene, clauses: list[Clause], new_place: bool, complete: bool) -> Step:
        main, lead = clauses[0], self.bible.lead
        action = trimmed(main.action, complete)
        subject, arrives = self._who(main, lead)
        for phrase in scene.mentioned:
            self.bible.resolve(phrase)
        self.bible.touch(subject)
        extras, told = self._others(clauses[1:], subject, complete)
        line = scene.quote.strip(" ,")
        shown, verb = caption(main, action), main.verb
        if line and verb in SPEECH:
            to = "to" if verb == "tell" else ""
            shown = f"{speaking(verb)} {to} {shown.partition(' ')[2]}".strip()
        if main.subject is not None and main.subject.kind == "quantified":
            extras = [f"{main.subject.text} {shown}", *extras]
            action, shown, verb = f"{main.subject.text} {action}", "", ""
        if main.verb in VAGUE and len(action.split()) <= 2 and (extras or self.air):
            shown = ""  # "did it"
        if main.complement is not None and subject.description == main.complement.text:
            shown = ""
        if scene.opening:
            extras.append(scene.opening)
        if arrives and lead is not None:
            extras.append(f"seen past {lead.description}")
        words = [f"{action}: {line}" if line else action, *told]
        moment = Moment(
            action=", ".join(part for part in words if part) or scene.topic,
            shown=shown,
            verb=verb,
            line=line,
            extras=tuple(extras),
            local=any(
                p.how == "position" or p.phrase.sure for p in scene.places if p.how in _PASSING
            ),
            new_place=new_place,
            arrives=arrives,
        )
        self._shoot(subject, moment)
        return "new"

    def _who(self, main: Clause, lead: Subject | None) -> tuple[Subject, bool]:
        """The subject of the shot, and whether it is somebody who meets the lead here."""
        phrase = main.subject
        named = main.complement if main.verb == "be" else None
        if phrase is not None and phrase.kind == "possessive" and named and named.name:
            phrase = named  # "Her best friend is Bruno, a stuffed bear"
        known = len(self.bible.subjects)
        subject = self._subject(replace(main, subject=phrase))
        new = len(self.bible.subjects) > known and subject.animate and not subject.plural
        introduced = phrase is not None and phrase.kind in ("indefinite", "name")
        return subject, new and introduced and lead is not None and not lead.plural

    def _subject(self, clause: Clause) -> Subject:
        current = self.current or self.bible.lead or self.bible.speaker
        if clause.subject is not None and clause.subject.kind == "quantified":
            return self.bible.lead or current
        if clause.subject is None:
            return current
        return self.bible.resolve(clause.subject, clause.verb) or current

    def _others(
        self, clauses: list[Clause], subject: Subject, complete: bool
    ) -> tuple[list[str], list[str]]:
        """Further clauses, as a caption and in the text's words."""
        shown, told = [], []
        for clause in clauses:
            action = trimmed(clause.action, complete)
            if clause.subject is None or not (action or clause.there):
                continue
            told.append(f"{clause.subject.text} {action}".strip())
            known = len(self.bible.subjects)
            text = caption(clause, action)
            if clause.subject.kind == "quantified" or clause.there:
                text = f"{clause.subject.text} {text}".strip()
            else:
                who = self._subject(clause)
                new = len(self.bible.subjects) > known
                name = "" if who is subject else who.description if new else who.short
                text = f"{name} {text}".strip()
            shown.append(text)
        return shown, told

    def _shoot(self, subject: Subject, moment: Moment) -> None:
        """Make the next shot."""
        self.air_left -= 1
        self.air = self.air if self.air_left >= 0 else ""
        nowhere = not self.place and not moment.talk
        moment = replace(moment, mood=self.mood, local=moment.local or nowhere)
        camera = camera_for(
            moment,
            first=self.draft is None,
            animate=subject.animate,
            plural=subject.plural,
            large=bool(subject.heads & (PLACES | WEATHER)),
        )
        subject.shown += 1
        self.current = subject
        place = self.place or self.default_setting
        self.draft = Draft(
            subject.description,
            moment,
            camera,
            place,
            self._when(),
            self.air,
            moment.extras,
            moment.mood,
        )


def _is_tale(clause: Clause) -> bool:
    """Whether the clause can only be about somebody in a story."""
    if clause.subject is None:
        return False
    human = re.search(r"\b(?:his|her|himself|herself)\b", clause.action)
    acts = clause.verb in _ACTS or human is not None
    return clause.subject.animate or (clause.subject.kind == "name" and acts)


def _narrates(clause: Clause, scene: Scene) -> bool:
    """Whether "I ..." tells a story rather than talking to somebody."""
    first = clause.action.split()[0].lower() if clause.action else ""
    talks = re.search(
        r"\d|\b(?:you|your|can|will|would)\b|['’](?:m|ll|d|ve)\b", scene.topic.lower()
    )
    return not talks and first not in ("am", "have", "do", "need", "want", "think", "see")
