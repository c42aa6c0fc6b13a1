"""Small estimators that learn from a stream and forget slowly. Deterministic, no clock."""

from __future__ import annotations

import math

__all__ = ["Average", "Chance", "Doubt", "Lean", "log_odds", "odds_to_chance"]

_FURTHEST = 4.5  # log-odds beyond which nothing learned is worth telling apart: 0.989


def log_odds(p: float) -> float:
    """``log(p / (1 - p))``, kept finite."""
    if p < 1e-4:
        p = 1e-4
    elif p > 0.9999:
        p = 0.9999
    return math.log(p / (1.0 - p))


def odds_to_chance(x: float) -> float:
    """The inverse of `log_odds`."""
    return 1.0 / (1.0 + math.exp(-x))


class Chance:
    """A probability, from hits and misses. What is older than ``memory`` trials fades.

    ``prior`` counts as ``weight`` trials.
    """

    __slots__ = ("_hits", "_memory", "_trials", "log_odds", "value")

    def __init__(self, prior: float, weight: float, memory: float) -> None:
        self._hits = prior * weight
        self._trials = weight
        self._memory = memory
        self.value = prior
        self.log_odds = log_odds(prior)

    def learn(self, hits: int, trials: int = 1) -> None:
        """Count trials, one by default."""
        total = self._trials + trials
        fade = self._memory / total if total > self._memory else 1.0
        self._hits = (self._hits + hits) * fade
        self._trials = total * fade
        self.value = self._hits / self._trials
        self.log_odds = log_odds(self.value)


class Average:
    """A mean that starts at ``prior``, worth ``weight`` values, and fades after ``memory`` of them."""

    __slots__ = ("_memory", "_weight", "value")

    def __init__(self, prior: float, weight: float, memory: float) -> None:
        self.value = prior
        self._weight = weight
        self._memory = memory

    def learn(self, value: float) -> None:
        """Count one value."""
        self._weight = min(self._weight + 1.0, self._memory)
        self.value += (value - self.value) / self._weight

    def heir(self, weight: float, memory: float) -> Average:
        """A mean of its own that starts from this one."""
        return Average(self.value, weight, memory)


_SPREAD, _FIRMEST = 0.7, 6.0  # how far requests differ, and how firmly one is ever known
_BROKEN = 0.02  # chance of a hit where nothing works
_BREAKS = 0.004  # how often, in trials, that begins


class Lean:
    """How far one request leans from what all requests do, in log-odds.

    One step of Newton's method on the log-likelihood a trial (an extended Kalman filter of one
    number), from a normal prior of deviation ``spread``. Precision stops growing at some
    point, so that a change in the text is followed.
    """

    __slots__ = ("_precision", "value")

    def __init__(self, spread: float = _SPREAD) -> None:
        self.value = 0.0
        self._precision = 1.0 / (spread * spread)

    def chance(self, base: float) -> float:
        """Probability, for a request that leans so, of what has log-odds ``base`` in general."""
        x = base + self.value
        if x > _FURTHEST:
            x = _FURTHEST
        elif x < -_FURTHEST:
            x = -_FURTHEST
        return 1.0 / (1.0 + math.exp(-x))

    def learn(self, base: float, hits: int, weight: float = 1.0, trials: int = 1) -> None:
        """Count trials, one by default, of something with log-odds ``base`` in general."""
        # Not limited like `chance`: what is certain anyway mustn't count as a small surprise.
        p = 1.0 / (1.0 + math.exp(-base - self.value))
        precision = self._precision + weight * trials * p * (1.0 - p)
        moved = self.value + weight * (hits - trials * p) / precision
        self._precision = precision if precision < _FIRMEST else _FIRMEST
        self.value = min(max(moved, -_FURTHEST), _FURTHEST)


class Doubt:
    """Probability that nothing works at present: a hidden switch between sound and broken.

    Bayes' rule a trial, with small chances of switching in between (a two-state hidden Markov
    model). A few misses where hits were likely make it certain, one hit dispels it; what was learned
    of the sound state is not washed away by a broken spell.
    """

    __slots__ = ("_mends", "value")

    def __init__(self, value: float, mends: float) -> None:
        self.value = value
        self._mends = mends  # how often, in trials, a broken spell ends

    def chance(self, sound: float) -> float:
        """Probability of a hit, if it is ``sound`` where things work."""
        return sound + self.value * (_BROKEN - sound)

    def learn(self, sound: float, hit: bool) -> None:
        """Count one trial whose chance was ``sound`` if things work."""
        doubt = self.value + _BREAKS * (1.0 - self.value) - self._mends * self.value
        if hit:
            broken, works = doubt * _BROKEN, (1.0 - doubt) * sound
        else:
            broken, works = doubt * (1.0 - _BROKEN), (1.0 - doubt) * (1.0 - sound)
        self.value = broken / (broken + works)
