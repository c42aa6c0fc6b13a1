"""The table of the GPU figures and its files."""

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu.running import Outcome

__all__ = ["LINES", "WIDTH", "draw", "table", "write_files"]

LINES, WIDTH = 60, 150
_COLUMNS = (13, 49, 78, 6)  # part, what, value, bar; with spaces between


def table(outcomes: Sequence[Outcome], head: str) -> list[str]:
    """At most `LINES` lines of at most `WIDTH` characters; rows without a bar are cut first."""
    ends = [_end(outcome) for outcome in outcomes]
    shown = [_chosen(outcome, LINES) for outcome in outcomes]
    room = LINES - 2 - sum(end is not None for end in ends)
    while sum(map(len, shown)) > room:
        longest = max(range(len(shown)), key=lambda i: len(shown[i]))
        shown[longest] = _chosen(outcomes[longest], len(shown[longest]) - 1)
    lines = [head[:WIDTH], _line("part", "what", "found", "bar")]
    for outcome, rows, end in zip(outcomes, shown, ends, strict=True):
        name = f"{outcome.part} {outcome.seconds:.0f}s"
        for what, value, bar in rows:
            lines.append(_line(name, what, value, bar))
            name = ""
        if end is not None:
            lines.append(_line(name or outcome.part, outcome.state, end, "-"))
    return lines


def _end(outcome: Outcome) -> str | None:
    """What the last line of a part says; None: there is none, as it ended well."""
    if outcome.state != "done":
        return outcome.why or "-"
    return None if outcome.rows else "nothing was found"


def _chosen(outcome: Outcome, most: int) -> list[tuple[str, str, str]]:
    """The rows of a part for so many lines: those with a verdict first, in the order they came."""
    each = list(enumerate(outcome.rows))
    order = {"missed": 0, "met": 2}
    # What was left out and why is as important as what was met.
    first = sorted(
        each, key=lambda pair: 1 if pair[1].get("left_out") else order.get(pair[1].get("bar", "-"), 3)
    )
    if len(each) <= most:
        kept, rest = each, 0
    else:
        kept = sorted(first[: max(most - 1, 0)])
        rest = len(each) - len(kept)
    rows = [(str(row["what"]), str(row["value"]), str(row.get("bar", "-"))) for _, row in kept]
    return rows + ([("", f"and {rest} more in results.tar.gz", "-")] if rest else [])


def _line(*cells: str) -> str:
    made = (
        (cell if len(cell) <= width else cell[: width - 1] + "…").ljust(width)
        for cell, width in zip(cells, _COLUMNS, strict=True)
    )
    return " ".join(" ".join(made).split("\n"))[:WIDTH].rstrip()


_COLOURS = {"off": "#8a8f98", "draft-4": "#0b5fad", "auto": "#5aa9e6"}


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the speeds of greedy replies, a panel for each size of model; needs matplotlib."""
    import matplotlib.pyplot as plt

    panels = {one.part: one.result for one in outcomes if one.result.get("paces")}
    figure, axes = plt.subplots(1, max(len(panels), 1), figsize=(9, 3.6), squeeze=False)
    for axis, (part, result) in zip(axes[0], panels.items(), strict=False):
        _panel(axis, result)
        axis.set_title(f"{part.removeprefix('speed')}B, greedy, draft of the bundled pair")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(axis: Any, result: dict[str, Any]) -> None:
    """Bars of tokens a second and request, by the number of requests and method."""
    rates = {
        (pace["setting"][1], pace["setting"][2]): pace["rate"] / pace["setting"][1]
        for pace in result["paces"]
        if pace["setting"][0] == "greedy"
    }
    batches = sorted({batch for batch, _ in rates})
    for number, (method, colour) in enumerate(_COLOURS.items()):
        places = [i + 0.27 * (number - 1) for i, b in enumerate(batches) if (b, method) in rates]
        heights = [rates[b, method] for b in batches if (b, method) in rates]
        axis.bar(places, heights, 0.25, color=colour, label=method)
        for x, height in zip(places, heights, strict=True):
            axis.text(x, height, f"{height:.0f}", ha="center", va="bottom", fontsize=7)
    roofline = result["roofline_tokens_per_second"]
    axis.axhline(roofline, color="#b5502e", linewidth=1, label="reading the weights once a token")
    axis.set_xticks(range(len(batches)), [f"{batch} at once" for batch in batches])
    axis.set_ylabel("tokens a second, each")
    axis.set_ylim(top=1.3 * max(roofline, *rates.values()))
    axis.legend(fontsize=7, frameon=False)


def write_files(folder: Path, lines: Sequence[str]) -> None:
    """Write ``report.md``, and pack all other files of the folder into ``results.tar.gz``.

    Few files come back from a lent machine. ``log.txt`` stays: the caller is still writing it.
    """
    (folder / "report.md").write_text("```\n" + "\n".join(lines) + "\n```\n", encoding="utf-8")
    kept = {"report.md", "results.tar.gz", "log.txt"}
    others = [path for path in sorted(folder.iterdir()) if path.name not in kept]
    with tarfile.open(folder / "results.tar.gz", "w:gz", compresslevel=5) as archive:
        archive.add(folder / "report.md", "report.md")
        for path in others:
            archive.add(path, path.name)
    for path in others:
        if path.is_file():
            path.unlink()
