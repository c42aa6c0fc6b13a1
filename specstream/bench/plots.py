"""Plots of the experiment, side by side in one picture. Needs matplotlib (the extra ``bench``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specstream.bench.results import Results, middle_half

__all__ = ["can_plot", "draw_plots"]

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
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (speed, acceptance, split) = pyplot.subplots(
        1, 3, figsize=(19, 5.6), width_ratios=(2.2, 1, 1.1), layout="constrained"
    )
    try:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        _draw_speed(speed, results)
        _draw_acceptance(acceptance, results)
        _draw_split(split, results)
        figure.savefig(path, dpi=110)
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
    axes.set_title(
        "Speed (n: prompts; thin lines: their middle half; text on auto: ratio to own)",
        loc="left",
        fontsize=10,
    )
    axes.margins(y=0.25)  # room for the legend
    axes.legend(fontsize=8, ncols=3, frameon=False, loc="upper left")
    _tidy(axes)


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
    axes.set_title("Drafted tokens accepted (auto)", loc="left", fontsize=10)
    if axes.lines:
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize=8, frameon=False)
    _tidy(axes)


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
    axes.set_title("Where a token's time goes", loc="left", fontsize=10)
    if bars:
        axes.legend(
            fontsize=8, frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.11)
        )
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
