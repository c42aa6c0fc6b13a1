"""How many requests share a pass unless the config says it: as many as costs and memory allow."""

from __future__ import annotations

import logging

import psutil

from specstream.config import USUAL_PLACES
from specstream.model.runner import ModelRunner
from specstream.speculation.calibration import pass_ms
from specstream.speculation.measured import FRESH, MeasuredTimes

__all__ = ["choose_places"]

_log = logging.getLogger("specstream.engine")

_MANY = 16
_TOKENS = 2048  # of a conversation, for which each place must have memory
_CLEAR = 1.33  # a ratio so many times off the limit is no matter of a noisy start
_SHARE = 0.5  # of the free memory that the places may take


def choose_places(target: ModelRunner, times: MeasuredTimes = FRESH) -> int:
    """Return the number of requests that share a pass: `_MANY`, or `USUAL_PLACES`.

    Many, if a pass over one token of each of sixteen sequences takes less time than four passes of four,
    and if half of the free memory holds their keys and values. Models whose sequences take a pass each
    gain nothing by more.
    """
    if not target.lean or target.fixed_width is not None:
        return USUAL_PLACES
    free = _free_bytes(target)
    if _MANY * target.cache_bytes(_tokens(target)) > _SHARE * free:
        fit = int(_SHARE * free) // target.cache_bytes(_tokens(target))
        _log.info("%d requests share a pass: memory has room for %d", USUAL_PLACES, fit)
        return USUAL_PLACES
    counts = USUAL_PLACES, _MANY
    few_ms, many_ms = times.of("places", len(counts), lambda: pass_ms(target, counts))
    ratio = many_ms / few_ms
    if 1 / _CLEAR < ratio * USUAL_PLACES / _MANY < _CLEAR:
        times.forget(
            "places"
        )  # nothing corrects a wrong choice later, so a close one is measured again
    found = _MANY if ratio < _MANY / USUAL_PLACES else USUAL_PLACES
    words = "%d requests share a pass: one of %d takes %.1f times as long as one of %d"
    _log.info(words, found, _MANY, ratio, USUAL_PLACES)
    return found


def _tokens(target: ModelRunner) -> int:
    return min(_TOKENS, target.context_length)


def _free_bytes(target: ModelRunner) -> int:
    pooled = target.free_cache_bytes
    return int(psutil.virtual_memory().available) if pooled is None else pooled
