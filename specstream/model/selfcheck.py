"""Checks of a loaded model: does a token's row depend on what else is in its pass?

Native code's don't depend on it at any width. Other kernels sum in an order that depends on the shapes
and, at some widths, on a row's place in the pass. For them a fixed width is found by trial, on the
model, dtype, device and thread count that will be used.

Some quantisation schemes choose one scale for all tokens of a pass. A token's distribution in a
verification pass then differs from that in a pass of its own, and the streamed text follows neither.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import cycle

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specstream.checks import first_line
from specstream.config import EngineConfig
from specstream.errors import ConfigError, ModelBroken, ModelError, ModelUnsupported, SpecstreamError
from specstream.model.forward import ForwardInput
from specstream.model.graphs import batches_up_to
from specstream.model.layers import ROUNDED
from specstream.model.numerics import off_by, rounding, trial_tokens
from specstream.model.runner import ModelRunner
from specstream.model.tree import Tree

__all__ = [
    "check_decoding",
    "check_trees",
    "check_widths",
    "find_fixed_width",
    "ordinary_ids",
    "read_in_parts",
    "rows_alike",
    "warm_up",
]

_MOST_S = 1.0  # seconds after which no further optional shape is begun
_WIDEST = 128  # tokens of a sequence, on a GPU: more than that are read by one kernel


@torch.inference_mode()
def warm_up(runner: ModelRunner, most: int = 1) -> None:
    """Run passes with the shapes of a prompt and of a round once.

    With packed matrices also run passes of the other numbers of rows that have their own kernels, for
    about a second. On a GPU also run eager passes of up to ``most`` sequences.
    """
    began, cache = time.perf_counter(), runner.new_cache()
    needed = [runner.fixed_width] if runner.fixed_width else [16, 5, 1]
    useful: list[int] = []
    if runner.lean and runner.decoder.packed and not runner.fixed_width:
        useful = [width for width in ROUNDED if width <= runner.context_length]
    for number, width in enumerate(needed + useful):
        if number >= len(needed) and time.perf_counter() - began > _MOST_S:
            break
        tokens = torch.zeros(width, dtype=torch.int64, device=runner.device)
        runner.forward([ForwardInput(tokens, cache)])
        cache.rollback_to(0)
    if runner.device.type == "cuda" and runner.lean and not runner.fixed_width:
        _run_eagerly(runner, most)
    runner.forwards = 0


def _run_eagerly(runner: ModelRunner, most: int) -> None:
    """Run a pass for each size of tile and each number of programs that share a sequence's keys.

    Triton compiles a kernel for each, which would stop running conversations for a second; later starts
    find it on the disk.
    """
    caches = [runner.new_cache() for _ in range(most)]
    widths = (1 << n for n in range(_WIDEST.bit_length()))
    for width in (width for width in widths if width <= runner.context_length):
        for batch in batches_up_to(most):
            count = min(batch, most)
            tokens = torch.zeros(width, dtype=torch.int64, device=runner.device)
            runner.decoder([ForwardInput(tokens, cache) for cache in caches[:count]])
            for cache in caches[:count]:
                cache.rollback_to(0)


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
        raise ModelUnsupported("reproducible mode verifies chains only; choose a proposer of chains")
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


_WIDTHS = (8, 16, 32, 64)
_PATTERNS = ((1,), (5, 3), (2, 7, 1))

_TOKENS, _READ = 12, 4  # tokens compared; tokens read per wider pass, with as many behind them
# Largest allowed mean total variation: between passes of one width with other neighbouring tokens, which
# change nothing if each token is computed independently; and between passes of different widths, whose
# kernels round in other ways (0.02 for unquantised models in bfloat16).
_BY_NEIGHBOURS, _BY_WIDTHS = 0.005, 0.06


def find_fixed_width(model: PreTrainedModel, config: EngineConfig) -> int:
    """Return the smallest pass width at which a token has the same logits, bit for bit, in every row.

    Raises:
        ConfigError: no width passes the trial; the reproducible mode doesn't work on this device.
    """
    for width in _WIDTHS:
        runner = ModelRunner(model, fixed_width=width, context_length=config.context_length)
        same, total = rows_alike(runner, tokens=2 * width)
        if same == total:
            return width
    other = "bfloat16" if model.dtype is torch.float32 else "float32"
    raise ConfigError(
        f"the reproducible mode doesn't work here: at no pass width of {_WIDTHS} are this model's "
        f"logits in {model.dtype} the same to the last bit; try dtype {other}, or another device"
    )


@torch.inference_mode()
def rows_alike(runner: ModelRunner, tokens: int) -> tuple[int, int]:
    """Return how many of ``tokens`` rows of logits are bitwise equal in every grouping, and ``tokens``.

    A random text is read in full passes, then in passes of a few of its tokens followed by random ones,
    which are rolled back like rejected drafts.
    """
    width = runner.fixed_width or _WIDTHS[0]
    generator, high = torch.Generator().manual_seed(0), _vocabulary(runner)
    text = torch.randint(high, (tokens,), generator=generator).to(runner.device)
    junk = torch.randint(high, (width // 2,), generator=generator).to(runner.device)
    wanted = read_in_parts(runner, text, (width,), junk)
    same = torch.ones(tokens, dtype=torch.bool, device=runner.device)
    for pattern in _PATTERNS:
        same &= (read_in_parts(runner, text, pattern, junk) == wanted).all(-1)
    return int(same.sum()), tokens


@torch.inference_mode()
def check_widths(
    name: str, runner: ModelRunner, tokenizer: PreTrainedTokenizerBase, scheme: str
) -> None:
    """Compare next-token distributions of a few tokens, each alone and with others in wider passes.

    Args:
        name: The model's name, for errors.
        runner: Runs the quantised model.
        tokenizer: The model's.
        scheme: The scheme's name, for errors.

    Raises:
        ModelUnsupported: the distributions differ by more than rounding.
    """
    device, count = runner.device, runner.model_vocab_size
    ids = torch.tensor(ordinary_ids(tokenizer, count, _TOKENS), device=device)

    def distributions(size: int, behind: Tensor) -> Tensor:
        return read_in_parts(runner, ids, [size], behind).float().softmax(-1)

    def variation(found: Tensor) -> float:
        return float((found - wide).abs().sum(-1).mean()) / 2

    wide = distributions(_READ, ids[:_READ])
    others = trial_tokens(_READ, _vocabulary(runner), device)
    by_neighbours = variation(distributions(_READ, others))
    by_widths = variation(distributions(1, ids[:0]))
    if by_neighbours > _BY_NEIGHBOURS or by_widths > _BY_WIDTHS:
        raise ModelUnsupported(
            f"{name}: with weights in {scheme}, a token's distribution depends on what else is in its "
            f"pass (by {max(by_neighbours, by_widths):.2g} in total variation), so verified text would "
            "not be the model's; choose another scheme, or allow it by --allow-width-dependent "
            "(allow_width_dependent in a config)"
        )


def _vocabulary(runner: ModelRunner) -> int:
    """The number of tokens that the model both reads and gives logits of."""
    return min(runner.vocab_size, runner.model_vocab_size)
