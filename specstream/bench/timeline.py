"""A timeline as a picture: one row for each stage, one bar for each span of time. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Bar", "Row", "draw_timeline"]

_COLOURS = ("#8a8f98", "#d9b38c", "#c9ccd1", "#0b5fad", "#5aa9e6", "#e08b3c", "#6b4c8a", "#5b8c5a",
            "#9ecbe8", "#b5502e", "#d8d2a8")  # fmt: skip
_ROW_INCHES = 0.45


class Bar(NamedTuple):
    """A span of time from ``start_ms`` to ``end_ms``; bars of one ``kind`` have one colour."""

    kind: str
    start_ms: float
    end_ms: float
    text: str = ""


class Row(NamedTuple):
    """A label and its bars."""

    label: str
    bars: Sequence[Bar]


def draw_timeline(
    rows: Sequence[Row], path: Path, title: str, *, line_ms: float | None = None
) -> None:
    """Write the rows as one picture; the suffix of ``path`` says whether it is SVG, PNG or PDF.

    An SVG of the same rows has the same bytes. ``line_ms`` is marked by a vertical line.

    Raises:
        OSError: the file can't be written.
        ValueError: matplotlib can't write pictures with that suffix.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kinds = list(dict.fromkeys(bar.kind for row in rows for bar in row.bars))
    colours = {kind: _COLOURS[at % len(_COLOURS)] for at, kind in enumerate(kinds)}
    with matplotlib.rc_context({"svg.hashsalt": "specstream", "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(
            figsize=(13, 1.6 + _ROW_INCHES * len(rows)), layout="constrained"
        )
        try:
            for at, row in enumerate(rows):
                for bar in row.bars:
                    width = bar.end_ms - bar.start_ms
                    look: dict[str, Any] = {
                        "color": colours[bar.kind],
                        "edgecolor": "white",
                        "linewidth": 0.4,
                    }
                    axes.barh(at, width, left=bar.start_ms, height=0.7, **look)
                    if bar.text:
                        axes.text(bar.start_ms, at, f" {bar.text}", fontsize=7, va="center")
            for kind in kinds:
                axes.barh(0, 0, color=colours[kind], label=kind)
            if line_ms is not None:
                axes.axvline(line_ms, color="#b5502e", linewidth=1)
            axes.set_yticks(range(len(rows)), [row.label for row in rows])
            axes.invert_yaxis()
            axes.set_xlabel("milliseconds")
            axes.set_title(title, loc="left", fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=8)
            if kinds:
                axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
            fixed = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=110, metadata=fixed)
        finally:
            pyplot.close(figure)
