"""An audio output that ends an interrupted reply, in the history, at the last word that was heard."""

from collections import deque
from collections.abc import Iterable

from livekit import rtc
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT, TimedString
from livekit.agents.utils import is_given
from livekit.agents.voice import io
from livekit.agents.voice.io import PlaybackFinishedEvent
from specstream.errors import ConfigError

from livekit.plugins.specstream.log import logger

__all__ = ["HeardWords"]


class HeardWords(io.AudioOutput):
    """Wraps a session's audio output; set it at once when the session has started.

    ::

        await session.start(agent, room=ctx.room)
        session.output.audio = HeardWords(session.output.audio)
        session.say("Hello!")

    An agent that greets does so behind that, not in ``on_enter``: of speech under way when the output is
    set, LiveKit keeps nothing if it is interrupted.

    LiveKit's own synchronizer guesses at the pace of speech, word by word, and can be some words off.
    This takes the times of the words from the voice and the seconds that the output has played: the
    history gets the words that were heard completely, and no other. Text on a screen stays
    LiveKit's. Speech of other services whose words have no times passes as it is.

    Args:
        output: The session's output, such as ``session.output.audio``.

    Raises:
        ConfigError: ``output`` is no audio output: the session has none, or hasn't started.
    """

    def __init__(self, output: io.AudioOutput | None) -> None:
        if not isinstance(output, io.AudioOutput):
            raise ConfigError(
                "HeardWords needs the session's audio output: start the session first, with a room or "
                "with session.output.audio set"
            )
        super().__init__(
            label="HeardWords",
            next_in_chain=output,
            capabilities=io.AudioOutputCapabilities(pause=True),
            sample_rate=output.sample_rate,
        )
        self._segments: deque[list[TimedString]] = deque()  # one for each that isn't over
        self._open = False
        self.on("playback_finished", self._over)

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        """Pass on audio. Cancelling may leave the frame out."""
        if first := not self._open:
            self._open = True
            self._segments.append([])
        words = self._segments[-1]
        words += frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])
        try:
            if self.next_in_chain is not None:
                await self.next_in_chain.capture_frame(frame)
        except BaseException:  # the output never began: no end of it will be told
            if first and self._segments and self._segments[-1] is words:
                self._segments.pop()
                self._open = False
            raise
        await super().capture_frame(frame)  # counts the segment, whose end is then waited for

    def flush(self) -> None:
        """Pass on the end of a segment."""
        super().flush()
        self._open = False
        if self.next_in_chain is not None:
            self.next_in_chain.flush()

    def clear_buffer(self) -> None:
        """Pass on that the audio is no longer wanted."""
        if self.next_in_chain is not None:
            self.next_in_chain.clear_buffer()

    def on_playback_finished(
        self, *, playback_position: float, interrupted: bool, synchronized_transcript: str | None = None
    ) -> None:
        """Tell what was heard of the segment."""
        if interrupted and not self._segments:
            logger.warning(
                "HeardWords was set while the agent spoke, so what was heard of that is unknown; set it "
                "before the agent speaks, and greet behind it instead of in on_enter"
            )
        words = self._segments[0] if self._segments else []
        if interrupted and words:
            synchronized_transcript = _heard(words, playback_position)
        super().on_playback_finished(
            playback_position=playback_position,
            interrupted=interrupted,
            synchronized_transcript=synchronized_transcript,
        )

    def _over(self, _: PlaybackFinishedEvent) -> None:
        if self._segments:
            self._segments.popleft()


def _heard(words: Iterable[TimedString], position: float) -> str:
    """The text of the words that end by a position; an empty one is the rest of the word before it."""
    text = before = ""
    for word in words:
        if _ends(word) > position:
            return text if word else before
        if word:
            text, before = text + word, text
    return text


def _ends(word: TimedString) -> float:
    return word.end_time if is_given(word.end_time) else float("inf")
