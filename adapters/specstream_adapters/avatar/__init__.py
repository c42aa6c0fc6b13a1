"""The avatar's script: marks in the speech become visemes, gestures and emotions."""

from specstream_adapters.avatar.curves import Face, PlayClock, frames
from specstream_adapters.avatar.exports import export, talking_head
from specstream_adapters.avatar.script import VisemeScripter

__all__ = ["Face", "PlayClock", "VisemeScripter", "export", "frames", "talking_head"]
