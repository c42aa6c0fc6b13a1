from __future__ import annotations

from specstream.model.graphs.widths import Widths


def test_the_narrowest_that_is_wide_enough() -> None:
    widths = Widths((5, 1, 3))
    assert widths.known == (1, 3, 5)
    assert [widths.of(n) for n in range(7)] == [None, 1, 3, 3, 5, 5, None]


def test_what_is_dropped_is_served_by_the_next() -> None:
    widths = Widths((1, 3))
    widths.drop(1)
    assert [widths.of(n) for n in (1, 2, 3, 4)] == [3, 3, 3, None]
    widths.drop(3)
    assert widths.known == () and widths.of(1) is None
