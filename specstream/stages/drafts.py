"""Drafted text in a pipeline: released once verified, revoked if not; and speech made ahead of it.

A head that is shown what the engine has drafted may cut phrases from it before the target has judged
it. It yields these as `Drafted`, and later either `Confirmed` or `Withdrawn`. One `DraftLedger` per
turn knows what is outstanding. Only stages that take drafts see drafted phrases, and the `Revoke` that
takes them back. What they make of them is held in the stage's `Gate`: it is released (to the turn's
log and to stages that don't take drafts) once its text is verified, in the order in which it was made,
and dropped if its text is revoked. So nothing that was released is ever taken back because of a draft.

No waiting and no event loop here: `specstream.stages.pipeline` does that.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from specstream.checks import check_numbers
from specstream.types import AvatarCue, Cancel, Control, Phrase, Revoke, ScenePrompt, Span, Speech

__all__ = [
    "Account",
    "Confirmed",
    "DraftEvent",
    "DraftLedger",
    "Drafted",
    "Gate",
    "Presynthesis",
    "PresynthesisReport",
    "TurnAccount",
    "Withdrawn",
]

_ALLOWANCE_S = 1.0  # audio that may be wasted before anything was spoken
_MEMORY_S = 120.0  # spoken audio after which spoken and wasted audio so far count half
_LATELY = 16  # latest drafted phrases over which the share that stood is measured
# Fewest phrases to judge by. Also, while the share is too low, one drafted phrase of 8 is spoken.
_ONE_IN = 8

_log = logging.getLogger("specstream.stages")


@dataclass(frozen=True, slots=True)
class Presynthesis:
    """How much audio a voice may make for drafted text that is then revoked.

    Attributes:
        max_waste: Seconds of audio made for text that was then revoked, per spoken second. 0: drafted
            text is never spoken.
        min_stood: Least share of the latest drafted phrases given to the voice that stood (were
            confirmed). Below it, the voice is given one in eight, to notice when that has changed.
        ahead_s: With more seconds of released audio unheard, drafted text is not spoken: nobody waits
            for it.

    Raises:
        ConfigError: a number is negative or not a number.
    """

    max_waste: float = 0.5
    min_stood: float = 0.25
    ahead_s: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(0, max_waste=self.max_waste, min_stood=self.min_stood, ahead_s=self.ahead_s)


@dataclass(frozen=True, slots=True)
class PresynthesisReport:
    """What pre-synthesis has saved and wasted over the turns of a pipeline.

    ``saved_ms`` is how much earlier the confirmed phrases were given to the voice, summed up.
    """

    on: bool
    why: str
    confirmed: int
    withdrawn: int
    spoken_s: float
    wasted_s: float
    saved_ms: float

    @property
    def acceptance(self) -> float:
        """Confirmed phrases per drafted phrase that the voice was given; nan if none was."""
        given = self.confirmed + self.withdrawn
        return self.confirmed / given if given else math.nan

    @property
    def words(self) -> str:
        """One line for a log."""
        given = self.confirmed + self.withdrawn
        return (
            f"pre-synthesis is {'on' if self.on else 'off'} ({self.why}): {self.confirmed} of {given} "
            f"drafted phrases stood, {self.wasted_s:.2f} s of audio were wasted for "
            f"{self.spoken_s:.2f} s spoken"
        )


class Account:
    """Counts what pre-synthesis has wasted and saved; lives as long as its pipeline."""

    def __init__(self, settings: Presynthesis) -> None:
        self.settings = settings
        self._confirmed = self._withdrawn = 0
        self._spoken_s = self._wasted_s = self._saved_ms = 0.0
        self._recent_spoken_s = self._recent_wasted_s = 0.0
        self._lately: deque[bool] = deque(maxlen=_LATELY)
        self._skipped = 0
        self._told = self._doubt  # as it was logged last

    @property
    def _doubt(self) -> str:
        """Why drafted text should not be spoken at present; empty if it should."""
        if not self.settings.max_waste:
            return "max_waste is 0"
        budget = self.settings.max_waste * self._recent_spoken_s + _ALLOWANCE_S
        if self._recent_wasted_s > budget:
            return "over its budget"
        stood = sum(self._lately)
        if len(self._lately) >= _ONE_IN and stood < self.settings.min_stood * len(self._lately):
            return "too few drafts stand"
        return ""

    def turn(self, clock: Callable[[], float]) -> TurnAccount:
        """Open the account of a new turn."""
        return TurnAccount(self, clock)

    @property
    def report(self) -> PresynthesisReport:
        """The figures so far."""
        doubt = self._doubt
        figures = (self._spoken_s, self._wasted_s, self._saved_ms)
        why = doubt or "within its budget"
        return PresynthesisReport(not doubt, why, self._confirmed, self._withdrawn, *figures)

    def allows(self) -> bool:
        """Whether the next drafted phrase may be spoken."""
        doubt = self._doubt
        if doubt != self._told:
            self._told = doubt
            _log.info(self.report.words)
        if doubt == "too few drafts stand":
            self._skipped = (self._skipped + 1) % _ONE_IN
            return self._skipped == 0
        return not doubt

    def spoke(self, seconds: float, *, wasted: bool) -> None:
        """Count audio that was released, or made for text that was then revoked (``wasted``)."""
        if wasted:
            self._wasted_s += seconds
            self._recent_wasted_s += seconds
            return
        self._spoken_s += seconds
        self._recent_spoken_s += seconds
        if self._recent_spoken_s > _MEMORY_S:
            self._recent_spoken_s /= 2
            self._recent_wasted_s /= 2

    def judged(self, confirmed: int, withdrawn: int, saved_ms: float = 0.0) -> None:
        """Count phrases that the voice was given as drafts, and that were confirmed or withdrawn."""
        self._lately.extend([True] * confirmed + [False] * withdrawn)
        self._confirmed += confirmed
        self._withdrawn += withdrawn
        self._saved_ms += saved_ms


class TurnAccount:
    """One turn's part of an `Account`."""

    def __init__(self, account: Account, clock: Callable[[], float]) -> None:
        self._account = account
        self._clock = clock
        self._heard_from: float | None = None  # when the first audio was released
        self._released_s = 0.0
        self._given: list[float] = []  # when each outstanding draft was given to the voice

    def allows(self) -> bool:
        """Whether the voice may be given another drafted phrase; if so, it counts as given."""
        ahead = 0.0
        if self._heard_from is not None:
            ahead = self._released_s - (self._clock() - self._heard_from)
        allowed = ahead <= self._account.settings.ahead_s and self._account.allows()
        if allowed:
            self._given.append(self._clock())
        return allowed

    def confirmed(self) -> None:
        """Count the oldest phrase that was given: it was confirmed."""
        saved_s = self._clock() - self._given.pop(0)
        self._account.judged(1, 0, saved_s * 1e3)

    def withdrawn(self, count: int) -> None:
        """Count the newest ``count`` phrases that were given: they were withdrawn."""
        del self._given[len(self._given) - count :]
        self._account.judged(0, count)

    def spoke(self, speech: Speech, *, wasted: bool) -> None:
        """Count a piece that was released, or made for text that was then revoked (``wasted``)."""
        seconds = speech.samples.length / speech.sample_rate
        self._account.spoke(seconds, wasted=wasted)
        if not wasted:
            self._heard_from = self._clock() if self._heard_from is None else self._heard_from
            self._released_s += seconds


Kind: TypeAlias = Literal["read", "made", "given", "released", "dropped"]


@dataclass(frozen=True, slots=True)
class Drafted:
    """A phrase cut from text that is drafted in part; ``round`` is the decoding round of the draft."""

    phrase: Phrase
    round: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The oldest drafted phrase outstanding: verified text was cut into the very same phrase."""

    phrase: Phrase


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The drafted phrases that begin at or past ``from_char`` are void."""

    from_char: int


@dataclass(frozen=True, slots=True)
class DraftEvent:
    """What happened to an item, for `specstream.testing.audit` and for debugging.

    ``"read"``: the pipeline took it from the engine. ``"made"``: the stage yielded it. ``"given"``: the
    stages that take drafts were given it by the head. ``"released"``: it is in the turn's log.
    ``"dropped"``: its text was revoked, and nobody saw it but stages that take drafts.
    """

    kind: Kind
    stage: str
    item: Any


class _Given(NamedTuple):
    """A drafted phrase that is outstanding; ``sent``: the stages that take drafts have it."""

    chars: Span
    sent: bool


class DraftLedger:
    """What is drafted, sent and revoked in one turn.

    Args:
        account: See the attribute.
        trace: Called with each `DraftEvent`.

    Attributes:
        account: Decides whether a drafted phrase is worth speaking, and is told what became of it.
        taken: Whether any stage takes drafts.
    """

    def __init__(self, account: TurnAccount, trace: Callable[[DraftEvent], None] | None = None) -> None:
        self.account = account
        self.taken = True
        self._trace = trace
        self._given: deque[_Given] = deque()
        self._revokes: list[int] = []  # offsets of those sent to stages that take drafts, in order

    def note(self, kind: Kind, who: str, what: Any) -> None:
        """Trace an event."""
        if self._trace is not None:
            self._trace(DraftEvent(kind, who, what))

    def route(self, head: str, item: Any) -> tuple[Any, Any]:
        """Take an item that the head yields; return what it becomes.

        First for the log and for most stages, then for those that take drafts; None: nothing.
        """
        self.note("made", head, item)
        verified, drafts = self._route(item)
        if drafts is not None:
            self.note("given", head, drafts)
        if verified is not None:
            self.note("released", head, verified)
        return verified, drafts

    def _route(self, item: Any) -> tuple[Any, Any]:
        match item:
            case Drafted(phrase=phrase):
                sent = self.taken and all(given.sent for given in self._given)
                sent = sent and self.account.allows()
                self._given.append(_Given(phrase.chars, sent))
                return None, phrase if sent else None
            case Confirmed(phrase=phrase):
                sent = self._given.popleft().sent
                if sent:
                    self.account.confirmed()
                return phrase, None if sent else phrase
            case Withdrawn(from_char=from_char):
                return None, self._withdraw(from_char)
        return item, item

    def _withdraw(self, from_char: int) -> Revoke | None:
        sent: list[int] = []
        while self._given and self._given[-1].chars.start >= from_char:
            given = self._given.pop()
            sent += [given.chars.start] if given.sent else []
        if not sent:
            return None
        self._revokes.append(sent[-1])
        self.account.withdrawn(len(sent))
        return Revoke(sent[-1], drafted=True)

    def end(self) -> None:
        """Withdraw every phrase that the head did not confirm before it ended."""
        self._withdraw(0)

    def state(self, end: int, revokes: int) -> Literal["verified", "drafted", "revoked"]:
        """Return the state of text up to ``end``, for a stage that has passed on ``revokes`` revokes."""
        if any(char < end for char in self._revokes[revokes:]):
            return "revoked"
        drafted_from = self._given[0].chars.start if self._given else end
        return "drafted" if drafted_from < end else "verified"


class _Held(NamedTuple):
    item: Any
    end: int  # of the text that it was made from
    revokes: int  # how many the stage had passed on before


class Gate:
    """What one stage has made, until it may be released.

    Speech and cues are released with the text of their own phrase; anything else with all the text
    that the stage had read. Nothing is held of a stage that takes no drafts.

    Attributes:
        name: The stage's name.
    """

    def __init__(self, life: DraftLedger, name: str, *, drafted: bool = True) -> None:
        self._life = life
        self.name = name
        self._drafted = drafted
        self._held: deque[_Held] = deque()
        self._revokes = 0

    @property
    def held(self) -> int:
        """How many items are held."""
        return len(self._held)

    def put(self, item: Any, reach: int) -> None:
        """Take what the stage yielded when it had read the text up to ``reach``."""
        self._life.note("made", self.name, item)
        if isinstance(item, Revoke) and item.drafted:
            self._revokes += 1
            return
        if isinstance(item, Cancel):
            self._held.clear()
        if isinstance(item, (Speech, AvatarCue, Phrase)):
            reach = item.chars.end
        elif isinstance(item, ScenePrompt):
            reach = max(reach, item.span.end)
        if isinstance(item, Control) or not self._drafted:
            reach = 0  # nothing that a draft could change
        self._held.append(_Held(item, reach, self._revokes))

    def ready(self) -> Any:
        """Return the next item that may be released, None if none may; drop what was revoked."""
        while self._held:
            item, end, revokes = self._held[0]
            state = self._life.state(end, revokes)
            if state == "drafted":
                return None
            self._held.popleft()
            if isinstance(item, Speech) and self._drafted:
                self._life.account.spoke(item, wasted=state == "revoked")
            if state == "verified":
                self._life.note("released", self.name, item)
                return item
            self._life.note("dropped", self.name, item)
        return None
