"""An independent account of the target's law: numpy, float64, one position at a time.

It shares no code with `specstream.model`, so that a mistake in the engine's own processors or
warpers shows up as a difference between sample and law.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specstream.types import SamplingParams

__all__ = ["exact_rule", "next_rule", "process", "warp"]

Row = NDArray[np.float64]


def process(
    logits: Row,
    params: SamplingParams,
    prompt: Sequence[int],
    reply: Sequence[int],
    end_ids: frozenset[int],
) -> Row:
    """The logits ``[V]`` after prompt and reply, with everything before the temperature applied.

    Covers all of `SamplingParams` but ``bad_words`` and ``grammar``, which need a real tokenizer.
    """
    out = np.array(logits, dtype=np.float64)
    for token in set(prompt) | set(reply):
        factor = params.repetition_penalty
        out[token] = out[token] * factor if out[token] < 0 else out[token] / factor
    for token in set(reply):
        out[token] -= params.frequency_penalty * list(reply).count(token) + params.presence_penalty
    for token, bias in params.logit_bias.items():
        out[token] += bias
    if len(reply) < params.min_tokens:
        out[sorted(end_ids | set(params.stop_token_ids))] = -np.inf
    for processor in params.processors:
        ids = torch.tensor([[*prompt, *reply]])
        out = processor(ids, torch.from_numpy(out).unsqueeze(0))[0].numpy()
    return out


def warp(logits: Row, params: SamplingParams) -> Row:
    """Temperature, top-k, top-p, min-p, typical-p, in this order; then probabilities ``[V]``."""
    scaled = logits / params.temperature
    if params.top_k:
        kth = np.sort(scaled)[::-1][min(params.top_k, len(scaled)) - 1]
        scaled = np.where(scaled < kth, -np.inf, scaled)
    law = _softmax(scaled)
    if params.top_p < 1:
        law = _keep(law, _until(np.argsort(-law, kind="stable"), law, params.top_p))
    if params.min_p > 0:
        law = _keep(law, list(np.flatnonzero(law >= params.min_p * law.max())))
    if params.typical_p < 1:
        with np.errstate(divide="ignore"):
            surprise = -np.log(law)
        entropy = sum(p * s for p, s in zip(law, surprise, strict=True) if p > 0)
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        law = _keep(law, _until(order, law, params.typical_p))
    return law


def next_rule(
    logits: Row,
    params: SamplingParams,
    prompt: Sequence[int],
    reply: Sequence[int],
    end_ids: frozenset[int],
) -> Row:
    """The law of the next token, ``[V]``."""
    return warp(process(logits, params, prompt, reply, end_ids), params)


def exact_rule(
    logits_after: Callable[[Sequence[int]], Row],
    params: SamplingParams,
    prompt: Sequence[int],
    length: int,
    end_ids: frozenset[int],
) -> Mapping[tuple[int, ...], float]:
    """The joint law of the first ``length`` tokens; shorter where a reply can end earlier."""
    law: dict[tuple[int, ...], float] = {}
    ends = end_ids | set(params.stop_token_ids)

    def descend(reply: tuple[int, ...], mass: float) -> None:
        if len(reply) == length or (reply and reply[-1] in ends):
            law[reply] = mass
            return
        row = next_rule(logits_after([*prompt, *reply]), params, prompt, reply, end_ids)
        for token in np.flatnonzero(row):
            descend((*reply, int(token)), mass * float(row[token]))

    descend((), 1.0)
    return law


def _softmax(values: Row) -> Row:
    weights: Row = np.exp(values - values.max())
    weights /= weights.sum()
    return weights


def _until(order: NDArray[np.int64], law: Row, mass: float) -> list[int]:
    """The first of ``order`` that together reach ``mass``."""
    kept: list[int] = []
    for token in order:
        if sum(law[kept]) >= mass and kept:
            break
        kept.append(int(token))
    return kept


def _keep(law: Row, kept: list[int]) -> Row:
    out: Row = np.zeros_like(law)
    out[kept] = law[kept]
    out /= out.sum()
    return out
