"""The training loop: steps, checkpoints, measurements. It writes no file but the checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import zip_longest

import torch

from specstream.errors import OutputError
from specstream.train.batches import Batches, Position
from specstream.train.files import read_tensors, write_tensors
from specstream.train.optim import Optimizers, acceptance_weight, rate
from specstream.train.options import TrainOptions
from specstream.train.trainee import Batch, Losses, Trainee, Unrolls

__all__ = ["Loop", "Measured", "Progress", "add_gradients", "measure"]

_MEASURED = 20  # most measurements of held-out acceptance in a training
_MEASURING = 0.1  # largest share of the time that is spent on measuring


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
class Progress:
    """What a checkpoint holds besides weights and optimisers.

    Attributes:
        step: Steps taken.
        seconds: Seconds spent on steps and measurements, without checkpoints.
        position: Where the next batch lies in the data.
        tokens: Tokens of all steps' batches, prompts included, padding not.
        padding: Their padding, in tokens.
        measuring: Seconds spent on measurements.
        curve: Of each measurement: step, seconds and held-out acceptance rate at the first position.
    """

    step: int = 0
    seconds: float = 0.0
    position: Position = field(default_factory=Position)
    tokens: int = 0
    padding: int = 0
    measuring: float = 0.0
    curve: list[tuple[int, float, float]] = field(default_factory=list)


@dataclass
class Loop:
    """One training, which can be stopped at any step and resumed.

    Attributes:
        trainee: The draft or head to train.
        options: The options of the training.
        batches: The source of training batches.
        held: Returns a fresh iterator over the held-out batches.
        budget: The length in seconds of steps and measurements, if ``options.steps`` is None.
        progress: How far the training has come.
    """

    trainee: Trainee
    options: TrainOptions
    batches: Batches
    held: Callable[[], Iterator[Batch]]
    budget: float
    progress: Progress = field(default_factory=Progress, init=False)

    def __post_init__(self) -> None:
        options = self.options
        self._checkpoint = options.work / "checkpoint.pt"
        self._optimizers = Optimizers(self.trainee.module, options.optimizer, options.lr)

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
        self.trainee.module.load_state_dict(saved["module"])
        self._optimizers.load(saved["optimizers"])
        torch.set_rng_state(saved["rng"])
        kept = saved["state"]
        self.progress = Progress(**kept | {"position": Position(*kept["position"])})

    def save(self) -> None:
        """Write the checkpoint atomically.

        Raises:
            OutputError: the checkpoint can't be written; the previous one is kept.
        """
        write_tensors(
            self._checkpoint,
            {
                "module": self.trainee.module.state_dict(),
                "optimizers": self._optimizers.state(),
                "rng": torch.get_rng_state(),
                "state": asdict(self.progress) | {"position": tuple(self.progress.position)},
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
        now, saved = self.progress, time.perf_counter()
        module, batches = self.trainee.module.train(), self.batches.endless(now.position)
        done = self._done()
        if not now.curve:
            self._measure()
        while done < 1.0:
            if stop():
                self.save()
                return False
            began = time.perf_counter()
            position, batch = next(batches)
            if isinstance(self.trainee, Unrolls):
                self.trainee.unroll(done)
            made = add_gradients(self.trainee, batch, acceptance_weight(done))
            self._optimizers.step(rate(done, now.step))
            now.step, now.position = now.step + 1, position
            now.tokens += batch.tokens
            now.padding += batch.token_ids.numel() - batch.tokens
            now.seconds += time.perf_counter() - began
            before, done = done, self._done()
            tell(min(done, 1.0), float(made.loss.detach()), now.curve[-1][2])
            due = int(before * _MEASURED) < int(done * _MEASURED)
            if due and now.measuring <= _MEASURING * now.seconds:
                self._measure()
            if time.perf_counter() - saved >= self.options.checkpoint_s:
                self.save()
                saved = time.perf_counter()
        module.eval()
        self.save()
        return True

    def _done(self) -> float:
        """Return the part of the training that is done, 1 or more at its end."""
        if self.options.steps is not None:
            return self.progress.step / self.options.steps
        return self.progress.seconds / self.budget if self.budget > 0 else 1.0

    def _measure(self) -> None:
        began = time.perf_counter()
        found = measure(self.trainee, self.held())
        self.progress.measuring += (took := time.perf_counter() - began)
        self.progress.seconds += took
        first = found.positions[0] if found.positions else 0.0
        self.progress.curve.append((self.progress.step, self.progress.seconds, first))


def add_gradients(trainee: Trainee, batch: Batch, acceptance: float) -> Losses:
    """Add a batch's gradients to the weights'; a batch of short texts may have nothing to predict."""
    made = trainee.losses(batch, acceptance=acceptance)
    if any(made.counted):
        made.loss.backward()  # type: ignore[no-untyped-call]
    return made


@torch.no_grad()
def measure(trainee: Trainee, batches: Iterator[Batch]) -> Measured:
    """Measure acceptance on held-out replies; the state of torch's generator is restored after it."""
    training, rng = trainee.module.training, torch.get_rng_state()
    trainee.module.eval()
    accepted: list[float] = []
    counted: list[float] = []
    for batch in batches:
        made = trainee.losses(batch, acceptance=0.0)
        accepted = [a + b for a, b in zip_longest(accepted, made.accepted, fillvalue=0.0)]
        counted = [a + b for a, b in zip_longest(counted, made.counted, fillvalue=0.0)]
    trainee.module.train(training)
    torch.set_rng_state(rng)
    pairs = [(a, n) for a, n in zip(accepted, counted, strict=True) if n > 0]
    return Measured(tuple(a / n for a, n in pairs), counted[0] if counted else 0.0)
