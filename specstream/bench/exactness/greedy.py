"""Greedy decoding: where speculative and plain text diverge, and whether rounding explains it.

A pass over K + 1 tokens sums in another order than a pass over one, so the last bits of the logits
differ. Where the two best tokens are closer than that, either may win. Every divergence is reported
with its margin and the measured noise; a margin far above the noise is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from specstream.bench.exactness.harness import run_requests
from specstream.engine.step import EngineCore
from specstream.model.forward import ForwardInput
from specstream.model.runner import ModelRunner
from specstream.types import Message, SamplingParams

__all__ = ["Divergence", "GreedyReport", "compare_greedy", "width_noise"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """A place where the two texts diverge."""

    prompt: str
    position: int
    margin: float  # between the two best logits there, in the plain pass
    noise: float  # the largest difference that a pass's width made to any logit of this text

    @property
    def explained(self) -> bool:
        """Whether rounding can have decided: the margin is within the noise of both tokens."""
        return self.margin <= 2 * self.noise


@dataclass(frozen=True, slots=True)
class GreedyReport:
    """Tokens compared over ``prompts`` replies, each up to its first divergence."""

    prompts: int
    tokens: int
    divergences: tuple[Divergence, ...]
    noise: float

    @property
    def holds(self) -> bool:
        """No divergence that rounding doesn't explain."""
        return all(d.explained for d in self.divergences)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "prompts": self.prompts,
            "tokens": self.tokens,
            "width_noise": self.noise,
            "divergences": [asdict(d) | {"explained": d.explained} for d in self.divergences],
        }


def compare_greedy(
    core: EngineCore,
    prompts: Sequence[tuple[str, list[Message], str]],
    *,
    max_tokens: int,
    min_tokens: int = 0,
    width: int = 5,
) -> GreedyReport:
    """Write each reply twice with one engine, speculating and plainly, and compare token by token.

    ``prompts`` are (name, messages, reference); ``min_tokens`` keeps short replies going; ``width`` is
    the number of tokens of the passes that are compared with single-token passes to measure the noise.
    """
    params = [SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens)]
    divergences, tokens, noise = [], 0, 0.0
    for name, messages, reference in prompts:
        (plain,) = run_requests(core, messages, params, proposer="off")
        (drafted,) = run_requests(core, messages, params, reference=reference)
        at = plain.prompt_length
        pairs = zip(plain.token_ids[at:], drafted.token_ids[at:], strict=False)
        same = at + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        tokens += same - at
        here, rows = width_noise(core.target, plain.token_ids, at, width)
        noise = max(noise, here)
        if same < len(plain.token_ids) or same < len(drafted.token_ids):
            row = rows[same - at].clone()
            if same - at < min_tokens:
                row[sorted(plain.sequence.eos_ids)] = -torch.inf
            best = row.topk(2).values
            divergences.append(Divergence(name, same - at, float(best[0] - best[1]), here))
    return GreedyReport(len(prompts), tokens, tuple(divergences), noise)


@torch.inference_mode()
def width_noise(
    runner: ModelRunner, ids: Sequence[int], prompt_length: int, width: int
) -> tuple[float, Tensor]:
    """Largest logit difference between passes over 1 and over ``width`` tokens of a reply.

    Returns:
        The difference, and the single-token logits ``[n, V]`` float32: row j is for reply token j.
    """
    single = _read(runner, ids, prompt_length, 1)
    wide = _read(runner, ids, prompt_length, width)
    finite = single.isfinite() & wide.isfinite()
    return float((single - wide)[finite].abs().max()), single


def _read(runner: ModelRunner, ids: Sequence[int], prompt_length: int, width: int) -> Tensor:
    cache = runner.new_cache()
    text = torch.tensor(list(ids[:-1]), device=runner.device)
    prompt = text[: prompt_length - 1]
    for part in torch.split(prompt, runner.fixed_width or 512):
        runner.forward([ForwardInput(part, cache)])
    rows = [
        runner.forward([ForwardInput(part, cache, keep=part.shape[0])]).logits[0]
        for part in torch.split(text[prompt_length - 1 :], width)
    ]
    return torch.cat(rows).float()
