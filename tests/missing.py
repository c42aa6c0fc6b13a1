"""Packages that are installed and are said not to be, and the other way round."""

from __future__ import annotations

import importlib.util

import pytest


def uninstall(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let a look for ``package`` find nothing."""
    _answer(monkeypatch, package, None)


def install(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let a look for ``package`` find something, which can't be imported."""
    _answer(monkeypatch, package, object())


def _answer(monkeypatch: pytest.MonkeyPatch, package: str, answer: object) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *rest: answer if name == package else real(name, *rest),
    )
