"""The avatar's script: marks in the speech become visemes, gestures and emotions."""

from specstream_adapters.avatar.script import VisemeScripter

__all__ = ["VisemeScripter"]
