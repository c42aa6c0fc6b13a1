"""The cost model of a round, in milliseconds: seeded by a measurement, then tracked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from specstream.speculation.policy.records import RoundTimes

__all__ = ["Costs", "DraftCosts", "MovingAverage"]

_CLIP, _GAIN = 0.2, 0.05  # largest relative error of an observation; smallest gain
_MEASURED, _GUESSED = 8, 1  # observations that an initial value counts as
_READING = 16  # tokens of text: a draft round that reads so many tells what reading takes
_KNOTS = (1, 2, 3, 6, 9, 17, 33, 65, 129)  # widths between which the target pass is interpolated
_OTHER_MS, _OTHER_RATIO = 0.4, 1.25  # default overhead of a round with a proposal; to a plain one's


class MovingAverage:
    """Exponential moving average of a positive quantity, by its relative error.

    Errors are clipped, so a stall of any length moves the value by 1 %. The first observations weigh
    more.

    Args:
        value: The initial value.
        count: Observations that it counts as.
        gain: The smallest gain.
    """

    __slots__ = ("_count", "_gain", "value")

    def __init__(self, value: float, count: int = _MEASURED, gain: float = _GAIN) -> None:
        self.value, self._count, self._gain = value, count, gain

    def learn(self, value: float, weight: float = 1.0) -> None:
        """Add one observation."""
        self.value = max(self.value * (1.0 + weight * self.move(value / self.value - 1.0)), 1e-6)

    def move(self, error: float) -> float:
        """The part of a relative error that one more observation corrects."""
        self._count += 1
        clip = max(_CLIP, 4.0 / self._count)
        return min(max(error, -clip), clip) * max(self._gain, 1.0 / self._count)


class DraftCosts:
    """Drafting of one candidate in a round: ``start + passes * (step + row * (requests - 1))``.

    Args:
        step_ms: One pass over one token.
        start_ms: Drafting besides its passes.
        read_ms: Each token that the draft catches up on. Default: a guess.
    """

    def __init__(self, step_ms: float, start_ms: float = 0.0, read_ms: float | None = None) -> None:
        self.step, self.start, self.row = step_ms, start_ms, 0.0
        count = _GUESSED if read_ms is None else _MEASURED
        self.read = MovingAverage(read_ms or step_ms / 16, count)
        self.measured = False  # in a round, not only by the calibration
        self._error, self._passes, self._rounds = MovingAverage(1.0), 3.0, 0  # mean passes a round

    @property
    def known(self) -> bool:
        """Whether rounds told what a pass costs; two in which it also read a text are enough."""
        return self.measured or self._rounds >= 2

    def passes(self, count: float, rows: int = 1) -> float:
        """``count`` passes over ``rows`` requests in lockstep, and the start."""
        return self.start + count * (self.step + self.row * (rows - 1)) if count else 0.0

    def observe(self, times: RoundTimes, rows: int) -> None:
        """Learn from a round in which the candidate drafted for ``rows`` requests."""
        count, expected = times.draft_forwards, self.passes(times.draft_forwards, rows)
        self._rounds += 1
        if times.draft_read >= _READING:
            self.read.learn(max(times.draft_ms - expected, 0.0) / times.draft_read)
            return
        taken = max(times.draft_ms - times.draft_read * self.read.value, 0.1 * times.draft_ms)
        first, self.measured = not self.measured, True
        if first and 0.0 < taken < 0.6 * expected:
            # Noise only adds time: the calibration ran while the machine was busy.
            self.step, self.start = self.step * taken / expected, self.start * taken / expected
            return
        change = self._error.move(taken / expected - 1.0)
        if rows > 1:
            self.row = max(self.row + 2.0 * change * expected / count / (rows - 1), 0.0)
            return
        # An error that grows with the number of passes moves time from the start to the passes.
        beyond = count - self._passes
        shift = change * expected * beyond / (1.0 + beyond * beyond)
        self.step = max(self.step * (1.0 + change) + shift, 1e-3)
        self.start = max(self.start * (1.0 + change) - shift * self._passes, 0.0)
        self._passes += _GAIN * beyond


class Costs:
    """Target passes by width, draft passes by candidate, and everything around them.

    A target pass over ``tokens`` tokens of ``rows`` requests takes ``level * (curve(tokens) + row *
    (rows - 1))``. *curve* is piecewise linear through the widths measured with one request; *row* is
    what another request adds beyond its tokens (a whole pass where requests run one by one); *level*
    follows the machine's speed.

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
        self._widest = max(target_ms)
        self._level = MovingAverage(1.0, 30)
        self._widths = sorted({*target_ms, *_KNOTS})
        self._curve = [
            MovingAverage(
                _between(target_ms, width), 4 if width <= self._widest else _GUESSED, 0.01
            )
            for width in self._widths
        ]
        self._row = target_ms[1] if row_ms is None else row_ms
        self._row_error = MovingAverage(1.0, _GUESSED if row_ms is None else _MEASURED)
        plain_ms = other_plain_ms or other_ms or _OTHER_MS / _OTHER_RATIO
        self._other = MovingAverage(plain_ms, _GUESSED if other_ms is None else _MEASURED)
        self._other_ratio = (other_ms or _OTHER_MS) / plain_ms
        self._tabulate()

    # Predictions.

    def draft(self, name: str) -> DraftCosts:
        """The draft costs of a candidate; if it was never measured: a target pass per draft pass."""
        found = self.drafts.get(name)
        if found is None:
            found = self.drafts[name] = DraftCosts(self.verify(1))
        return found

    def verify(self, tokens: float, rows: int = 1) -> float:
        """A target pass; ``tokens`` over all requests, not necessarily whole."""
        table = self._table
        whole = min(int(tokens), len(table) - 2)
        alone = table[whole] + (tokens - whole) * (table[whole + 1] - table[whole])
        return self._level.value * (alone + self._row * (rows - 1))

    def widening(self, tokens: int, more: Iterable[float]) -> list[float]:
        """What so many more tokens each add to a target pass over ``tokens``."""
        table, level, low, last = (
            self._table,
            self._level.value,
            self._table[tokens],
            len(self._table) - 2,
        )
        found = []
        for each in more:
            whole = min(int(tokens + each), last)
            part = tokens + each - whole
            found.append(level * ((1.0 - part) * table[whole] + part * table[whole + 1] - low))
        return found

    def other(self, proposing: bool = True) -> float:
        """Everything outside the passes, per request."""
        return self._other.value * (self._other_ratio if proposing else 1.0)

    def plain(self, rows: int = 1) -> float:
        """A step in which nobody proposes."""
        return self.verify(rows, rows) + rows * self._other.value

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
        if times.rows < 1:
            return
        if drafter and times.draft_forwards:
            self.draft(drafter).observe(times, max(drafting, 1))
        if times.tokens == times.rows + proposed:  # else prompts were read as well
            # Rounds of both kinds inform both: plain rounds are rare where speculation pays.
            self._other.learn(
                times.other_ms / times.rows * self._other.value / self.other(proposed > 0)
            )
        if 0 < times.tokens <= self._widths[-1] and times.verify_ms > 0.0:
            self._observe_verify(times)

    def _observe_verify(self, times: RoundTimes) -> None:
        expected, level = self.verify(times.tokens, times.rows), self._level.value
        error = times.verify_ms - expected
        if times.rows > 1 and times.tokens <= self._widest:
            # With several requests, the row's cost is the least known part.
            change = self._row_error.move(error / expected) * expected / level / (times.rows - 1)
            self._row = max(self._row + change, 0.0)
        elif times.tokens > 1:
            self._bend(times.tokens, error / level)
        if times.tokens <= self._widest:  # beyond, an error is the guess's, not the machine's
            # Plain passes are rare where speculation pays, and no error of the curve affects them.
            self._level.learn(
                level * times.verify_ms / expected, 2.0 if times.tokens == times.rows else 1.0
            )

    def _bend(self, tokens: int, error: float) -> None:
        """Move the two points of the curve around a width; one token is the level's business."""
        after = max(bisect_left(self._widths, tokens), 1)
        low, high = self._widths[after - 1], self._widths[after]
        part = (tokens - low) / (high - low)
        for index, weight in ((after - 1, 1.0 - part), (after, part)):
            if index and weight > 0.0:
                point = self._curve[index]
                point.learn(point.value + error, weight)
        self._unread += 1
        if self._unread >= 4:
            self._tabulate()

    def _tabulate(self) -> None:
        """Times by number of tokens; entry 0 repeats entry 1. A wider pass is never cheaper."""
        before, ms = 0, self._curve[0].value
        self._table, self._unread = (table := [ms]), 0  # observations since then
        for width, point in zip(self._widths, self._curve, strict=True):
            slope = max(point.value - ms, 0.0) / (width - before)
            table.extend([ms + slope * k for k in range(1, width - before + 1)])
            before, ms = width, table[-1]


def _between(points: Mapping[int, float], width: int) -> float:
    """By linear inter- and extrapolation; never below the first."""
    measured = sorted(points)
    after = min(max(bisect_left(measured, width), 1), len(measured) - 1)
    a, b = measured[after - 1], measured[after]
    return max(points[a] + (points[b] - points[a]) / (b - a) * (width - a), points[1])
