"""The options of a training, and what can be trained, by the names of drafting methods."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specstream.checks import meant
from specstream.config import DEFAULT_TARGET
from specstream.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specstream.model.runner import ModelRunner
    from specstream.training.trainee import Trainee

__all__ = ["KINDS", "SETTINGS", "TrainOptions", "check_settings", "size_of", "trainee_of"]

_SIZE = re.compile(r"(\d+)x(\d+)")
_OPTIMIZERS = ("auto", "muon", "adamw")
_MOST_THREADS = 1024  # as in `EngineConfig`
_MOST_SEED = 1 << 32  # torch's generators take 64 bits, and each reply has a seed of its own


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Options of one training; a stopped training is resumed by the same options with the same ``out``.

    Attributes:
        kind: The kind of draft or head, a key of `specstream.training.options.KINDS`.
        out: The folder to make. Beside it, ``<out>.training`` holds what resuming needs.
        target: The model to draft for: a folder, a pulled model's name, a GGUF file or a Hub id.
        data: Prompts as JSON lines, or plain text; see `specstream.training.replies`.
        eval: Held-out prompts, in the same formats; None: a part of ``data`` is held out.
        replies: A folder of replies with hidden states that were written before; see
            `specstream.training.store`. ``data`` is then not needed.
        init: A folder made by this trainer for the same target, whose training is continued.
        minutes: Wall-clock limit of writing replies and training together.
        steps: Number of training steps, instead of a time limit; the result is then a function of the
            options and the replies alone.
        tokens: Number of reply tokens to write; None: as many as a part of ``minutes`` allows.
        max_reply: Maximum tokens of a reply.
        longest: Maximum tokens of a training sequence; longer ones are cut into pieces.
        batch_tokens: Maximum tokens of a training step; None: by the size of the vocabulary.
        learn_prompts: Whether losses are taken on prompts too, not on replies alone.
        size: Layers x width of ``draft``, such as ``"2x192"``; empty: about a tenth of the target.
        optimizer: ``"auto"`` or ``"muon"`` (matrices; AdamW for the rest), or ``"adamw"``.
        lr: Peak learning rate; None: the optimiser's default.
        settings: Settings of the method, by name, as texts.
        seed: Seed of the weights, of the replies' sampling and of the order of the data.
        threads: CPU threads; None: all cores but one.
        device: The device of target and trainee.
        dtype: The target's dtype.
        checkpoint_s: Seconds between checkpoints.
        force: Whether to replace an existing ``out``, and to remove an ``<out>.training`` of other
            options.
        keep: Whether replies and checkpoint stay in ``<out>.training`` when the training is done.
    """

    kind: str
    out: Path
    target: str = DEFAULT_TARGET
    data: Path | None = None
    eval: Path | None = None
    replies: Path | None = None
    init: Path | None = None
    minutes: float = 15.0
    steps: int | None = None
    tokens: int | None = None
    max_reply: int = 256
    longest: int = 512
    batch_tokens: int | None = None
    learn_prompts: bool = True
    size: str = ""
    optimizer: str = "auto"
    lr: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    threads: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    checkpoint_s: float = 30.0
    force: bool = False
    keep: bool = False

    def __post_init__(self) -> None:
        if self.data is None and self.replies is None:
            raise ConfigError("training needs --data (prompts or text) or --replies (a folder)")
        if self.optimizer not in _OPTIMIZERS:
            raise ConfigError(f"unknown optimizer {self.optimizer!r}: {', '.join(_OPTIMIZERS)}")
        if not abs(self.seed) < _MOST_SEED:
            raise ConfigError(f"--seed must be below {_MOST_SEED}, not {self.seed}")
        if self.threads is not None and self.threads > _MOST_THREADS:
            raise ConfigError(f"--threads must be at most {_MOST_THREADS}, not {self.threads}")
        for name, least in (
            ("minutes", 0.0),
            ("steps", 0),
            ("tokens", 0),
            ("max_reply", 1),
            ("longest", 7),
            ("batch_tokens", 7),
            ("lr", 0.0),
            ("threads", 0),
        ):
            value = getattr(self, name)
            if value is not None and not value > least:
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} must be more than {least:g}, not {value:g}")

    @property
    def work(self) -> Path:
        """The folder of all that is needed to resume a stopped training."""
        return self.out.with_name(self.out.name + ".training")

    def identity(self) -> dict[str, Any]:
        """Return the options that must be equal for a stopped training to be resumed, as JSON data."""
        given = asdict(self)
        for name in ("out", "threads", "checkpoint_s", "force", "keep", "device", "minutes"):
            del given[name]
        paths = {k: str(v.resolve()) for k, v in given.items() if isinstance(v, Path)}
        return given | paths | {"settings": dict(self.settings)}


def size_of(size: str) -> tuple[int, int]:
    """Read layers and width of a draft, as in ``"2x192"``.

    Raises:
        ConfigError: it is malformed, has no layer, or a width that isn't a multiple of 8.
    """
    if (match := _SIZE.fullmatch(size)) is None:
        raise ConfigError(f"--size {size!r} is not layers x width, such as 2x192")
    layers, width = int(match[1]), int(match[2])
    if not width or width % 8 or layers < 1:
        raise ConfigError(f"--size {size}: the width must be a multiple of 8, and layers at least 1")
    return layers, width


KINDS = {
    "block": "specstream.training.block",
    "draft": "specstream.training.draft",
    "eagle": "specstream.training.eagle",
    "early-exit": "specstream.training.research.early_exit",
    "medusa": "specstream.training.research.medusa",
    "streaming": "specstream.training.research.streaming",
}
"""What can be trained → the module with ``trainee(target, tokenizer, options) -> Trainee``.

The function initialises weights with torch's global generator, which is seeded before, or from the
folder ``options.init``, which it refuses if it was made for another target.
"""


SETTINGS: dict[str, tuple[str, ...]] = {
    "block": ("anchors", "block_size", "decay", "depths", "layers", "mask_token_id"),
    "draft": (),
    "eagle": (
        *("depths", "fc_norm", "kv_heads", "norm_before_fc", "norm_before_residual", "norm_output"),
        *("own_head", "places", "steps", "vocabulary"),
    ),
    "early-exit": ("layers", "width"),
    "medusa": ("heads", "layers", "vocabulary"),
    "streaming": ("places", "rank", "stream_layers", "streams"),
}
"""The names of each kind's settings (``--set``), which are checked before anything is loaded."""


def check_settings(options: TrainOptions) -> None:
    """Refuse settings, and a size, that this kind doesn't have.

    Raises:
        ConfigError: it has none of that name.
    """
    if options.kind not in KINDS:
        raise ConfigError(f"{options.kind!r} can't be trained; there are: {', '.join(KINDS)}")
    if options.size and options.kind != "draft":
        raise ConfigError(f"--size is an option of train draft, not of train {options.kind}")
    known = SETTINGS[options.kind]
    for name in options.settings:
        if name not in known:
            there = f"{meant(name, known)}; there are: {', '.join(known)}" if known else ""
            raise ConfigError(f"train {options.kind} has no setting {name!r}{there}")


def trainee_of(
    target: ModelRunner, tokenizer: PreTrainedTokenizerBase, options: TrainOptions
) -> Trainee:
    """Make the trainee of ``options.kind``.

    Raises:
        ConfigError: an unknown kind, or a setting that this kind doesn't have.
        ModelError: the kind can't be trained for this target, or ``options.init`` belongs to another.
    """
    if options.kind not in KINDS:
        raise ConfigError(f"{options.kind!r} can't be trained; there are: {', '.join(KINDS)}")
    module = importlib.import_module(KINDS[options.kind])
    made: Trainee = module.trainee(target, tokenizer, options)
    return made
