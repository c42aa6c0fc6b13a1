"""The user's side of a conversation: audio in, turns and transcripts out.

A recogniser, a turn detector or an echo canceller of your own implements a protocol that is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specstream.lazy import offers

if TYPE_CHECKING:
    from specstream.listening.ears import Ears as Ears
    from specstream.listening.events import (
        ListenerSettings as ListenerSettings,
        ListeningFailed as ListeningFailed,
        TurnEnded as TurnEnded,
        TurnHeard as TurnHeard,
        TurnLost as TurnLost,
        TurnPartial as TurnPartial,
        TurnPaused as TurnPaused,
        TurnStarted as TurnStarted,
    )
    from specstream.listening.interfaces import (
        Alternative as Alternative,
        EchoCanceller as EchoCanceller,
        EchoTrack as EchoTrack,
        EndOfTurnDetector as EndOfTurnDetector,
        HeardWord as HeardWord,
        Recognizer as Recognizer,
        RecognizerCapabilities as RecognizerCapabilities,
        RecognizerStream as RecognizerStream,
        SpeechStarted as SpeechStarted,
        SpeechStopped as SpeechStopped,
        Transcript as Transcript,
        TurnCapabilities as TurnCapabilities,
        TurnDetector as TurnDetector,
        TurnTrack as TurnTrack,
    )
    from specstream.listening.listener import Listener as Listener
    from specstream.listening.preempt import Preempt as Preempt, PreemptReport as PreemptReport

__all__, __getattr__, __dir__ = offers(
    __name__,
    {
        "specstream.listening.ears": "Ears",
        "specstream.listening.events": (
            "ListenerSettings ListeningFailed TurnEnded TurnHeard TurnLost TurnPartial "
            "TurnPaused TurnStarted"
        ),
        "specstream.listening.interfaces": (
            "Alternative EchoCanceller EchoTrack EndOfTurnDetector HeardWord Recognizer "
            "RecognizerCapabilities RecognizerStream SpeechStarted SpeechStopped Transcript "
            "TurnCapabilities TurnDetector TurnTrack"
        ),
        "specstream.listening.listener": "Listener",
        "specstream.listening.preempt": "Preempt PreemptReport",
    },
)
