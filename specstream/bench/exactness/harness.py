"""Runs of the whole engine, many at a time, and counts of their outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from specstream.engine.prompt import check_messages
from specstream.engine.request import Delivery, Request
from specstream.engine.step import EngineCore
from specstream.speculation.proposal import Proposal, Proposer, SpecRequest, Verdict
from specstream.types import Message, SamplingParams

__all__ = ["AT_ONCE", "Varying", "run_requests", "sample"]

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
