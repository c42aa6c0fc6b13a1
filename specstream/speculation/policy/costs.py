"""What a round costs, in milliseconds: a model that is seeded by a measurement and then tracked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from specstream.speculation.policy.records import RoundTimes
from specstream.speculation.policy.tracked import CLIP, GAIN, GUESSED, MEASURED, Tracked

__all__ = ["Costs"]

_FAR_BELOW = 0.6  # of what a calibration says: no noise makes the first round's draft as quick
_LITTLE = 16  # tokens to read besides, with which such a round can still be told
_KNOTS = (1, 2, 3, 5, 9, 17, 33, 65, 129)
_SHAPE = 4  # observations that the start of a curve's shape is worth
_OTHER_MS, _AROUND = 0.4, 1.25  # of a round with a proposal; and by how much that is dearer
_PLAIN = 2.0  # what a plain pass says of the pace, by what a wider one does
_NEW, _TOGETHER = 64, 4  # passes until they are well known; steps then learned from at once
_FIRM, _PACE = 0.01, 30  # gain of a well-known shape; observations that the first pace is worth


class Costs:
    """Draft passes, the target's pass by width, and everything around them.

    The target's pass over ``tokens`` tokens of ``rows`` requests is modelled as
    ``level * (curve(tokens) + row_ms * (rows - 1))``: *curve* is piecewise linear through what was
    measured with one request, *row_ms* is what another request adds beyond its tokens (a whole pass
    where requests are run one by one, next to nothing where they are run together), *level* follows
    the machine's pace. What a pass tells is divided between the two: the curve takes most of it at
    first, while its shape is little known, the pace later. Else the pace would take over errors of the
    shape from the wide passes, and what a plain round costs would drift along.
    """

    def __init__(self) -> None:
        self.seed(draft_step_ms=1.0, target_ms={1: 4.0, 9: 5.0})

    def seed(
        self,
        draft_step_ms: float | None,
        target_ms: Mapping[int, float],
        *,
        draft_read_ms: float | None = None,
        draft_start_ms: float = 0.0,
        other_ms: float | None = None,
        other_plain_ms: float | None = None,
        row_ms: float | None = None,
    ) -> None:
        """Start from a calibration.

        Args:
            draft_step_ms: One draft pass of one token; None without a draft.
            target_ms: Pass of one request, by its number of tokens: 1, at least one more, and best
                also the widest that a full batch can have.
            draft_read_ms: Each further token of a long draft pass.
            draft_start_ms: What drafting costs in a round besides its passes.
            other_ms: Everything else of a round with a proposal, per request. Default: a guess.
            other_plain_ms: The same of a plain round. Default: the same; of a guess, a little less.
            row_ms: What another request adds to a target pass, beyond its tokens. Default: a pass
                of one token, as if requests were run one by one.

        Raises:
            ValueError: ``target_ms`` lacks 1 or a second width, or has a time that isn't above 0.
        """
        if 1 not in target_ms or len(target_ms) < 2 or min(target_ms.values()) <= 0.0:
            raise ValueError(f"target_ms needs times above 0 for 1 and more tokens: {target_ms}")
        step = draft_step_ms if draft_step_ms is not None else target_ms[1]
        self._step = step
        self._step_row = 0.0
        self._start = draft_start_ms
        self._drafts_seen = MEASURED
        self._drafted = False
        self._passes = 3.0  # in a round that drafts, on average
        guessed = draft_read_ms is None
        self._read = Tracked(draft_read_ms or step / 16, seen=GUESSED if guessed else MEASURED)
        self._seed_other(other_ms, other_plain_ms)
        self._level = Tracked(1.0, _PACE)
        self._widest = max(target_ms)
        self._curve = {
            width: Tracked(ms, _SHAPE if width <= self._widest else GUESSED, _FIRM)
            for width, ms in _between(target_ms).items()
        }
        self._knots = list(self._curve)
        self._row = row_ms if row_ms is not None else target_ms[1]
        self._rows_seen = GUESSED if row_ms is None else MEASURED
        self._passed, self._moved = 0, False
        self._seen: list[tuple[RoundTimes, int, int]] = []  # steps still to be learned from
        self._shape = _table(self._curve)

    def _seed_other(self, other_ms: float | None, plain_ms: float | None) -> None:
        seen = GUESSED if other_ms is None else MEASURED
        if other_ms is None:
            other_ms = _OTHER_MS
        elif plain_ms is None:
            plain_ms = other_ms
        if plain_ms is None:
            plain_ms = other_ms / _AROUND
        self._other_plain = Tracked(plain_ms, seen)
        self._around = Tracked(other_ms / plain_ms, MEASURED, _FIRM)  # with a proposal, by without

    # What things cost.

    def draft(self, passes: int, rows: int = 1) -> float:
        """A round's drafting: so many passes over ``rows`` requests in lockstep."""
        return self._start + passes * self.draft_pass(rows) if passes else 0.0

    def draft_pass(self, rows: int = 1) -> float:
        """One pass of it."""
        return self._step + self._step_row * (rows - 1)

    @property
    def drafted(self) -> bool:
        """Whether a round has told what drafting costs, and not only a calibration."""
        return self._drafted

    def draft_row(self) -> float:
        """What a further request adds to a pass."""
        return self._step_row

    def draft_start(self) -> float:
        """What it costs besides its passes."""
        return self._start

    def read(self, tokens: int) -> float:
        """The draft catching up on so many tokens."""
        return tokens * self._read.value

    def verify(self, tokens: float, rows: int = 1) -> float:
        """A target pass; ``tokens`` over all requests, and may lie between whole numbers."""
        shape = self._shape
        whole = min(int(tokens), len(shape) - 2)
        low = shape[whole]
        ms = low + (tokens - whole) * (shape[whole + 1] - low)
        return self._level.value * (ms + self._row * (rows - 1))

    def widening(self, tokens: int, count: int) -> list[float]:
        """Entry k, from 0 to ``count``: what k tokens more add to a pass over ``tokens``."""
        at = min(tokens, len(self._shape) - count - 1)
        level, low = self._level.value, self._shape[at]
        return [level * (ms - low) for ms in self._shape[at : at + count + 1]]

    def step(self, tokens: int) -> float:
        """What one token more adds to a pass over ``tokens``."""
        at, shape = min(tokens, len(self._shape) - 2), self._shape
        return self._level.value * (shape[at + 1] - shape[at])

    def other(self, proposing: bool = True) -> float:
        """Everything outside the passes, per request."""
        plain = self._other_plain.value
        return plain * self._around.value if proposing else plain

    def plain(self, rows: int = 1) -> float:
        """A step in which nobody proposes."""
        return self.verify(rows, rows) + rows * self._other_plain.value

    # What is learned.

    def observe(self, times: RoundTimes, drafting: int, proposed: int) -> None:
        """Track one step.

        Args:
            times: What it took.
            drafting: Requests that the draft proposed for.
            proposed: Tokens proposed, over all requests.
        """
        if times.rows < 1:
            return
        self._seen.append((times, drafting, proposed))
        # What is well known moves slowly, so a few rounds may wait to be learned from together: done
        # between two passes, for one, it finds nothing in the CPU's caches.
        first = times.draft_forwards > 0 and not self._drafted
        if times.rows > 1 or first or self._passed < _NEW or len(self._seen) >= _TOGETHER:
            steps, self._seen = self._seen, []
            for seen in steps:
                self._learn(*seen)

    def _learn(self, times: RoundTimes, drafting: int, proposed: int) -> None:
        self._observe_draft(times, drafting)
        if times.tokens == times.rows + proposed:  # else prompts were read along, which is no round
            self._observe_other(times.other_ms / times.rows, proposed > 0)
        if times.tokens == 1 and times.verify_ms > 0.0:
            self._level.learn(times.verify_ms / self._shape[1], _PLAIN)
            self._redraw()
        elif 0 < times.tokens < len(self._shape) and times.verify_ms > 0.0:
            self._observe_verify(times)

    def _observe_other(self, ms: float, proposing: bool) -> None:
        # Rounds of both kinds tell of both: where plain ones are rare, theirs is known all the same.
        if proposing:
            around = self._around.value
            self._around.learn(ms / self._other_plain.value)
            ms /= around
        self._other_plain.learn(ms)

    def _observe_draft(self, times: RoundTimes, drafting: int) -> None:
        passes = times.draft_forwards
        if passes < 1:
            return
        expected = self.draft(passes, max(drafting, 1))
        if not self._drafted and times.draft_read < _LITTLE:
            self._drafted = True
            taken = max(times.draft_ms - self.read(times.draft_read), 0.1 * times.draft_ms)
            if 0.0 < taken < _FAR_BELOW * expected:
                # Noise only adds: this was timed on a machine that was busy then.
                self._step, self._start = (
                    ms * taken / expected for ms in (self._step, self._start)
                )
                return
        if times.draft_read > 0:
            self._read.learn(max(times.draft_ms - expected, 0.0) / times.draft_read)
            return
        self._drafts_seen += 1
        clip = expected * max(CLIP, 4.0 / self._drafts_seen)
        error = min(max(times.draft_ms - expected, -clip), clip)
        error *= max(GAIN, 1.0 / self._drafts_seen)
        if drafting > 1:
            self._step_row = max(self._step_row + 2.0 * error / passes / (drafting - 1), 0.0)
            return
        # The pace of the whole, and then how it is divided: what deviates more with more passes than
        # usual is the passes' part.
        scale = 1.0 + error / expected
        beyond = passes - self._passes
        shift = error * beyond / (1.0 + beyond * beyond)
        self._step = max(self._step * scale + shift, 1e-3)
        self._start = max(self._start * scale - shift * self._passes, 0.0)
        self._passes += 0.05 * beyond

    def _observe_verify(self, times: RoundTimes) -> None:
        expected = self.verify(times.tokens, times.rows)
        level = self._level.value
        if times.tokens > self._widest:
            self._bend(times, level, expected)
            return  # guessed so far: an error there says nothing about the machine's pace
        if times.rows > 1:
            # With several requests the rows' own part is the one that was least well known.
            self._rows_seen += 1
            clip = expected * max(CLIP, 4.0 / self._rows_seen)
            rest = min(max(times.verify_ms - expected, -clip), clip) / level / (times.rows - 1)
            self._row = max(self._row + rest * max(GAIN, 1.0 / self._rows_seen), 0.0)
        else:
            self._bend(times, level, expected)
        # Plain passes are rare where speculation pays, and the only ones that no shape comes between.
        weight = _PLAIN if times.tokens == times.rows else 1.0
        self._level.learn(level * times.verify_ms / expected, weight)

    def _bend(self, times: RoundTimes, level: float, expected: float) -> None:
        """Move the points of the curve on both sides; the table is redrawn now and then."""
        knots = self._knots
        after = min(max(bisect_left(knots, times.tokens), 1), len(knots) - 1)
        low, high = knots[after - 1], knots[after]
        part = (times.tokens - low) / (high - low)
        rest = (times.verify_ms - expected) / level
        for knot, weight in ((low, 1.0 - part), (high, part)):
            if knot != 1 and weight > 0.0:  # one token is the level's business
                tracked = self._curve[knot]
                tracked.learn(max(tracked.value + rest, 1e-6), weight)
                self._moved = True
        self._redraw()

    def _redraw(self) -> None:
        self._passed += 1
        if self._moved and self._passed % (4 if self._passed < 64 else 16) == 0:
            self._shape = _table(self._curve)
            self._moved = False


def _between(points: Mapping[int, float]) -> dict[int, float]:
    """The measured widths and standard ones, straight between the former and on after the last."""
    measured = sorted(points)
    curve: dict[int, float] = {}
    for width in sorted({*measured, *_KNOTS}):
        after = min(max(bisect_left(measured, width), 1), len(measured) - 1)
        a, b = measured[after - 1], measured[after]
        slope = (points[b] - points[a]) / (b - a)
        curve[width] = max(points[a] + slope * (width - a), points[1])
    return curve


def _table(curve: Mapping[int, Tracked]) -> list[float]:
    """Times by whole number of tokens; entry 0 repeats entry 1. A wider pass is never cheaper."""
    times = [curve[1].value]
    at, ms = 1, times[0]
    for width, tracked in curve.items():
        higher = max(tracked.value, ms)
        slope = (higher - ms) / max(width - at, 1)
        times.extend(ms + slope * k for k in range(width - at))
        at, ms = width, higher
    slope = (ms - times[-1]) if len(times) > 1 else 0.0
    times.extend(ms + slope * k for k in range(129))
    return times
