"""Checks of a remote adapter's output: speech without gaps, cues and prompts in their order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from specstream.remote.frames import EndFrame, Violation
from specstream.remote.order import Extent, Given, Order
from specstream.stages.limits import MAX_RATE, ROUNDING_MS, MarkCheck
from specstream.types import AvatarCue, Phrase, Revoke, ScenePrompt, Span, Speech

__all__ = ["CueOrder", "PromptOrder", "SpokenOrder"]

_REST_S = 2
"""A mouth may take this long behind the speech to come to rest."""
_LONGEST_S = 600
"""Gestures and emotions have durations of their own; at most this long behind the speech."""

_KINDS = "viseme", "gesture", "emotion"
_RETURNS = 64  # revokes that a kind of cue has not gone back for


class CueOrder(Order):
    """The speech of one turn, and where the cues of each kind have got to.

    After a revoke, the cues may go back once to where the withdrawn speech began. They do so with the
    speech that takes its place: until then, an avatar isn't told that speech was withdrawn, unless that
    was made of a draft.
    """

    def __init__(self) -> None:
        self._given = Given()
        nothing = self._given.last
        self._all = nothing  # the ends of everything that was sent
        self._kept = nothing  # of withdrawn speech that was no draft: its cues may be held back
        self._rate = MAX_RATE  # until there is speech
        self._latest = dict.fromkeys(_KINDS, 0)  # the first sample of each kind's last cue
        # Samples to which a kind's cues may go back.
        self._returns = {kind: deque[int](maxlen=_RETURNS) for kind in _KINDS}
        self._ended = False

    def send(self, item: object) -> None:
        """Count an item that is sent, or the frame that ends the input."""
        self._given.send(item)
        self._ended |= isinstance(item, EndFrame)
        if isinstance(item, Speech):
            self._rate = item.sample_rate
            self._all = _furthest(self._all, Extent.of(item))

    def check(self, cue: AvatarCue, _: int | None = None) -> None:
        """Count a cue that was received.

        Raises:
            Violation: it lies behind the speech, covers text that was not given, or runs backwards.
        """
        self._check_place(cue, _furthest(self._given.last, self._kept))
        start = cue.samples.start
        if self._ended and not cue.samples.length:
            return  # brings the face to rest, wherever it says that this is
        latest, returns = self._latest[cue.kind], self._returns[cue.kind]
        if start < latest - self._slack:
            while returns and start < returns[0] - self._slack:
                returns.popleft()
            if not returns:
                raise Violation(f"{_cue_name(cue)} came after a {cue.kind} that begins at {latest}")
            returns.popleft()
            latest = start
        self._latest[cue.kind] = max(start, latest)

    def check_rest(self, cue: AvatarCue) -> None:
        """Check a cue that brings the face to rest in a cancelled turn.

        Raises:
            Violation: it lies behind all speech, or covers text that was not given.
        """
        self._check_place(cue, self._all)

    def revoke(self, revoke: Revoke) -> None:
        """The avatar has answered to the first revoke that was unanswered."""
        if not revoke.drafted:
            self._kept = _furthest(self._kept, self._given.last)
        begin = self._given.revoke(revoke.from_char)
        for kind, returns in self._returns.items():
            # A cue of released speech may still be held back; one of a draft is forgotten.
            if begin is not None and (begin < self._latest[kind] or not revoke.drafted):
                returns.append(begin)

    @property
    def _slack(self) -> int:
        return self._rate * ROUNDING_MS // 1000

    def _check_place(self, cue: AvatarCue, given: Extent) -> None:
        if cue.t_ms < 0 or cue.duration_ms < 0:  # finite: see `specstream.remote.frames`
            raise Violation(f"{_cue_name(cue)} is at {cue.t_ms} ms for {cue.duration_ms} ms")
        behind = self._rate * (_REST_S if cue.kind == "viseme" else _LONGEST_S)
        latest_start, latest_end = given.reach + self._slack, given.reach + behind
        if cue.samples.start > latest_start or cue.samples.end > latest_end:
            raise Violation(f"{_cue_name(cue)} lies behind its speech, which ends at {given.reach}")
        if cue.chars.end > given.chars.end or cue.tokens.end > given.tokens:
            where = f"characters {_range(cue.chars)}, tokens {_range(cue.tokens)}"
            ends = f"character {given.chars.end}, token {given.tokens}"
            raise Violation(
                f"{_cue_name(cue)} covers {where}; the text that it was given ends at {ends}"
            )


def _furthest(one: Extent, other: Extent) -> Extent:
    longest = one.chars if one.chars.end >= other.chars.end else other.chars
    return one.joined(other)._replace(chars=longest)


def _range(span: Span) -> str:
    return f"{span.start} to {span.end}"


def _cue_name(cue: AvatarCue) -> str:
    return f"the {cue.kind} {cue.name!r:.40} of samples {_range(cue.samples)}"


class PromptOrder(Order):
    """The text of one turn, and the latest version of each shot.

    After a flush or a revoke, a board may number its shots anew, or go on with a version from before
    text that was withdrawn. So shots are compared with the versions since then only, except that a
    version that is replaced must have been given in this turn.
    """

    def __init__(self) -> None:
        self._given = Given()
        self._latest: dict[str, int] = {}  # version of each shot since the last flush or revoke
        self._versions: dict[str, tuple[str, int]] = {}  # all that were given, by "shot_id@rev"

    def send(self, item: object) -> None:
        """Count an item that is sent."""
        self._given.send(item)

    def check(self, prompt: ScenePrompt, read: int | None = None) -> None:
        """Count a prompt that was received, with the ``read`` of its frame.

        Raises:
            Violation: it shows text that was not given, or revises what it can't revise.
        """
        given, name = self._given.last, _prompt_name(prompt)
        first, end = prompt.span
        if prompt.t_start_ms < 0:
            raise Violation(f"{name} starts at {prompt.t_start_ms} ms")
        if end > given.chars.end or prompt.tokens.end > given.tokens:
            raise Violation(
                f"{name} shows characters {first} to {end}, tokens {prompt.tokens.start} to "
                f"{prompt.tokens.end}; the text that it was given ends at character "
                f"{given.chars.end}, token {given.tokens}"
            )
        if read is not None and not end <= read <= given.chars.end:
            raise Violation(
                f"{name} shows characters up to {end} and has 'read' {read}; the text that it was "
                f"given ends at {given.chars.end}"
            )
        self._revise(prompt)

    def _revise(self, prompt: ScenePrompt) -> None:
        shot, rev, old = prompt.shot_id, prompt.rev, prompt.supersedes
        latest = self._latest.get(shot)
        if rev < 0 or (latest is not None and rev <= latest):
            raise Violation(f"{_prompt_name(prompt)} came after version {latest}")
        if latest is not None and old != f"{shot}@{latest}":
            raise Violation(f"{_prompt_name(prompt)} must supersede '{shot}@{latest}', not {old!r:.80}")
        if latest is None and old is not None:
            name, number = self._versions.get(old, ("", rev))
            if name != shot or number >= rev:
                raise Violation(
                    f"{_prompt_name(prompt)} supersedes {old!r:.80}, which is no earlier version"
                )
        self._latest[shot] = rev
        self._versions[f"{shot}@{rev}"] = shot, rev

    def flush(self) -> None:
        """The rewriter has answered a flush."""
        self._latest.clear()

    def revoke(self, revoke: Revoke) -> None:
        """The rewriter has answered to the first revoke that was unanswered."""
        self._given.revoke(revoke.from_char)
        self._latest.clear()


def _prompt_name(prompt: ScenePrompt) -> str:
    return f"version {prompt.rev} of shot {prompt.shot_id!r:.80}"


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
            raise Violation(f"the turn is done, but phrase {phrase.index} has no last piece of speech")


def _belongs(speech: Speech, said: _Said) -> bool:
    phrase = said.phrase
    wanted = phrase.index, phrase.chars, phrase.tokens
    return not said.over and wanted == (speech.phrase, speech.chars, speech.tokens)
