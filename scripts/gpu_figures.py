#!/usr/bin/env python3
"""Measures and checks everything on a GPU, in parts of limited time and in order of worth.

Each part runs in a process of its own, forked from this one after the imports and before CUDA is
initialised. Results are in results.tar.gz and report.md of the output folder; the last lines printed
are the table. ``--device fake`` rehearses all parts on tensors that only say they are on a GPU,
``--device cpu --tiny`` with real numbers. Exit status 1: a part or a check of exactness failed; a bar
of speed that is missed doesn't count.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import lzma
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_BEGAN = time.monotonic()
_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT), str(_ROOT / "adapters")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that the command line asks for."""
    args = _arguments(argv)
    args.out = args.out.resolve()
    if args.read is not None:
        return _again(args.read, args.out)
    for key, value in {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",  # threads don't survive a fork
    }.items():
        os.environ.setdefault(key, value)
    from specstream.model import fused
    from tests.gpu.parts import PARTS
    from tests.gpu.report import table, write_files
    from tests.gpu.running import run_all

    names = [part.name for part in PARTS]
    if fused.installed():  # imported once, for all parts; Triton finds the card when it compiles
        import specstream.model.fused.attention
        import specstream.model.fused.elementwise  # noqa: F401
    unknown = {*args.only, *args.skip} - {*names, ""}
    if unknown:
        sys.exit(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    named = {part.name: part for part in PARTS}
    chosen = [named[name] for name in args.only or names if name not in args.skip]
    os.chdir(_ROOT)  # for the programs that parts start
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"== imports: {time.monotonic() - _BEGAN:.1f} s", flush=True)  # noqa: T201
    tiny = args.tiny or args.device == "fake"
    outcomes = run_all(chosen, args.device, tiny, args.out, _BEGAN + args.seconds)
    spent = time.monotonic() - _BEGAN
    size = "tiny" if tiny else "full size"
    head = f"GPU figures on {args.device}, {size}: {spent:.0f} s of {args.seconds:.0f}"
    lines = table(outcomes, head)
    write_files(args.out, lines)
    print("\n".join(lines), flush=True)  # noqa: T201
    return int(any(outcome.wrong for outcome in outcomes))


def _again(results: Path, out: Path) -> int:
    """Print the table of kept results again, and draw their speeds."""
    from tests.gpu.report import draw, table
    from tests.gpu.running import Outcome

    known = {field.name for field in dataclasses.fields(Outcome)}
    kept = results.read_bytes()
    lines = (lzma.decompress(kept) if results.suffix == ".xz" else kept).splitlines()
    each = [json.loads(line) for line in lines]
    outcomes = [Outcome(**{k: v for k, v in one.items() if k in known}) for one in each]
    print("\n".join(table(outcomes, f"GPU figures of {results.name}")))  # noqa: T201
    out.mkdir(parents=True, exist_ok=True)
    draw(outcomes, out / f"{results.stem}.png")
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name.strip() for name in text.split(",")]

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seconds", type=float, default=450.0, help="for everything")
    parser.add_argument(
        "--only", type=names, default=[], metavar="A,B", help="these parts, in this order"
    )
    parser.add_argument("--skip", type=names, default=[], metavar="A,B", help="not these parts")
    parser.add_argument("--device", choices=("cuda", "fake", "cpu"), default="cuda")
    parser.add_argument(
        "--read", type=Path, metavar="FILE", help="only print and draw the results in this file"
    )
    parser.add_argument("--tiny", action="store_true", help="smallest sizes, to try the code")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
