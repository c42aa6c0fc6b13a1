"""What the reproducible mode costs on a model pair, beside the default mode, arms interleaved."""

import statistics
import time
from typing import Any

from specstream.bench.exactness.harness import run_requests
from specstream.config import EngineConfig
from specstream.engine.build import build_engine
from specstream.methods import OffProposerConfig
from specstream.types import Message, SamplingParams

__all__ = ["measure_cost"]

_PARAMS = SamplingParams(temperature=0.8, seed=1, max_tokens=64, min_tokens=64)


def measure_cost(dtype: str, prompts: list[list[Message]], repeats: int) -> dict[str, Any]:
    """Tokens a second of each arm: median over ``repeats``, every arm once in each, order turned."""
    arms = {
        "default, off": EngineConfig(dtype=dtype, proposer=OffProposerConfig()),  # type: ignore[arg-type]
        "default, draft": EngineConfig(dtype=dtype),  # type: ignore[arg-type]
        "reproducible, off": EngineConfig(
            dtype=dtype,  # type: ignore[arg-type]
            proposer=OffProposerConfig(),
            mode="reproducible",
        ),
        "reproducible, draft": EngineConfig(dtype=dtype, mode="reproducible"),  # type: ignore[arg-type]
    }
    cores = {name: build_engine(config) for name, config in arms.items()}
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    accepted: dict[str, float] = {}
    for repeat in range(repeats + 1):  # the first is to warm up
        names = list(arms) if repeat % 2 else list(reversed(arms))
        for name in names:
            started, tokens, kept, drafted = time.perf_counter(), 0, 0, 0
            who = "off" if name.endswith("off") else "draft"
            for prompt in prompts:
                (request,) = run_requests(cores[name], prompt, [_PARAMS], proposer=who)
                tokens += request.sequence.generated
                kept, drafted = kept + request.stats.accepted, drafted + request.stats.drafted
            accepted[name] = kept / drafted if drafted else 0.0
            if repeat:
                speeds[name].append(tokens / (time.perf_counter() - started))
    width = cores["reproducible, off"].target.fixed_width
    return {
        "dtype": dtype,
        "repeats": repeats,
        "width": width,
        "tokens_per_second": {name: round(statistics.median(v), 1) for name, v in speeds.items()},
        "range": {name: [round(min(v), 1), round(max(v), 1)] for name, v in speeds.items()},
        "acceptance_rate": {name: round(rate, 3) for name, rate in accepted.items() if rate},
    }
