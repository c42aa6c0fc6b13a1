"""Transcripts of specstream in LiveKit's words."""

from livekit.agents import NotGivenOr, stt
from livekit.agents.language import LanguageCode
from livekit.agents.types import TimedString
from specstream.listening import Transcript

__all__ = ["iso_639", "speech_data"]


def iso_639(language: NotGivenOr[str]) -> str | None:
    """The language of a tag such as ``"en-US"``; None if none is given."""
    return language.partition("-")[0].lower() if isinstance(language, str) and language else None


def speech_data(transcript: Transcript, start_s: float, end_s: float, offset_s: float) -> stt.SpeechData:
    """Return what was said in a turn.

    Args:
        transcript: Its words' times count from the turn's first sample.
        start_s: The turn's first sample, in seconds from the stream's first.
        end_s: The end of the turn's audio; the last word's is taken where it is known.
        offset_s: The stream's first sample, in seconds from the session's.
    """
    began = start_s + offset_s
    words = [
        TimedString(
            word.text,
            start_time=began + word.start_ms / 1e3,
            end_time=began + word.end_ms / 1e3,
            start_time_offset=offset_s,
        )
        for word in transcript.words
    ]
    last = transcript.words[-1].end_ms / 1e3 + start_s if transcript.words else end_s
    return stt.SpeechData(
        language=LanguageCode(transcript.language or ""),
        text=transcript.text,
        start_time=began,
        end_time=min(last, end_s) + offset_s,
        words=words or None,
    )
