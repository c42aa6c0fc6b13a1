"""How long the next phrase may be: by the audio still to be heard, and the pace of voice and text.

A phrase is *in time* if the voice gives its first audio before the audio ahead of it was heard. Two
things can prevent that: its text was released too late, or the voice was still busy with the phrase
before. So a phrase must be released before the audio ahead runs out, and it must be long enough to
cover the time that the voice needs until it begins on the next one. A voice that gives a phrase only
once it is finished needs longer for a longer one; for it a phrase can be too long, too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from specstream.signals import LoopClock
from specstream.text.marks import WIDE
from specstream.types import Phrase, Speech

__all__ = ["MOMENT_S", "START_S", "Bounds", "Deadlines", "ReleasedPhrase", "VoicePace", "letters"]

# A piece comes at once with the one before if the voice works on it for less than this share of the
# time that it worked until the phrase's first audio.
_AT_ONCE = 0.1
_TELLS_S = 1.0  # this much audio at once shows that the voice doesn't stream
_FEW = 0.3  # a voice that streams gives less than this share of a phrase at once
_GUESS = 0.5  # upper limit of the factor while phrases were too short to tell
_NEWEST = 0.3  # weight of the newest measurement


@dataclass(slots=True)
class ReleasedPhrase:
    """A phrase that was released, and what the voice has made of it. Times are seconds."""

    end: int  # of its text, like ``start`` an offset in the reply
    start: int
    letters: int
    given: float  # when, by the event loop's clock
    first_s: float | None = None  # until its first audio came
    first_audio_s: float = 0.0
    worked_s: float = 0.0  # on the audio after the first
    made_s: float = 0.0
    most_at_once_s: float = 0.0  # the longest audio that came at once, in one piece or in many
    _at_once: tuple[float, float] = (0.0, 0.0)  # the audio that came last, and the work on it

    def made(self, seconds: float, worked_s: float) -> None:
        """Note ``seconds`` of audio that the voice gave after it had worked ``worked_s`` on them."""
        if self.first_s is None:
            self.first_s, self.first_audio_s = worked_s, seconds
            self._at_once = (seconds, 0.0)
        else:
            self.worked_s += worked_s
            audio_s, took_s = self._at_once
            fits = took_s + worked_s <= _AT_ONCE * self.first_s
            self._at_once = (audio_s + seconds, took_s + worked_s) if fits else (seconds, 0.0)
        self.made_s += seconds
        self.most_at_once_s = max(self.most_at_once_s, self._at_once[0])


class VoicePace:
    """The measured pace of a voice; lives as long as its pipeline. The newest phrases count most.

    Attributes:
        first_s: Seconds from a phrase to its first audio, without the part that grows with its length.
        factor: Seconds that the voice works on a second of audio.
        letter_s: Seconds of audio for a letter of text.
        streams: Whether the voice works on a phrase while its audio comes; if not, the first audio comes
            when the whole phrase is finished, or a whole sentence of it. None: the phrases so far were
            too short to tell.
    """

    def __init__(self) -> None:
        self.first_s = 0.0
        self.factor = self.letter_s = math.nan
        self.streams: bool | None = None
        self._line = _Line()

    @property
    def known(self) -> bool:
        """Whether a phrase was measured."""
        return not math.isnan(self.factor)

    def learn(self, phrase: ReleasedPhrase) -> None:
        """Take the measurements of a phrase that was spoken to its end."""
        if not phrase.made_s or phrase.first_s is None:
            return
        later_s, whole_s = phrase.made_s - phrase.first_audio_s, phrase.first_s + phrase.worked_s
        if phrase.most_at_once_s >= _TELLS_S:
            self.streams = False
            self.first_s, self.factor = self._line.add(phrase.made_s, whole_s)
        elif phrase.most_at_once_s < _FEW * phrase.made_s:
            begins, self.streams = not self.streams, True
            self.first_s = _mean(self.first_s, phrase.first_s, begins)
            self.factor = _mean(self.factor, phrase.worked_s / later_s, begins)
        elif self.streams:
            self.first_s = _mean(self.first_s, phrase.first_s, begins=False)
        elif self.streams is None:
            self.first_s = phrase.first_s
            self.factor = min(_GUESS, whole_s / phrase.made_s)
        else:
            self.first_s, self.factor = self._line.add(phrase.made_s, whole_s)
        if phrase.letters:
            begins = math.isnan(self.letter_s)
            self.letter_s = _mean(self.letter_s, phrase.made_s / phrase.letters, begins)


def _mean(old: float, new: float, begins: bool) -> float:
    return new if begins else old + _NEWEST * (new - old)


class _Line:
    """Least squares of ``y = a + b * x``, neither negative; through the origin without evidence."""

    def __init__(self) -> None:
        self._sums = (0.01, 0.0, 0.0, 0.0, 0.0)  # a little weight on the origin

    def add(self, x: float, y: float) -> tuple[float, float]:
        """Take a point; return ``a`` and ``b``."""
        point = (1.0, x, y, x * x, x * y)
        n, sx, sy, sxx, sxy = (
            (1 - _NEWEST) * old + new for old, new in zip(self._sums, point, strict=True)
        )
        self._sums = (n, sx, sy, sxx, sxy)
        steep = (n * sxy - sx * sy) / (n * sxx - sx * sx)
        b = min(max(0.0, steep), sy / sx)
        return (sy - b * sx) / n, b


_RESERVE_S = 0.1  # audio that should be left when the next phrase begins
_DOUBT = 1.25  # factor on the estimated length of a text's audio, which may be longer
_SHORTEST_S = 0.01  # a deadline that is nearer counts as reached
START_S = 0.5
"""Seconds after the beginning of a turn by which its first sound should be heard."""
MOMENT_S = 0.4
"""Seconds in which a phrase that is almost there is spoken."""
_SILENT_S = 5.0  # a voice that is silent for longer than its work explains isn't waited for


class Bounds(NamedTuple):
    """How long a phrase should be, from ``least`` to ``most`` letters (see `letters`)."""

    least: float
    most: float


_ANY = Bounds(0.0, math.inf)
_NONE = Bounds(math.inf, 0.0)


def letters(text: str) -> int:
    """Estimate how long a text sounds; a Chinese, Japanese or Korean character counts as 3 letters."""
    return len(text) + 2 * len(WIDE.findall(text))


@dataclass(slots=True)
class Deadlines:
    """Tracks one turn's unheard audio, and says how long the next phrase may be and when it is due.

    There are no limits before `follow` tells what was heard (as the turn begins), before the first
    phrase was released, and after `stop`. The clock is the event loop's.

    Args:
        pace: The voice's pace, which is measured here.
        deadline_s: Seconds that text may wait when no audio is left.

    Attributes:
        news: Whether the voice has finished a phrase, or `stop` was called; the reader resets it.
        wake: Called when ``news`` is set.
    """

    pace: VoicePace = field(default_factory=VoicePace)
    deadline_s: float = 0.7
    news: bool = False
    wake: Callable[[], None] | None = None
    _heard: Callable[[], float] | None = None
    _needed: Callable[[float, bool], object] = lambda moment, heard: None
    _first_by: float = math.inf  # when the first sound should be heard
    _queue: deque[ReleasedPhrase] = field(
        default_factory=deque
    )  # phrases that the voice has not finished
    _made_s: float = 0.0  # end of the audio that the voice has given
    _last_news: float = -math.inf  # when the voice gave audio or got something to do
    _begun: bool = False  # whether a phrase was released
    _text_since: float | None = None  # when the reply's first text came
    _text: int = 0  # letters that came since
    _clock: LoopClock = field(default_factory=LoopClock)

    def follow(
        self, heard: Callable[[], float], needed: Callable[[float, bool], object] | None = None
    ) -> None:
        """Size phrases by what was heard: ``heard()`` returns the seconds of audio that were heard.

        ``needed`` is called whenever that changes with the time at which more text is needed: when all
        audio that was made, or is to be made of the released text, will have been heard; and whether
        any was made.
        """
        self._heard = heard
        self._first_by = self._clock.now() + START_S
        if needed is not None:
            self._needed = needed
        self._tell_need()

    def stop(self) -> None:
        """Lift all limits, since nothing more will be spoken. Idempotent."""
        self._heard = None
        self._tell()

    @property
    def on(self) -> bool:
        """Whether the size of the next phrase depends on the audio ahead."""
        return self._heard is not None and self._begun

    @property
    def busy(self) -> bool:
        """Whether the voice still has something to speak."""
        if not self._queue:
            return False
        silent_s = self._clock.now() - self._last_news
        return silent_s < _SILENT_S + self._ahead_s + 2 * self._busy_s

    def text(self, text: str) -> None:
        """Count text that the model has written, to estimate how fast it writes."""
        if self._text_since is None:
            self._text_since = self._clock.now()
        else:
            self._text += letters(text)

    def released(self, phrase: Phrase) -> None:
        """Note a phrase that was cut and goes to the voice."""
        self._begun = True
        if self._heard is None:
            return
        moment = self._clock.now()
        if not self._queue:
            self._last_news = moment
        size = letters(phrase.spoken) - sum(tag.chars.length for tag in phrase.tags)
        self._queue.append(ReleasedPhrase(phrase.chars.end, phrase.chars.start, size, moment))
        self._tell_need()

    def made(self, speech: Speech, worked_s: float) -> None:
        """Note a piece of speech that the voice gave, and the seconds that it worked on it."""
        queue, moment = self._queue, self._clock.now()
        while queue and queue[0].end < speech.chars.end:
            queue.popleft()
        if not queue or queue[0].start != speech.chars.start:
            return
        phrase = queue[0]
        self._made_s = speech.samples.end / speech.sample_rate
        if speech.pcm:
            if phrase.first_s is None:
                worked_s = min(moment - phrase.given, worked_s)
            phrase.made(speech.samples.length / speech.sample_rate, worked_s)
        self._last_news = moment
        if speech.last:
            queue.popleft()
            self.pace.learn(phrase)
            self._tell()
        self._tell_need()

    def revoked(self, from_char: int) -> None:
        """Forget the phrases that begin at or past ``from_char``: their text was taken back."""
        while self._queue and self._queue[-1].start >= from_char:
            self._queue.pop()
        self._tell_need()

    @property
    def silent_at(self) -> float:
        """When the listener has nothing left to hear; inf if nobody listens.

        Before the first audio this is the time by which it should be heard, but not sooner than in a
        moment: silence inside a reply is worse than a later beginning.
        """
        if self._heard is None:
            return math.inf
        moment = self._clock.now()
        return moment + self._ahead_s if self._made_s else max(self._first_by, moment + MOMENT_S)

    def bounds(self) -> Bounds:
        """Return how long a phrase that is released now should be.

        While the voice is busy, a phrase outside the bounds loses nothing by waiting until it is free.
        """
        pace = self.pace
        if not self.on or (not pace.known and not self.busy):
            return _ANY
        if not pace.known:
            return _NONE
        # How long the listener has something to hear after the voice has become free.
        bounds_s, _ = self._bounds_s(self._ahead_s + self._coming_s - self._busy_s)
        return Bounds(*(bound_s / pace.letter_s for bound_s in bounds_s))

    def _bounds_s(self, left_s: float) -> tuple[Bounds, bool]:
        """Return the bounds in seconds of audio, and whether the voice is late.

        ``left_s`` is the audio that is left when the voice begins. The voice is late if no phrase that
        begins then can be in time and leave enough audio for the next one.
        """
        pace = self.pace
        # By how much a second of audio extends the audio ahead, net of the voice's work on it.
        gain = max(0.0, 1.0 - pace.factor)
        # The phrase must make up for its own start-up, else less audio is ahead than before. With little
        # audio left, it must also cover the next phrase's start-up and the reserve.
        need_s = max(pace.first_s, 2 * pace.first_s + _RESERVE_S - left_s)
        least_s = need_s / gain if gain else 0.0
        most_s = math.inf
        if pace.streams is False and pace.factor > 0:
            most_s = (left_s - _RESERVE_S - pace.first_s) / pace.factor / _DOUBT
        late = left_s < pace.first_s or most_s < least_s
        if late:  # a gap can't be avoided: prevent a second one
            least_s = pace.first_s / gain if gain else 0.0
            if pace.streams is False:
                most_s = max(least_s, self.deadline_s / max(pace.factor, _SHORTEST_S))
        return Bounds(least_s, most_s), late

    def due_s(self, size: Callable[[], float], waited_s: float) -> float:
        """Return in how many seconds text must be released; 0: now.

        Args:
            size: Tells how much of the text could be released, in letters.
            waited_s: Seconds that it has waited.
        """
        pace = self.pace
        if self.busy:  # `wake` is called as soon as it isn't
            return _SILENT_S
        if not pace.known:
            return max(0.0, self.deadline_s - waited_s)
        audio_s, ahead_s = size() * pace.letter_s, self._ahead_s
        begins_s = pace.first_s + (_DOUBT * pace.factor * audio_s if pace.streams is False else 0.0)
        gained_s = (1.0 - pace.factor) * audio_s
        _, late = self._bounds_s(ahead_s)
        if late and not self._catches_up(gained_s):
            due_s = self.deadline_s - waited_s
        else:
            due_s = ahead_s - _RESERVE_S - begins_s - max(0.0, pace.first_s - gained_s)
        return due_s if due_s > _SHORTEST_S else 0.0

    def _catches_up(self, gained_s: float) -> bool:
        """Whether no second gap will follow if the phrase begins now, at the pace of voice and text."""
        if self._text_since is None:
            return False
        text_s = self._clock.now() - self._text_since
        return gained_s >= self.pace.first_s and self._text * self.pace.letter_s > text_s

    @property
    def _ahead_s(self) -> float:
        """Seconds of audio that were made and not heard yet."""
        return self._made_s - self._heard() if self._heard is not None else 0.0

    @property
    def _coming_s(self) -> float:
        """Estimated seconds of audio of the released text that were not made yet."""
        each = (p.letters * self.pace.letter_s - p.made_s for p in self._queue)
        return sum(max(0.0, audio_s) for audio_s in each) if self.pace.known else 0.0

    @property
    def _busy_s(self) -> float:
        """Estimated seconds that the voice will still work on the released text."""
        begins = sum(phrase.first_s is None for phrase in self._queue)
        pace = self.pace
        return begins * pace.first_s + pace.factor * self._coming_s if pace.known else 0.0

    def _tell_need(self) -> None:
        if self._heard is not None:
            first = not self._made_s
            ahead = self._first_by if first else self._clock.now() + self._ahead_s
            self._needed(ahead + self._coming_s, not first)

    def _tell(self) -> None:
        self.news = True
        if self.wake is not None:
            self.wake()
