"""Finds adapters by name, through entry points: the core imports none of them."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from specstream.errors import AdapterUnavailable, SpecstreamError

__all__ = ["AdapterKind", "adapter_names", "load_adapter"]

AdapterKind = Literal["voice", "avatar", "prompt"]


def _found(kind: AdapterKind) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"specstream.{kind}")}


def adapter_names(kind: AdapterKind) -> list[str]:
    """The names of the installed adapters of a kind, sorted."""
    return sorted(_found(kind))


def load_adapter(kind: AdapterKind, name: str, **options: Any) -> Any:
    """Make the adapter ``name`` of ``kind`` (see `specstream.pipeline.interfaces`).

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
