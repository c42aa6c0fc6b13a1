"""Pictures: plots side by side, curves of load, timelines. Needs matplotlib (extra ``bench``)."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specstream.bench.records import middle_half
from specstream.bench.results import Results

if TYPE_CHECKING:
    from specstream.bench.load.callers import Caller
    from specstream.bench.load.concurrency import LoadFigures

__all__ = [
    "Bar",
    "Row",
    "can_plot",
    "draw_callers",
    "draw_load",
    "draw_plots",
    "draw_timeline",
    "drawn_timeline",
]

_CURVES_INCHES, _TICKS = (12, 4.2), 400  # of curves, and points of one

_COLOURS = {
    "own": "#8a8f98",
    "auto": "#0b5fad",
    "suffix": "#5aa9e6",
    "generate": "#d9b38c",
    "assisted": "#e08b3c",
    "lookup": "#b5502e",
    "llama.cpp": "#6b4c8a",
}
_BLUES = ("#9ecbe8", "#6fb0dc", "#4394cc", "#2878b5")
_KINDS = ("#8a8f98", "#d9b38c", "#c9ccd1", "#0b5fad", "#5aa9e6", "#e08b3c", "#6b4c8a", "#5b8c5a",
          "#9ecbe8", "#b5502e", "#d8d2a8")  # fmt: skip
_ROW_INCHES = 0.45  # of a timeline
_LANE = 0.32  # rows that one line of labels takes
_MOST_LANES = 16
_FONT, _LONGEST = 7, 40  # points, and characters of a label
_LEAST_INCHES = 9.0  # of the time axis, beside the longest names of rows and kinds
_FEW = 5  # a position reached less often than this is not drawn
_NAMES = {"own": "without speculation (own)", "auto": "with speculation (auto)",
          "generate": "transformers", "assisted": "transformers, assisted",
          "lookup": "transformers, lookup"}  # fmt: skip
_PARTS = {
    "prefill": ("#c9ccd1", "prefill"),
    "verify": ("#0b5fad", "target passes"),
    "draft": ("#e08b3c", "drafting"),
    "sample": ("#5aa9e6", "verification"),
    "rollback": ("#6b4c8a", "commit and rollback"),
    "emit": ("#5b8c5a", "emission"),
    "other": ("#555a61", "other"),
}


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_plots(results: Results, path: Path, title: str) -> None:
    """Write one PNG: speed by domain and arm, acceptance by position, where the time goes.

    Raises:
        OSError: the file can't be written.
    """
    with _picture(path, 3, (19, 5.6), width_ratios=(2.2, 1, 1.1)) as (speed, acceptance, split):
        speed.figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        _draw_speed(speed, results)
        _draw_acceptance(acceptance, results)
        _draw_split(split, results)


@contextmanager
def _picture(
    path: Path | None, columns: int, inches: tuple[float, float], **options: Any
) -> Iterator[Any]:
    """Yield the axes to draw on, and write the picture, if it has a path, at the end of the block.

    An SVG of the same drawing has the same bytes.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "specstream", "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(1, columns, figsize=inches, layout="constrained", **options)
        try:
            yield axes
            if path is not None:
                fixed = {"Date": None} if path.suffix == ".svg" else None
                figure.savefig(path, dpi=110, metadata=fixed)
        finally:
            pyplot.close(figure)


def _colour(arm: str, arms: Sequence[str]) -> str:
    drafts = [a for a in arms if a.startswith("draft-")]
    if arm in drafts:
        return _BLUES[drafts.index(arm) * len(_BLUES) // max(len(drafts), 1) % len(_BLUES)]
    return _COLOURS.get(arm, "#000000")


def _draw_speed(axes: Any, results: Results) -> None:
    arms, domains = list(dict.fromkeys(arm for arm, _ in results.arms)), results.domains
    width = 0.84 / max(len(arms), 1)
    for place, arm in enumerate(arms):
        heights = [results.speed(domain, arm) or 0.0 for domain in domains]
        at = [i + (place - (len(arms) - 1) / 2) * width for i in range(len(domains))]
        name = _NAMES.get(arm, arm) + (", best" if len(results.settings(arm)) > 1 else "")
        bars = axes.bar(at, heights, width * 0.92, label=name, color=_colour(arm, arms))
        for x, domain in zip(at, domains, strict=True):
            half = middle_half(list(results.prompt_speeds(domain, arm).values()))
            if half is not None:  # a thin line, right of the ratio's text
                axes.vlines(x + 0.3 * width, *half, color="#22252a", linewidth=1.2, alpha=0.75)
        if arm == "auto":
            ratios = [results.ratio(domain, "auto", "own") for domain in domains]
            texts = [f"{ratio:.2f}x" if ratio else "" for ratio in ratios]
            shown: dict[str, Any] = {"rotation": 90, "fontsize": 8, "color": "white"}
            axes.bar_label(bars, texts, label_type="center", **shown)
    counts = [results.prompt_count([domain]) for domain in domains]
    names = [
        f"{domain}, n = {count}" + ("" if domain in results.mean_domains else "\n(not in the mean)")
        for domain, count in zip(domains, counts, strict=True)
    ]
    axes.set_xticks(range(len(domains)), names)
    axes.set_ylabel("decode speed, tokens a second")
    axes.margins(y=0.25)  # room for the legend
    axes.legend(fontsize=8, ncols=3, frameon=False, loc="upper left")
    _tidy(axes, "Speed (n: prompts; thin lines: their middle half; text on auto: ratio to own)")


def _draw_acceptance(axes: Any, results: Results) -> None:
    for domain in results.domains:
        figures = results.figures.get((domain, "auto", ""))
        if figures and figures.acceptance_by_position:
            pairs = zip(figures.acceptance_by_position, figures.reached_by_position, strict=True)
            rates = [rate for rate, reached in pairs if reached >= _FEW]
            if rates:
                axes.plot(range(1, len(rates) + 1), rates, marker="o", markersize=4, label=domain)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("position of the drafted token in its round")
    axes.set_ylabel("acceptance rate, if all earlier drafts were accepted")
    if axes.lines:
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize=8, frameon=False)
    _tidy(axes, "Drafted tokens accepted (auto)")


def _draw_split(axes: Any, results: Results) -> None:
    names: list[str] = []
    bars: list[dict[str, float]] = []
    for domain in results.domains:
        for arm in ("own", "auto"):
            figures = results.figures.get((domain, arm, ""))
            if figures and figures.tokens_per_second:
                ms = 1e3 / figures.tokens_per_second
                names.append(f"{domain}, {arm}")
                bars.append({part: share * ms for part, share in figures.time_split.items()})
    left = [0.0] * len(bars)
    for part, (colour, name) in _PARTS.items():
        values = [bar.get(part, 0.0) for bar in bars]
        if any(values):
            axes.barh(names, values, left=left, color=colour, label=name, height=0.7)
            left = [a + b for a, b in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds a token, whole request")
    if bars:
        axes.legend(fontsize=8, frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.11))
    _tidy(axes, "Where a token's time goes")


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


def draw_timeline(rows: Sequence[Row], path: Path, title: str, *, line_ms: float | None = None) -> None:
    """Write the rows as one picture; the suffix of ``path`` says whether it is SVG, PNG or PDF.

    ``line_ms`` is marked by a vertical line.

    Raises:
        OSError: the file can't be written.
        ValueError: matplotlib can't write pictures with that suffix.
    """
    with drawn_timeline(rows, path, title, line_ms=line_ms):
        pass


@contextmanager
def drawn_timeline(
    rows: Sequence[Row], path: Path | None, title: str, *, line_ms: float | None = None
) -> Iterator[Any]:
    """Yield the axes of `draw_timeline`, and write the picture at the end; no path: don't."""
    kinds = list(dict.fromkeys(bar.kind for row in rows for bar in row.bars))
    colours = {kind: _KINDS[at % len(_KINDS)] for at, kind in enumerate(kinds)}
    last_ms = max([line_ms or 0.0, *(bar.end_ms for row in rows for bar in row.bars)])
    span_ms = 1.02 * last_ms or 1.0
    placed = [_placed(row, span_ms) for row in rows]
    lanes = [1 + max((label.lane for label in labels), default=-1) for labels in placed]
    places = [at + _LANE * sum(lanes[:at]) for at in range(len(rows))]
    inches = 1.6 + _ROW_INCHES * (len(rows) + _LANE * sum(lanes))
    with _picture(path, 1, (13, inches)) as axes:
        for at, row in zip(places, rows, strict=True):
            for bar in row.bars:
                look: dict[str, Any] = {"color": colours[bar.kind], "edgecolor": "white"}
                width = bar.end_ms - bar.start_ms
                axes.barh(at, width, left=bar.start_ms, height=0.7, linewidth=0.4, **look)
        for at, labels in zip(places, placed, strict=True):
            for label in labels:
                below = at + 0.35 + _LANE * (label.lane + 0.5)
                axes.vlines(label.bar.start_ms, at + 0.35, below, color="#8a8f98", linewidth=0.5)
                look = {"fontsize": _FONT, "va": "center", "parse_math": False}  # "$5 and $6"
                look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
                axes.text(label.left_ms, below, f" {_cut(label.bar.text)}", **look)
        for kind in kinds:
            axes.barh(0, 0, color=colours[kind], label=kind)
        if line_ms is not None:
            axes.axvline(line_ms, color="#b5502e", linewidth=1)
        axes.set_yticks(places, list(map(_named, rows, placed)))
        axes.set_xlim(0, span_ms)
        axes.set_ylim(len(rows) - 0.4 + _LANE * sum(lanes), -0.6)
        axes.set_xlabel("milliseconds")
        if kinds:
            axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        _tidy(axes, title)
        yield axes


class _Label(NamedTuple):
    """The text of a bar: where it begins, and in which lane below the row it stands."""

    bar: Bar
    left_ms: float
    lane: int


def _placed(row: Row, span_ms: float) -> list[_Label]:
    """Lay out a row's labels so that none covers another; what finds no room is left out.

    The latest is the highest, so that the line from an early bar to its label crosses no other label.
    """
    labels: list[_Label] = []
    free_ms = [math.inf] * _MOST_LANES  # by lane, where the labels so far begin
    for bar in sorted(row.bars, key=lambda bar: -bar.start_ms):
        if not bar.text:
            continue
        width_ms = _inches(_cut(bar.text)) / _LEAST_INCHES * span_ms
        left_ms = max(0.0, min(bar.start_ms, span_ms - width_ms))
        lane = next((at for at, free in enumerate(free_ms) if left_ms + width_ms <= free), None)
        if lane is not None:
            labels.append(_Label(bar, left_ms, lane))
            free_ms[lane] = left_ms
    return labels


def _cut(text: str) -> str:
    text = " ".join(text.split())  # fonts have no sign for a line break
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _inches(text: str) -> float:
    """How wide a label is at most, with its blank in front."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    size = FontProperties(size=_FONT)
    width, _, _ = text_to_path.get_text_width_height_descent(f" {text} ", size, False)
    return float(width) / 72


def _named(row: Row, labels: Sequence[_Label]) -> str:
    count = sum(1 for bar in row.bars if bar.text)
    return row.label if len(labels) == count else f"{row.label}\n({len(labels)} of {count} named)"


def _tidy(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def draw_load(loads: Sequence[LoadFigures], path: Path, title: str) -> None:
    """Tokens a second with and without speculation, in closed groups and with steady arrivals.

    Raises:
        OSError: the file can't be written.
    """
    with _picture(path, 2, _CURVES_INCHES) as axes:
        for each, shape in zip(axes, ("closed", "steady"), strict=True):
            own = [load for load in loads if load.shape == shape]
            counts = [load.at_once for load in own]
            each.plot(counts, [load.off.rate for load in own], "o-", color="#8a8f98", label="off")
            each.plot(counts, [load.auto.rate for load in own], "o-", color="#0b5fad", label="auto")
            each.set_xscale("log", base=2)
            each.set_xticks(counts, list(map(str, counts)))
            each.set_xlabel("requests at once")
            each.set_ylabel("tokens a second, together")
            each.set_ylim(bottom=0)
            each.set_title(f"{title}: {shape}", loc="left", fontsize=10, parse_math=False)
            each.legend(frameon=False, fontsize=8)


def draw_callers(callers: Sequence[Caller], path: Path, title: str) -> None:
    """Each caller's sound ahead over time, by who went first; for the largest number of callers.

    Raises:
        OSError: the file can't be written.
    """
    most = max(caller.at_once for caller in callers)
    orders = list(dict.fromkeys(caller.order for caller in callers))
    with _picture(path, len(orders), _CURVES_INCHES, sharey=True, squeeze=False) as axes:
        for each, order in zip(axes[0], orders, strict=True):
            own = [c for c in callers if c.at_once == most and c.order == order and c.pieces]
            for caller in own:
                end = caller.pieces[-1][0] + caller.ahead(caller.pieces[-1][0])
                times = [caller.asked + (end - caller.asked) * n / _TICKS for n in range(_TICKS)]
                ahead = [caller.ahead(at) for at in times]
                each.plot([t - caller.asked for t in times], ahead, lw=0.6, alpha=0.7)
            each.set_xlabel("seconds since the question")
            each.set_ylabel("seconds of sound ahead, of each caller")
            name = f"{title}: {most} callers, by {order}"
            each.set_title(name, loc="left", fontsize=10, parse_math=False)
