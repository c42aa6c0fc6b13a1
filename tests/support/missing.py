"""Packages that are missing here, or are said to be; for one package, use ``pytest.importorskip``."""

import importlib.metadata
import importlib.util

import pytest


def needs_installation() -> None:
    """Skip where specstream is used from its source: adapters are found by what pip has written."""
    try:
        importlib.metadata.distribution("specstream-sdk")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("specstream-sdk is not installed, so its adapters have no names")


def uninstall(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let a look for ``package`` find nothing."""
    _answer(monkeypatch, package, None)


def install(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let a look for ``package`` find something, which can't be imported."""
    _answer(monkeypatch, package, object())


def _answer(monkeypatch: pytest.MonkeyPatch, package: str, answer: object) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: answer if name == package else real(name, *rest)
    )
