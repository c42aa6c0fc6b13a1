"""From what a sentence shows to what the shot list does with it."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Literal

from specstream_adapters.prompt.bible import Bible, Subject
from specstream_adapters.prompt.captions import caption, first_person, speaking, trimmed
from specstream_adapters.prompt.lexicon import PLACES, SPEECH, VAGUE, WEATHER
from specstream_adapters.prompt.look import Draft, Moment, camera_for, mood_of
from specstream_adapters.prompt.reading import Sentence, is_code
from specstream_adapters.prompt.scene import Clause, Scene
from specstream_adapters.prompt.sentence import read_scene
from specstream_adapters.prompt.talk import is_talk, narrates
from specstream_adapters.prompt.world import World

__all__ = ["Step", "Story"]

Step = Literal["new", "refine", "none"]
_PASSING = ("mention", "position")
_DETAILS = 2  # how much description one shot collects


@dataclass(slots=True)
class Story:
    """What is known after each sentence: the people, the place, and the shot on screen.

    A value: copy it to come back to it.
    """

    bible: Bible
    world: World
    mood: str = ""  # from tags that no shot has taken up yet
    draft: Draft | None = None
    current: Subject | None = None
    speaking: bool = False  # whether the last sentence was nothing but speech
    talk: bool = False  # whether this is no story but somebody who talks to the listener

    def copy(self) -> Story:
        """An independent copy."""
        return deepcopy(self)

    def tell(self, sentence: Sentence) -> Step:
        """Take in one sentence; afterwards ``draft`` is the shot that it made or changed."""
        self.mood = mood_of(sentence.tags) or self.mood
        if not re.search(r"\w", sentence.text) or is_code(sentence.text):
            return "none"
        scene = read_scene(sentence.text, self.bible.names)
        before, step = self.draft, self._step(scene, sentence.complete)
        if step == "none" or self.draft is None:
            return "none"
        if step == "refine" and self.mood:
            self.draft = replace(self.draft, mood=self.mood)
        self.mood = ""
        return "none" if step == "refine" and self.draft == before else step

    def say(self, text: str) -> None:
        """Make a shot of the speaker who says ``text``, whatever it is."""
        words = re.sub(r"[*`#\s]+", " ", text).strip()
        self._shoot(self.bible.speaker, Moment(words, "speaking", line=words, talk=True))

    def _step(self, scene: Scene, complete: bool) -> Step:
        if not scene.topic and not scene.quote:  # a scene heading
            self.world.move(scene)
            return "none"
        if is_talk(scene, story=bool(self.bible.characters), talk=self.talk):
            return self._talk(scene, complete)
        new_place = self.world.move(scene)
        clauses = self.world.breathe(scene, begun=self.draft is not None)
        if scene.quote and not clauses:
            return self._quote(scene)
        was_speaking, self.speaking = self.speaking, False
        if not scene.clauses:
            return self._unread(scene, complete)
        if not clauses:
            return self._set_in(complete)
        main = clauses[0]
        if not complete and not (main.subject and trimmed(main.action, complete)):
            return "none"
        if was_speaking and self._attributed(scene, main):
            return "refine"
        if self._describes(clauses, complete):
            return "refine"
        return self._event(scene, clauses, new_place, complete)

    def _talk(self, scene: Scene, complete: bool) -> Step:
        clause = scene.clauses[0] if scene.clauses else None
        own = clause if clause is not None and first_person(clause) else None
        if self.bible.characters and (own is None or own.subject is None):
            return "none"  # a story's aside to the listener shows nothing new
        if own is not None and own.subject is not None and narrates(own, scene):
            self.bible.enter(self.bible.speaker)
            new_place = self.world.move(scene)
            return self._event(scene, [own, *scene.clauses[1:]], new_place, complete)
        self.talk = self.talk or not self.bible.characters
        topic = trimmed(scene.topic, complete)
        if len(topic.split()) < 2:
            return "none"
        self.world.move(scene)
        action = trimmed(own.action, complete) if own is not None else topic
        if own is not None and own.subject is None:
            moment = Moment(action, caption(own, action), own.verb, talk=self.talk, order=True)
        else:
            line = trimmed(scene.whole, complete) + ("?" if scene.question else "")
            action = topic if action.startswith(("'", "’")) else action
            moment = Moment(action, "speaking", line=line, talk=self.talk)
        self._shoot(self.bible.speaker, moment)
        return "new"

    def _quote(self, scene: Scene) -> Step:
        """Words without anybody who says them."""
        current = self.current if self.current is not None and self.current.animate else None
        self.speaking = True
        line = scene.quote.strip(" ,")
        speaker = current or self.bible.lead or self.bible.speaker
        self._shoot(speaker, Moment(line, "speaking", "say", line))
        return "new"

    def _unread(self, scene: Scene, complete: bool) -> Step:
        """Words without a verb that the rules know: the words themselves are the picture."""
        tiny = len(scene.topic.split()) < 3 and scene.topic.isascii()
        if tiny or not complete:
            return "none"
        self._shoot(Subject(scene.topic, set()), Moment(scene.topic, ""))
        self.current = None
        return "new"

    def _set_in(self, complete: bool) -> Step:
        """Nothing but weather: it comes to the shot on screen."""
        if self.draft is None or self.talk or not complete:
            return "none"
        world = self.world
        self.draft = replace(self.draft, place=world.where, time=world.when, air=world.air)
        return "refine"

    def _attributed(self, scene: Scene, main: Clause) -> bool:
        """A bare "he cried" after somebody's words tells who said them."""
        short = len(main.action.split()) <= 3
        if main.verb not in SPEECH or scene.quote or not short or self.draft is None:
            return False
        self.current = self._subject(main)
        self.draft = replace(self.draft, subject=self.current.description)
        return True

    def _describes(self, clauses: list[Clause], complete: bool) -> bool:
        """Take in "Her name was Mara", "Mara is a keeper", "She was tired": no new action."""
        main, subject = clauses[0], clauses[0].subject
        if subject is None or any(c.verb != "be" or c.there or not c.subject for c in clauses):
            return False
        if subject.head == "name" and main.complement is not None and main.complement.name:
            owner = self.bible.owner(subject)
            if owner is None or owner.name:
                return False
            self.bible.rename(main.complement.name, owner)
            return self._redraw(owner)
        known = self.bible.find(subject) if subject.kind not in ("possessive", "bare") else None
        if known is None or known is not self.current or self.draft is None:
            return False
        if known.description == known.name and main.complement is not None:
            self.bible.describe(known, main.complement.text)
            return self._redraw(known)
        self.bible.touch(known)
        more, _ = self._others(clauses[1:], known, complete)
        details = (*self.draft.extras, caption(main, trimmed(main.action, complete)), *more)
        self.draft = replace(self.draft, extras=details[-_DETAILS:], air=self.world.air)
        return True

    def _redraw(self, subject: Subject) -> bool:
        """Show the new description, if its subject is on screen."""
        if self.draft is None or self.current is not subject:
            return False
        self.draft = replace(self.draft, subject=subject.description)
        return True

    def _event(self, scene: Scene, clauses: list[Clause], new_place: bool, complete: bool) -> Step:
        """A new action: the next shot."""
        main, lead = clauses[0], self.bible.lead
        subject, arrives = self._who(main, lead)
        for phrase in scene.mentioned:
            self.bible.resolve(phrase)
        self.bible.touch(subject)
        self.world.settle(subject)
        extras, told = self._others(clauses[1:], subject, complete)
        action, verb, line = trimmed(main.action, complete), main.verb, scene.quote.strip(" ,")
        shown = self._shown(main, action, line, subject)
        if main.subject is not None and main.subject.kind == "quantified":
            extras = [f"{main.subject.text} {shown}", *extras]
            action, shown, verb = f"{main.subject.text} {action}", "", ""
        if verb in VAGUE and len(action.split()) <= 2 and (extras or self.world.air):
            shown = ""  # "did it"
        extras += [scene.opening] if scene.opening else []
        extras += [f"seen past {lead.description}"] if arrives and lead is not None else []
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

    def _shown(self, main: Clause, action: str, line: str, subject: Subject) -> str:
        """The action as a caption says it."""
        shown = caption(main, action)
        if line and main.verb in SPEECH:
            to = "to " if main.verb == "tell" else ""
            return f"{speaking(main.verb)} {to}{shown.partition(' ')[2]}".strip()
        presented = main.complement is not None and subject.description == main.complement.text
        return "" if presented else shown

    def _who(self, main: Clause, lead: Subject | None) -> tuple[Subject, bool]:
        """The subject of the shot, and whether it is somebody who meets the lead here."""
        phrase, named = main.subject, main.complement
        if phrase is not None and phrase.kind == "possessive" and named and named.name:
            phrase = named  # "Her best friend is Bruno, a stuffed bear"
        known = len(self.bible.subjects)
        subject = self._subject(replace(main, subject=phrase))
        new = len(self.bible.subjects) > known and subject.animate and not subject.plural
        introduced = phrase is not None and phrase.kind in ("indefinite", "name")
        return subject, new and introduced and lead is not None and not lead.plural

    def _subject(self, clause: Clause) -> Subject:
        lead, phrase = self.bible.lead, clause.subject
        current = self.current or lead or self.bible.speaker
        if phrase is None:
            return current
        if phrase.kind == "quantified":
            return lead or current
        plural = phrase.kind == "pronoun" and phrase.plural
        return self.bible.resolve(phrase, clause.verb) or ((lead if plural else None) or current)

    def _others(
        self, clauses: list[Clause], subject: Subject, complete: bool
    ) -> tuple[list[str], list[str]]:
        """Further clauses, as a caption and in the text's words."""
        shown, told = [], []
        for clause in clauses:
            action = trimmed(clause.action, complete)
            if clause.subject is None or not (action or clause.there):
                continue
            text, said = caption(clause, action), clause.subject.text
            told.append(f"{said} {action}".strip())
            if clause.subject.kind == "quantified" or clause.there:
                name = said
            else:
                known = len(self.bible.subjects)
                who = self._subject(clause)
                new = len(self.bible.subjects) > known
                name = "" if who is subject else who.description if new else who.short
            shown.append(f"{name} {text}".strip())
        return shown, told

    def _shoot(self, subject: Subject, moment: Moment) -> None:
        """Make the next shot."""
        world = self.world
        world.next_shot()
        nowhere = not world.place and not moment.talk
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
        self.draft = Draft(
            subject=subject.description,
            moment=moment,
            camera=camera,
            place=world.where,
            time=world.when,
            air=world.air,
            extras=moment.extras,
            mood=moment.mood,
        )
