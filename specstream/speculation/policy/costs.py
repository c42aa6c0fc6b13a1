"""The cost model of a round, in milliseconds: seeded by a measurement, then tracked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, islice, repeat

from specstream.speculation.policy.records import RoundTimes

__all__ = ["Costs", "DraftCosts", "Fit"]

_NOISE = 0.08  # relative deviation of an observed time
_DRIFT = 0.004  # by so much, relatively, a weight may change from one observation to the next
_OUTLIER = 2.0  # standard deviations: a larger error is that of a larger noise
_MEASURED, _GUESSED = 0.3, 1.0  # relative deviations of initial weights
_SETTLED = 64  # observations, of which all are learned from
_EVERY = 3  # then one of so many: an odd number, for tries come every 2, 4, 8 or 16 rounds
_KNOTS = (2, 9, 17, 33, 129)  # widths between which the target pass is interpolated
_NARROW = 40  # tokens of a pass beyond one, up to which its time is looked up
_OTHER_MS, _OTHER_RATIO = 0.4, 1.25  # default overhead of a round with a proposal; to a plain one's


class Fit:
    """A time as a weighted sum of what causes it; the weights follow what is observed.

    A Kalman filter (R. E. Kalman 1960): an error is put down to what is known least, and what always
    acts together is told apart by the rounds in which it doesn't. An error beyond two standard
    deviations is taken for one of a noise so large, of which little is learned. Once settled, it learns
    from one observation in three: a round of a small target is short.

    Args:
        weights: Initial ones, in ms.
        deviations: Of the initial weights, in ms.

    Attributes:
        weights: In ms, none below 0.
    """

    __slots__ = ("_covariance", "_least", "_seen", "weights")

    def __init__(self, weights: Sequence[float], deviations: Sequence[float]) -> None:
        self.weights = list(weights)
        self._covariance = [[0.0] * len(weights) for _ in weights]
        for i, deviation in enumerate(deviations):
            self._covariance[i][i] = deviation * deviation
        # What a weight drifts by is taken of its own size, but for those that are nearly 0.
        self._least = 0.01 * max(weights)
        self._seen = 0

    def learn(self, causes: Sequence[float], ms: float) -> bool:
        """Add one observation: so much of each cause, the last ones left out where there is none.

        Whether anything was learned of it.
        """
        self._seen += 1
        every = 1 if self._seen <= _SETTLED else _EVERY
        if self._seen % every:
            return False
        weights, covariance = self.weights, self._covariance
        acting = [(i, cause) for i, cause in enumerate(causes) if cause]
        expected = 0.0
        for i, cause in acting:
            # In proportion to the rounds that passed, so that a change takes as many of them.
            drift = every * _DRIFT * max(weights[i], self._least)
            covariance[i][i] += drift * drift
            expected += weights[i] * cause
        shared = [sum(row[i] * cause for i, cause in acting) for row in covariance]
        total = (_NOISE * expected) ** 2 + sum(shared[i] * cause for i, cause in acting)
        error = ms - expected
        total = max(total, (error / _OUTLIER) ** 2)
        if total <= 0.0:
            return False
        error /= total
        self.weights = [max(w + c * error, 0.0) for w, c in zip(weights, shared, strict=True)]
        self._covariance = [
            [a - each / total * b for a, b in zip(row, shared, strict=True)] if each else row
            for row, each in zip(covariance, shared, strict=True)
        ]
        return True


class DraftCosts:
    """Drafting of one candidate in a round: ``start + passes * (step + row * (requests - 1))``.

    Args:
        step_ms: One pass over one token.
        start_ms: Drafting besides its passes.
        read_ms: Each token that the draft catches up on. Default: a guess.
        sure: Whether the step was measured.

    Attributes:
        row: What each further request adds to a pass.
        rounds: In how many it drafted.
    """

    def __init__(
        self,
        step_ms: float,
        start_ms: float = 0.0,
        read_ms: float | None = None,
        *,
        sure: bool = True,
    ) -> None:
        near = _MEASURED if sure else _GUESSED
        reading = step_ms / 16 if read_ms is None else read_ms
        deviations = near * start_ms + 0.3 * step_ms, near * step_ms, 0.5 * step_ms, reading
        self._fit = Fit((start_ms, step_ms, 0.0, reading), deviations)
        self.start, self.step, self.row, self.read = self._fit.weights
        self.rounds = 0

    def passes(self, count: float, rows: int = 1) -> float:
        """``count`` passes over ``rows`` requests in lockstep, and the start."""
        return self.start + count * (self.step + self.row * (rows - 1)) if count else 0.0

    def observe(self, times: RoundTimes, rows: int) -> None:
        """Learn from a round in which the candidate drafted for ``rows`` requests."""
        count = times.draft_forwards
        self.rounds += 1
        if self._fit.learn((1.0, count, count * (rows - 1), times.draft_read), times.draft_ms):
            self.start, self.step, self.row, self.read = self._fit.weights


class Costs:
    """Target passes by width, draft passes by candidate, and everything around them.

    A target pass over ``tokens`` tokens of ``rows`` requests takes ``base + slopes(tokens) + row *
    (rows - 1)``: piecewise linear in the tokens; *row* is what another request adds beyond its tokens
    (a whole pass where requests run one by one).

    Args:
        target_ms: Pass of one request by its number of tokens: 1, at least one more, and best also the
            widest.
        row_ms: What another request adds to a target pass beyond its tokens. Default: a pass of one
            token.
        other_ms: Everything outside the passes in a round with a proposal, per request. Default: a
            guess.
        other_plain_ms: The same in a plain round. Default: the same; where ``other_ms`` is guessed,
            less.

    Raises:
        ValueError: ``target_ms`` lacks 1 or a second width, or has a time that is not above 0.
    """

    def __init__(
        self,
        target_ms: Mapping[int, float],
        *,
        row_ms: float | None = None,
        other_ms: float | None = None,
        other_plain_ms: float | None = None,
    ) -> None:
        if 1 not in target_ms or len(target_ms) < 2 or min(target_ms.values()) <= 0.0:
            raise ValueError(f"target_ms needs times above 0 for 1 and more tokens: {target_ms}")
        self.drafts: dict[str, DraftCosts] = {}
        self._knots = sorted({*target_ms, *_KNOTS})
        base, widest = target_ms[1], max(target_ms)
        slopes, deviations = list[float](), list[float]()
        before = base
        for low, high in zip(self._knots, self._knots[1:], strict=False):
            ms = max(_between(target_ms, high), before)  # a wider pass is never cheaper
            slopes.append((ms - before) / (high - low))
            near, more = (_MEASURED, base / 400) if high <= widest else (_GUESSED, base / 40)
            deviations.append(near * slopes[-1] + more)
            before = ms
        row, near = (base, _GUESSED) if row_ms is None else (row_ms, _MEASURED)
        deviations = [0.05 * base, near * row + 0.02 * base, *deviations]
        self._target = Fit([base, row, *slopes], deviations)
        plain_ms = other_plain_ms or other_ms or _OTHER_MS / _OTHER_RATIO
        self._ratio = (other_ms or _OTHER_MS) / plain_ms
        near = _GUESSED if other_ms is None else _MEASURED
        self._other = Fit([plain_ms], [near * plain_ms])
        self._sum_up()

    # Predictions.

    def draft(self, name: str) -> DraftCosts:
        """The draft costs of a candidate; if it was never measured: a target pass per draft pass."""
        found = self.drafts.get(name)
        if found is None:
            found = self.drafts[name] = DraftCosts(self.verify(1), sure=False)
        return found

    def verify(self, tokens: float, rows: int = 1) -> float:
        """A target pass; ``tokens`` over all requests, not necessarily whole."""
        at = bisect_right(self._knots, tokens, 1, len(self._knots) - 1) - 1
        alone = self._sums[at] + self._target.weights[2 + at] * (tokens - self._knots[at])
        return alone + self._target.weights[1] * (rows - 1)

    def widening(self, tokens: int, more: Sequence[int]) -> list[float]:
        """What so many more tokens each, ascending, add to a target pass over ``tokens``."""
        alone, without = self._alone, self.verify(tokens)
        if tokens + more[-1] < len(alone):
            return [alone[tokens + each] - without for each in more]
        return [self.verify(tokens + each) - without for each in more]

    def other(self, proposing: bool = True) -> float:
        """Everything outside the passes, per request."""
        return self._other.weights[0] * (self._ratio if proposing else 1.0)

    def plain(self, rows: int = 1) -> float:
        """A step in which nobody proposes."""
        return self.verify(rows, rows) + rows * self._other.weights[0]

    # Learning.

    def observe(
        self, times: RoundTimes, proposed: int, drafter: str = "", drafting: int = 0
    ) -> None:
        """Learn from one step.

        Args:
            times: What it took.
            proposed: Tokens proposed, over all requests.
            drafter: The only candidate that made draft passes; "" if there was none, or more than one.
            drafting: Requests that it drafted for.
        """
        rows, tokens = times.rows, times.tokens
        if rows < 1:
            return
        if drafter and times.draft_forwards:
            self.draft(drafter).observe(times, max(drafting, 1))
        if tokens == rows + proposed:  # else prompts were read as well
            # Rounds of both kinds inform both: plain rounds are rare where speculation pays.
            self._other.learn((rows * (self._ratio if proposed else 1.0),), times.other_ms)
        if 0 < tokens <= self._knots[-1] and times.verify_ms > 0.0:
            spans = zip(self._knots, self._knots[1:], strict=False)
            within = [min(tokens, high) - low for low, high in spans if low < tokens]
            if self._target.learn((1.0, rows - 1, *within), times.verify_ms):
                self._sum_up()

    def _sum_up(self) -> None:
        """Times at the knots, and by the tokens of narrow passes."""
        base, _, *slopes = self._target.weights
        spans = list(zip(self._knots, self._knots[1:], slopes, strict=False))
        self._sums = list(accumulate(((b - a) * each for a, b, each in spans), initial=base))
        each = chain.from_iterable(repeat(slope, b - a) for a, b, slope in spans)
        self._alone = [base, *accumulate(islice(each, _NARROW), initial=base)]


def _between(points: Mapping[int, float], width: int) -> float:
    """By linear inter- and extrapolation; never below the first."""
    measured = sorted(points)
    after = min(max(bisect_right(measured, width), 1), len(measured) - 1)
    a, b = measured[after - 1], measured[after]
    return max(points[a] + (points[b] - points[a]) / (b - a) * (width - a), points[1])
