"""Check of the reproducible mode on this device: sampled tokens must not depend on the proposer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from specstream.bench.exactness.harness import Varying, run_requests
from specstream.bench.exactness.pair import Finding
from specstream.config import EngineConfig
from specstream.engine.build import build_engine
from specstream.engine.step import EngineCore
from specstream.errors import ConfigError
from specstream.methods import SuffixProposerConfig
from specstream.model.invariance import rows_alike
from specstream.speculation.proposal import Proposer
from specstream.speculation.proposers.suffix import SuffixProposer
from specstream.types import Message, SamplingParams

__all__ = ["check_bits"]

Build = Callable[[EngineConfig], EngineCore]
_NEIGHBOUR = SamplingParams(temperature=1.0, max_tokens=9)


def check_bits(
    config: EngineConfig,
    dtypes: Sequence[str],
    prompts: Sequence[list[Message]],
    *,
    seeds: int = 1,
    max_tokens: int = 32,
    build: Build = build_engine,
) -> Finding:
    """Sample each prompt with every proposer and compare the tokens with those of plain decoding.

    A dtype for which no pass width keeps all bits doesn't fail the check: the reproducible mode refuses
    to start there. Loads the models once for each dtype.
    """
    found: dict[str, Any] = {}
    holds, parts = True, []
    for dtype in dtypes:
        try:
            core = build(config.model_copy(update={"mode": "reproducible", "dtype": dtype}))
        except ConfigError as error:
            found[dtype] = {"available": False, "because": str(error)}
            parts.append(f"{dtype}: not available here")
            continue
        found[dtype] = _runs(core, prompts, seeds, max_tokens)
        same, runs, width = (found[dtype][key] for key in ("identical", "runs", "width"))
        holds &= same == runs
        parts.append(f"{dtype}: {same} of {runs} runs identical ({_width(width)})")
    return Finding("bit-identical in the reproducible mode", holds, "; ".join(parts), found)


def _width(width: int | None) -> str:
    return "any width" if width is None else f"width {width}"


def _runs(
    core: EngineCore, prompts: Sequence[list[Message]], seeds: int, max_tokens: int
) -> dict[str, Any]:
    width = core.target.fixed_width  # None: native passes, which keep all bits at any width
    same, total = rows_alike(core.target, tokens=min(8 * (width or 16), core.target.context_length))
    given, device = core.proposer, core.target.device
    lookup = SuffixProposer(SuffixProposerConfig(min_score=0), device)
    ways: list[tuple[str, Proposer, int]] = [  # name, proposer, number of concurrent requests
        ("off", given, 0),
        (given.name, given, 0),
        (f"{given.name}, K varying", Varying(given, 7), 0),
        ("suffix", lookup, 0),
        ("suffix, with neighbours", lookup, 2),
    ]
    identical = runs = accepted = 0
    for messages, seed in itertools.product(prompts, range(seeds)):
        params = SamplingParams(temperature=0.9, top_p=0.95, seed=seed, max_tokens=max_tokens)
        plain: list[int] | None = None
        for name, core.proposer, beside in ways:
            batch = [params, *[_NEIGHBOUR] * beside]
            request = run_requests(core, messages, batch, proposer=name)[0]
            if plain is None:
                plain = request.token_ids
                continue
            runs += 1
            identical += request.token_ids == plain
            accepted += request.stats.accepted
    core.proposer = given
    return {"available": True, "width": width, "rows_alike": same, "rows": total, "runs": runs,
            "identical": identical, "accepted_tokens": accepted}  # fmt: skip
