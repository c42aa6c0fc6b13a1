"""Runs the whole engine many times and counts what came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from specstream.engine.prompt import check_messages
from specstream.engine.request import Delivery, Request
from specstream.engine.step import EngineCore
from specstream.speculation.proposal import Proposal, Proposer, SpecRequest, Verdict
from specstream.types import Message, SamplingParams

__all__ = ["AT_ONCE", "Varying", "run_requests", "sample"]

AT_ONCE = 64


class Varying:
    """Varies the number of drafted tokens by the last committed token and the length of the text.

    Any rule that looks only at the past must leave the output distribution as it is.
    """

    name = "varying"

    def __init__(self, inner: Proposer, most: int = 4) -> None:
        self._inner = inner
        self._most = most
        self.capabilities = inner.capabilities

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """The inner proposer's, with a budget of our own."""
        wanted = [
            min(b, 1 + (r.token_ids[-1] + len(r.token_ids)) % self._most)
            for r, b in zip(requests, budget, strict=True)
        ]
        return self._inner.propose(requests, wanted)

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Passed on."""
        self._inner.observe(requests, verdicts)

    def release(self, slot: int) -> None:
        """Passed on."""
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
    """Serve one request for each of ``params``, as many side by side as the engine takes.

    ``noise`` seeds requests without a seed: it fixes the draws but not the rule.

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
    """Counts of the first ``length`` tokens over ``n`` runs with noise of their own."""
    seen: Counter[tuple[int, ...]] = Counter()
    for start in range(0, n, AT_ONCE):
        seeds = range(first_seed + start, first_seed + min(start + AT_ONCE, n))
        batch = [params] * len(seeds)
        for request in run_requests(core, prompt, batch, session=session, noise=seeds):
            reply = request.token_ids[request.prompt_length :][:length]
            seen[outcome(tuple(reply))] += 1
    return seen
