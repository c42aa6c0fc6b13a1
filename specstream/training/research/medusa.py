"""Trains Medusa heads for a frozen target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specstream.errors import ModelUnsupported
from specstream.model.heads.research.medusa import MedusaShape
from specstream.model.runner import ModelRunner
from specstream.training.batches import DraftVocabulary, pruned_size
from specstream.training.files import read_written, write_head
from specstream.training.loss import distance, joined, settings_of, whole
from specstream.training.trainee import Losses, TrainingBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specstream.training.options import TrainOptions

__all__ = ["MedusaModule", "MedusaTrainee", "trainee"]

_MOST = 32  # largest number of heads, and of residual blocks in each
_DECAY = 0.8  # weight of each further head relative to the one before


def trainee(
    target: ModelRunner, tokenizer: PreTrainedTokenizerBase, options: TrainOptions
) -> MedusaTrainee:
    """Make new heads, or load those of ``options.init``.

    Settings: ``heads`` (default 4); ``layers`` of each (default 1); ``vocabulary``: how many tokens can
    be drafted, the most frequent ones of the replies (0: all; by default 8192 if the target has more
    than 16384).

    Raises:
        ConfigError: an invalid setting.
        ModelError: the target gives no hidden states, or ``options.init`` doesn't fit.
    """
    size = target.decoder.weights.vocab_size
    counts = whole(1, _MOST)
    given = settings_of(options, {"heads": counts, "layers": counts, "vocabulary": whole(0, size)})
    if (before := read_written(options, target)) is None:
        return MedusaTrainee(target, prune=pruned_size(given, size), **given)
    hidden = target.decoder.weights.hidden
    shape = MedusaShape.of(before.config, hidden=hidden, vocab_size=size)
    heads = before.config.get("num_heads")
    if type(heads) is not int or not shape.shared or "lm_head.weight" in before.tensors:
        raise ModelUnsupported(
            f"--init {options.init} has output heads of its own: only folders that train medusa wrote "
            "are trained further"
        )
    vocabulary = None
    if "token_map" in before.tensors:
        vocabulary = before.tensors.take("token_map", (shape.draft_vocab_size,)).long()
    made = MedusaTrainee(target, heads=heads, layers=shape.layers, vocabulary=vocabulary)
    before.into(made.module)
    return made


class MedusaModule(nn.Module):
    """The residual blocks of all heads, with the arithmetic of `MedusaHead`.

    As they are initialised with zeros, every head begins with the target's own output.

    Args:
        hidden: Size of the states.
        heads: Number of heads.
        layers: Residual blocks of each head.
    """

    def __init__(self, hidden: int, heads: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Blocks(hidden, layers) for _ in range(heads))
        for weight in self.parameters():
            nn.init.zeros_(weight)

    def forward(self, final: Tensor, head: int) -> Tensor:
        """Apply one head's blocks to states ``[n, hidden]`` after the final norm; same shape."""
        found: Tensor = self.blocks[head](final)
        return found


class _Blocks(nn.Module):
    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))

    def forward(self, final: Tensor) -> Tensor:
        for layer in self.layers:
            final = final + F.silu(layer(final))
        return final


class MedusaTrainee:
    """Medusa heads over the target's own output head; a `Trainee`.

    Args:
        target: The target, whose output head is used and not trained.
        heads: Number of heads.
        layers: Residual blocks of each head.
        vocabulary: Ids of the tokens that can be drafted, ascending; None: all.
        prune: How many tokens can be drafted once `choose` has selected them; 0: all of ``vocabulary``.
    """

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
        sizes = target.decoder.weights
        self.heads = heads
        self.vocabulary = DraftVocabulary(sizes.head, vocabulary, prune)
        self.chooses = self.vocabulary.chooses
        size = len(self.vocabulary.ids)
        self.shape = MedusaShape(sizes.hidden, sizes.vocab_size, size, layers, shared=True)
        self.module: MedusaModule = MedusaModule(sizes.hidden, heads, layers).to(sizes.device)

    def choose(self, counts: Tensor) -> None:
        """See `ChoosesTokens.choose`."""
        self.vocabulary.choose(counts)

    def losses(self, batch: TrainingBatch, *, acceptance: float) -> Losses:
        """See `Trainee.losses`; ``accepted`` has one entry for each head.

        A state counts only if the token after it belongs to the reply, as in service. The target's
        distribution is exact while gradients are off (measuring); see `DraftVocabulary.log_p`.
        """
        length = batch.replies.shape[1]
        given = batch.replies[:, 1:]  # [b, t]: token t + 1 is the reply's
        exact = not torch.is_grad_enabled()
        log_p, row_of = self.vocabulary.log_p(batch.final[:, :-1], given, exact=exact)
        none = log_p.new_zeros(0)
        parts = list[tuple[Tensor, Tensor]]()
        reached = given
        for head in range(self.heads):
            ahead = head + 1
            reached = reached[:, : max(length - 1 - ahead, 0)] & given[:, ahead:]
            if not reached.any():
                parts.append((none, none))
                continue
            states = batch.final[:, : reached.shape[1]][reached].float()
            logits = F.linear(self.module(states, head), self.vocabulary.rows)
            rows = row_of[:, ahead : ahead + reached.shape[1]][reached]
            parts.append(distance(logits, log_p[rows], acceptance))
        return joined(parts, _DECAY)

    def save(self, folder: Path, card: Mapping[str, str]) -> None:
        """See `Trainee.save`: bfloat16, vLLM's layout without output heads, which are the target's."""
        more = dict[str, Tensor]()
        if self.vocabulary.pruned:
            more["token_map"] = self.vocabulary.ids.to("cpu", torch.int64)
        config = self.shape.config(self.heads)
        write_head(folder, "Medusa heads", self.module, config, card, more=more)
