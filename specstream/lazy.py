"""Names that a package offers and imports on first use (PEP 562), so that importing it is cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping

__all__ = ["offers"]


def offers(
    package: str, homes: Mapping[str, str]
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of ``package``.

    Args:
        package: Its ``__name__``.
        homes: Module → the names that the package takes from it, separated by spaces. The package
            imports the same names where ``TYPE_CHECKING``; a test compares.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(home_of)
    return names, get, lambda: names
