"""The training loop with its optimisers (Muon, AdamW): steps, checkpoints, measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from specstream.errors import OutputError
from specstream.training.batches import Batches, Position
from specstream.training.files import read_tensors, write_tensors
from specstream.training.options import TrainOptions
from specstream.training.trainee import Losses, Trainee, TrainingBatch, Unrolls

__all__ = [
    "Loop",
    "Measured",
    "Muon",
    "Optimizers",
    "TrainingProgress",
    "acceptance_weight",
    "add_gradients",
    "measure",
    "orthogonal",
    "rate",
]

_QUINTIC = (3.4445, -4.7750, 2.0315)  # coefficients of the iteration (Jordan et al. 2024)
_ITERATIONS = 5
_RMS = 0.2  # root mean square of an update before the learning rate, as AdamW's (arXiv 2502.16982)


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum with decoupled weight decay (Jordan et al. 2024, "Muon").

    The rule is that of ``torch.optim.Muon`` with ``match_rms_adamw``, which always iterates in bfloat16:
    on a CPU without bfloat16 products a step of a head with a hidden size of 576 took 22 s there, and
    takes .5 s here, in float32.

    Args:
        parameters: The matrices to optimise.
        lr: Learning rate; elements of an update have a root mean square of about .2 times this.
        momentum: Decay of the gradients' running mean.
        weight_decay: Share of the weights that a step takes away, before multiplication by ``lr``.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.02,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update of every parameter that has a gradient; ``closure`` isn't called."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight.grad)
                mean: Tensor = state["momentum_buffer"].lerp_(weight.grad, 1.0 - momentum)
                update = orthogonal(weight.grad.lerp(mean, momentum))
                weight.mul_(1.0 - lr * group["weight_decay"])
                weight.add_(update, alpha=-lr * _RMS * max(weight.shape) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Approximate U V^T of the singular value decomposition U S V^T; singular values are .7 to 1.2.

    Args:
        matrix: ``[rows, columns]``. The computation is in float32 on a CPU, in bfloat16 elsewhere.
    """
    a, b, c = _QUINTIC
    x = matrix.to(torch.float32 if matrix.device.type == "cpu" else torch.bfloat16)
    if tall := x.shape[0] > x.shape[1]:
        x = x.T
    x = x / x.norm().clamp_min(1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)


_DEFAULT_LR = {"muon": 4e-3, "adamw": 2e-3}
_CLIP = 1.0  # largest norm of all gradients together


def rate(done: float, step: int) -> float:
    """Return the learning rate's factor: 30 steps of warm-up, constant, from half on falling to .02."""
    warm = min(1.0, (step + 1) / 30)
    return warm * (1.0 if done < 0.5 else max(0.02, 2.0 * (1.0 - done)))


def acceptance_weight(done: float) -> float:
    """Return the weight of the acceptance loss: 0 up to .3 of the training, then rising to .7."""
    return min(0.7, max(0.0, (done - 0.3) * 1.5))


class Optimizers:
    """Muon (Jordan et al. 2024) for matrices and AdamW for the rest, or AdamW for all.

    Args:
        module: The module whose trainable parameters are optimised.
        kind: ``"muon"`` or ``"auto"``: both; ``"adamw"``: AdamW alone.
        lr: Peak learning rate; None: the optimiser's default.
    """

    def __init__(self, module: nn.Module, kind: str, lr: float | None) -> None:
        kind = "adamw" if kind == "adamw" else "muon"
        self._lr = _DEFAULT_LR[kind] if lr is None else lr
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        self._parameters = [p for _, p in named]
        matrices = [p for n, p in named if kind == "muon" and _is_matrix(n, p)]
        chosen = {id(p) for p in matrices}
        rest = [p for p in self._parameters if id(p) not in chosen]
        self._each: list[torch.optim.Optimizer] = []
        if matrices:
            self._each.append(Muon(matrices, lr=self._lr))
        if rest:
            self._each.append(torch.optim.AdamW(rest, lr=self._lr, betas=(0.9, 0.95), weight_decay=0.0))

    def step(self, factor: float) -> None:
        """Clip the gradients, take one step at ``factor`` times the peak rate, clear the gradients."""
        nn.utils.clip_grad_norm_(self._parameters, _CLIP)
        for one in self._each:
            for group in one.param_groups:
                group["lr"] = self._lr * factor
            one.step()
            one.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Any]:
        """Return the state of all optimisers, for a checkpoint."""
        return {str(i): one.state_dict() for i, one in enumerate(self._each)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        for i, one in enumerate(self._each):
            one.load_state_dict(state[str(i)])


def _is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon applies: to matrices, except embeddings and output heads (tables of vectors)."""
    return parameter.ndim == 2 and not any(part in name for part in ("embed", "head"))


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
class TrainingProgress:
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
    held: Callable[[], Iterator[TrainingBatch]]
    budget: float
    progress: TrainingProgress = field(default_factory=TrainingProgress, init=False)

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
        self.progress = TrainingProgress(**kept | {"position": Position(*kept["position"])})

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


def add_gradients(trainee: Trainee, batch: TrainingBatch, acceptance: float) -> Losses:
    """Add a batch's gradients to the weights'; a batch of short texts may have nothing to predict."""
    made = trainee.losses(batch, acceptance=acceptance)
    if any(made.counted):
        made.loss.backward()  # type: ignore[no-untyped-call]
    return made


@torch.no_grad()
def measure(trainee: Trainee, batches: Iterator[TrainingBatch]) -> Measured:
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
