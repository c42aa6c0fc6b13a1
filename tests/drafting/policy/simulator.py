"""A deterministic world for the policy: texts as acceptance processes, costs as functions.

A text is fixed before it is served, position by position: whether the draft would be right there and
how sure it is, and what lookup would offer. So every policy meets the same text, and the only
thing that differs is how fast it gets through.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specstream.drafting.policy.policy import Policy
from specstream.drafting.policy.records import Offer, Outlook, RoundOutcome, RoundPlan, RoundTimes
from specstream.drafting.proposers.suffix import lookup_offer

__all__ = ["Chooser", "Fixed", "Machine", "Result", "Text", "Tried", "serve", "text"]


@dataclass(frozen=True)
class Text:
    """Per position: is the draft right, how sure is it, and how many tokens of lookup would be right.

    ``offer[i]`` is (match, length, right): the matched suffix, tokens offered, how many are right.
    """

    right: list[bool]
    sure: list[float]
    offer: list[tuple[int, int, int]]
    prompt: int = 0
    greedy: bool = True

    def __len__(self) -> int:
        return len(self.right)


def text(
    length: int,
    seed: int,
    *,
    acceptance: Callable[[int], float] = lambda _: 0.7,
    informative: bool = True,
    repeats: float = 0.0,
    run: float = 12.0,
    hostile_lookup: bool = False,
    prompt: int = 0,
    greedy: bool = True,
) -> Text:
    """Draw a text.

    Args:
        length: Tokens of the reply.
        seed: Makes it reproducible.
        acceptance: Mean chance that the draft is right, by position.
        informative: Whether the draft's confidence says where it will be wrong.
        repeats: Share of the text that repeats what came before, which lookup then knows.
        run: Mean length of a repeated stretch.
        hostile_lookup: Lookup always offers something, and it is always wrong.
        prompt: Tokens of the prompt.
        greedy: How it is decoded.
    """
    rng = random.Random(seed)
    right, sure = [], []
    for i in range(length):
        mean = acceptance(i)
        p = rng.betavariate(0.6 * mean + 1e-9, 0.6 * (1.0 - mean) + 1e-9) if informative else mean
        right.append(rng.random() < p)
        sure.append(min(max(p + rng.gauss(0.0, 0.03), 0.0), 1.0) if informative else rng.random())
    offer = [(0, 0, 0)] * length
    i = 0
    while i < length:
        if repeats > 0.0 and rng.random() < repeats / run / (1.0 - repeats):
            stretch = 1 + int(rng.expovariate(1.0 / run))
            for k in range(i, min(i + stretch, length)):
                offer[k] = (1 + k - i, 40, i + stretch - k)
            i += stretch
            continue
        if hostile_lookup:
            offer[i] = (rng.randint(1, 3), 40, 0)
        elif rng.random() < 0.25:
            offer[i] = (1, 20, 0)  # a chance match of a common word
        i += 1
    return Text(right, sure, offer, prompt, greedy)


@dataclass
class Machine:
    """What things cost, ms. ``noise`` is the relative spread of what is *reported*, not of the sums.

    ``planning`` is what the choice takes each round; plain decoding, that one compares with, has none.
    """

    step: float = 0.29
    start: float = 0.0
    target: Callable[[int], float] = lambda tokens: 2.8 + 0.035 * (tokens - 1)
    row: float = 0.0
    read: float = 0.01
    other: float = 0.38
    other_plain: float = 0.30
    planning: float = 0.0
    noise: float = 0.05
    stalls: float = 0.0
    seed: int = 0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def round(self, passes: int, read: int, rows: int, tokens: int, proposed: bool) -> RoundTimes:
        """The true times of a step."""
        return RoundTimes(
            self.start * (passes > 0) + passes * self.step + read * self.read,
            passes,
            read,
            self.target(tokens) + self.row * (rows - 1),
            rows,
            tokens,
            rows * (self.other if proposed else self.other_plain),
            self.planning,
        )

    def seen(self, times: RoundTimes) -> RoundTimes:
        """The same as a clock on a busy machine would report them."""
        return RoundTimes(
            self._blur(times.draft_ms),
            times.draft_forwards,
            times.draft_read,
            self._blur(times.verify_ms),
            times.rows,
            times.tokens,
            self._blur(times.other_ms),
            self._blur(times.plan_ms),
        )

    def _blur(self, ms: float) -> float:
        stall = 50.0 if self._rng.random() < self.stalls else 0.0
        return ms * max(0.2, 1.0 + self._rng.gauss(0.0, self.noise)) + (stall if ms > 0.0 else 0.0)

    def plain_ms(self, rows: int = 1) -> float:
        times = self.round(0, 0, rows, rows, False)
        return times.verify_ms + times.other_ms


class Chooser(Protocol):
    """What the simulator serves a text with: the policy, or something simpler."""

    def plan(self, outlooks: Sequence[Outlook]) -> list[RoundPlan]: ...

    def observe(self, times: RoundTimes, outcomes: Sequence[RoundOutcome]) -> None: ...

    def forget(self, request_id: int) -> None: ...


class Fixed:
    """Always the same kind and number."""

    def __init__(self, kind: str, num_tokens: int) -> None:
        self._kind, self._num = kind, num_tokens

    def plan(self, outlooks: Sequence[Outlook]) -> list[RoundPlan]:
        return [
            RoundPlan(
                self._kind, min(self._num, o.budget, o.offers[self._kind].tokens if self._num else 0)
            )
            for o in outlooks
        ]

    def observe(self, times: RoundTimes, outcomes: Sequence[RoundOutcome]) -> None:
        pass

    def forget(self, request_id: int) -> None:
        pass


@dataclass
class Tried:
    """One round of one request, for the tests to look at."""

    request: int
    at: int
    plan: RoundPlan
    drafted: int
    accepted: int
    ms: float


@dataclass
class Result:
    """A served workload: true time in all, what plain decoding would have taken, every round."""

    ms: float
    plain_ms: float
    tokens: int
    rounds: list[Tried]

    @property
    def speedup(self) -> float:
        return self.plain_ms / self.ms


@dataclass
class _Running:
    id: int
    text: Text
    at: int = 0
    read: int = 0  # tokens of prompt and reply that the draft has read


def serve(policy: Chooser, texts: Sequence[Text], machine: Machine, *, batch: int = 1) -> Result:
    """Serve texts, ``batch`` side by side, and add up the true times."""
    result = Result(0.0, 0.0, 0, [])
    waiting: Iterator[tuple[int, Text]] = iter(enumerate(texts))
    running: list[_Running] = []
    while True:
        while len(running) < batch and (item := next(waiting, None)) is not None:
            running.append(_Running(*item))
        if not running:
            return result
        _step(policy, running, machine, result)
        for request in running:
            if request.at >= len(request.text):
                policy.forget(request.id)
        running = [r for r in running if r.at < len(r.text)]


def _step(policy: Chooser, running: list[_Running], machine: Machine, result: Result) -> None:
    plain = isinstance(policy, Policy) and not policy.drafts(len(running))
    plans = [RoundPlan("off", 0)] * len(running)
    if not plain:
        plans = policy.plan([_outlook(r) for r in running])
    drafts = _draft([(r, p) for r, p in zip(running, plans) if p.proposer == "draft"])
    outcomes, passes, read = [], 0, 0
    for request, plan in zip(running, plans):
        confidences = drafts.get(request.id, [])
        if confidences:
            read += _behind(request)
            passes = max(passes, len(confidences))
        outcome = _outcome(request, plan, confidences)
        if confidences:
            request.read = request.text.prompt + request.at + outcome.accepted
        outcomes.append(outcome)
    proposed = sum(o.drafted for o in outcomes)
    rows = len(running)
    times = machine.round(passes, read, rows, rows + proposed, proposed > 0)
    ms = times.draft_ms + times.verify_ms + times.other_ms + times.plan_ms
    result.ms += ms
    if plain and isinstance(policy, Policy):
        policy.observe_plain(machine.seen(times), {r.id: _outlook(r).greedy for r in running})
    else:
        policy.observe(machine.seen(times), outcomes)
    for request, outcome in zip(running, outcomes):
        tried = Tried(request.id, request.at, outcome.plan, outcome.drafted, outcome.accepted, ms)
        result.rounds.append(tried)
        new = min(outcome.accepted + 1, len(request.text) - request.at)
        request.at += new
        result.tokens += new
        result.plain_ms += new * machine.plain_ms(rows) / rows


def _behind(request: _Running) -> int:
    return max(request.text.prompt + request.at - request.read - 1, 0)


def _outlook(request: _Running) -> Outlook:
    at, text = request.at, request.text
    match, offered, _ = text.offer[at]
    budget = len(text) - at - 1
    lookup = lookup_offer(range(min(offered, budget)), match, 0)
    offers = {"draft": Offer(budget, behind=_behind(request)), "suffix": lookup}
    return Outlook(request.id, text.greedy, budget, offers)


def _draft(asked: list[tuple[_Running, RoundPlan]]) -> dict[int, list[float]]:
    """Drafts in lockstep: every request's token at one depth before any at the next.

    Off the text there is no truth: the draft is as sure there as it is elsewhere.
    """
    made: dict[int, list[float]] = {request.id: [] for request, _ in asked}
    going = asked
    while going:
        still = []
        for request, plan in going:
            confidences = made[request.id]
            limit = min(plan.num_tokens, len(request.text) - request.at - 1)
            if len(confidences) >= limit:
                continue
            q = request.text.sure[request.at + len(confidences)]
            confidences.append(q)
            if len(confidences) < limit and (plan.go_on is None or plan.go_on(q)):
                still.append((request, plan))
        going = still
    return made


def _outcome(request: _Running, plan: RoundPlan, confidences: list[float]) -> RoundOutcome:
    at, text = request.at, request.text
    _, offered, fit = text.offer[at]
    drafted = accepted = 0
    if plan.proposer == "suffix":
        drafted = min(plan.num_tokens, offered, len(text) - at - 1)
        accepted = min(fit, drafted)
    elif plan.proposer == "draft":
        drafted = len(confidences)
        while accepted < drafted and text.right[at + accepted]:
            accepted += 1
    judged = min(offered, len(text) - at - 1, accepted + 1)
    agreed = min(fit, judged)
    compared = {"suffix": (judged, agreed)}
    return RoundOutcome(request.id, plan, drafted, accepted, tuple(confidences), compared)
