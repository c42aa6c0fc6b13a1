"""Times of draft steps and target passes on this machine: measured at a start, kept for later ones."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache as once, partial
from pathlib import Path
from typing import cast

import torch
import transformers

from specstream import __version__
from specstream.checks import cache_folder
from specstream.config import EngineConfig
from specstream.drafting.policy.costs import Costs, DraftCosts
from specstream.model.forward import ForwardInput
from specstream.model.kv import RowCache
from specstream.model.native.library import machine_facts
from specstream.model.runner import ModelRunner
from specstream.models.kept import located

__all__ = ["CONTEXT", "FRESH", "MeasuredTimes", "calibrate", "identity_of", "pass_ms"]

_log = logging.getLogger("specstream.engine")

_KEPT = 64  # files, one for each engine config, some hundred bytes each
_VALID_S = 30 * 24 * 3600.0


class MeasuredTimes:
    """Times by name, from the file of an earlier start or measured now; `keep` writes what is new.

    The engine refines the costs that it makes of them with every round, so they needn't be exact. A file
    that can't be read or written, or is older than a month, is as none.

    Args:
        identity: Everything that times depend on, as JSON data; None: nothing is read or kept.
        folder: Where files are kept; by default ``measured`` in the cache folder.
    """

    def __init__(self, identity: Mapping[str, object] | None, folder: Path | None = None) -> None:
        self._path: Path | None = None
        self._times = dict[str, list[float]]()
        self._fresh = False
        if identity is None:
            return
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        with suppress(OSError, ValueError):
            self._path = (folder or cache_folder("measured")) / f"{digest[:32]}.json"
            if time.time() - self._path.stat().st_mtime < _VALID_S:
                self._times = _checked(json.loads(self._path.read_text(encoding="utf-8")))

    def of(self, name: str, count: int, measure: Callable[[], list[float]]) -> list[float]:
        """The ``count`` times of ``name``, in ms, measured unless an earlier start has."""
        if self._path is None:
            return measure()
        found = self._times.get(name, [])
        if len(found) != count:
            found = self._times[name] = measure()
            self._fresh = True
        return found

    def forget(self, name: str) -> None:
        """Let the times of ``name`` be measured again by the next start."""
        if self._times.pop(name, None) is not None:
            self._fresh = True

    def keep(self) -> None:
        """Write the times for later starts, if some were measured now."""
        if self._path is None or not self._fresh:
            return
        folder = self._path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as own:
                fresh = Path(own) / self._path.name
                fresh.write_text(json.dumps(self._times), encoding="utf-8")
                os.replace(fresh, self._path)
        except OSError as error:
            _log.info("times of passes can't be kept in %s (%s)", folder, error.strerror)
            return
        with suppress(OSError):  # another start may remove the same files
            files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in files[:-_KEPT]:
                old.unlink(missing_ok=True)


FRESH = MeasuredTimes(None)
"""Measures at each call."""


def identity_of(
    config: EngineConfig, target: ModelRunner, cores: int, quota: float | None
) -> dict[str, object] | None:
    """All that the times of passes depend on; None if that can't be told.

    So it is where the config holds an object that has no name, or a file vanishes meanwhile. Of a model
    by its id on the Hub the config counts, which decides the sizes of its passes.
    """
    try:
        told = config.model_dump(mode="json")
        paths = [Path(located(name)) for name in (config.target, *config.drafts)]
        files = [
            (str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns)
            for each in paths
            for path in ([each] if each.is_file() else sorted(each.glob("*")))
        ]
    except (OSError, ValueError):
        return None
    on_gpu = target.device.type == "cuda"
    native = target.decoder.native if target.lean else None
    return machine_facts() | {
        "versions": [__version__, torch.__version__, transformers.__version__],
        "device": torch.cuda.get_device_name(target.device) if on_gpu else "cpu",
        "native": None if native is None else [native.name, native.path.name],
        "cores": [cores, quota, torch.get_num_threads()],
        "config": told,
        "model": str(target.model.config),
        "files": files,
    }


def _checked(found: object) -> dict[str, list[float]]:
    """``found`` if it is what `MeasuredTimes.keep` writes.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(found, dict):
        raise ValueError("no times")
    for times in found.values():
        if not isinstance(times, list) or not all(
            isinstance(ms, float) and 0 < ms < math.inf for ms in times
        ):
            raise ValueError("no times")
    return found


CONTEXT = 128
"""Cached rows behind which passes are timed, those of drafting heads as well."""

# Tokens of the timed target passes: native passes read six tokens in little more than the time of one.
_WIDTHS = (1, 2, 6, 9)
_FULL = (1, 3, 5)  # the same of each sequence where all places are taken, in captured passes
_READ_WIDTH = 64  # tokens of the draft pass that measures the cost of reading a prompt
_REPEATS = 7  # measurements of each pass, at most
_BUDGET_S = 0.6  # seconds after which no measurement is repeated; each is made twice at least


def calibrate(
    target: ModelRunner,
    draft: ModelRunner | None,
    others: Mapping[str, Callable[[], None]] | None = None,
    times: MeasuredTimes = FRESH,
) -> Costs:
    """Time the passes that rounds consist of, as initial costs; the engine's rounds refine them.

    Draft passes are timed as in a round, right after a target pass: the target's weights displace the
    draft's from the CPU's caches, and a draft that is timed alone looks a good deal faster.

    Args:
        target: The target model.
        draft: The draft model, if there is one.
        others: By candidate, a function that makes one draft pass of a method without its own model.
        times: What earlier starts have measured.
    """
    widest = min(target.fixed_width or max(_WIDTHS), _room(target))
    widths = [width for width in _WIDTHS if width <= widest]
    main = once(lambda: _Bench(target))

    def target_ms() -> list[float]:
        pair = _Bench(target, sequences=2)
        return _least_ms([*(partial(main().run, w) for w in widths), lambda: pair.run(1)])

    def draft_ms(*works: Callable[[], None]) -> list[float]:
        return _least_ms(works, before=lambda: main().run(1))

    *alone, pair_ms = times.of("target", len(widths) + 1, target_ms)
    passes = dict(zip(widths, alone, strict=True))
    row_ms = pair_ms - passes[2] if widest > 1 else None
    most = max(target.compiled.passes.batches) if target.compiled is not None else 1
    if most > 1:  # for so many sequences, what one pass of few tokens takes says little
        full = once(lambda: _Bench(target, sequences=most))
        works = [partial(lambda width: full().run(width), width) for width in _FULL]
        many = times.of("full target", len(_FULL), lambda: _least_ms(works))
        passes |= {most * n: ms for n, ms in zip(_FULL, many, strict=True) if most * n > widest}
    least = None if row_ms is None else max(0.0, row_ms)
    costs = Costs(passes, row_ms=least, padded=target.compiled is not None)
    if draft is not None:
        side, long = once(lambda: _Bench(draft)), min(_READ_WIDTH, _room(draft))
        both = [lambda: side().run(1), lambda: side().run(long)]
        step_ms, long_ms = times.of("draft", 2, lambda: draft_ms(*both))
        read_ms, chained = max(0.0, (long_ms - step_ms) / (long - 1)), draft.captured_steps
        if chained:
            (chain_ms,) = times.of("draft chain", 1, lambda: draft_ms(lambda: side().chain()))
            step_ms = chain_ms / chained
        costs.drafts["draft"] = DraftCosts(step_ms, read_ms=read_ms, chained=max(chained, 1))
    for name, work in (others or {}).items():
        (step_ms,) = times.of(f"draft {name}", 1, partial(draft_ms, work))
        costs.drafts[name] = DraftCosts(step_ms)
    return costs


def pass_ms(runner: ModelRunner, counts: Sequence[int]) -> list[float]:
    """Milliseconds of passes over one token of each of so many sequences, behind `CONTEXT` rows.

    Timed in turn; the rows are not computed, since their values don't change the time.
    """
    caches = [cast(RowCache, runner.new_cache()) for _ in range(max(counts))]
    context = min(CONTEXT, runner.context_length - 1)
    for cache in caches:
        cache.reserve(context + 1)
        cache.append_to(context)
    token = torch.zeros(1, dtype=torch.int64, device=runner.device)

    @torch.inference_mode()
    def run(count: int) -> None:
        inputs = [ForwardInput(token, cache) for cache in caches[:count]]
        runner.forward(inputs).logits[0][0, 0].item()  # wait for the device
        for cache in caches[:count]:
            cache.rollback_to(context)

    found = _least_ms([partial(run, count) for count in counts])
    runner.forwards = 0
    return found


def _context(runner: ModelRunner) -> int:
    """Cached rows behind which passes are timed: fewer than `CONTEXT` where the model's own is short."""
    return max(1, min(CONTEXT, runner.context_length - _READ_WIDTH))


def _room(runner: ModelRunner) -> int:
    """The most tokens of a timed pass."""
    return max(2, runner.context_length - _context(runner))


class _Bench:
    """A model with some context, whose passes can be repeated."""

    def __init__(self, runner: ModelRunner, sequences: int = 1) -> None:
        self._runner = runner
        self._caches = [runner.new_cache() for _ in range(sequences)]
        context = _context(runner)
        for start in range(0, context, runner.fixed_width or context):
            count = min(runner.fixed_width or context, context - start)
            self._forward(count)

    def run(self, width: int) -> None:
        """Run a pass of ``width`` tokens a sequence, wait for the device, and roll the caches back."""
        lengths = [cache.length for cache in self._caches]
        self._forward(width)
        for cache, length in zip(self._caches, lengths, strict=True):
            cache.rollback_to(length)

    @torch.inference_mode()
    def chain(self) -> None:
        """Draft a captured chain behind one token, wait for the device, and roll the caches back."""
        runner, lengths = self._runner, [cache.length for cache in self._caches]
        tokens = [torch.zeros(1, dtype=torch.int64, device=runner.device) for _ in self._caches]
        if (found := runner.chains(tokens, self._caches)) is not None:
            found.tokens.tolist()  # wait for the device
        for cache, length in zip(self._caches, lengths, strict=True):
            cache.rollback_to(length)

    @torch.inference_mode()
    def _forward(self, count: int) -> None:
        runner = self._runner
        tokens = torch.arange(count, device=runner.device) % runner.model_vocab_size
        rows = runner.forward([ForwardInput(tokens, cache) for cache in self._caches]).logits
        rows[0][0, 0].item()  # wait for the device


def _least_ms(
    works: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
) -> list[float]:
    """The least time of each, in ms; measured in turn, so that other load on the machine affects all."""
    for work in works:
        work()
    least, began = [math.inf] * len(works), time.perf_counter()
    for repeat in range(_REPEATS):
        for index, work in enumerate(works):
            if before is not None:
                before()
            start = time.perf_counter()
            work()
            # Other load only adds time, so the least time is nearest to the true cost.
            least[index] = min(least[index], (time.perf_counter() - start) * 1e3)
        if repeat > 0 and time.perf_counter() > began + _BUDGET_S:
            break
    return least
