"""Trains Medusa heads; the target stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.heads.medusa_format import MedusaShape
from specstream.model.runner import ModelRunner
from specstream.train.eagle import frequent_tokens
from specstream.train.folders import read_written, write_head
from specstream.train.loss import distance
from specstream.train.settings import settings_of, whole
from specstream.train.trainee import Batch, Losses

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specstream.train.options import TrainOptions

__all__ = ["MedusaModule", "MedusaTrainee", "trainee"]

_LARGE, _PRUNED = 16384, 8192  # a larger vocabulary is pruned to so many tokens
_MOST = 32  # heads, and blocks of each

_DECAY = 0.8  # weight of each further head against the one before
_SLICE = 512  # rows of the target's logits that are in memory at once


def trainee(
    target: ModelRunner, tokenizer: PreTrainedTokenizerBase, options: TrainOptions
) -> MedusaTrainee:
    """New heads, or those of ``options.init``.

    Settings: ``heads`` (4), ``layers`` of each (1), ``vocabulary``: how many tokens can be drafted, the
    most frequent of the replies (0: all; by default 8192 where the target has more than 16384).

    Raises:
        ConfigError: a setting that can't be.
        ModelError: the target gives no hidden states, or ``options.init`` doesn't fit.
    """
    size = target.decoder.weights.vocab_size
    counts = whole(1, _MOST)
    given = settings_of(options, {"heads": counts, "layers": counts, "vocabulary": whole(0, size)})
    if options.init is None:
        kept = given.pop("vocabulary", _PRUNED if size > _LARGE else 0)
        return MedusaTrainee(target, prune=kept % size, **given)
    before = read_written(options.init, MedusaTrainee.kind, target)
    hidden = target.decoder.weights.hidden
    shape = MedusaShape.of(before.config, hidden=hidden, vocab_size=size)
    heads = before.config.get("num_heads")
    if type(heads) is not int or not shape.shared or "lm_head.weight" in before:
        raise ModelUnsupported(
            f"--init {options.init} has output heads of its own: only folders that train medusa wrote "
            "are trained further"
        )
    pruned, vocabulary = shape.draft_vocab_size, None
    if "token_map" in before:
        vocabulary = before.tensor("token_map", pruned).long()
    made = MedusaTrainee(target, heads=heads, layers=shape.layers, vocabulary=vocabulary)
    before.into(made.module)
    return made


class MedusaModule(nn.Module):
    """The residual blocks of all heads; the arithmetic of `MedusaHead`.

    They begin as zeros: each head says what the target's own would.

    Args:
        hidden: Size of the states.
        heads: How many.
        layers: Blocks of each.
    """

    def __init__(self, hidden: int, heads: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {"layers": nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))}
            )
            for _ in range(heads)
        )
        for weight in self.parameters():
            nn.init.zeros_(weight)

    def forward(self, final: Tensor, head: int) -> Tensor:
        """``[n, hidden]`` behind the final norm to the same shape, by one head."""
        block = self.blocks[head]
        assert isinstance(block, nn.ModuleDict)
        layers = block["layers"]
        assert isinstance(layers, nn.ModuleList)
        for layer in layers:
            final = final + F.silu(layer(final))
        return final


class MedusaTrainee:
    """Medusa heads over the target's own output head; a `Trainee`.

    Args:
        target: Its output head is used, and stays as it is.
        heads: How many.
        layers: Residual blocks of each.
        vocabulary: Ids of the tokens that can be drafted, ascending; None: all.
        prune: How many of the tokens can be drafted, once `choose` has told which; 0: as ``vocabulary``.

    Raises:
        ConfigError: no head, or no block.
        ModelUnsupported: the target gives no hidden states.
    """

    kind = "medusa"
    depths: tuple[int, ...] = ()

    def __init__(
        self,
        target: ModelRunner,
        *,
        heads: int = 4,
        layers: int = 1,
        vocabulary: Tensor | None = None,
        prune: int = 0,
    ) -> None:
        if not (1 <= heads <= _MOST and 1 <= layers <= _MOST):
            raise ConfigError(f"{heads} Medusa heads of {layers} blocks: 1 to 32 of each")
        sizes = target.decoder.weights
        target.check_states((len(sizes.layers),))
        self.heads = heads
        self._head = sizes.head.detach().float()
        self.chooses = prune > 0
        if prune:
            vocabulary = torch.arange(prune, device=sizes.device)  # until `choose`
        self.vocabulary = vocabulary
        self._rows = self._head if vocabulary is None else self._head[vocabulary]
        size = self._rows.shape[0]
        self.shape = MedusaShape(sizes.hidden, sizes.vocab_size, size, layers, shared=True)
        self.module: MedusaModule = MedusaModule(sizes.hidden, heads, layers).to(sizes.device)

    def choose(self, counts: Tensor) -> None:
        """See `ChoosesTokens.choose`."""
        if self.vocabulary is not None:
            found = frequent_tokens(counts, len(self.vocabulary))
            self.vocabulary = found.to(self._head.device)
            self._rows = self._head[self.vocabulary]

    def losses(self, batch: Batch, *, acceptance: float) -> Losses:
        """See `Trainee.losses`; one entry of ``accepted`` for each head.

        A state counts where the token that it gave is the reply's, as in service. With gradients the
        target's probabilities are those among the tokens that can be drafted; without, they are exact.
        """
        wanted = batch.replies & batch.present
        length = wanted.shape[1]
        given = wanted[:, 1:]  # [b, t]: token t + 1 is the reply's
        log_p, row_of = self._target(batch.final[:, :-1], given)
        total, weight = batch.final.new_zeros((), dtype=torch.float32), 0.0
        accepted, counted = list[float](), list[int]()
        reached = given.clone()
        for head in range(self.heads):
            ahead = head + 1
            reached = reached[:, : max(length - 1 - ahead, 0)] & given[:, ahead:]
            count = int(reached.sum())
            accepted.append(0.0)
            counted.append(count)
            if not count:
                continue
            states = batch.final[:, : reached.shape[1]][reached].float()
            logits = F.linear(self.module(states, head), self._rows)
            rows = row_of[:, ahead : ahead + reached.shape[1]][reached]
            loss, overlap = distance(logits, log_p[rows], acceptance)
            total = total + _DECAY**head * loss.sum()
            weight += _DECAY**head * count
            accepted[-1] = float(overlap.sum())
        return Losses(total / max(weight, 1.0), accepted, counted)

    def _target(self, final: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Its log probabilities of what can be drafted, ``[n, size]``; the row of each position."""
        exact = not torch.is_grad_enabled() and self.vocabulary is not None
        parts = [self._rows.new_zeros(0, self._rows.shape[0])]
        with torch.no_grad():
            for some in final[wanted].float().split(_SLICE):  # type: ignore[no-untyped-call]
                if exact:
                    whole = F.linear(some, self._head).log_softmax(-1)
                    parts.append(whole[:, self.vocabulary])
                else:
                    parts.append(F.linear(some, self._rows).log_softmax(-1))
            row_of = wanted.flatten().cumsum(0).view(wanted.shape) - 1
        return torch.cat(parts), row_of

    def save(self, folder: Path, card: Mapping[str, str]) -> None:
        """See `Trainee.save`: bfloat16, vLLM's layout without output heads, which are the target's."""
        more = dict[str, Tensor]()
        if self.vocabulary is not None:
            more["token_map"] = self.vocabulary.to("cpu", torch.int64)
        config = self.shape.config(self.heads)
        write_head(folder, "Medusa heads", self.module, config, card, more=more)
