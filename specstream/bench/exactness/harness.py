"""Runs the whole engine many times and counts what came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from specstream.config import EngineConfig
from specstream.engine.loop import EngineCore
from specstream.engine.request import Delivery, Request
from specstream.model.runner import ModelRunner
from specstream.spec.proposal import Proposal, Proposer, SpecRequest, Verdict
from specstream.types import Message, SamplingParams

__all__ = ["AT_ONCE", "Varying", "make_core", "run_requests", "sample"]

AT_ONCE = 64
_REMEMBERED = 4096  # requests whose next budget is known; the oldest go first


def make_core(
    target: ModelRunner,
    tokenizer: Any,
    proposer: Proposer,
    end_ids: frozenset[int] = frozenset(),
    **options: Any,
) -> EngineCore:
    """An engine around a runner; ``options`` are keys of `EngineConfig`."""
    config = EngineConfig.model_validate({"max_waiting": AT_ONCE, **options})
    return EngineCore(config, target, tokenizer, proposer, end_ids)


class Varying:
    """Lets a proposer draft now more, now fewer tokens, by a rule that looks at history only.

    After a round in which all were accepted one more is drafted, else half as many and one: a rule
    of this kind can't bias anything, whatever the judge.
    """

    name = "varying"

    def __init__(self, inner: Proposer, most: int = 4) -> None:
        self._inner = inner
        self._most = most
        self._next: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self.capabilities = inner.capabilities

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """The inner proposer's, with a budget of our own."""
        wanted = [min(b, self._next.get(r.id, 1)) for r, b in zip(requests, budget, strict=True)]
        made = self._inner.propose(requests, wanted)
        self._asked = {r.id: p.length for r, p in zip(requests, made, strict=True)}
        return made

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Remember how it went."""
        for request, verdict in zip(requests, verdicts, strict=True):
            asked = self._asked.get(request.id, 0)
            if verdict.accepted == asked:
                self._next[request.id] = min(self._most, asked + 1)
            else:
                self._next[request.id] = asked // 2 + 1
        while len(self._next) > _REMEMBERED:
            del self._next[next(iter(self._next))]
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
) -> list[Request]:
    """Serve one request for each of ``params``, as many side by side as the engine takes.

    Raises:
        SpecstreamError: the first error that any of them ended with.
    """
    messages: list[Message] = (
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    )
    requests = []
    for one in params:
        delivery = Delivery(lambda item: None, limit=2**62)
        request = Request(
            messages, one, delivery, session=session, reference=reference, proposer=proposer
        )
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
    """Counts of the first ``length`` tokens over ``n`` runs with seeds of their own."""
    seen: Counter[tuple[int, ...]] = Counter()
    for start in range(0, n, AT_ONCE):
        seeds = range(first_seed + start, first_seed + min(start + AT_ONCE, n))
        batch = [replace(params, seed=seed) for seed in seeds]
        for request in run_requests(core, prompt, batch, session=session):
            reply = request.token_ids[request.prompt_length :][:length]
            seen[outcome(tuple(reply))] += 1
    return seen
