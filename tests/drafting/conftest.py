"""What tests of proposers share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def inference() -> Iterator[None]:
    """Runs a test in the mode in which the engine calls proposers."""
    with torch.inference_mode():
        yield
