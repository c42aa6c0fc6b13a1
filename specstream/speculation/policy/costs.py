"""The cost model of a round, in milliseconds: seeded by a measurement, then tracked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from specstream.speculation.policy.records import RoundTimes

__all__ = ["Costs", "DraftCosts", "MovingAverage"]

_CLIP, _GAIN = 0.2, 0.05  # largest relative error of an observation; smallest gain
_MEASURED, _GUESSED = 8, 1  # observations that an initial value counts as
_KNOTS = (1, 2, 3, 6, 9, 17, 33, 65, 129)  # widths between which the target pass is interpolated
_OTHER_MS, _OTHER_RATIO = (
    0.4,
    1.25,
)  # default overhead of a round with a proposal; relative to a plain one


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
        self.value = value
        self._count = count
        self._gain = gain

    def learn(self, value: float, weight: float = 1.0) -> None:
        """Add one observation."""
        self._count += 1
        clip = max(_CLIP, 4.0 / self._count)
        error = min(max(value / self.value - 1.0, -clip), clip)
        gain = weight * max(self._gain, 1.0 / self._count)
        self.value = max(self.value * (1.0 + gain * error), 1e-6)


class DraftCosts:
    """Drafting of one candidate in a round: ``start + passes * (step + row * (requests - 1))``.

    Args:
        step_ms: One pass over one token.
        start_ms: Drafting besides its passes.
        read_ms: Each token that the draft catches up on. Default: a guess.
    """

    def __init__(self, step_ms: float, start_ms: float = 0.0, read_ms: float | None = None) -> None:
        self.step, self.start, self.row = step_ms, start_ms, 0.0
        self.read = MovingAverage(
            read_ms or step_ms / 16, _GUESSED if read_ms is None else _MEASURED
        )
        self.measured = False  # in a round, not only by the calibration
        self._rounds = 0
        self._count = _MEASURED
        self._passes = 3.0  # mean per round

    @property
    def known(self) -> bool:
        """Whether rounds told what a pass costs; two in which it also read a text are enough."""
        return self.measured or self._rounds >= 2

    def passes(self, count: int, rows: int = 1) -> float:
        """``count`` passes over ``rows`` requests in lockstep, and the start."""
        return self.start + count * self.step_of(rows) if count else 0.0

    def step_of(self, rows: int) -> float:
        """One pass over ``rows`` requests."""
        return self.step + self.row * (rows - 1)

    def observe(self, times: RoundTimes, rows: int) -> None:
        """Learn from a round in which the candidate drafted for ``rows`` requests."""
        count = times.draft_forwards
        self._rounds += 1
        expected = self.passes(count, rows)
        if not self.measured and times.draft_read < 16:
            self.measured = True
            taken = max(times.draft_ms - times.draft_read * self.read.value, 0.1 * times.draft_ms)
            if 0.0 < taken < 0.6 * expected:
                # Noise only adds time: the calibration ran while the machine was busy.
                self.step *= taken / expected
                self.start *= taken / expected
                return
        if times.draft_read > 0:
            self.read.learn(max(times.draft_ms - expected, 0.0) / times.draft_read)
            return
        self._count += 1
        clip = expected * max(_CLIP, 4.0 / self._count)
        error = min(max(times.draft_ms - expected, -clip), clip) * max(_GAIN, 1.0 / self._count)
        if rows > 1:
            self.row = max(self.row + 2.0 * error / count / (rows - 1), 0.0)
            return
        # Scale both parts; an error that grows with the number of passes moves time from one to the
        # other.
        scale, beyond = 1.0 + error / expected, count - self._passes
        shift = error * beyond / (1.0 + beyond * beyond)
        self.step = max(self.step * scale + shift, 1e-3)
        self.start = max(self.start * scale - shift * self._passes, 0.0)
        self._passes += 0.05 * beyond


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
        self._curve = {
            width: MovingAverage(ms, 4 if width <= self._widest else _GUESSED, 0.01)
            for width, ms in _extrapolated(target_ms).items()
        }
        self._table = _table(self._curve)
        self._unread = 0  # observations since the table was made
        self._row = row_ms if row_ms is not None else target_ms[1]
        self._rows_seen = _GUESSED if row_ms is None else _MEASURED
        count = _GUESSED if other_ms is None else _MEASURED
        plain_ms = other_plain_ms or other_ms or _OTHER_MS / _OTHER_RATIO
        self._other = MovingAverage(plain_ms, count)  # of a plain round
        self._other_ratio = MovingAverage((other_ms or _OTHER_MS) / plain_ms, _MEASURED, 0.01)

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
        ms = table[whole] + (tokens - whole) * (table[whole + 1] - table[whole])
        return self._level.value * (ms + self._row * (rows - 1))

    def widening(self, tokens: int, count: int) -> list[float]:
        """Entry k, from 0 to ``count``: what k more tokens add to a target pass over ``tokens``."""
        table, end = self._table, tokens + count + 1
        while len(table) < end:
            table.append(2.0 * table[-1] - table[-2])
        level, low = self._level.value, table[tokens]
        return [level * (ms - low) for ms in table[tokens:end]]

    def other(self, proposing: bool = True) -> float:
        """Everything outside the passes, per request."""
        return self._other.value * (self._other_ratio.value if proposing else 1.0)

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
            ms = times.other_ms / times.rows
            if proposed:
                # Rounds of both kinds inform the plain overhead: plain rounds are rare where
                # speculation pays.
                ratio = self._other_ratio.value
                self._other_ratio.learn(ms / self._other.value)
                ms /= ratio
            self._other.learn(ms)
        if 0 < times.tokens < len(self._table) and times.verify_ms > 0.0:
            self._observe_verify(times)

    def _observe_verify(self, times: RoundTimes) -> None:
        expected, level = self.verify(times.tokens, times.rows), self._level.value
        error = times.verify_ms - expected
        if times.rows > 1 and times.tokens <= self._widest:
            # With several requests, the row's cost is the least known part.
            self._rows_seen += 1
            clip = expected * max(_CLIP, 4.0 / self._rows_seen)
            change = min(max(error, -clip), clip) / level / (times.rows - 1)
            self._row = max(self._row + change * max(_GAIN, 1.0 / self._rows_seen), 0.0)
        elif times.tokens > 1:
            self._bend(times.tokens, error / level)
        if times.tokens <= self._widest:  # beyond, an error is the guess's, not the machine's
            # Plain passes are rare where speculation pays, and no error of the curve affects them.
            weight = 2.0 if times.tokens == times.rows else 1.0
            self._level.learn(level * times.verify_ms / expected, weight)

    def _bend(self, tokens: int, error: float) -> None:
        """Move the two points of the curve around a width; one token is the level's business."""
        knots = list(self._curve)
        after = min(max(bisect_left(knots, tokens), 1), len(knots) - 1)
        low, high = knots[after - 1], knots[after]
        part = (tokens - low) / (high - low)
        for knot, weight in ((low, 1.0 - part), (high, part)):
            if knot != 1 and weight > 0.0:
                point = self._curve[knot]
                point.learn(max(point.value + error, 1e-6), weight)
        self._unread += 1
        if self._unread >= 4:
            self._table, self._unread = _table(self._curve), 0


def _extrapolated(points: Mapping[int, float]) -> dict[int, float]:
    """The measured widths and the standard ones, by linear inter- and extrapolation."""
    measured = sorted(points)
    curve: dict[int, float] = {}
    for width in sorted({*measured, *_KNOTS}):
        after = min(max(bisect_left(measured, width), 1), len(measured) - 1)
        a, b = measured[after - 1], measured[after]
        slope = (points[b] - points[a]) / (b - a)
        curve[width] = max(points[a] + slope * (width - a), points[1])
    return curve


def _table(curve: Mapping[int, MovingAverage]) -> list[float]:
    """Times by number of tokens; entry 0 repeats entry 1. A wider pass is never cheaper."""
    at, ms = 1, curve[1].value
    times, slope = [ms, ms], 0.0
    for width, point in curve.items():
        if width > 1:
            slope = max(point.value - ms, 0.0) / (width - at)
            times.extend(ms + slope * k for k in range(1, width - at + 1))
            at, ms = width, times[-1]
    times.extend(ms + slope * k for k in range(1, 129))
    return times
