"""Spoken questions of the bench, and the word error rate of their transcripts."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from specstream.text.rules import Mapped
from specstream.text.wording import wording_for

__all__ = ["ALOUD", "FIRST", "WRITTEN", "WordErrors", "plain_words"]

FIRST = "Hello! Who are you?"
"""Asked first, to warm everything up."""

WRITTEN = (
    "What is the capital of France?",
    "Can you explain how a rainbow is made?",
    "Why do cats sleep so much during the day?",
    "Tell me a short story about a lighthouse.",
    "What should I cook with potatoes and eggs?",
    "How do I write a polite letter to my landlord?",
    "What is the difference between weather and climate?",
    "Which season do you like best, and why?",
    "How does a bicycle stay upright?",
    "Give me three ideas for a rainy afternoon.",
    "What happens to the moon during an eclipse?",
    "How can I learn the names of my new colleagues?",
    "Why is the sea salty?",
    "Describe a morning in a small fishing village.",
    "What is a good way to start a speech?",
    "How do birds find their way in winter?",
    "What does a conductor do in an orchestra?",
    "Could you recommend a game for two people?",
    "Why do leaves change their colour in autumn?",
    "How long should I boil rice?",
)
"""Asked in writing."""

ALOUD = (
    "What is the longest river in the world?",
    "How does a vaccine work?",
    "Can you tell me something about the planet Mars?",
    "What do bees do in winter?",
    "How do I get a coffee stain out of a shirt?",
    "Who invented the telephone?",
    "What should I pack for a week in the mountains?",
    "Why is the sky blue?",
    "How is cheese made?",
    "Tell me a joke about a dog.",
    "What is a good breakfast before a long walk?",
    "How do airplanes stay in the air?",
    "Why do people yawn?",
    "Describe the smell of the sea.",
    "How can I sleep better at night?",
    "What is the difference between a crocodile and an alligator?",
    "How do I plant tomatoes?",
    "What makes a good friend?",
    "Where does chocolate come from?",
    "How can I learn to play the guitar?",
)
"""Asked aloud."""


_NOT_A_WORD = re.compile(r"[^\w']+")


def plain_words(text: str, language: str = "en-us") -> list[str]:
    """The words of a text in lower case, with numbers as words and without punctuation."""
    wording = wording_for(language)
    if wording is not None:
        text = wording.read(Mapped(text)).text
    text = unicodedata.normalize("NFKC", text).casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return _NOT_A_WORD.sub(" ", text).replace("'", "").split()


@dataclass(slots=True)
class WordErrors:
    """Counts of spoken words, and of the substitutions, insertions and deletions in transcripts."""

    words: int = 0
    errors: int = 0

    def add(self, said: str, understood: str) -> None:
        """Count one utterance (Levenshtein distance over words)."""
        wanted, got = plain_words(said), plain_words(understood)
        row = list(range(len(got) + 1))
        for i, word in enumerate(wanted, 1):
            before, row[0] = row[0], i
            for j, other in enumerate(got, 1):
                before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
        self.words += len(wanted)
        self.errors += row[-1]

    @property
    def rate(self) -> float:
        """Errors divided by spoken words; 0 without words."""
        return self.errors / self.words if self.words else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {"words": self.words, "errors": self.errors, "rate": round(self.rate, 4)}
