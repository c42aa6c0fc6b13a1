"""The output of ``specstream bench``: table, verdict, JSON and plots."""

from __future__ import annotations

from typing import Any

from specstream.bench import plots
from specstream.bench.document import Files, document_of
from specstream.bench.results import Results
from specstream.bench.run import Outcome
from specstream.bench.table import crowd_lines, heading_of, methods_table, table_of
from specstream.checks import writing
from specstream.commands.output import note, print_json

__all__ = ["publish"]


def publish(outcome: Outcome, origin: dict[str, Any], files: Files, *, as_json: bool) -> None:
    """Print the table and the verdict, and write them, the JSON document and the plots to ``files``.

    Raises:
        OutputError: a file can't be written.
    """
    results = Results(outcome.records, sampled=origin["options"]["temperature"] > 0)
    document = document_of(results, outcome, origin)
    heading = heading_of(origin, outcome)
    lines = [*heading, *table_of(results), "", *methods_table(results, origin["draft_weights"])]
    lines += [*document["verdict"], *crowd_lines(outcome.crowd), ""]
    lines += [f"note: {said}" for said in document["notes"]]
    files.write(document, lines)
    if plots.can_plot():
        with writing(files.folder / "bench.png"):
            plots.draw_plots(results, files.folder / "bench.png", heading[0])
    else:
        note("no plots: matplotlib isn't installed (pip install matplotlib)")
    print("\n".join(lines), flush=True)
    note(f"written to {files.folder}/: {', '.join(sorted(p.name for p in files.folder.iterdir()))}")
    if as_json:
        print_json(document)
