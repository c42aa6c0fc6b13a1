"""The training loop: steps, checkpoints, measurements. It writes no file but the checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from specstream.errors import OutputError
from specstream.train.batches import Batches, Position
from specstream.train.files import read_tensors, write_tensors
from specstream.train.optim import Optimizers, acceptance_weight, rate
from specstream.train.trainee import Batch, Trainee, Unrolls

__all__ = ["Budget", "Loop", "Measured", "measure"]

_MEASURED = 20  # most measurements of held-out acceptance in a training
_MEASURING = 0.1  # largest share of the time that is spent on measuring


@dataclass(frozen=True, slots=True)
class Budget:
    """The length of a training: a number of steps or, with ``steps=None``, seconds of steps."""

    steps: int | None
    seconds: float

    def done(self, step: int, seconds: float) -> float:
        """Return the part of the training that is done, 1 or more at its end."""
        if self.steps is not None:
            return step / self.steps
        return seconds / self.seconds if self.seconds > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Acceptance rates on held-out replies.

    Attributes:
        positions: By draft position, the rate given that all drafts before it were accepted.
        tokens: How many tokens, or which weight, the first position was measured on.
    """

    positions: tuple[float, ...]
    tokens: float

    @property
    def length(self) -> float:
        """Mean acceptance length: tokens per round (with the target's) if all positions are drafted."""
        reached, total = 1.0, 1.0
        for one in self.positions:
            reached *= one
            total += reached
        return total


@dataclass(slots=True)
class _State:
    step: int = 0
    seconds: float = 0.0
    position: Position = field(default_factory=Position)
    tokens: int = 0
    measuring: float = 0.0
    curve: list[tuple[int, float, float]] = field(default_factory=list)


class Loop:
    """One training, which can be stopped at any step and resumed.

    Args:
        trainee: The draft or head to train.
        optimizers: The trainee's optimisers.
        batches: The source of training batches.
        held: Returns a fresh iterator over the held-out batches.
        budget: The length of the training.
        checkpoint: The checkpoint's path.
        every: Seconds between checkpoints.
    """

    def __init__(
        self,
        trainee: Trainee,
        optimizers: Optimizers,
        batches: Batches,
        held: Callable[[], Iterator[Batch]],
        budget: Budget,
        checkpoint: Path,
        every: float,
    ) -> None:
        self._trainee, self._optimizers, self._batches = trainee, optimizers, batches
        self._held, self._budget, self._checkpoint = held, budget, checkpoint
        self._every, self._state = every, _State()

    @property
    def step(self) -> int:
        """Steps taken."""
        return self._state.step

    @property
    def tokens(self) -> int:
        """Tokens of all steps' batches, prompts included, padding not."""
        return self._state.tokens

    @property
    def seconds(self) -> float:
        """Seconds spent on steps and measurements, without checkpoints."""
        return self._state.seconds

    @property
    def curve(self) -> list[tuple[int, float, float]]:
        """Of each measurement: step, seconds and held-out acceptance rate at the first position."""
        return list(self._state.curve)

    def resume(self) -> None:
        """Restore the state of the checkpoint, if there is one.

        Raises:
            OutputError: the checkpoint is damaged.
        """
        if not self._checkpoint.exists():
            return
        try:
            saved = read_tensors(self._checkpoint)
        except OutputError as error:
            raise OutputError(
                f"{error}; remove this file to begin the steps again with the replies that were written"
            ) from error
        self._trainee.module.load_state_dict(saved["module"])
        self._optimizers.load(saved["optimizers"])
        torch.set_rng_state(saved["rng"])
        kept = saved["state"]
        self._state = _State(
            kept["step"], kept["seconds"], Position(*kept["position"]), kept["tokens"],
            kept["measuring"], [(step, at, value) for step, at, value in kept["curve"]],
        )  # fmt: skip

    def save(self) -> None:
        """Write the checkpoint atomically.

        Raises:
            OutputError: the checkpoint can't be written; the previous one is kept.
        """
        now, at = self._state, self._state.position
        state: dict[str, Any] = {
            "step": now.step,
            "seconds": now.seconds,
            "position": (at.epoch, at.block, at.batch),
            "tokens": now.tokens,
            "measuring": now.measuring,
            "curve": now.curve,
        }
        write_tensors(
            self._checkpoint,
            {
                "module": self._trainee.module.state_dict(),
                "optimizers": self._optimizers.state(),
                "rng": torch.get_rng_state(),
                "state": state,
            },
        )

    def run(self, tell: Callable[[float, float, float], None], stop: Callable[[], bool]) -> bool:
        """Train until the budget is used and write the checkpoint; return False if stopped before.

        Args:
            tell: Called after each step with the part that is done (0 to 1), the step's loss and the
                last held-out acceptance rate.
            stop: Called before each step; True stops the training.

        Raises:
            OutputError: the checkpoint can't be written.
        """
        now, saved = self._state, time.perf_counter()
        module, batches = self._trainee.module.train(), self._batches.endless(now.position)
        done = self._budget.done(now.step, now.seconds)
        if not now.curve:
            self._measure()
        while done < 1.0:
            if stop():
                self.save()
                return False
            began = time.perf_counter()
            position, batch = next(batches)
            if isinstance(self._trainee, Unrolls):
                self._trainee.unroll(done)
            made = self._trainee.losses(batch, acceptance=acceptance_weight(done))
            if any(made.counted):  # a batch of short texts may have nothing to predict
                made.loss.backward()  # type: ignore[no-untyped-call]
                self._optimizers.step(rate(done, now.step))
            now.step, now.position = now.step + 1, position
            now.tokens += int(batch.present.sum())
            now.seconds += time.perf_counter() - began
            before, done = done, self._budget.done(now.step, now.seconds)
            tell(min(done, 1.0), float(made.loss.detach()), now.curve[-1][2])
            due = int(before * _MEASURED) < int(done * _MEASURED)
            if due and now.measuring <= _MEASURING * now.seconds:
                self._measure()
            if time.perf_counter() - saved >= self._every:
                self.save()
                saved = time.perf_counter()
        module.eval()
        self.save()
        return True

    def _measure(self) -> None:
        began = time.perf_counter()
        found = measure(self._trainee, self._held())
        self._state.measuring += (took := time.perf_counter() - began)
        self._state.seconds += took
        first = found.positions[0] if found.positions else 0.0
        self._state.curve.append((self._state.step, self._state.seconds, first))


@torch.no_grad()
def measure(trainee: Trainee, batches: Iterator[Batch]) -> Measured:
    """Measure acceptance on held-out replies; the state of torch's generator is restored after it."""
    training, rng = trainee.module.training, torch.get_rng_state()
    trainee.module.eval()
    accepted: list[float] = []
    counted: list[float] = []
    for batch in batches:
        made = trainee.losses(batch, acceptance=0.0)
        missing = len(made.accepted) - len(accepted)
        accepted += [0.0] * missing
        counted += [0.0] * missing
        for k, (a, n) in enumerate(zip(made.accepted, made.counted, strict=True)):
            accepted[k] += a
            counted[k] += n
    trainee.module.train(training)
    torch.set_rng_state(rng)
    pairs = [(a, n) for a, n in zip(accepted, counted, strict=True) if n > 0]
    return Measured(tuple(a / n for a, n in pairs), counted[0] if counted else 0.0)
