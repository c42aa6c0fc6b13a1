"""Tries a loaded model, to refuse one that can't be decoded with a cache before the first request."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specstream.checks import first_line
from specstream.errors import ModelBroken, ModelError, ModelUnsupported, SpecstreamError
from specstream.model.forward import ForwardInput
from specstream.model.runner import ModelRunner

__all__ = ["check_decoding", "ordinary_ids", "read_in_parts"]

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
    cause: Exception | None = None
    try:
        why = _find_trouble(name, runner, ids)
    except SpecstreamError:
        raise
    except torch.OutOfMemoryError as error:
        raise ModelError(f"{name} doesn't fit into the device's memory") from error
    except Exception as error:
        why, cause = f"it broke: {first_line(error)}", error
    if why:
        raise ModelUnsupported(
            f"{name}: {type(runner.model).__name__} can't be decoded token by token with a cache "
            f"({why}); choose a decoder-only model whose layers are all attention"
        ) from cause


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
    parts = read_in_parts(runner, ids, (_FIRST, 1, _ALL - _FIRST - 1), ids[:2]).float()
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


def read_in_parts(runner: ModelRunner, ids: Tensor, sizes: Iterable[int], behind: Tensor) -> Tensor:
    """Logits ``[n, V]`` of ``ids [n]``, read in passes whose sizes cycle through ``sizes``.

    Each pass also reads the tokens ``behind``, as many as fit into a fixed width; they are rolled back.

    Raises:
        RuntimeError: the cache doesn't grow by the tokens that a pass reads.
    """
    cache, rows, turns = runner.new_cache(), list[Tensor](), cycle(sizes)
    while (at := cache.length) < ids.shape[0]:
        part = ids[at : at + next(turns)]
        tokens = torch.cat([part, behind])[: runner.fixed_width]
        (logits,) = runner.forward([ForwardInput(tokens, cache, keep=tokens.shape[0])]).logits
        if cache.length != at + tokens.shape[0]:
            raise RuntimeError("it doesn't keep its state in the cache that it is given")
        cache.rollback_to(at + part.shape[0])
        rows.append(logits[: part.shape[0]])
    return torch.cat(rows)


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
