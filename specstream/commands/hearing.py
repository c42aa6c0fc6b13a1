"""The ears of ``serve``: a recogniser and a turn detector, by name."""

from __future__ import annotations

from specstream.commands.output import note
from specstream.errors import AdapterUnavailable
from specstream.listening.ears import Ears
from specstream.pipeline.adapters import load_adapter

__all__ = ["load_ears"]

_DETECTOR = "silero"


def load_ears(name: str) -> Ears | None:
    """Ears for ``--ears``: None for ``off``, and for ``auto`` where they can't be had.

    ``NAME=MODEL`` gives the recogniser ``NAME`` a model: a folder, or a name that it knows.

    Raises:
        AdapterUnavailable: a recogniser was named and can't be had.
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
        note(f"no speech recognition ({error}); --ears off leaves this line out")
        return None
    _ = ears.sample_rate  # a pair that shares none is refused here
    return ears
