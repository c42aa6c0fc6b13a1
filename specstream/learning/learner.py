"""Improves a draft from finished replies, in small steps on the engine's thread."""

from __future__ import annotations

import logging
import random
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from specstream.learning.buffer import Buffer, Kept, Window
from specstream.learning.config import LearningConfig
from specstream.model.forward import Extras, ForwardInput
from specstream.model.runner import ModelRunner
from specstream.model.transfer import to_device
from specstream.train.files import tell_acceptance
from specstream.train.loop import measure
from specstream.train.optim import Optimizers, acceptance_weight, rate
from specstream.train.trainee import Trainee

__all__ = ["Learner", "LearningReport", "Served"]

_log = logging.getLogger("specstream.engine")
_NARROWEST = 64  # tokens
_LONGEST_WAIT = 16  # times as many replies as usual
_OVER = object()

Steps = Generator[None, None, float]
Weights = Mapping[str, Tensor]


class Served(Protocol):
    """The draft or head that is in service."""

    def adopt(self, weights: Weights) -> None:
        """Draft with these weights from now on; called between two rounds.

        Args:
            weights: Of the trainee's module, by name; they are copied.
        """
        ...


@dataclass(slots=True)
class LearningReport:
    """What learning in service has done so far.

    Attributes:
        replies: Kept at present; of them every fourth is held out.
        tokens: Kept at present, prompts included.
        rounds: How often the draft has learnt, or tried to.
        improved: Rounds whose weights went into service.
        rolled_back: Rounds after which held-out acceptance had fallen.
        broken: Rounds that ended with an exception; their weights were dropped, too.
        updates: Of the weights, over all rounds.
        steps: Small steps, over all rounds.
        longest_step_ms: Of these.
        before: Held-out acceptance at the begin of the last whole round, the mean of sum min(p, q).
        after: At its end, by the weights that then were in service.
        says: What became of the last round, in words.
    """

    replies: int = 0
    tokens: int = 0
    rounds: int = 0
    improved: int = 0
    rolled_back: int = 0
    broken: int = 0
    updates: int = 0
    steps: int = 0
    longest_step_ms: float = 0.0
    before: float | None = None
    after: float | None = None
    says: str = "nothing was learnt yet"


class Learner:
    """Keeps replies, learns from them step by step, and puts better weights into service.

    A round: the target reads what it has not read yet, the draft is measured on held-out replies,
    learns from the others, and is measured again. If its acceptance is not lower, its weights go into
    service; else the last good ones come back, and the next round waits for twice as many replies.
    Weights as they were loaded come back when they do better on the replies that are held out now.

    Args:
        config: Bounds and rates.
        target: Whose distribution is learnt.
        trainee: A copy of the draft, to be trained.
        served: The draft in service.
        clock: In seconds.
    """

    def __init__(
        self,
        config: LearningConfig,
        target: ModelRunner,
        trainee: Trainee,
        served: Served,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config, self._target, self._trainee, self._served = config, target, trainee, served
        self._clock, self._order = clock, random.Random(0)
        self._layers = len(target.decoder.weights.layers)
        self._extras = Extras((*trainee.depths, self._layers))
        target.check_states(self._extras.depths)
        self._buffer = Buffer(config.max_replies, config.max_tokens, config.longest)
        self._new, self._wanted, self._width = 0, config.every, config.step_tokens
        self._work: Generator[None, None, None] | None = None
        self._times = list[float]()  # of the round under way
        self._report = LearningReport()
        self._first = self._good = self._weights()
        self._restore()

    @property
    def report(self) -> LearningReport:
        """What it has done so far."""
        return replace(self._report, replies=len(self._buffer), tokens=self._buffer.tokens)

    def keep(self, token_ids: Sequence[int], prompt_length: int) -> None:
        """Keep a finished reply: its tokens after ``prompt_length`` of a prompt. Copies them."""
        self._new += self._buffer.add(token_ids, prompt_length)

    def step(self) -> bool:
        """One small step; False if there is nothing to learn at present.

        An exception ends the round and costs what it has learnt, never anything else.
        """
        if self._work is None:
            if self._new < self._wanted:
                return False
            self._new, self._work = 0, self._round()
            self._report.rounds += 1
        began = self._clock()
        try:
            with torch.inference_mode(False), torch.enable_grad():
                if next(self._work, _OVER) is _OVER:
                    self._work = None
        except Exception as error:
            _log.exception("learning broke; the draft goes on with its last good weights")
            self._work = None
            self._report.broken += 1
            self._report.says = f"the last round broke: {error!r}"
            self._back_off()
        took = (self._clock() - began) * 1e3
        self._times.append(took)
        if self._work is None:
            self._choose_width()
        self._report.steps += 1
        self._report.longest_step_ms = max(took, self._report.longest_step_ms)
        return True

    def _choose_width(self) -> None:
        """Shorter passes for the next round where a quarter of the steps took too long; or longer again.

        One long step may be the machine's fault, and a short pass is a poor lesson, of little context.
        """
        slow, limit = sorted(self._times)[len(self._times) * 3 // 4], self._config.step_ms
        if slow > limit:
            self._width = max(_NARROWEST, self._width // 2)
        elif slow < limit / 4:
            self._width = min(self._config.step_tokens, self._width * 2)
        self._times.clear()

    def close(self) -> None:
        """End; better weights are written to the folder that the config names. Raises nothing."""
        self._work, out = None, self._config.out
        if out is None:
            return
        if self._good is self._first:
            _log.info("learning: no better weights were found, so %s isn't written", out)
            return
        try:
            self._restore()
            place = Path(out)
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=place.name, dir=place.parent) as beside:
                written = Path(beside) / "whole"
                written.mkdir()
                self._trainee.save(written, _card(self._report))
                if self._report.after is not None:
                    tell_acceptance(written, [self._report.after])
                written.rename(place)  # which fails if something is there by now
        except Exception as error:
            _log.error("the improved draft can't be written to %s: %s", out, error)

    def _round(self) -> Generator[None, None, None]:
        replies = list(self._buffer)
        for kept in replies:
            if kept.final is None:
                yield from self._read(kept)
        held = [w for kept in replies if kept.held for w in kept.windows(self._width)]
        lessons = [w for kept in replies if not kept.held for w in kept.windows(self._width)]
        if not held or not lessons:
            self._report.says = "too few replies were kept to hold one out"
            return
        before = yield from self._measured(held)
        if self._good is not self._first:
            before = yield from self._compared(held, before)
        total = self._config.passes * len(lessons)
        for number in range(total):
            if number % len(lessons) == 0:
                self._order.shuffle(lessons)
            made = self._trainee.losses(
                lessons[number % len(lessons)].batch(), acceptance=acceptance_weight(1.0)
            )
            if any(made.counted):  # a head may find nothing to predict in a short reply
                made.loss.backward()  # type: ignore[no-untyped-call]
            yield
            self._optimizers.step(rate(number / total, self._report.updates))
            self._report.updates += 1
            yield
        after = yield from self._measured(held)
        yield from self._judged(before, after)

    def _judged(self, before: float, after: float) -> Generator[None, None, None]:
        """New weights into service, or the last good ones back."""
        figures = f"held-out acceptance {before:.3f} before and {after:.3f} after it"
        if not after >= before:  # true of NaN, too
            self._back_off()
            said = f"{figures}: rolled back; the next round waits for {self._wanted} replies"
            _log.warning("learning: %s", said)
            self._report.rolled_back += 1
            self._report.before, self._report.after, self._report.says = before, before, said
            return
        weights = self._weights()
        yield
        self._served.adopt(weights)
        self._good, self._wanted = weights, self._config.every
        _log.info("learning: %s", figures)
        self._report.improved += 1
        self._report.before, self._report.after = before, after
        self._report.says = f"{figures}: in service"

    def _compared(self, held: Sequence[Window], before: float) -> Steps:
        """Held-out acceptance of the better of the weights in service and those that were loaded."""
        self._trainee.module.load_state_dict(self._first)
        yield
        first = yield from self._measured(held)
        if first <= before:
            self._trainee.module.load_state_dict(self._good)
            yield
            return before
        _log.warning(
            "learning: on the latest replies the draft does better as it was loaded (%.3f, not %.3f): "
            "so it is back in service",
            first,
            before,
        )
        self._good = self._first
        self._restore()
        self._served.adopt(self._good)
        yield
        return first

    def _read(self, kept: Kept) -> Generator[None, None, None]:
        """The target's states of a reply, in passes of a step each."""
        cache, parts = self._target.new_cache(), list[Tensor]()
        for start in range(0, len(kept.ids), self._width):
            with torch.inference_mode():
                ids = to_device(kept.ids[start : start + self._width], self._target.device)
                item = ForwardInput(ids, cache)
                (states,) = self._target.forward([item], self._extras).states
                final = self._target.decoder.normed(states[:, -1]).unsqueeze(1)
                parts.append(torch.cat([states[:, :-1], final], 1))
            yield
        whole = torch.cat([part.clone() for part in parts])  # no inference tensors any more
        kept.states, kept.final = whole[:, :-1], whole[:, -1]

    def _measured(self, windows: Iterable[Window]) -> Steps:
        """Mean acceptance of the module as it is, in passes of a step each."""
        accepted = tokens = 0.0
        for window in windows:
            found = measure(self._trainee, iter([window.batch()]))
            if found.positions:
                accepted += found.positions[0] * found.tokens
                tokens += found.tokens
            yield
        return accepted / max(tokens, 1.0)

    def _back_off(self) -> None:
        self._restore()
        self._wanted = min(2 * self._wanted, _LONGEST_WAIT * self._config.every)

    def _restore(self) -> None:
        """The weights in service, without the momentum that led away from them."""
        module = self._trainee.module
        module.load_state_dict(self._good)
        module.train().zero_grad(set_to_none=True)
        self._optimizers = Optimizers(module, "adamw", self._config.lr)

    def _weights(self) -> Weights:
        state = self._trainee.module.state_dict()
        return {name: value.detach().clone() for name, value in state.items()}


def _card(report: LearningReport) -> dict[str, str]:
    return {
        "title": "A draft that learnt in service",
        "Data": "Replies of the target to its users' requests, with their consent",
        "Figures": f"{report.updates} updates in {report.rounds} rounds, of which {report.improved} "
        f"went into service; held-out acceptance after the last: {report.after or 0.0:.3f}",
        "Made with": "specstream, learning in service",
    }
