"""What can be trained, by the names of drafting methods."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from specstream.checks import meant
from specstream.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specstream.model.runner import ModelRunner
    from specstream.train.options import TrainOptions
    from specstream.train.trainee import Trainee

__all__ = ["KINDS", "SETTINGS", "check_settings", "trainee_of"]

KINDS = ("block", "draft", "eagle", "early-exit", "medusa", "streaming")
"""What can be trained: each has a module here with ``trainee(target, tokenizer, options) -> Trainee``.

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
    module = importlib.import_module(f"specstream.train.{options.kind.replace('-', '_')}")
    made: Trainee = module.trainee(target, tokenizer, options)
    return made
