"""The folders of a training, and what is told at its end: acceptance, and speed on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel

from specstream.bench.costs import pass_cost
from specstream.config import EngineConfig
from specstream.drafting.proposers.auto import AutoProposer
from specstream.engine.build import build_engine
from specstream.errors import ConfigError, OutputError, SpecstreamError
from specstream.methods import AutoProposerConfig
from specstream.training.files import new_folder, read_json, write_json
from specstream.training.inputs import PLAN
from specstream.training.loop import Measured, TrainingProgress
from specstream.training.options import TrainOptions

__all__ = [
    "Speed",
    "Trained",
    "as_json",
    "expected_speed",
    "facts_of",
    "locked",
    "open_work",
    "output_folder",
    "predict",
    "table_of",
]

_WIDTHS = (1, 2, 5, 9)  # tokens of the target passes whose times are used


@dataclass(frozen=True, slots=True)
class Speed:
    """A predicted speedup.

    Attributes:
        drafts: The best number of drafted tokens per round; 0: drafting doesn't pay.
        speedup: The speedup over plain decoding with that number.
        target_ms: Milliseconds of a target pass over one token.
        draft_ms: Milliseconds of a draft pass.
    """

    drafts: int
    speedup: float
    target_ms: float
    draft_ms: float


def expected_speed(
    positions: Sequence[float], passes: dict[int, float], draft_ms: float, *, whole: bool
) -> Speed:
    """Find the number of drafts that is fastest at these costs; formula: `specstream.bench.costs`.

    Args:
        positions: Acceptance rate by position, given that all drafts before were accepted.
        passes: Milliseconds of a target pass, by its number of tokens; 1 must be among them.
        draft_ms: Milliseconds of a draft pass.
        whole: Whether one draft pass gives all tokens of a round, instead of one token.
    """
    plain = passes[1]
    c, v = draft_ms / plain, {width: ms / plain for width, ms in passes.items()}
    best, reached, expected = (0, 1.0), 1.0, 1.0
    for drafts, accepted in enumerate(positions, 1):
        reached *= accepted
        expected += reached
        speedup = expected / (c * (1 if whole else drafts) + pass_cost(v, drafts + 1))
        if speedup > best[1]:
            best = (drafts, speedup)
    return Speed(*best, plain, draft_ms)


def predict(folder: Path, kind: str, positions: Sequence[float], config: EngineConfig) -> Speed | str:
    """Load the pair as ``--draft`` does and predict its speedup by timed passes; or return why not."""
    pair = {"draft": str(folder), "proposer": AutoProposerConfig()}
    try:
        core = build_engine(config.model_copy(update=pair))
    except SpecstreamError as error:
        return str(error)
    auto = core.proposer
    if not isinstance(auto, AutoProposer) or (candidate := auto.candidate(kind)) is None:
        return f"the passes of {kind} can't be timed by themselves"
    widths = {width: auto.costs.verify(width) for width in _WIDTHS}
    step_ms = auto.costs.draft(kind).step
    return expected_speed(positions, widths, step_ms, whole=candidate.passes == "one")


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training.

    Attributes:
        folder: The folder of the trained draft or head.
        kind: The kind of draft or head, a key of `specstream.training.options.KINDS`.
        held: Held-out acceptance rates after the last step.
        speed: The predicted speedup on this machine, or why there is no prediction.
        progress: Steps, tokens and seconds of the training, and its measurements.
        reply_tokens: Tokens of the replies in the training data, as far as the trainer wrote them.
    """

    folder: Path
    kind: str
    held: Measured
    speed: Speed | str
    progress: TrainingProgress
    reply_tokens: int

    @property
    def before(self) -> float:
        """Held-out acceptance rate at the first position before the first step."""
        return self.progress.curve[0][2]


def table_of(trained: Trained) -> Iterator[str]:
    """Yield lines of text: acceptance by position, mean acceptance length, predicted speedup."""
    held, now = trained.held, trained.progress
    yield f"{trained.folder}: {trained.kind}, {now.step} steps on {now.tokens} tokens"
    yield f"acceptance rate by draft position, {held.tokens:.0f} held-out tokens, temperature 1:"
    yield "  position    " + " ".join(f"{k:5}" for k in range(1, len(held.positions) + 1))
    yield "  acceptance  " + " ".join(f"{one:5.3f}" for one in held.positions)
    yield f"acceptance rate before the training, at position 1: {trained.before:.3f}"
    yield f"mean acceptance length {held.length:.2f} with {len(held.positions)} drafts a round"
    speed = trained.speed
    if not isinstance(speed, Speed):
        yield f"no prediction of the speedup: {speed}"
    else:
        best = f"{speed.speedup:.2f}x with {speed.drafts} drafts a round" if speed.drafts else "none"
        yield (
            f"predicted speedup here: {best} (a target pass takes {speed.target_ms:.1f} ms, a draft "
            f"pass {speed.draft_ms:.1f} ms)"
        )


def as_json(trained: Trained) -> dict[str, Any]:
    """Return the figures as JSON data."""
    speed, held, now = trained.speed, trained.held, trained.progress
    names = [one.name for one in fields(Speed)]
    return {
        "folder": str(trained.folder),
        "kind": trained.kind,
        "acceptance": list(held.positions),
        "acceptance_before": trained.before,
        "mean_acceptance_length": held.length,
        "held_out_tokens": held.tokens,
        **(asdict(speed) if isinstance(speed, Speed) else dict.fromkeys(names)),
        "steps": now.step,
        "tokens": now.tokens,
        "reply_tokens": trained.reply_tokens,
        "seconds": now.seconds,
        "padding": 1 - now.tokens / max(1, now.tokens + now.padding),
        "curve": [list(one) for one in now.curve],
    }


@contextmanager
def locked(options: TrainOptions) -> Iterator[None]:
    """Keep other trainings out of the same work folder while the block runs.

    Raises:
        ConfigError: another training, here or in another process, is using the folder.
        OutputError: the lock's file, beside the folder, can't be made.
    """
    path = options.work.with_name(f"{options.work.name}.lock")
    lock = FileLock(path, timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise ConfigError(
            f"another training is using {options.work}: wait for its end, or choose another --out"
        ) from None
    except OSError as error:
        raise OutputError(f"{path} can't be made: {error.strerror or error}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def open_work(options: TrainOptions, plan: Mapping[str, Any]) -> None:
    """Make the work folder, or accept the one that an earlier run of the same options left.

    Raises:
        ConfigError: the folder is of a run with other options, and ``force`` isn't given.
        OutputError: the folder can't be made or written.
    """
    try:
        before = read_json(options.work / PLAN)
    except OutputError:
        if not options.force:
            raise
        before = {}  # damaged, so nothing can go on from it
    if before is not None:
        differ = sorted(k for k in plan.keys() | before.keys() if plan.get(k) != before.get(k))
        if not differ:
            return
        if not options.force:
            raise ConfigError(
                f"{options.work} is of a training with other options ({', '.join(differ)}): give those "
                "again to go on with it, choose another --out, or --force to start anew"
            )
        shutil.rmtree(options.work)
    try:
        options.work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{options.work} can't be made: {error.strerror or error}") from error
    write_json(options.work / PLAN, plan)


@contextmanager
def output_folder(options: TrainOptions) -> Iterator[Path]:
    """Yield an empty folder, which becomes the output; then remove the work folder.

    Raises:
        OutputError: the folder can't be written; the checkpoint is kept.
    """
    try:
        with new_folder(options.out, replace=options.force) as folder:
            yield folder
    except (OSError, OutputError, SafetensorError) as error:
        raise OutputError(
            f"{options.out} can't be written: {error}; the training is kept in "
            f"{options.work}: the same command goes on from there"
        ) from error
    if not options.keep:
        shutil.rmtree(options.work, ignore_errors=True)


def facts_of(
    options: TrainOptions, target: PreTrainedModel, module: nn.Module, result: Trained
) -> dict[str, str]:
    """Return the facts for the model card, title to text."""
    now = result.progress
    weights = sum(p.numel() for p in module.parameters())
    positions = " ".join(f"{one:.3f}" for one in result.held.positions)
    return {
        "title": f"{options.kind} for {options.target}",
        "Target": f"{type(target).__name__}, {options.target}",
        "Weights": f"{weights / 1e6:.2f} million trained parameters",
        "Data": f"{result.reply_tokens} tokens of the target's replies to the prompts of "
        f"{options.data or options.replies}; {now.tokens} tokens were learnt in {now.step} steps",
        "Figures": f"Acceptance by draft position on {result.held.tokens:.0f} tokens of held-out "
        f"replies sampled at temperature 1: {positions}; mean "
        f"acceptance length {result.held.length:.2f}",
        "Licence": "The weights were learnt from the target's replies to these prompts: its "
        "licence and that of the prompts decide how they may be used.",
        "Made with": f"specstream train {options.kind}",
    }
