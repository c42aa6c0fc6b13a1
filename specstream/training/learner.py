"""Trains a draft on finished replies, which it keeps, in small steps on the engine's thread."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from specstream.config import LearningConfig
from specstream.model.forward import Extras, ForwardInput
from specstream.model.numerics import to_device
from specstream.model.runner import ModelRunner
from specstream.training.batches import collate
from specstream.training.files import new_folder, tell_acceptance
from specstream.training.loop import Optimizers, acceptance_weight, add_gradients, measure, rate
from specstream.training.store import StoredReply
from specstream.training.trainee import Trainee, TrainingBatch

__all__ = ["Buffer", "Kept", "Learner", "LearningReport", "Served"]

_HELD = 4  # every fourth reply is held out to measure acceptance


@dataclass(slots=True, eq=False)
class Kept:
    """A prompt and the target's reply to it.

    Attributes:
        ids: Token ids of prompt and reply; too long a prompt is cut at its beginning.
        prompt: How many of ``ids`` belong to the prompt.
        held: Whether the reply is held out: measured, but never learnt from.
        states: ``[T, depths, hidden]``: the target's hidden states of all tokens, the last depth being
            its number of layers; None until the target has read the reply for learning.
    """

    ids: list[int]
    prompt: int
    held: bool
    states: Tensor | None = None

    def windows(self, width: int) -> Iterator[StoredReply]:
        """Yield windows of at most ``width`` tokens that together predict each reply token once.

        What a window doesn't predict counts as its prompt. The reply's states must be there.
        """
        assert self.states is not None
        whole, first = StoredReply(torch.tensor(self.ids), self.prompt, self.states), self.prompt
        while first < len(self.ids):
            start = max(0, first - width // 2)
            end = min(len(self.ids), start + width)
            yield replace(whole.window(start, end), prompt=first - start)
            first = end


class Buffer:
    """The latest replies, without duplicates, so that no reply is both learnt from and held out.

    Args:
        replies: Maximum number of replies.
        tokens: Maximum number of tokens of all replies, prompts included.
        longest: Maximum number of tokens of one prompt and reply, counted from their end.
    """

    def __init__(self, replies: int, tokens: int, longest: int) -> None:
        self._replies, self._tokens, self._longest = replies, tokens, longest
        self._kept: deque[Kept] = deque()
        self._added = 0
        self.tokens = 0

    def add(self, ids: Sequence[int], prompt: int) -> bool:
        """Keep a reply; return False if it is empty or kept already. ``prompt``: prompt tokens."""
        cut = max(0, len(ids) - self._longest)
        own, prompt = list(ids[cut:]), max(1, prompt - cut)
        if prompt >= len(own) or any(kept.ids == own for kept in self._kept):
            return False
        self._added += 1
        self._kept.append(Kept(own, prompt, held=self._added % _HELD == 0))
        self.tokens += len(own)
        while self.tokens > self._tokens or len(self._kept) > self._replies:
            self.tokens -= len(self._kept.popleft().ids)
        return True

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept)


_log = logging.getLogger("specstream.engine")
_NARROWEST = 64  # tokens of a pass, at least
_LONGEST_WAIT = 16  # a round after failed ones waits for at most so many times `every` replies
_OVER = object()

Steps = Generator[None, None, float]
Weights = Mapping[str, Tensor]


class Served(Protocol):
    """The draft or head with which the engine drafts."""

    def adopt(self, weights: Weights) -> None:
        """Copy these weights and draft with them from now on; called between two rounds.

        Args:
            weights: The state dict of the trainee's module.
        """
        ...


@dataclass(slots=True)
class LearningReport:
    """What learning in service has done so far.

    Attributes:
        replies: Replies in memory at present, of which every fourth is held out.
        tokens: Tokens in memory at present, prompts included.
        rounds: Learning rounds that were begun.
        improved: Rounds whose weights went into service.
        rolled_back: Rounds whose weights were dropped since held-out acceptance had fallen.
        broken: Rounds that ended with an exception; their weights were dropped, too.
        updates: Updates of the weights, over all rounds.
        steps: Small steps, over all rounds.
        longest_step_ms: Duration of the longest step.
        before: Held-out acceptance rate (mean of sum min(p, q)) when the last completed round began.
        after: The rate at the end of that round, with the weights that were then in service.
        says: The outcome of the last round, in words.
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
    """Keeps replies, trains the draft on them step by step, and puts better weights into service.

    In a round the target computes the hidden states of new replies; the draft is measured on held-out
    replies, trained on the others and measured again. If its acceptance rate is not lower, its weights
    go into service; otherwise the last good weights are restored, and the next round waits for twice as
    many replies. At the start of a round, the weights as loaded go back into service if they do better
    on the replies held out at that time.

    Args:
        config: Bounds and rates.
        target: The model whose distribution is learnt.
        trainee: A copy of the draft, to be trained.
        served: The draft in service.
        clock: A clock in seconds.

    Attributes:
        buffer: The replies that are kept.
        width: The most tokens of a pass.
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
        self._extras = Extras((*trainee.depths, len(target.decoder.weights.layers)))
        target.check_states(self._extras.depths)
        self.buffer = Buffer(config.max_replies, config.max_tokens, config.longest)
        self._new, self._wanted, self.width = 0, config.every, config.step_tokens
        self._work: Generator[None, None, None] | None = None
        self._times = list[float]()  # milliseconds of the current round's steps
        self._report = LearningReport()
        self._first = self._good = self._weights()
        self._restore()

    @property
    def report(self) -> LearningReport:
        """A copy of the report, with the present sizes of the buffer."""
        return replace(self._report, replies=len(self.buffer), tokens=self.buffer.tokens)

    def keep(self, token_ids: Sequence[int], prompt_length: int) -> None:
        """Keep a copy of a finished reply: ``prompt_length`` tokens of a prompt, then the reply."""
        self._new += self.buffer.add(token_ids, prompt_length)

    def step(self) -> bool:
        """Take one small step; return False if there is nothing to learn at present.

        An exception ends the round and drops its weights; it is logged and not propagated.
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
        """Halve the next round's passes if a quarter of the steps took too long; or lengthen them again.

        A single long step may be the machine's fault; short passes have little context to learn from.
        """
        slow, limit = sorted(self._times)[len(self._times) * 3 // 4], self._config.step_ms
        if slow > limit:
            self.width = max(_NARROWEST, self.width // 2)
        elif slow < limit / 4:
            self.width = min(self._config.step_tokens, self.width * 2)
        self._times.clear()

    def close(self) -> None:
        """End learning; write improved weights to the configured folder, if any. Raises nothing."""
        self._work, out, after = None, self._config.out, self._report.after
        if out is None:
            return
        if self._good is self._first or after is None:
            _log.info("learning: no better weights were found, so %s isn't written", out)
            return
        try:
            self._restore()
            with new_folder(Path(out)) as folder:
                self._trainee.save(folder, _card(self._report))
                tell_acceptance(folder, [after])
        except Exception as error:
            _log.error("the improved draft can't be written to %s: %s", out, error)

    def _round(self) -> Generator[None, None, None]:
        replies = list(self.buffer)
        for kept in replies:
            if kept.states is None:
                yield from self._read(kept)
        held = [w for kept in replies if kept.held for w in kept.windows(self.width)]
        lessons = [w for kept in replies if not kept.held for w in kept.windows(self.width)]
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
            lesson = self._batch(lessons[number % len(lessons)])
            add_gradients(self._trainee, lesson, acceptance_weight(1.0))
            yield
            self._optimizers.step(rate(number / total, self._report.updates))
            self._report.updates += 1
            yield
        after = yield from self._measured(held)
        yield from self._judged(before, after)

    def _judged(self, before: float, after: float) -> Generator[None, None, None]:
        """Put the new weights into service, or restore the last good ones if acceptance fell."""
        figures = f"held-out acceptance {before:.3f} before and {after:.3f} after it"
        if not after >= before:  # also for NaN
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

    def _compared(self, held: Sequence[StoredReply], before: float) -> Steps:
        """Put the loaded weights back if they beat those in service; return the better acceptance."""
        self._trainee.module.load_state_dict(self._first)
        yield
        first = yield from self._measured(held)
        if first <= before:
            self._trainee.module.load_state_dict(self._good)
            yield
            return before
        said = "learning: the weights as loaded are back, better on the latest replies (%.3f, not %.3f)"
        _log.warning(said, first, before)
        self._good = self._first
        self._restore()
        self._served.adopt(self._good)
        yield
        return first

    def _read(self, kept: Kept) -> Generator[None, None, None]:
        """Compute the target's hidden states of a reply, one pass per step."""
        cache, parts = self._target.new_cache(), list[Tensor]()
        for start in range(0, len(kept.ids), self.width):
            with torch.inference_mode():
                ids = to_device(kept.ids[start : start + self.width], self._target.device)
                item = ForwardInput(ids, cache)
                parts += self._target.forward([item], self._extras).states
            yield
        # Cloned outside of inference mode, since autograd doesn't take inference tensors.
        kept.states = torch.cat([part.clone() for part in parts])

    def _batch(self, window: StoredReply) -> TrainingBatch:
        target = self._target
        return collate([window], target.decoder.normed, target.dtype, target.device)

    def _measured(self, windows: Iterable[StoredReply]) -> Steps:
        """Return the mean acceptance rate of the trainee's present weights, one pass per step."""
        accepted = tokens = 0.0
        for window in windows:
            found = measure(self._trainee, iter([self._batch(window)]))
            if found.positions:
                accepted += found.positions[0] * found.tokens
                tokens += found.tokens
            yield
        return accepted / max(tokens, 1.0)

    def _back_off(self) -> None:
        self._restore()
        self._wanted = min(2 * self._wanted, _LONGEST_WAIT * self._config.every)

    def _restore(self) -> None:
        """Load the weights in service into the trainee and reset the optimiser's momentum."""
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
