"""From what a sentence shows to what the shot list does with it."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Literal

from specstream_adapters.prompt.bible import Bible, Subject
from specstream_adapters.prompt.lexicon import ANIMATE, SPEECH, VAGUE, WEATHER
from specstream_adapters.prompt.look import Draft, camera_for, mood_of, speech
from specstream_adapters.prompt.reading import Sentence
from specstream_adapters.prompt.scene import Clause, Scene, read_scene
from specstream_adapters.prompt.verbs import present

__all__ = ["Story"]

Step = Literal["new", "refine", "none"]
_IN = {"into": "in", "onto": "on", "to": "at", "toward": "near", "towards": "near", "through": "in"}
_DANGLING = re.compile(
    r"(?:[\s,;:—–-]+(?:and|but|or|so|then|as|while|when|the|a|an|his|her|its|their|to|of|in|on|at|with|"
    r"by|for|from|into|that|who|which)?)+$"
)
_DETAILS = 2


@dataclass(slots=True)
class Story:
    """What is known after each sentence: the people, the place, and the shot on screen.

    A value: copy it to come back to it.
    """

    bible: Bible
    default_setting: str
    place: str = ""
    time: str = ""
    atmosphere: str = ""
    mood: str = ""  # from tags that stand before any word
    draft: Draft | None = None
    current: Subject | None = None
    speaking: bool = False  # whether the last sentence was nothing but speech
    talk: bool = False  # whether this is no story but somebody who talks to the listener
    shots: int = 0

    def copy(self) -> Story:
        """An independent copy."""
        return deepcopy(self)

    def tell(self, sentence: Sentence) -> Step:
        """Take in one sentence; afterwards ``draft`` is the shot that it made or changed."""
        mood = mood_of(sentence.tags) or self.mood
        if not re.search(r"\w", sentence.text):
            self.mood = mood
            return "none"
        self.mood = ""
        scene = read_scene(sentence.text, self.bible.names)
        new_place = self._move(scene)
        step = self._step(scene, mood, new_place, sentence.complete)
        if step == "new":
            self.shots += 1
        return step
