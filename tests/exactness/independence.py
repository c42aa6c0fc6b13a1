"""A test of independence, for noise that is meant to be independent."""

import torch

from specstream.bench.exactness.enumeration import survival

__all__ = ["independence"]


def independence(counts: torch.Tensor) -> float:
    """p-value of a G-test that the rows and columns of a table of counts are independent."""
    counts = counts.double()
    expected = counts.sum(1, keepdim=True) * counts.sum(0, keepdim=True) / counts.sum()
    there = counts > 0
    statistic = 2 * (counts[there] * (counts[there] / expected[there]).log()).sum()
    return survival(float(statistic), (counts.shape[0] - 1) * (counts.shape[1] - 1))
