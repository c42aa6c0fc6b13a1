"""Finds adapters by name, through entry points (the core imports none of them), and wraps them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from specstream.errors import AdapterUnavailable, SpecstreamError
from specstream.pipeline.stage import Stage
from specstream.pipeline.stages import AvatarStage, PromptStage, VoiceStage

__all__ = ["AdapterKind", "EarsKind", "adapter_names", "load_adapter", "stage_of"]

AdapterKind = Literal["voice", "avatar", "prompt"]
EarsKind = Literal["recognizer", "turns"]
_STAGES: dict[AdapterKind, Callable[[Any], Stage[Any, Any]]] = {
    "voice": VoiceStage,
    "avatar": AvatarStage,
    "prompt": PromptStage,
}


def _found(kind: AdapterKind | EarsKind) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"specstream.{kind}")}


def adapter_names(kind: AdapterKind | EarsKind) -> list[str]:
    """The names of the installed adapters of a kind, sorted."""
    return sorted(_found(kind))


def load_adapter(kind: AdapterKind | EarsKind, name: str, **options: Any) -> Any:
    """Make the adapter ``name`` of ``kind`` ; its interface is in `specstream.pipeline.interfaces`.

    Those of recognisers and turn detectors are in `specstream.pipeline.listening_interfaces`.

    Raises:
        AdapterUnavailable: no such adapter, or a library that it needs is missing.
    """
    found = _found(kind)
    if name not in found:
        known = ", ".join(sorted(found)) or "none: is the package installed?"
        raise AdapterUnavailable(f"no {kind} adapter is called {name!r}; there are: {known}")
    try:
        return found[name].load()(**options)
    except SpecstreamError:
        raise
    except TypeError as error:
        raise AdapterUnavailable(f"{kind} adapter {name!r} takes other options: {error}") from error
    except Exception as error:
        raise AdapterUnavailable(f"{kind} adapter {name!r} can't be loaded: {error}") from error


def stage_of(kind: AdapterKind, made: Any) -> Stage[Any, Any]:
    """The stage around an adapter; ``made`` itself if it is a stage already (has ``run``)."""
    return made if hasattr(made, "run") else _STAGES[kind](made)
