"""An independent implementation of the target's distribution: numpy, float64, one position at a time.

It shares no code with `specstream.model`, so that a mistake in the engine's processors or warpers shows
as a difference between samples and distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specstream.types import SamplingParams

__all__ = ["Row", "exact_joint", "next_row"]

Row = NDArray[np.float64]


def next_row(
    logits: Row,
    params: SamplingParams,
    prompt: Sequence[int],
    reply: Sequence[int],
    end_ids: frozenset[int],
) -> Row:
    """The distribution of the next token, ``[V]``, of ``logits [V]`` after prompt and reply.

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
    return _warped(out, params)


def exact_joint(
    logits_after: Callable[[Sequence[int]], Row],
    params: SamplingParams,
    prompt: Sequence[int],
    length: int,
    end_ids: frozenset[int],
) -> Mapping[tuple[int, ...], float]:
    """The distribution of the first ``length`` tokens; shorter where a reply can end earlier.

    ``logits_after`` gives the logits ``[V]`` after some tokens. Every possible text is visited.
    """
    joint: dict[tuple[int, ...], float] = {}
    ends = end_ids | set(params.stop_token_ids)

    def descend(reply: tuple[int, ...], mass: float) -> None:
        if len(reply) == length or (reply and reply[-1] in ends):
            joint[reply] = mass
            return
        row = next_row(logits_after([*prompt, *reply]), params, prompt, reply, end_ids)
        for token in np.flatnonzero(row):
            descend((*reply, int(token)), mass * float(row[token]))

    descend((), 1.0)
    return joint


def _warped(logits: Row, params: SamplingParams) -> Row:
    """Temperature, top-k, top-p, min-p, typical-p, in this order; then probabilities ``[V]``."""
    scaled = logits / params.temperature
    if params.top_k:
        kth = np.sort(scaled)[::-1][min(params.top_k, len(scaled)) - 1]
        scaled = np.where(scaled < kth, -np.inf, scaled)
    row = _softmax(scaled)
    if params.top_p < 1:
        row = _keep(row, _until(np.argsort(-row, kind="stable"), row, params.top_p))
    if params.min_p > 0:
        row = _keep(row, list(np.flatnonzero(row >= params.min_p * row.max())))
    if params.typical_p < 1:
        with np.errstate(divide="ignore"):
            surprise = -np.log(row)
        entropy = sum(p * s for p, s in zip(row, surprise, strict=True) if p > 0)
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        row = _keep(row, _until(order, row, params.typical_p))
    return row


def _softmax(values: Row) -> Row:
    weights: Row = np.exp(values - values.max())
    weights /= weights.sum()
    return weights


def _until(order: NDArray[np.int64], row: Row, mass: float) -> list[int]:
    """The shortest prefix of ``order`` whose probabilities sum to at least ``mass``."""
    kept: list[int] = []
    for token in order:
        if sum(row[kept]) >= mass and kept:
            break
        kept.append(int(token))
    return kept


def _keep(row: Row, kept: list[int]) -> Row:
    out: Row = np.zeros_like(row)
    out[kept] = row[kept]
    out /= out.sum()
    return out
