"""Loading of the ears of ``serve``: a speech recogniser and a turn detector."""

from __future__ import annotations

from specstream.commands.output import note
from specstream.errors import AdapterUnavailable
from specstream.listening.ears import Ears
from specstream.pipeline.adapters import load_adapter

__all__ = ["load_ears"]

_DETECTOR = "silero"


def load_ears(name: str) -> Ears | None:
    """Load ears by the value of ``--ears``: None for ``off``, and for ``auto`` if unavailable.

    ``NAME=MODEL`` gives the recogniser ``NAME`` a model: a folder, or a name that it knows.

    Raises:
        AdapterUnavailable: the named recogniser, or the turn detector for it, is unavailable.
        ConfigError: recogniser and turn detector share no sample rate.
    """
    if name == "off":
        return None
    adapter, _, model = name.partition("=")
    options = {"model": model} if model else {}
    try:
        ears = Ears(
            load_adapter("recognizer", "whisper" if name == "auto" else adapter, **options),
            load_adapter("turns", _DETECTOR),
        )
    except AdapterUnavailable as error:
        if name != "auto":
            raise
        note(f"no speech recognition ({error}); --ears off hides this line")
        return None
    _ = ears.sample_rate  # raises if they share none
    return ears
