"""Packages that seem to be installed."""

import importlib
from collections.abc import Mapping
from pathlib import Path

import pytest


def install_proposers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, points: Mapping[str, str]
) -> None:
    """Put a module ``their_package`` and its entry points where Python looks for packages."""
    (folder / "their_package.py").write_text(code)
    info = folder / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    lines = [f"{name} = {place}" for name, place in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[specstream.proposer]", *lines]))
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
