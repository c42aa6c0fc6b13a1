"""The agent's ear: takes its own voice out of the microphone, and reacts to what its listener tells."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import anyio
import numpy as np

from specstream.agent.events import ReplyPaused, ReplyResumed
from specstream.agent.talking import Talking
from specstream.listening.ears import Ears
from specstream.listening.events import ListenerEvent, ListenerSettings
from specstream.listening.interfaces import EchoCanceller
from specstream.listening.listener import Listener
from specstream.listening.resampler import Resampler
from specstream.listening.taking import Question

__all__ = ["Echo", "Hearing"]


class Hearing:
    """A listener, and the effect of its events on the reply under way and on the questions.

    Args:
        ears: Recogniser and turn detector.
        sample_rate: Samples a second of the audio.
        settings: How turns are cut and recognised.
        talking: Gives the replies, and takes final transcripts as questions, partial ones as guesses.
        tell: Called with the source and the item of each event to report.
        clean: Takes the agent's own voice out of the audio.

    Attributes:
        listener: Takes the audio.
    """

    def __init__(
        self,
        ears: Ears,
        sample_rate: int,
        settings: ListenerSettings | None,
        talking: Talking,
        tell: Callable[[str, object], Awaitable[None]],
        *,
        clean: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self.listener = Listener(ears, sample_rate=sample_rate, settings=settings, clean=clean)
        self._talking = talking
        self._tell = tell

    async def run(self) -> None:
        """Act on every event of the listener, then report it; return when the listener has finished."""
        questions = self._talking.questions
        async with self.listener:
            async for event in self.listener:
                done, asked = self._act(event)
                await self._tell("ears", event)
                if done is not None:
                    await self._tell("agent", done)
                if asked is not None:
                    await questions.ask(asked)
        questions.close()

    def _act(self, event: ListenerEvent) -> tuple[ReplyPaused | ReplyResumed | None, Question | None]:
        """Pause the reply at a voice, interrupt it at words, else resume it.

        Returns what to report, and the question that was asked. Words so far are a guess at the next
        question.
        """
        reply, questions, taking = self._talking.turn, self._talking.questions, self._talking.taking
        speaking = reply is not None and reply.outcome is None
        played_ms = reply.played_ms if reply is not None else 0.0
        taken = taking.take(event, speaking=speaking, played_ms=played_ms)
        if taken.guess is not None:
            questions.said(taken.guess)
        if taken.floor == "claimed" and reply is not None:
            reply.interrupt()
        elif taken.floor == "voice" and reply is not None and speaking:
            reply.pause()
            paused, self._talking.paused = self._talking.paused, True
            return (None if paused else ReplyPaused(reply.played_ms)), None
        elif taken.floor == "free":
            questions.silent(taken.turn)
            questions.notify()  # results of tools may have waited for silence
            if reply is not None and self._talking.paused and speaking and not taking.unclear:
                reply.resume()
                self._talking.paused = False
                return ReplyResumed(reply.played_ms), None
        return None, taken.question


_EARLY_S = 0.01  # the reference precedes the play-out's own estimate by this
_LEARNS_S = 2.0  # of play-out until a canceller knows the room; nothing is heard during it
_RINGS_S = 0.4  # after the last played sample an echo may still come
_APART_S = 0.25  # between the microphone's clock and the loop's, before they are set equal
_GAP_S = 0.01  # less than it between two pieces is what the rate's conversion holds back
_KEPT_S = 2.0  # of played audio behind the microphone
_MOST_S = 10.0  # of played audio in all: a microphone that is off takes none
_MISSED_S = 0.1  # the most of it that the canceller is given behind time
_JUDGED_S = 0.1
_REST = 0.1  # share of the power; where less than it is left, all of it was echo


class Echo:
    """The way from loudspeaker to microphone of one stream of audio.

    While nothing is played, audio passes as it is. During the first two seconds of play-out the
    canceller learns the room, and the microphone counts as silent.

    Args:
        canceller: Cancels the echo.
        sample_rate: Samples a second of the microphone's audio.
        now: The clock of the play-out, in seconds.
    """

    def __init__(
        self, canceller: EchoCanceller, sample_rate: int, now: Callable[[], float] = anyio.current_time
    ) -> None:
        self._track = canceller.open(sample_rate)
        self._rate, self._now = sample_rate, now
        self._frame = 2 * self._track.frame
        self._held = b""  # of the microphone, less than a frame
        self._at: int | None = None  # the microphone's next sample, counted on the clock
        self._played = bytearray()
        self._from = 0  # the number of its first sample, on the same count
        self._until = 0  # behind the last sample that was played
        self._fed = 0  # behind the last sample that the canceller was given
        self._learnt = 0  # samples
        frames = round(_JUDGED_S * sample_rate / self._track.frame)
        # Of the microphone, and of what is left.
        self._powers = deque[tuple[float, float]](maxlen=frames)
        self._resampler: tuple[int, Resampler] | None = None

    def played(self, pcm: bytes, rate: int, at: float) -> None:
        """Take note that audio is played (s16 mono at ``rate``), its first sample at time ``at``."""
        first = round((at - _EARLY_S) * self._rate)
        follows = abs(first - self._until) < _GAP_S * self._rate
        if self._resampler is None or self._resampler[0] != rate or not follows:
            self._resampler = (rate, Resampler(rate, self._rate))
        converted = self._resampler[1].push(pcm)
        if not self._played:
            self._from = first
        if not follows:
            del self._played[max(0, 2 * (first - self._from)) :]  # was stopped before it was heard
            end = self._from + len(self._played) // 2
            self._played += bytes(2 * max(0, first - end))
        self._played += converted
        self._until = self._from + len(self._played) // 2
        self._drop(self._until - int(_MOST_S * self._rate))
        if self._at is not None:
            self._drop(self._at - int(_KEPT_S * self._rate))

    def clean(self, pcm: bytes) -> bytes:
        """Take the microphone's next audio; return as much as is whole frames, without echoes."""
        self._set_clock(len(pcm) // 2)
        data, out = self._held + pcm, bytearray()
        whole = len(data) - len(data) % self._frame
        for start in range(0, whole, self._frame):
            out += self._clean(data[start : start + self._frame])
        self._held = data[whole:]
        return bytes(out)

    def _set_clock(self, taken: int) -> None:
        """Count samples rather than look at the clock: audio comes in jumps."""
        began = round(self._now() * self._rate) - taken - len(self._held) // 2
        if self._at is None or abs(began - self._at) > _APART_S * self._rate:
            self._at = began

    def _clean(self, heard: bytes) -> bytes:
        assert self._at is not None
        at, self._at = self._at, self._at + self._track.frame
        if not self._played or at > self._until + _RINGS_S * self._rate or at < self._from:
            return heard
        # Audio is told when it is played, and belongs to a moment before that.
        known = max(self._fed, self._from, at - round(_MISSED_S * self._rate))
        missed = -(-(at - known) // self._track.frame)
        for back in range(missed, 0, -1):
            late = self._reference(at - back * self._track.frame)
            self._track.cancel(bytes(self._frame), late)
        self._fed = at + self._track.frame
        cleaned = self._track.cancel(heard, self._reference(at))
        self._powers.append((_power(heard), _power(cleaned)))
        before, after = (sum(powers) for powers in zip(*self._powers, strict=True))
        if self._learnt < _LEARNS_S * self._rate:
            self._learnt += self._track.frame
            return bytes(self._frame)
        return bytes(self._frame) if after < _REST * before else cleaned

    def _reference(self, at: int) -> bytes:
        start = 2 * (at - self._from)
        found = bytes(self._played[max(0, start) : max(0, start + self._frame)])
        return found.rjust(self._frame, b"\0") if start < 0 else found.ljust(self._frame, b"\0")

    def _drop(self, before: int) -> None:
        if before > self._from:
            del self._played[: 2 * (before - self._from)]
            self._from = min(before, self._until)


def _power(pcm: bytes) -> float:
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32)
    return float(samples @ samples)
