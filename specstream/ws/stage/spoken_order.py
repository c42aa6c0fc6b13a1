"""Checks that a remote voice's speech and marks follow the phrases that it was given, without gaps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from specstream.pipeline.yielded import MarkCheck
from specstream.types import Phrase, Revoke, Speech
from specstream.ws.stage.codec import Violation
from specstream.ws.stage.order import Order

__all__ = ["SpokenOrder"]


@dataclass(slots=True)
class _Said:
    """A phrase that the voice has reached, where on the turn's clock, and whether it is over."""

    phrase: Phrase
    begin: int
    over: bool = False
    marks: MarkCheck | None = None  # None: it has no speech


class SpokenOrder(Order):
    """The phrases and the sample clock of one turn, kept as `VoiceStage` keeps them.

    A voice may pass over a phrase only if a revoke that follows takes its text back.
    """

    def __init__(self) -> None:
        self._sent = deque[Phrase | Revoke]()  # what the voice has not reached
        self._said: list[_Said] = []
        self._clock = self._rate = 0

    def send(self, item: object) -> None:
        """Count an item that is sent."""
        if isinstance(item, Phrase | Revoke):
            self._sent.append(item)

    def check(self, speech: Speech, _: int | None = None) -> None:
        """Count speech that was received.

        Raises:
            Violation: it doesn't begin at the next sample, has another rate than the speech before,
                belongs to no phrase that may be spoken now, or has marks that don't fit the phrase.
        """
        place, rate = speech.samples.start, speech.sample_rate
        self._rate = self._rate or rate
        if (place, rate) != (self._clock, self._rate):
            raise Violation(
                f"speech came at sample {place} of {rate} Hz "
                f"where {self._clock} of {self._rate} Hz was due"
            )
        while not self._said or not _belongs(speech, self._said[-1]):
            if not self._sent or isinstance(item := self._sent.popleft(), Revoke):
                first, end = speech.chars
                raise Violation(
                    f"speech came for phrase {speech.phrase} (characters {first} to {end}), which was "
                    "not given, is over or was withdrawn"
                )
            self._said.append(_Said(item, self._clock))
        said = self._said[-1]
        said.over, self._clock = speech.last, speech.samples.end
        said.marks = said.marks or MarkCheck(speech.chars, said.begin, rate)
        fault = said.marks.fault(speech.marks)
        if not fault and speech.last:
            fault = said.marks.end_fault(speech.samples.end)
        if fault:
            raise Violation(f"phrase {speech.phrase} has a wrong mark: {fault}")

    def revoke(self, revoke: Revoke) -> None:
        """Take phrases back: the voice has answered to the first revoke that is unanswered.

        The next phrase begins where the first of them did.
        """
        while self._sent and isinstance(item := self._sent.popleft(), Phrase):
            self._said.append(_Said(item, self._clock))
        while self._said and self._said[-1].phrase.chars.start >= revoke.from_char:
            self._clock = self._said.pop().begin
        if self._said and self._said[-1].phrase.chars.end > revoke.from_char:
            self._said[-1].over = True  # cut in the middle; its audio stays

    def finish(self) -> None:
        """Check that nothing is missing at the end of the turn.

        Raises:
            Violation: a phrase was not spoken to its end (`Speech.last`).
        """
        unsaid = [item for item in self._sent if isinstance(item, Phrase)]
        for phrase in (*(said.phrase for said in self._said if not said.over), *unsaid):
            raise Violation(
                f"the turn is done, but phrase {phrase.index} has no last piece of speech"
            )


def _belongs(speech: Speech, said: _Said) -> bool:
    phrase = said.phrase
    wanted = phrase.index, phrase.chars, phrase.tokens
    return not said.over and wanted == (speech.phrase, speech.chars, speech.tokens)
