"""Checks, when the engine is built, that a target can verify trees."""

from __future__ import annotations

import torch
from torch import Tensor

from specstream.checks import first_line
from specstream.errors import ModelUnsupported
from specstream.model.agreement import off_by, rounding, trial_tokens
from specstream.model.forward import ForwardInput
from specstream.model.runner import ModelRunner
from specstream.model.tree import Tree

__all__ = ["check_trees"]

_TREE, _PROMPT = Tree((-1, -1, 0, 1, 1)), 3


@torch.inference_mode()
def check_trees(runner: ModelRunner) -> None:
    """Run a small tree and compare each node's logits with those of its path read as a plain text.

    Raises:
        ModelUnsupported: passes have a fixed width, or the model's logits differ because it treats
            positions or masks in another way (relative biases, sliding windows).
    """
    if runner.fixed_width is not None:
        # Attention sums a tree's path in another order than a chain: the last bits would differ.
        raise ModelUnsupported(
            "reproducible mode verifies chains only; choose a proposer of chains"
        )
    cause: Exception | None = None
    try:
        why = _trouble(runner)
    except Exception as error:  # a model's own code may fail on a mask that it doesn't expect
        why, cause = first_line(error), error
    finally:
        runner.forwards = 0
    if why:
        name = type(runner.model).__name__
        raise ModelUnsupported(
            f"{name} can't verify trees ({why}); choose a proposer of chains"
        ) from cause


def _trouble(runner: ModelRunner) -> str:
    """Why the model can't verify trees; empty if nothing is wrong."""
    if not runner.lean and _windowed(runner):
        return "its attention sees a sliding window of the text only"
    off = _difference(runner)
    # Quantised products round about as coarsely as bfloat16, whatever the dtype of the states.
    dtype = torch.bfloat16 if runner.quantised else runner.dtype
    fits = off <= rounding(dtype)
    return "" if fits else f"its positions or masks work in another way; off by {off:.2g}"


def _windowed(runner: ModelRunner) -> bool:
    """Whether any layer attends to a window of the text. A tree's mask doesn't know of windows."""
    text = runner.model.config.get_text_config()
    types = getattr(text, "layer_types", None) or getattr(text, "attention_layers", None)
    if types:  # the second is GPT-Neo's
        return any(one not in ("full_attention", "global") for one in types)
    window = getattr(text, "sliding_window", None)
    return window is not None and getattr(text, "use_sliding_window", True)


def _difference(runner: ModelRunner) -> float:
    """The largest difference of a small tree's logits from its paths', see `off_by`."""
    cache, size = runner.new_cache(), len(_TREE.parents)
    tokens = trial_tokens(_PROMPT + size, runner.model_vocab_size, runner.device)
    (found,) = runner.forward([ForwardInput(tokens, cache, 1 + size, _TREE)]).logits
    wanted = list[Tensor]()
    for path in _TREE.paths:
        cache.rollback_to(0)
        ids = tokens[[*range(_PROMPT), *(_PROMPT + step for step in path)]]
        wanted += runner.forward([ForwardInput(ids, cache)]).logits
    return off_by(found[1:], torch.cat(wanted))
