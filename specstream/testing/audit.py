"""Checks a turn's trace for what drafted text must never cause: orphans, double revokes, early output.

The trace is the list of events that ``Pipeline(branches, head=head, trace=events.append)`` fills. The
audit trusts neither the stages nor the pipeline: it works out from the engine's previews and chunks,
token by token, what was verified and what was rejected, and compares the trace with that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal, TypeAlias

from specstream.stages.drafts import Confirmed, Drafted, DraftEvent, Withdrawn
from specstream.types import AvatarCue, Cancel, Chunk, Phrase, Preview, Revoke, ScenePrompt, Span, Speech

__all__ = ["BrokenRule", "audit"]

Fault: TypeAlias = Literal["orphan", "double revoke", "early", "rejected", "order", "lost"]


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """One rule that a turn broke.

    ``"orphan"``: made from revoked text, and not revoked. ``"double revoke"``: revoked more than once,
    or although nothing was drafted. ``"early"``: released before its tokens were verified.
    ``"rejected"``: released although its tokens were rejected. ``"order"``: released before something
    that was made earlier. ``"lost"``: made from verified text and never released.
    """

    fault: Fault
    stage: str
    item: Any
    words: str


def audit(
    trace: Iterable[DraftEvent], *, head: str = "text", takers: Collection[str] = ("voice", "avatar")
) -> list[BrokenRule]:
    """Return a finding for each rule that a finished turn broke.

    Args:
        trace: The turn's events, in order.
        head: The name of the pipeline's head.
        takers: The names of the stages that took drafts.
    """
    auditor = _Auditor(head, {name: _Stage(name, takes=True) for name in takers})
    for event in trace:
        auditor.take(event)
    auditor.end()
    return auditor.findings


@dataclass(slots=True, eq=False)
class _Made:
    item: Any
    end: int  # offset in the reply where its text ends
    tokens: Span
    revokes: int  # how many its stage had passed on before


@dataclass(slots=True)
class _Stage:
    name: str
    takes: bool  # drafts
    passed: list[int] = field(default_factory=list)  # offsets of the revokes that it passed on
    made: list[_Made] = field(default_factory=list)  # neither released nor dropped yet


class _Auditor:
    def __init__(self, head: str, stages: dict[str, _Stage]) -> None:
        self.findings: list[BrokenRule] = []
        self._head = head
        self._stages = stages
        self._previews: dict[int, Preview] = {}
        self._accepted: dict[int, int] = {}  # by round, the end of its draft's accepted tokens
        self._verified = 0  # tokens
        self._out: list[Drafted] = []  # neither confirmed nor withdrawn
        self._due: list[Phrase] = []  # verified and not released
        # What takers were given: offsets of revokes; phrases, each with the number of revokes before it.
        self._revokes: list[int] = []
        self._phrases: list[tuple[Phrase, int]] = []
        self._cancelled = False

    def take(self, event: DraftEvent) -> None:
        kind, name, item = event.kind, event.stage, event.item
        self._cancelled |= isinstance(item, Cancel)
        if kind == "read":
            self._read(item)
        elif name == self._head:
            self._headed(kind, item)
        else:
            stage = self._stages.setdefault(name, _Stage(name, takes=False))
            if kind == "made":
                self._make(stage, item)
            elif isinstance(item, (Speech, AvatarCue, ScenePrompt)):
                self._settle(stage, kind, item)

    def _complain(self, fault: Fault, stage: str, item: Any, words: str) -> None:
        self.findings.append(BrokenRule(fault, stage, item, words))

    def _read(self, item: Any) -> None:
        if isinstance(item, Preview):
            self._previews[item.round] = item
        elif isinstance(item, Chunk):
            self._verified = max(self._verified, item.tokens.end)
            preview = self._previews.get(item.round)
            if preview is not None and item.tokens.length:
                pairs = zip(preview.token_ids, item.token_ids, strict=False)
                same = takewhile(lambda pair: pair[0] == pair[1], pairs)
                self._accepted[item.round] = preview.tokens.start + len(list(same))

    def _headed(self, kind: str, item: Any) -> None:
        if kind == "made":
            if isinstance(item, Phrase):
                self._due.append(item)
            elif isinstance(item, Drafted):
                self._out.append(item)
            elif isinstance(item, Confirmed):
                self._due.append(item.phrase)
                self._confirm(item)
            elif isinstance(item, Withdrawn):
                left = [d for d in self._out if d.phrase.chars.start < item.from_char]
                if len(left) == len(self._out):
                    self._complain("double revoke", self._head, item, "nothing was drafted there")
                self._out = left
        elif kind == "given":
            if isinstance(item, Phrase):
                self._phrases.append((item, len(self._revokes)))
            elif isinstance(item, Revoke) and item.drafted:
                self._revokes.append(item.from_char)
        elif kind == "released" and isinstance(item, Phrase):
            due = [phrase.chars for phrase in self._due]
            if item.chars not in due:
                self._complain("order", self._head, item, "it was released twice, or never made")
            elif item.chars != due[0]:
                self._complain("order", self._head, item, "an earlier phrase is still held")
            self._due = [phrase for phrase in self._due if phrase.chars != item.chars]
            if item.tokens.end > self._verified:
                self._complain("early", self._head, item, "its tokens were not verified")

    def _confirm(self, item: Confirmed) -> None:
        drafted = self._out.pop(0) if self._out else None
        if drafted is None or drafted.phrase.chars != item.phrase.chars:
            self._complain("rejected", self._head, item, "it was not the phrase that was drafted")
        elif drafted.phrase.tokens.end > self._accepted.get(drafted.round, 0):
            self._complain("rejected", self._head, item, "its draft was rejected")

    def _make(self, stage: _Stage, item: Any) -> None:
        if isinstance(item, Revoke) and item.drafted:
            at = len(stage.passed)
            stage.passed.append(item.from_char)
            if at >= len(self._revokes) or self._revokes[at] != item.from_char:
                self._complain("double revoke", stage.name, item, "it was given no such revoke")
        elif isinstance(item, (Speech, AvatarCue, ScenePrompt)):
            chars = item.span if isinstance(item, ScenePrompt) else item.chars
            made = _Made(item, chars.end, item.tokens, len(stage.passed))
            stage.made.append(made)
            if stage.takes and not self._has_source(made):
                why = "it was made from revoked text after the revoke"
                self._complain("orphan", stage.name, item, why)

    def _has_source(self, made: _Made) -> bool:
        """Whether the live phrases at that time cover all tokens of the item."""
        if not made.tokens.length:
            return True
        missing = made.tokens.end
        given = bisect_right(self._phrases, made.revokes, key=lambda given: given[1])
        for phrase, behind in reversed(self._phrases[:given]):
            gone = self._revokes[behind : made.revokes]
            if any(char < phrase.chars.end for char in gone):
                continue
            if phrase.tokens.start < missing <= phrase.tokens.end:
                missing = phrase.tokens.start
            if missing <= made.tokens.start:
                return True
        return False

    def _settle(self, stage: _Stage, kind: str, item: Any) -> None:
        made = next((made for made in stage.made if made.item is item), None)
        if made is None:
            return self._complain("order", stage.name, item, "it was settled twice, or never made")
        if made is not stage.made[0]:
            self._complain("order", stage.name, item, "an item that was made earlier is still held")
        stage.made.remove(made)
        revoked = stage.takes and any(char < made.end for char in self._revokes[made.revokes :])
        # A shot may depend on a phrase past its own text, and is dropped if that phrase is revoked.
        implied = isinstance(item, ScenePrompt) and len(self._revokes) > made.revokes
        if kind == "dropped" and not (revoked or implied):
            self._complain("lost", stage.name, item, "it was dropped, but its text was not revoked")
        elif kind == "released" and revoked:
            self._complain("rejected", stage.name, item, "its text was revoked")
        elif kind == "released" and made.tokens.end > self._verified:
            self._complain("early", stage.name, item, "its tokens were not verified")

    def end(self) -> None:
        if self._cancelled:
            return
        for drafted in self._out:
            self._complain("orphan", self._head, drafted, "it was neither confirmed nor withdrawn")
        for phrase in self._due:
            self._complain("lost", self._head, phrase, "it was never released")
        for stage in self._stages.values():
            missing = self._revokes[len(stage.passed) :] if stage.takes else []
            for char in missing:
                self._complain("orphan", stage.name, Revoke(char, True), "it was not passed on")
            for made in stage.made:
                self._complain("lost", stage.name, made.item, "it was never released")
