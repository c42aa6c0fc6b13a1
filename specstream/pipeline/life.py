"""The life of items made from a reply: drafted, verified and released; or drafted and revoked.

A head that is shown what the engine has drafted may cut phrases from it before the target has judged
it. It yields these as `Drafted`, and later either `Confirmed` or `Withdrawn`. One `Life` per turn knows
what is outstanding. Only stages that take drafts see drafted phrases, and the `Revoke` that takes them
back. What they make of them is held in the stage's `Gate`: it is released (to the turn's log and to
stages that don't take drafts) once its text is verified, in the order in which it was made, and
dropped if its text is revoked. So nothing that was released is ever taken back because of a draft.

No waiting and no event loop here: `specstream.pipeline.stage` does that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from specstream.pipeline.presynthesis import TurnAccount
from specstream.types import AvatarCue, Cancel, Control, Phrase, Revoke, ScenePrompt, Span, Speech

__all__ = ["Confirmed", "Drafted", "Gate", "Life", "LifeEvent", "Withdrawn"]


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
class LifeEvent:
    """What happened to an item, for `specstream.pipeline.audit` and for debugging.

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


class Life:
    """What is drafted, sent and revoked in one turn.

    Args:
        account: See the attribute.
        trace: Called with each `LifeEvent`.

    Attributes:
        account: Decides whether a drafted phrase is worth speaking, and is told what became of it.
        taken: Whether any stage takes drafts.
    """

    def __init__(
        self, account: TurnAccount, trace: Callable[[LifeEvent], None] | None = None
    ) -> None:
        self.account = account
        self.taken = True
        self._trace = trace
        self._given: deque[_Given] = deque()
        self._revokes: list[int] = []  # offsets of those sent to stages that take drafts, in order

    def note(self, kind: Kind, who: str, what: Any) -> None:
        """Trace an event."""
        if self._trace is not None:
            self._trace(LifeEvent(kind, who, what))

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

    def __init__(self, life: Life, name: str, *, drafted: bool = True) -> None:
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
