"""Losses of a draft's distribution against the target's, and the settings that heads share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.runner import ModelRunner
from specstream.training.options import SETTINGS, TrainOptions, check_settings
from specstream.training.trainee import Losses, TrainingBatch

__all__ = [
    "depths",
    "distance",
    "flag",
    "joined",
    "layers_of",
    "losses_at",
    "number",
    "positive",
    "random_places",
    "settings_of",
    "whole",
]

Reader = Callable[[str], Any]


def settings_of(
    options: TrainOptions, known: Mapping[str, Reader], *, kept: Collection[str] = ()
) -> dict[str, Any]:
    """Parse the settings of ``options``.

    Args:
        options: The options of the training.
        known: By name, a setting's parser, which raises ValueError with the values that are allowed.
        kept: Names of settings that are allowed with ``--init``, whose folder fixes the others.

    Raises:
        ConfigError: an unknown setting, an invalid value, or an option of other kinds.
    """
    assert sorted(known) == sorted(SETTINGS[options.kind])
    check_settings(options)
    found: dict[str, Any] = {}
    for name, text in options.settings.items():
        if options.init is not None and name not in kept:
            raise ConfigError(f"--set {name}={text}: the folder of --init decides this")
        try:
            found[name] = known[name](text)
        except ValueError as error:
            raise ConfigError(f"--set {name}={text}: {error}") from None
    return found


def _reader(parse: Reader, fits: Callable[[Any], bool], says: str) -> Reader:
    """Return a parser of the values that fit, which ``says`` describes."""

    def read(text: str) -> Any:
        try:
            value = parse(text)
        except (ValueError, KeyError):
            value = None
        if value is None or not fits(value):
            raise ValueError(f"it must be {says}")
        return value

    return read


def whole(least: int, most: int) -> Reader:
    """Return a parser of whole numbers from ``least`` to ``most``."""
    return _reader(int, range(least, most + 1).__contains__, f"a whole number from {least} to {most}")


def number(*allowed: int) -> Reader:
    """Return a parser of numbers that takes only those ``allowed``."""
    return _reader(int, allowed.__contains__, f"one of {', '.join(map(str, allowed))}")


def depths(most: int) -> Reader:
    """Return a parser of different numbers of layers from 1 to ``most``, separated by commas."""

    def fits(found: tuple[int, ...]) -> bool:
        return all(1 <= one <= most for one in found) and len(set(found)) == len(found)

    says = f"different numbers of layers from 1 to {most}, as in 1,2"
    return _reader(lambda text: tuple(map(int, text.split(","))), fits, says)


positive = _reader(float, lambda value: 0.0 < value < float("inf"), "a number above 0")
"""Parses a finite number above 0."""

flag = _reader(
    lambda text: {"true": True, "false": False}[text.lower()], lambda value: True, "true or false"
)
"""Parses ``true`` or ``false``."""


def layers_of(target: ModelRunner, what: str) -> int:
    """Return the target's number of layers.

    Raises:
        ModelUnsupported: it has fewer than two, and ``what`` begins or ends between two.
    """
    count = len(target.decoder.weights.layers)
    if count < 2:
        raise ModelUnsupported(f"{what} needs a target of two layers at least")
    return count


_FLOOR = 1e-6  # least acceptance in the logarithm, which keeps it finite


def distance(draft_logits: Tensor, target_log_p: Tensor, acceptance: float) -> tuple[Tensor, Tensor]:
    """Return loss ``[n]`` and acceptance probability ``[n]`` (no gradient) of n draft distributions.

    The loss is a weighted sum of KL(p || q) and of the likelihood-of-acceptance loss -log sum min(p, q),
    which training minimises in expectation (LK losses, arXiv 2602.23881).

    Args:
        draft_logits: ``[n, V]`` over the draft's vocabulary.
        target_log_p: ``[n, V]``: the target's log probabilities of the same tokens, whose sum may be
            below 1 where the draft's vocabulary is a part of the target's. No gradient flows into them.
        acceptance: Weight of the acceptance loss, from 0 to 1.
    """
    log_q, log_p = draft_logits.float().log_softmax(-1), target_log_p.detach().float()
    p = log_p.exp()
    overlap = torch.minimum(p, log_q.exp()).sum(-1)
    loss = torch.zeros_like(overlap)
    if acceptance < 1.0:
        loss = loss + (1.0 - acceptance) * (p * (log_p - log_q)).sum(-1)
    if acceptance > 0.0:
        loss = loss - acceptance * overlap.clamp_min(_FLOOR).log()
    return loss, overlap.detach()


def joined(parts: Sequence[tuple[Tensor, Tensor]], decay: float) -> Losses:
    """Join results of `distance` by draft position; each weighs ``decay`` times the one before."""
    total, weight = torch.zeros(()), 0.0
    for position, (loss, _) in enumerate(parts):
        total = total + decay**position * loss.sum()
        weight += decay**position * loss.shape[0]
    accepted = [float(overlap.sum()) for _, overlap in parts]
    counted = [float(len(overlap)) for _, overlap in parts]
    return Losses(total / max(weight, 1.0), accepted, counted)


def random_places(able: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Choose up to ``most`` random True positions in each row of ``able [b, t]`` bool.

    Returns positions ``[b, n]`` and a mask ``[b, n]``, which is False for padding.
    """
    if not able.any():  # return one position of padding: the texts are too short
        nothing = torch.zeros(len(able), 1, dtype=torch.int64, device=able.device)
        return nothing, nothing.bool()
    scores = torch.rand(able.shape, device=able.device).masked_fill_(~able, -1.0)
    count = min(most, int(able.sum(1).max()))
    chosen, places = scores.topk(count, 1)
    return places, chosen >= 0.0


def losses_at(
    first: Tensor,
    real: Tensor,
    out: Tensor,
    batch: TrainingBatch,
    head: Tensor,
    weights: Tensor,
    acceptance: float,
) -> Losses:
    """Compute the losses of k drafted tokens at each of n places of a sequence.

    A token counts only if it and all drafted ones before it belong to the reply.

    Args:
        first: ``[b, n]``: at each place, the position of the first token that is drafted.
        real: ``[b, n]`` bool: False for padding.
        out: ``[b, n, k, hidden]``: inputs of the output head for the drafted tokens.
        batch: The sequences.
        head: ``[V, hidden]`` float32: the target's output head.
        weights: ``[k]``: weight of the loss by draft position.
        acceptance: See `distance`.
    """
    wanted, count = batch.replies, out.shape[2]
    length, device = wanted.shape[1], wanted.device
    drafted = torch.arange(count, device=device)
    positions = first.unsqueeze(-1) + drafted
    inside = positions.clamp_max(length - 1)
    each = torch.arange(wanted.shape[0], device=device)[:, None, None]
    valid = real.unsqueeze(-1) & (positions < length) & wanted[each, inside]
    valid = valid.long().cumprod(-1).bool()
    with torch.no_grad():
        final = batch.final[each, inside - 1][valid].float()
        log_p = F.linear(final, head).log_softmax(-1)
    loss, overlap = distance(F.linear(out[valid], head), log_p, acceptance)
    at = drafted.expand(valid.shape)[valid]
    shares = weights[at]
    total = (shares * loss).sum() / shares.sum().clamp_min(1e-6)
    sums = torch.zeros(count, device=device).index_add_(0, at, overlap)
    return Losses(total, sums.tolist(), at.bincount(minlength=count).tolist())
