"""What a round costs, in milliseconds: a model that is seeded by a measurement and then tracked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from specstream.spec.control.records import RoundTimes

__all__ = ["Costs", "Tracked"]

_CLIP = 0.2  # an observation counts as at most this much above or below what was expected
_KNOTS = (1, 2, 3, 5, 9, 17, 33, 65, 129)


class Tracked:
    """A positive quantity, followed by its relative error; outliers count as mild ones.

    Errors are cut off at a fifth and the gain is a twentieth, so a stall of any length moves it by
    1 %, and a lasting change is followed at 1 % an observation. With few observations behind it
    (``seen``) it is quicker.
    """

    __slots__ = ("_gain", "_seen", "value")

    def __init__(self, value: float, gain: float = 0.05, seen: int = 8) -> None:
        self.value = value
        self._gain = gain
        self._seen = seen  # how many observations the start is worth

    def learn(self, value: float) -> None:
        """Count one observation."""
        self._seen += 1
        error = value / self.value - 1.0
        clip = max(_CLIP, 2.0 / self._seen)
        gain = max(self._gain, 1.0 / self._seen)
        self.value = max(self.value * (1.0 + gain * min(max(error, -clip), clip)), 1e-6)


class Costs:
    """Draft passes, the target's pass by width, and everything around them.

    The target's pass over ``tokens`` tokens of ``rows`` requests is modelled as
    ``level * (curve(tokens) + row_ms * (rows - 1))``: *curve* is piecewise linear through what was
    measured with one request, *row_ms* is what another request adds beyond its tokens (a whole pass
    where requests are run one by one, next to nothing where they are run together), *level* follows
    the machine's pace.
    """

    def __init__(self) -> None:
        self._seen = 0
        self.seed(draft_step_ms=1.0, target_ms={1: 4.0, 9: 5.0})
        self.seeded = False

    def seed(
        self,
        draft_step_ms: float | None,
        target_ms: Mapping[int, float],
        *,
        draft_read_ms: float | None = None,
        other_ms: float = 0.4,
        other_plain_ms: float | None = None,
        row_ms: float | None = None,
    ) -> None:
        """Start from a calibration.

        Args:
            draft_step_ms: One draft pass of one token; None without a draft.
            target_ms: Pass of one request, by its number of tokens; 1 and at least one more.
            draft_read_ms: Each further token of a long draft pass.
            other_ms: Everything else of a round with a proposal, per request.
            other_plain_ms: The same of a plain round.
            row_ms: What another request adds to a target pass, beyond its tokens. Default: a pass
                of one token, as if requests were run one by one.
        """
        if 1 not in target_ms or len(target_ms) < 2 or min(target_ms.values()) <= 0.0:
            raise ValueError(f"target_ms needs times above 0 for 1 and more tokens: {target_ms}")
        step = draft_step_ms if draft_step_ms is not None else target_ms[1]
        self._step = Tracked(step)
        self._step_row = 0.0
        guessed = draft_read_ms is None
        self._read = Tracked(draft_read_ms or step / 16, seen=1 if guessed else 8)
        self._other = Tracked(other_ms)
        plain = other_plain_ms if other_plain_ms is not None else other_ms
        self._other_plain = Tracked(plain)
        self._level = Tracked(1.0, gain=0.03)
        self._curve = _curve(target_ms)
        self._row = row_ms if row_ms is not None else target_ms[1]
        self._shape = _table(self._curve)
        self.seeded = True

    # What things cost.

    def draft(self, passes: float, rows: int = 1) -> float:
        """So many draft passes over ``rows`` requests in lockstep."""
        return passes * (self._step.value + self._step_row * (rows - 1))

    def read(self, tokens: int) -> float:
        """The draft catching up on so many tokens."""
        return tokens * self._read.value

    def verify(self, tokens: float, rows: int = 1) -> float:
        """A target pass; ``tokens`` over all requests, and may lie between whole numbers."""
        whole = int(tokens)
        shape = self._shape
        if whole + 1 < len(shape):
            low = shape[whole]
            ms = low + (tokens - whole) * (shape[whole + 1] - low)
        else:
            ms = shape[-1] + (tokens - len(shape) + 1) * (shape[-1] - shape[-2])
        return self._level.value * (ms + self._row * (rows - 1))

    def widening(self, tokens: int, count: int) -> list[float]:
        """Entry k, from 0 to ``count``: what k tokens more add to a pass over ``tokens``."""
        at = min(tokens, len(self._shape) - count - 1)
        level, low = self._level.value, self._shape[at]
        return [level * (ms - low) for ms in self._shape[at : at + count + 1]]

    def other(self, proposing: bool = True) -> float:
        """Everything outside the passes, per request."""
        return (self._other if proposing else self._other_plain).value

    def plain(self, rows: int = 1) -> float:
        """A step in which nobody proposes."""
        return self.verify(rows, rows) + rows * self._other_plain.value

    # What is learned.

    def observe(self, times: RoundTimes, drafting: int, proposing: bool) -> None:
        """Track one step. ``drafting``: requests that the draft proposed for."""
        if times.rows < 1:
            return
        self._observe_draft(times, drafting)
        (self._other if proposing else self._other_plain).learn(times.other_ms / times.rows)
        if times.tokens >= len(self._shape) or times.verify_ms <= 0.0:
            return  # a prompt was read along: says nothing about rounds
        expected = self.verify(times.tokens, times.rows)
        error = min(max(times.verify_ms / expected - 1.0, -_CLIP), _CLIP)
        if times.rows > 1:
            # What a further row adds is the unknown part; the level is known from the single rows.
            self._row = max(0.0, self._row + 0.1 * error * expected / (times.rows - 1))
        else:
            self._bend(times.tokens, 0.05 * error)
        if times.tokens <= 32 * times.rows:
            self._level.learn(self._level.value * (1.0 + error))

    def _observe_draft(self, times: RoundTimes, drafting: int) -> None:
        if times.draft_forwards < 1:
            return
        steps = self.draft(times.draft_forwards, max(drafting, 1))
        if times.draft_read > 0:
            rest = times.draft_ms - steps
            self._read.learn(max(rest, 0.0) / times.draft_read)
            return
        if drafting > 1:
            error = min(max(times.draft_ms / steps - 1.0, -_CLIP), _CLIP)
            gained = 0.1 * error * steps / times.draft_forwards / (drafting - 1)
            self._step_row = max(0.0, self._step_row + gained)
        else:
            self._step.learn(times.draft_ms / times.draft_forwards)

    def _bend(self, tokens: int, error: float) -> None:
        """Move the curve's nearest measured points; the table is redrawn now and then."""
        near = min(self._curve, key=lambda width: abs(width - tokens))
        if near != 1:  # one token is what everything is measured against: the level's business
            self._curve[near] *= 1.0 + error
        self._seen += 1
        if self._seen % 16 == 0:
            self._shape = _table(_curve(self._curve))


def _curve(points: Mapping[int, float]) -> dict[int, float]:
    """Rising times at the measured widths and at standard ones, so that each can learn by itself."""
    measured = sorted(points)
    curve: dict[int, float] = {}
    high = 0.0
    for width in sorted({*measured, *_KNOTS}):
        after = min(max(bisect_left(measured, width), 1), len(measured) - 1)
        a, b = measured[after - 1], measured[after]
        ms = points[a] + (points[b] - points[a]) * (width - a) / (b - a)
        high = max(high, ms)  # a wider pass is never cheaper than a narrower one
        curve[width] = high
    return curve


def _table(curve: Mapping[int, float]) -> list[float]:
    """Times by whole number of tokens, straight between the points; entry 0 repeats entry 1."""
    knots = list(curve)
    times = [curve[1]]
    for a, b in zip(knots, knots[1:], strict=False):
        slope = (curve[b] - curve[a]) / (b - a)
        times.extend(curve[a] + slope * (width - a) for width in range(a, b))
    return [*times, curve[knots[-1]]]
