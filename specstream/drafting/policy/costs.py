"""The cost model of a round: seeded by a calibration, learned from rounds, aware of load."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from statistics import median

from specstream.drafting.policy.records import RoundTimes

__all__ = ["Costs", "DraftCosts", "Fit", "Load"]

_FEW = 2  # requests up to which drafts are left to the cost model
_SOME = 8  # requests up to which they are until they seem to lose
_DOUBTED = 0.97  # times the estimated speed of steps without drafts: drafts seem to lose
_WINDOW = 6  # steps of one kind in a row; the first is no sample: a draft has to catch up
# Windows of the better kind between two trials of the other, at first and at most.
_SOON, _LATE = 8, 64
_MARGIN = 1.02  # by which drafts must be faster
_COMPARED = 5  # latest changes of kind that decide
_MEMORY = 4  # windows


class _Size:
    """Steps of about so many requests.

    Windows are compared with their neighbours only, and the median of the latest comparisons decides:
    what slows the whole machine for a while slows both kinds, and its beginning spoils one comparison.
    """

    def __init__(self, *, trusts: bool) -> None:
        self._trusts = trusts  # the cost model, until drafts seem to lose
        self._speeds = list[float]()  # of the window
        self._last: tuple[bool, float] | None = None  # the window before, and its speed
        self._ratios = deque[float](maxlen=_COMPARED)  # of drafts to none
        self.plain = 1.0  # speed of steps without drafts; 1: not known yet
        self._plain_windows = 0
        self._windows = self._kinds()
        self.drafts = next(self._windows)

    def _kinds(self) -> Iterator[bool]:
        """Yield for each window whether its steps have drafts."""
        while self._trusts and (self._last is None or self._last[1] >= _DOUBTED):
            yield True
        yield from (False, True, False) if self._trusts else (True, False, True, False)
        apart = _SOON
        while True:
            better = self._better
            for _ in range(apart):
                yield better
            yield not better
            yield better
            agreed = all((ratio > _MARGIN) is better for ratio in list(self._ratios)[-2:])
            apart = min(2 * apart, _LATE) if agreed and self._better is better else _SOON

    @property
    def _better(self) -> bool:
        return bool(self._ratios) and median(self._ratios) > _MARGIN

    def observe(self, speed: float) -> None:
        """Take the speed of a step of the kind that ``drafts`` names."""
        self._speeds.append(speed)
        if len(self._speeds) < _WINDOW:
            return
        speed, self._speeds = median(self._speeds[1:]), []
        if self._last is not None and self._last[0] is not self.drafts:
            with_drafts, without = (speed, self._last[1]) if self.drafts else (self._last[1], speed)
            self._ratios.append(with_drafts / without)
        self._last = self.drafts, speed
        if not self.drafts:
            self._plain_windows = min(self._plain_windows + 1, _MEMORY)
            self.plain += (speed - self.plain) / self._plain_windows
        self.drafts = next(self._windows)


class Load:
    """Whether drafts are made at all, by the number of requests in a step. No clock of its own."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def drafts(self, requests: int) -> bool:
        """Whether the next step of so many requests may have drafts."""
        return requests <= _FEW or self._size(requests).drafts

    def observe(self, requests: int, tokens: int, ms: float, plain_ms: float) -> None:
        """Learn from a step as `drafts` said.

        Args:
            requests: Requests in it.
            tokens: Tokens that were committed.
            ms: Its duration.
            plain_ms: What one without drafts takes by estimate: makes sizes of one group comparable.
        """
        if requests > _FEW and ms > 0.0 and plain_ms > 0.0:
            self._size(requests).observe(tokens / requests * plain_ms / ms)

    def plain(self, requests: int) -> float:
        """By what factor steps without drafts were faster than the estimates; 1 if none was timed."""
        return self._size(requests).plain if requests > _FEW else 1.0

    def _size(self, requests: int) -> _Size:
        # 3 to 4, 5 to 8, 9 to 15, 16 to 31 and so on.
        number = (requests - (requests <= _SOME)).bit_length()
        if number not in self._sizes:
            self._sizes[number] = _Size(trusts=requests <= _SOME)
        return self._sizes[number]


_NOISE = 0.08  # relative standard deviation of an observed time
_DRIFT = 0.01  # relative standard deviation of a weight's change from one observation to the next
_OUTLIER = 2.0  # standard deviations; beyond it the noise is taken to be as large as the error
_AT_MOST = 1.5  # no cause accounts for more than this multiple of an observed time
_MEASURED = 0.3  # relative standard deviation of a measured initial weight; that of a guess is 1
_SETTLED = 64  # the first rounds, and a draft's first ones, all of which are learned from
_EVERY = 3  # after these, one of three
_WIDER = (9, 17, 33, 129, 513)  # tokens of a target pass that end a span with a slope of its own
_OTHER_MS = 0.32  # initial guess of the time outside the pass in a plain round
_OTHER_RATIO = 1.25  # ratio to it of the time outside the passes in a round with a proposal


class Fit:
    """A linear model of a time, a weighted sum of its causes, learned online by a Kalman filter.

    See R. E. Kalman 1960. An error changes the weights that are least certain most, and causes that
    usually occur together are told apart by the rounds in which they don't. For an error beyond two
    standard deviations the noise is raised to the size of the error, so an outlier changes little.
    A weight that alone would exceed the observed time by half is cut to that at once: a calibration on a
    busy machine may be many times too long, never too short.

    Args:
        weights: Initial ones, in ms.
        deviations: Of the initial weights, in ms.

    Attributes:
        weights: In ms, none below 0.
    """

    __slots__ = ("_covariance", "_least", "weights")

    def __init__(self, weights: Sequence[float], deviations: Sequence[float]) -> None:
        self.weights = list(weights)
        self._covariance = [[0.0] * len(weights) for _ in weights]
        for i, deviation in enumerate(deviations):
            self._covariance[i][i] = deviation * deviation
        # Drift is relative to a weight's size, with a floor for weights near 0.
        self._least = 0.01 * max(weights)

    def learn(self, causes: Sequence[float], ms: float) -> None:
        """Learn from one observation.

        Args:
            causes: The amount of each cause; trailing zeros may be left out.
            ms: The observed time.
        """
        weights, covariance = self.weights, self._covariance
        acting = [(i, cause) for i, cause in enumerate(causes) if cause]
        expected, most = 0.0, _AT_MOST * ms
        for i, cause in acting:
            weights[i] = min(weights[i], most / cause)
            drift = _DRIFT * max(weights[i], self._least)
            covariance[i][i] += drift * drift
            expected += weights[i] * cause
        shared = [sum(row[i] * cause for i, cause in acting) for row in covariance]
        total = (_NOISE * expected) ** 2 + sum(shared[i] * cause for i, cause in acting)
        error = ms - expected
        total = max(total, (error / _OUTLIER) ** 2)
        if total <= 0.0:
            return
        error /= total
        self.weights = [max(w + c * error, 0.0) for w, c in zip(weights, shared, strict=True)]
        self._covariance = [
            [a - each / total * b for a, b in zip(row, shared, strict=True)] if each else row
            for row, each in zip(covariance, shared, strict=True)
        ]


class DraftCosts:
    """Draft time of one candidate in a round: ``start + passes * (step + row * (requests - 1))``.

    Args:
        step_ms: A draft pass over one token, in ms.
        read_ms: Each prompt or reply token that the draft reads first, in ms. Default: step_ms / 16.
        chained: How many passes are made at once, whether or not all of their tokens are wanted.

    Attributes:
        start, step, row, read: The current estimates, in ms; ``row`` is the addition of each further
            request to a pass.
        rounds: Number of rounds in which the candidate drafted.
    """

    def __init__(self, step_ms: float, read_ms: float | None = None, chained: int = 1) -> None:
        self._chained = chained
        reading = step_ms / 16 if read_ms is None else read_ms
        deviations = _MEASURED * step_ms, _MEASURED * step_ms, 0.5 * step_ms, reading
        self._fit = Fit((0.0, step_ms, 0.0, reading), deviations)
        self.start, self.step, self.row, self.read = self._fit.weights
        self.rounds = 0

    def made(self, count: float) -> float:
        """Return how many passes are made for ``count`` tokens of a request."""
        left = count % self._chained
        return count if left <= 1 else count - left + self._chained

    def passes(self, count: float, rows: int = 1) -> float:
        """Return the time of ``count`` passes over ``rows`` requests in lockstep, in ms."""
        return self.start + count * (self.step + self.row * (rows - 1)) if count else 0.0

    def observe(self, times: RoundTimes, requests: int) -> None:
        """Learn from a round in which the candidate drafted for so many requests."""
        count = times.draft_forwards
        causes = 1.0, count, count * (requests - 1), times.draft_read
        self._fit.learn(causes, times.draft_ms)
        self.start, self.step, self.row, self.read = self._fit.weights


class Costs:
    """Times of target passes, of draft passes by candidate, and of everything outside the passes.

    A target pass over ``tokens`` tokens of ``rows`` requests takes ``base + slopes(tokens) + row *
    (rows - 1)``, piecewise linear in the tokens. *row* is the addition of another request apart from its
    tokens (a whole pass on back-ends that run requests one by one).

    Args:
        target_ms: Time of a pass of one request by its number of tokens, in ms: for 1, for at least one
            more, and preferably for the widest.
        row_ms: Addition of another request to a target pass, apart from its tokens. Default: the time
            of a pass of one token.
        padded: Whether a pass takes as long as if all of its requests had as many tokens as the widest,
            as captured passes do.

    Raises:
        ValueError: ``target_ms`` lacks 1 or a second width, or has a time that is not above 0.
    """

    def __init__(
        self, target_ms: Mapping[int, float], *, row_ms: float | None = None, padded: bool = False
    ) -> None:
        if 1 not in target_ms or len(target_ms) < 2 or min(target_ms.values()) <= 0.0:
            raise ValueError(f"target_ms needs times above 0 for 1 and more tokens: {target_ms}")
        self.drafts: dict[str, DraftCosts] = {}
        self.rounds, self.padded = 0, padded
        points = sorted(target_ms.items())
        measured = len(points) - 1  # number of spans between two knots that were measured
        self._knots = [width for width, _ in points]
        self._knots += [width for width in _WIDER if width > self._knots[-1]]
        self._spans = list(pairwise(self._knots))
        times = list(accumulate((ms for _, ms in points), max))  # a wider pass is never cheaper
        spans = zip(self._spans, pairwise(times), strict=False)
        slopes = [(b - a) / (high - low) for (low, high), (a, b) in spans]
        slopes += [slopes[-1]] * (len(self._spans) - measured)
        base, row = times[0], times[0] if row_ms is None else row_ms
        deviations = [_MEASURED * slope + base / 400 for slope in slopes[:measured]]
        deviations += [slope + base / 40 for slope in slopes[measured:]]
        self._target = Fit([base, row, *slopes], [0.05 * base, row + 0.02 * base, *deviations])
        self._other = Fit([_OTHER_MS], [_OTHER_MS])
        self._sum_up()

    # Predictions.

    def draft(self, name: str) -> DraftCosts:
        """Return a candidate's draft costs; a draft pass never measured counts as a target pass."""
        found = self.drafts.get(name)
        if found is None:
            found = self.drafts[name] = DraftCosts(self.verify(1))
        return found

    def verify(self, tokens: float, rows: int = 1) -> float:
        """Return the time of a target pass over ``tokens`` tokens (may be fractional) in all, in ms."""
        at = bisect_right(self._knots, tokens, 1, len(self._knots) - 1) - 1
        alone = self._sums[at] + self._target.weights[2 + at] * (tokens - self._knots[at])
        return alone + self._target.weights[1] * (rows - 1)

    def tokens(self, rows: int, proposed: Sequence[int]) -> int:
        """Return the tokens that a target pass is priced by, of what is proposed for its requests."""
        return rows * (1 + max(proposed, default=0)) if self.padded else rows + sum(proposed)

    def widening(self, tokens: int, more: Sequence[int]) -> list[float]:
        """Return the addition of each number of ``more`` tokens, ascending, to a target pass, in ms."""
        without = self.verify(tokens)
        return [self.verify(tokens + each) - without for each in more]

    def other(self, proposing: bool = True) -> float:
        """Return the time outside the passes, per request, in ms."""
        return self._other.weights[0] * (_OTHER_RATIO if proposing else 1.0)

    def plain(self, rows: int = 1) -> float:
        """Return the time of a step without proposals, in ms."""
        return self.verify(rows, rows) + rows * self._other.weights[0]

    # Learning.

    def observe(
        self, times: RoundTimes, proposals: Sequence[int], drafter: str = "", drafting: int = 0
    ) -> None:
        """Learn from one step.

        Args:
            times: Its times.
            proposals: Number of tokens proposed for each request.
            drafter: The only candidate that made draft passes; "" if there was none, or more than one.
            drafting: Number of requests that it drafted for.
        """
        rows, tokens, proposed = times.rows, times.tokens, sum(proposals)
        if rows < 1:
            return
        if tokens == rows + proposed:  # else the pass read prompts, too
            tokens = self.tokens(rows, proposals)
        counted = self.draft(drafter) if drafter and times.draft_forwards else self
        counted.rounds += 1
        if counted.rounds > _SETTLED and counted.rounds % _EVERY:
            return  # learning takes a visible share of a small target's round
        if isinstance(counted, DraftCosts):
            counted.observe(times, max(drafting, 1))
        if times.tokens == rows + proposed:
            # Rounds with and without proposals train one weight, as plain rounds are rare where
            # speculation pays.
            amount = rows * (_OTHER_RATIO if proposed else 1.0)
            self._other.learn((amount,), times.other_ms)
        if 0 < tokens <= self._knots[-1] and times.verify_ms > 0.0:
            within = [min(tokens, high) - low for low, high in self._spans if low < tokens]
            self._target.learn((1.0, rows - 1, *within), times.verify_ms)
            self._sum_up()

    def _sum_up(self) -> None:
        """Compute the times at the knots."""
        base, _, *slopes = self._target.weights
        spans = zip(self._spans, slopes, strict=True)
        added = ((high - low) * slope for (low, high), slope in spans)
        self._sums = list(accumulate(added, initial=base))
