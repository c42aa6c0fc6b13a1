"""What tests of passes share."""

import pytest

from specstream.model import runner


@pytest.fixture(params=["native", "torch"])
def passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test by native passes, and once more by torch's."""
    way: str = request.param
    if way == "torch":
        monkeypatch.setattr(runner, "library", lambda wanted: None)
    return way
