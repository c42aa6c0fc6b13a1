"""Tries a loaded model, to refuse one that can't be decoded with a cache before the first request."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specstream.errors import ModelBroken, ModelError, ModelUnsupported, SpecstreamError
from specstream.model.forward import ForwardInput
from specstream.model.places import first_line
from specstream.model.runner import ModelRunner

__all__ = ["check_decoding", "ordinary_ids"]

_TEXT = "In 1969 two people walked on the moon, and the others watched."
_FIRST, _ALL = 6, 11  # number of tokens in the first part, and of all
# Largest allowed relative difference of logits. In float32; in half precision between passes of the same
# shape; in half precision between passes of different shapes.
_EXACT, _SAME_SHAPE, _ROUNDED = 1e-3, 0.01, 0.1
# For quantised models, where the tokens of a pass may share a scale. Targets get the stricter
# `check_widths` in addition.
_COARSE = 0.5


@torch.inference_mode()
def check_decoding(name: str, runner: ModelRunner, tokenizer: PreTrainedTokenizerBase) -> None:
    """Compare logits of a few tokens: read at once, read with other tokens behind, and read in parts.

    The logits differ if a later token changes an earlier token's logits, or if the model keeps state
    beyond the keys and values in its cache.

    Args:
        name: The model's name, for errors.
        runner: Runs the model. With a `Decoder`, which was compared with the model when it was made,
            only the check for NaN is left.
        tokenizer: The model's.

    Raises:
        ModelUnsupported: this model can't be decoded with a cache.
        ModelBroken: a token's logits contain NaN, or none of them is finite.
        ModelError: the model doesn't fit into the device's memory.
    """
    ids = torch.tensor(ordinary_ids(tokenizer, runner.model_vocab_size, _ALL), device=runner.device)
    try:
        why = _find_trouble(name, runner, ids)
    except SpecstreamError:
        raise
    except torch.OutOfMemoryError as error:
        raise ModelError(f"{name} doesn't fit into the device's memory") from error
    except Exception as error:
        raise _unsupported(name, runner, f"it broke: {first_line(error)}") from error
    if why:
        raise _unsupported(name, runner, why)


def _unsupported(name: str, runner: ModelRunner, why: str) -> ModelUnsupported:
    return ModelUnsupported(
        f"{name}: {type(runner.model).__name__} can't be decoded token by token with a cache ({why}); "
        "choose a decoder-only model whose layers are all attention"
    )


def _find_trouble(name: str, runner: ModelRunner, ids: Tensor) -> str:
    """Why the model can't be decoded with a cache; empty if nothing is wrong."""
    whole = _whole(runner, ids)
    if not bool((whole.isfinite().any(-1) & ~whole.isnan().any(-1)).all()):
        dtype = str(runner.dtype).removeprefix("torch.")
        raise ModelBroken(
            f"{name}: its logits are not numbers: the weights are damaged, or too large for {dtype}"
        )
    if runner.lean:
        return ""
    coarse = getattr(runner.model, "hf_quantizer", None) is not None
    exact = runner.dtype == torch.float32 and not coarse
    same_shape = _COARSE if coarse else _EXACT if exact else _SAME_SHAPE
    rounded = _COARSE if coarse else _EXACT if exact else _ROUNDED
    changed = torch.cat([ids[:_FIRST], ids[0].expand(_ALL - _FIRST)])
    off = _distance(_whole(runner, changed)[:_FIRST], whole[:_FIRST], exact=exact)
    if off > same_shape:
        return f"later tokens change the logits of earlier ones, by {off:.2g} of their size"
    parts, kept = _in_parts(runner, ids)
    if not kept:
        return "it doesn't keep its state in the cache that it is given"
    # A runner cuts or pads rows to the target's vocabulary.
    width = min(parts.shape[1], whole.shape[1])
    off = _distance(parts[:, :width], whole[:, :width], exact=exact)
    if off > rounded:
        return f"tokens that come one after another have other logits, by {off:.2g} of their size"
    return ""


def _whole(runner: ModelRunner, ids: Tensor) -> Tensor:
    """Logits of ``ids`` read in one pass of the model's own forward, without a cache."""
    logits: Tensor = runner.model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0]
    return logits.float()


def _in_parts(runner: ModelRunner, ids: Tensor) -> tuple[Tensor, bool]:
    """Logits of ``ids`` read in three parts, and whether the cache grew as it should.

    Two junk tokens follow each part and are rolled back. Without growth the logits are empty.
    """
    cache, rows, at = runner.new_cache(), [], 0
    for count in (_FIRST, 1, _ALL - _FIRST - 1):
        tokens = torch.cat([ids[at : at + count], ids[:2]])
        (found,) = runner.forward([ForwardInput(tokens, cache, keep=count + 2)]).logits
        if cache.length != at + count + 2:
            return found[:0], False
        at += count
        cache.rollback_to(at)
        rows.append(found[:count])
    return torch.cat(rows).float(), True


def ordinary_ids(tokenizer: PreTrainedTokenizerBase, rows: int, count: int) -> list[int]:
    """Return ``count`` ids of a repeated short text, without special ids and ids >= ``rows``."""
    special = set(tokenizer.all_special_ids)
    said = tokenizer.encode(_TEXT, add_special_tokens=False)
    usual = [int(i) for i in said if i < rows and i not in special] or list(range(rows))
    return (usual * count)[:count]


def _distance(found: Tensor, wanted: Tensor, *, exact: bool) -> float:
    """Norm of a row's difference, relative to the norm of the centred wanted row.

    If ``exact``, that of the worst row. Else the median over the first part or over the rest, whichever
    is worse: in a mixture of experts, rounding sends single tokens to other experts where scores nearly
    tie.
    """
    finite = wanted.isfinite()
    wanted, found = wanted.where(finite, 0.0), found.where(finite, 0.0)
    size = (wanted - wanted.mean(-1, keepdim=True)).norm(dim=-1).clamp_min(1e-6)
    off = (found - wanted).norm(dim=-1) / size
    if exact:
        return float(off.amax())
    return max(float(part.quantile(0.5)) for part in off.split(_FIRST))
