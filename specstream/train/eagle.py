"""Trains an EAGLE-3 head (arXiv 2503.01840): training-time test over several unrolled draft steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specstream.errors import ModelUnsupported
from specstream.model.heads.eagle_format import EagleShape, default_depths, read_shape
from specstream.model.runner import ModelRunner
from specstream.model.weights import RotaryTable
from specstream.train.eagle_module import EagleModule, Rows, begin_like
from specstream.train.folders import Written, read_written, write_head
from specstream.train.loss import distance
from specstream.train.options import TrainOptions
from specstream.train.settings import depths, flag, number, settings_of, whole
from specstream.train.trainee import Batch, Losses

__all__ = ["EagleTrainee", "frequent_tokens", "trainee"]

_DECAY = 0.8  # weight of each further draft step relative to the one before, as in the paper's code
_SLICE = 512  # rows of the target's logits over the whole vocabulary that are in memory at once
_LARGE, _PRUNED = 16384, 8192  # by default, a vocabulary above the first is pruned to the second
_UNROLLED = ((0.5, 1), (0.7, 2))  # a new head: (up to this part of the training, draft steps)
_VARIANTS = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output")


def trainee(
    target: ModelRunner, tokenizer: PreTrainedTokenizerBase, options: TrainOptions
) -> EagleTrainee:
    """Make a new head, or load the one of ``options.init``.

    Settings: ``steps``, ``places``, ``depths``, ``own_head``, ``kv_heads``, see `EagleTrainee`;
    ``vocabulary``: how many tokens can be drafted, the most frequent ones of the replies (0: all; by
    default 8192 if the target has more than 16384); variants of `EagleShape`, ``true`` or ``false``.

    Raises:
        ConfigError: an invalid setting.
        ModelError: the target gives no hidden states or isn't on a CPU, or ``options.init`` doesn't fit.
    """
    if target.device.type != "cpu":
        raise ModelUnsupported("an EAGLE head is trained on a CPU only so far: --device cpu")
    sizes, size = target.decoder.weights, target.model_vocab_size
    repeats = [n * sizes.kv_heads for n in range(1, sizes.heads // sizes.kv_heads + 1)]
    known = {
        "steps": whole(1, 16),
        "places": whole(1, 1 << 16),
        "depths": depths(len(sizes.layers)),
        "own_head": flag,
        "kv_heads": number(*(n for n in repeats if sizes.heads % n == 0)),
        "vocabulary": whole(0, size),
    } | dict.fromkeys(_VARIANTS, flag)
    given = settings_of(options, known, kept=("steps", "places"))
    if options.init is not None:
        return _read(options.init, target, **given)
    kept = given.pop("vocabulary", _PRUNED if size > _LARGE else 0)
    variants = {name: given.pop(name) for name in _VARIANTS if name in given}
    return EagleTrainee(target.model, variants=variants, prune=kept % size, **given)


def _read(folder: Path, target: ModelRunner, **given: Any) -> EagleTrainee:
    before, model = read_written(folder, "eagle", target), target.model.config
    hidden, layers = int(model.hidden_size), int(model.num_hidden_layers)
    shape = read_shape(before.config, hidden=hidden, layers=layers)
    made = EagleTrainee(
        target.model,
        vocabulary=_vocabulary(before, shape),
        depths=shape.depths,
        own_head="lm_head.weight" in before,
        kv_heads=shape.kv_heads,
        variants={name: getattr(shape, name) for name in _VARIANTS},
        **given,
    )
    if made.module.shape != shape:
        raise ModelUnsupported(f"--init {folder} has a layer unlike the target's: not trained here")
    before.into(made.module)
    made.begun = True
    return made


def _vocabulary(before: Written, shape: EagleShape) -> Tensor | None:
    """Return the ids of the tokens that a saved head can draft; None: all."""
    size = shape.draft_vocab_size
    if size == shape.vocab_size:
        return None
    return before.tensor("d2t", size).long() + torch.arange(size)


class EagleTrainee:
    """An EAGLE-3 head in training, initialised with the target's last layer.

    A draft step reads the feature of a token (fused from the target's states, or the head's own output)
    and the embedding of the next token. A drafted chain starts at an *origin*, a position in a sequence.
    In each unrolled step it attends to the true rows up to its origin and to the rows of its own earlier
    steps, as in service.

    Args:
        target: The model for which the head drafts, of the Llama family; not trained.
        vocabulary: Ids of the tokens that can be drafted, ascending; None: all.
        steps: Unrolled draft steps.
        depths: The depths (numbers of target layers) whose hidden states the head reads. Default: those
            of `default_depths`.
        own_head: Whether to train an output head, initialised with the target's rows. Otherwise those
            rows are used as they are and are not saved.
        kv_heads: Key-value heads of the layer, a multiple of the target's; None: as many. The embedding
            reaches the output only through the values, whose size this determines.
        variants: Fields of `EagleShape` that turn variants on.
        places: Origins of each sequence in a training step; more while fewer steps are unrolled, so that
            a step's work stays the same.
        prune: How many tokens can be drafted once `choose` has selected them; 0: all of ``vocabulary``.
    """

    kind = "eagle"

    def __init__(
        self,
        target: PreTrainedModel,
        *,
        vocabulary: Tensor | None = None,
        steps: int = 4,
        depths: Sequence[int] | None = None,
        own_head: bool = False,
        kv_heads: int | None = None,
        variants: Mapping[str, bool] | None = None,
        prune: int = 0,
        places: int = 64,
    ) -> None:
        config, inner = target.config, target.model
        layers = int(config.num_hidden_layers)
        self.depths = tuple(depths or default_depths(layers))
        self.steps = self._now = steps
        self._places, self.begun = places, False
        self._embedding = inner.embed_tokens.weight.detach().float()
        output: Any = target.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._head = output.weight.detach().float()
        size = self._head.shape[0]
        self.chooses = prune > 0
        if prune:
            vocabulary = torch.arange(prune)  # a placeholder until `choose`
        self.vocabulary = torch.arange(size) if vocabulary is None else vocabulary
        self._rows = self._head if vocabulary is None else self._head[vocabulary]
        attention = inner.layers[-1].self_attn
        shape = EagleShape(
            target_hidden=int(config.hidden_size),
            hidden=int(config.hidden_size),
            intermediate=int(config.intermediate_size),
            heads=int(config.num_attention_heads),
            kv_heads=kv_heads or int(config.num_key_value_heads),
            head_dim=int(attention.head_dim),
            eps=float(config.rms_norm_eps),
            vocab_size=size,
            draft_vocab_size=self.vocabulary.shape[0],
            depths=self.depths,
            max_positions=int(config.max_position_embeddings),
            activation=str(config.hidden_act),
            rope=dict(config.rope_parameters),
            bias=attention.q_proj.bias is not None,
            **dict(variants or {}),
        )
        self._rotary = RotaryTable(target, shape.head_dim)
        self.module: EagleModule = EagleModule(shape, self._rows if own_head else None)
        begin_like(self.module, inner)

    def choose(self, counts: Tensor) -> None:
        """See `ChoosesTokens.choose`."""
        self.vocabulary = frequent_tokens(counts, len(self.vocabulary))
        self._rows = self._head[self.vocabulary]
        if self.module.lm_head is not None:
            self.module.lm_head.weight.data.copy_(self._rows)

    def unroll(self, done: float) -> None:
        """See `Unrolls.unroll`; a head loaded from ``options.init`` unrolls all steps from the start.

        Fewer steps come first, since later steps build on the first, which costs a quarter of all four.
        """
        steps = (few for until, few in _UNROLLED if done < until)
        self._now = self.steps if self.begun else min(self.steps, next(steps, self.steps))

    def losses(self, batch: Batch, *, acceptance: float) -> Losses:
        """See `Trainee.losses`; ``accepted`` has one entry for each unrolled step.

        While gradients are on, the target's distribution is normalised over the tokens that can be
        drafted, as in the paper's code, since logits of the others would cost more than the head. While
        they are off (measuring), it is exact.
        """
        tokens, replies = batch.token_ids, batch.replies & batch.present
        wanted = replies[:, 1:]  # [b, t]: whether the token after t is to be predicted
        log_p, row_of = self._target(batch.final[:, :-1], wanted)
        steps, most = self.steps, None
        if torch.is_grad_enabled():
            steps, most = self._now, self._places * self.steps // self._now
        origins, valid = _origins(wanted, most)
        module, each = self.module, torch.arange(tokens.shape[0]).unsqueeze(1)
        embeddings = F.embedding(tokens, self._embedding)
        features = module.fuse(batch.states.float())
        cos, sin = (
            one.float().unsqueeze(1) for one in self._rotary.upto(tokens.shape[1] + self.steps)
        )
        true = tokens.shape[1] - 1
        prefix = module.prefix(embeddings[:, 1:], features[:, :-1], cos[:true], sin[:true])
        after = torch.arange(true) > origins.unsqueeze(-1)
        seen = torch.zeros(after.shape).masked_fill_(after, -torch.inf)[:, :, None, None]
        x, own, rows = features[each, origins], None, list[Rows]()
        total, weight = torch.zeros(()), 0.0
        accepted, counted = list[float](), list[float]()
        for step in range(steps):
            at = origins + step
            read = (at + 1).clamp_max(true - 1)
            valid = valid & (at + 1 < true) & wanted[each, read]
            if not bool(valid.any()):
                break
            x = module.step(embeddings[each, read], x, cos[at], sin[at], seen, prefix, own)
            states = module.norm(x[valid])
            logits = (
                F.linear(states, self._rows) if module.lm_head is None else module.lm_head(states)
            )
            loss, overlap = distance(logits, log_p[row_of[each, read][valid]], acceptance)
            total = total + _DECAY**step * loss.sum()
            weight += _DECAY**step * loss.shape[0]
            accepted.append(float(overlap.sum()))
            counted.append(float(overlap.shape[0]))
            x, own = module.fed_back(x), rows
        return Losses(total / max(weight, 1.0), accepted, counted)

    def _target(self, final: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Return the target's log probabilities ``[n, V]`` of the draft's vocabulary at wanted places.

        Also returns ``[b, t]``: for each place of ``wanted``, its row in them.
        """
        exact = not torch.is_grad_enabled()
        with torch.no_grad():
            states = final[wanted].float()
            parts = list[Tensor]()
            for some in torch.split(states, _SLICE):
                if exact:
                    whole = F.linear(some, self._head)
                    parts.append((whole - whole.logsumexp(-1, keepdim=True))[:, self.vocabulary])
                else:
                    parts.append(F.linear(some, self._rows).log_softmax(-1))
            row_of = torch.zeros(wanted.shape, dtype=torch.int64)
            row_of[wanted] = torch.arange(states.shape[0])
        return torch.cat(parts) if parts else states.new_zeros(0, len(self.vocabulary)), row_of

    def save(self, folder: Path, card: Mapping[str, str]) -> None:
        """See `Trainee.save`: bfloat16, in the layout of the original repository and of SpecForge."""
        shape = self.module.shape
        more = {}
        if shape.draft_vocab_size != shape.vocab_size:
            allowed = torch.zeros(shape.vocab_size, dtype=torch.bool)
            allowed[self.vocabulary] = True
            more = {"t2d": allowed, "d2t": self.vocabulary - torch.arange(shape.draft_vocab_size)}
        config = shape.config | {"torch_dtype": "bfloat16"}
        write_head(folder, "EAGLE-3 head", self.module, config, card, more=more)


def frequent_tokens(counts: Tensor, most: int) -> Tensor:
    """Return the ids of the ``most`` most frequent tokens, ascending; ties go to the lowest ids.

    Args:
        counts: ``[V]``: how often each token was seen.
        most: How many ids to return.
    """
    return counts.argsort(descending=True, stable=True)[:most].sort().values


def _origins(wanted: Tensor, most: int | None) -> tuple[Tensor, Tensor]:
    """Choose origins: positions t for which token t + 2 is to be predicted, at most ``most`` a row.

    Returns positions ``[B, S]``, padded with 0, and a mask ``[B, S]``, which is False for padding. With
    ``most=None`` all origins are returned, otherwise a random choice.
    """
    found = [row[1:].nonzero().squeeze(1) for row in wanted]
    if most is not None:
        found = [one[torch.randperm(one.shape[0])[:most]] for one in found]
    origins = pad_sequence(found, batch_first=True)
    counts = torch.tensor([one.shape[0] for one in found]).unsqueeze(1)
    return origins, torch.arange(origins.shape[1]) < counts
