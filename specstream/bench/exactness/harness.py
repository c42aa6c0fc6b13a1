"""Engines to test, and an independent reference: numpy, float64, one position at a time.

It shares no code with `specstream.model`, so that a mistake in the engine's processors or warpers shows
as a difference between samples and distribution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specstream.drafting.proposal import Proposal, Proposer, SpecRequest, Verdict
from specstream.engine.core.prompt import check_messages
from specstream.engine.core.request import Delivery, Request
from specstream.engine.core.step import EngineCore
from specstream.types import Message, SamplingParams

__all__ = ["AT_ONCE", "Row", "Varying", "exact_joint", "next_row", "run_requests", "sample"]

AT_ONCE = 64  # requests that are submitted together


class Varying:
    """A proposer whose number of drafts depends on the last committed token and the text's length.

    A number that depends only on committed tokens must leave the output distribution as it is.
    """

    name = "varying"

    def __init__(self, inner: Proposer, most: int = 4) -> None:
        self._inner = inner
        self._most = most
        self.capabilities = inner.capabilities

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """Proposals of the inner proposer, within a budget that varies."""
        wanted = [
            min(b, 1 + (r.token_ids[-1] + len(r.token_ids)) % self._most)
            for r, b in zip(requests, budget, strict=True)
        ]
        return self._inner.propose(requests, wanted)

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Forward to the inner proposer."""
        self._inner.observe(requests, verdicts)

    def release(self, slot: int) -> None:
        """Forward to the inner proposer."""
        self._inner.release(slot)


def run_requests(
    core: EngineCore,
    prompt: str | list[Message],
    params: Sequence[SamplingParams],
    *,
    proposer: str = "bench",
    session: str | None = None,
    reference: str = "",
    noise: Sequence[int | None] = (),
) -> list[Request]:
    """Serve one request for each of ``params``, as many at once as the engine allows.

    ``noise`` seeds the draws of requests whose parameters have no seed; unlike a seed in the parameters,
    it doesn't change the verification rule.

    Raises:
        SpecstreamError: the first error that any of them ended with.
    """
    messages = check_messages(prompt)
    requests = []
    for one, own in zip(params, noise or [None] * len(params), strict=True):
        delivery = Delivery(lambda item: None, limit=2**62)
        request = Request(messages, one, delivery, session, reference, proposer, noise=own)
        requests.append(request)
        core.submit(request)
    while core.step():
        pass
    for request in requests:
        if request.error is not None:
            raise request.error
    return requests


def sample(
    core: EngineCore,
    prompt: str | list[Message],
    params: SamplingParams,
    n: int,
    *,
    length: int,
    first_seed: int = 0,
    session: str | None = None,
    outcome: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda tokens: tokens,
) -> Counter[tuple[int, ...]]:
    """Count the first ``length`` tokens of ``n`` independent replies, each mapped by ``outcome``."""
    seen: Counter[tuple[int, ...]] = Counter()
    for start in range(0, n, AT_ONCE):
        seeds = range(first_seed + start, first_seed + min(start + AT_ONCE, n))
        batch = [params] * len(seeds)
        for request in run_requests(core, prompt, batch, session=session, noise=seeds):
            reply = request.token_ids[request.prompt_length :][:length]
            seen[outcome(tuple(reply))] += 1
    return seen


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
        entropy = (row[row > 0] * surprise[row > 0]).sum()
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        row = _keep(row, _until(order, row, params.typical_p))
    return row


def _softmax(values: Row) -> Row:
    weights: Row = np.exp(values - values.max())
    weights /= weights.sum()
    return weights


def _until(order: NDArray[np.int64], row: Row, mass: float) -> list[int]:
    """The shortest prefix of ``order`` whose probabilities sum to at least ``mass``."""
    enough = np.cumsum(row[order]) >= mass
    count = int(enough.argmax()) + 1 if enough.any() else len(order)
    return [int(token) for token in order[:count]]


def _keep(row: Row, kept: list[int]) -> Row:
    out: Row = np.zeros_like(row)
    out[kept] = row[kept]
    out /= out.sum()
    return out
