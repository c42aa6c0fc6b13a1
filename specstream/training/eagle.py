"""Trains an EAGLE-3 head (arXiv 2503.01840): training-time test over several unrolled draft steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specstream.errors import ModelUnsupported
from specstream.model.heads.base import LayerShape
from specstream.model.heads.eagle import EagleShape, default_depths, read_shape
from specstream.model.layers import rotated
from specstream.model.runner import ModelRunner
from specstream.model.weights import RotaryTable
from specstream.training.batches import DraftVocabulary, pruned_size
from specstream.training.files import Written, read_written, write_head
from specstream.training.loss import depths, distance, flag, joined, number, settings_of, whole
from specstream.training.options import TrainOptions
from specstream.training.trainee import Losses, Mlp, TrainingBatch, projections

__all__ = ["EagleModule", "EagleTrainee", "Rows", "begin_like", "trainee"]

Rows = tuple[Tensor, Tensor]
"""Keys and values, ``[B, n, kv_heads, head_dim]`` each."""


class EagleModule(nn.Module):
    """Projection of tapped hidden states, one decoder layer, a norm.

    The input of the layer's attention has twice the width: embedding and feature. The embeddings and,
    with ``head=None``, the output head belong to the target and are not part of the module.

    Args:
        shape: Sizes and variants.
        head: ``[draft vocabulary, hidden]``: first weights of a trainable output head; None: the module
            has none, and rows of the target's head are used.
    """

    def __init__(self, shape: EagleShape, head: Tensor | None = None) -> None:
        super().__init__()
        self.shape = s = shape
        taps, eps = len(s.depths), s.eps
        self.fc = nn.Linear(taps * s.target_hidden, s.hidden, bias=False)
        self.fc_norm = (
            nn.ModuleList(nn.RMSNorm(s.target_hidden, eps) for _ in range(taps)) if s.fc_norm else None
        )
        self.input_norm = nn.RMSNorm(taps * s.target_hidden, eps) if s.norm_before_fc else None
        self.midlayer = _Layer(s)
        self.norm = nn.RMSNorm(s.hidden, eps)
        self.lm_head: nn.Linear | None = None
        if head is not None:
            self.lm_head = nn.Linear(s.hidden, head.shape[0], bias=False)
            self.lm_head.weight.data = head.detach().clone()

    def fuse(self, states: Tensor) -> Tensor:
        """Map hidden states of the target ``[..., depths, hidden]`` to features ``[..., hidden]``."""
        if self.fc_norm is not None:
            parts = zip(self.fc_norm, states.unbind(-2), strict=True)
            states = torch.stack([norm(one) for norm, one in parts], -2)
        joint = states.flatten(-2)
        if self.input_norm is not None:
            joint = self.input_norm(joint)
        fused: Tensor = self.fc(joint)
        return fused

    def fed_back(self, x: Tensor) -> Tensor:
        """Return the feature for the next draft step: the layer's output, or its norm (EAGLE-3.1)."""
        if not self.shape.norm_output:
            return x
        normed: Tensor = self.norm(x)
        return normed

    def prefix(self, embeddings: Tensor, features: Tensor, cos: Tensor, sin: Tensor) -> Rows:
        """Compute keys and values of true rows, those with features from the target.

        Args:
            embeddings: ``[B, T, hidden]``: embeddings of the tokens one after those of the features.
            features: ``[B, T, hidden]``.
            cos: ``[T, 1, head_dim]``; see `RotaryTable`.
            sin: Likewise.
        """
        return self.midlayer.keys(self.midlayer.entry(embeddings, features)[0], cos, sin)

    def step(
        self,
        embeddings: Tensor,
        features: Tensor,
        cos: Tensor,
        sin: Tensor,
        seen: Tensor,
        prefix: Rows,
        own: list[Rows] | None,
    ) -> Tensor:
        """Take one draft step for S origins in each sequence; return hidden states ``[B, S, hidden]``.

        Args:
            embeddings: ``[B, S, hidden]``.
            features: ``[B, S, hidden]``: the target's in the first step, then those of `fed_back`.
            cos: ``[B, S, 1, head_dim]``.
            sin: Likewise.
            seen: ``[B, S, 1, 1, T]``: 0 where an origin attends to a true row, -inf elsewhere.
            prefix: Keys and values of true rows; see `prefix`.
            own: Keys and values of the origins' earlier steps, to which this step's are appended; None
                in the first step, whose rows are in ``prefix``.
        """
        layer = self.midlayer
        entry, residual = layer.entry(embeddings, features)
        if own is not None:
            own.append(layer.keys(entry, cos, sin))
        x: Tensor = residual + layer.attend(entry, cos, sin, seen, prefix, own or ())
        after: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        return after


class _Layer(nn.Module):
    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        self.shape = s = shape
        self.input_layernorm = nn.RMSNorm(s.hidden, s.eps)
        self.hidden_norm = nn.RMSNorm(s.hidden, s.eps)
        self.self_attn = nn.ModuleDict(projections(s, 2))
        self.post_attention_layernorm = nn.RMSNorm(s.hidden, s.eps)
        self.mlp = Mlp(s)

    def entry(self, embeddings: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention input (embedding and feature joined) and the residual stream."""
        normed = self.hidden_norm(features)
        joint = torch.cat([self.input_layernorm(embeddings), normed], -1)
        return joint, normed if self.shape.norm_before_residual else features

    def keys(self, entry: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        split = (*entry.shape[:-1], self.shape.kv_heads, self.shape.head_dim)
        keys = self.self_attn["k_proj"](entry).view(split)
        return rotated(keys, cos, sin), self.self_attn["v_proj"](entry).view(split)

    def attend(
        self, entry: Tensor, cos: Tensor, sin: Tensor, seen: Tensor, prefix: Rows, own: Sequence[Rows]
    ) -> Tensor:
        s = self.shape
        queries = self.self_attn["q_proj"](entry).view(*entry.shape[:2], s.heads, s.head_dim)
        queries = rotated(queries, cos, sin) * s.head_dim**-0.5
        queries = queries.view(*entry.shape[:2], s.kv_heads, -1, s.head_dim)
        scores = [torch.einsum("bskgd,btkd->bskgt", queries, prefix[0]) + seen]
        scores += [(queries * keys.unsqueeze(3)).sum(-1, keepdim=True) for keys, _ in own]
        weights = torch.cat(scores, -1).softmax(-1)
        true = prefix[0].shape[1]
        mixed = torch.einsum("bskgt,btkd->bskgd", weights[..., :true], prefix[1])
        for index, (_, values) in enumerate(own, true):
            mixed = mixed + weights[..., index : index + 1] * values.unsqueeze(3)
        result: Tensor = self.self_attn["o_proj"](mixed.flatten(2))
        return result


@torch.no_grad()
def begin_like(module: EagleModule, inner: Any) -> None:
    """Initialise as the target's last layer on the last tapped states, ignoring the embeddings."""
    last, ours = inner.layers[-1], module.midlayer
    shape = module.shape
    hidden, dim = shape.hidden, shape.head_dim
    module.fc.weight.zero_()
    module.fc.weight[:, -hidden:].fill_diagonal_(1.0)
    ours.hidden_norm.weight.copy_(last.input_layernorm.weight)
    ours.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    module.norm.weight.copy_(inner.norm.weight)
    for name in ("q_proj", "k_proj", "v_proj"):
        theirs, mine = getattr(last.self_attn, name), cast("nn.Linear", ours.self_attn[name])
        mine.weight[:, :hidden].zero_()
        mine.weight[:, hidden:].copy_(_repeated(theirs.weight, mine.out_features, dim))
        if shape.bias:
            mine.bias.copy_(_repeated(theirs.bias, mine.out_features, dim))
    cast("nn.Linear", ours.self_attn["o_proj"]).weight.copy_(last.self_attn.o_proj.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(ours.mlp, name).weight.copy_(getattr(last.mlp, name).weight)


def _repeated(rows: Tensor, count: int, head_dim: int) -> Tensor:
    """Repeat each head (``head_dim`` rows) until there are ``count`` rows, copies side by side."""
    heads = rows.view(-1, head_dim, *rows.shape[1:])
    return heads.repeat_interleave(count // rows.shape[0], 0).view(count, *rows.shape[1:])


_DECAY = 0.8  # weight of each further draft step relative to the one before, as in the paper's code
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
    if (before := read_written(options, target)) is not None:
        return _going_on(before, target, **given)
    return EagleTrainee(target.model, prune=pruned_size(given, size), **given)


def _sizes(target: PreTrainedModel) -> dict[str, Any]:
    """Return the fields of `EagleShape` that a head has from its target."""
    sizes, attention = LayerShape.read(target.config.to_dict()), target.model.layers[-1].self_attn
    bias = attention.q_proj.bias is not None
    return sizes | {"target_hidden": sizes["hidden"], "bias": bias}


def _going_on(before: Written, target: ModelRunner, **given: Any) -> EagleTrainee:
    sizes = _sizes(target.model)
    layers = len(target.decoder.weights.layers)
    shape = read_shape(before.config, hidden=sizes["hidden"], layers=layers)
    if any(getattr(shape, n) != size for n, size in sizes.items() if n != "kv_heads"):
        raise ModelUnsupported(
            f"--init {before.tensors.folder} has a layer unlike the target's: not trained here"
        )
    return EagleTrainee(
        target.model,
        vocabulary=_vocabulary(before, shape),
        own_head="lm_head.weight" in before.tensors,
        before=before,
        **given,
        **{name: getattr(shape, name) for name in ("depths", "kv_heads", *_VARIANTS)},
    )


def _vocabulary(before: Written, shape: EagleShape) -> Tensor | None:
    """Return the ids of the tokens that a saved head can draft; None: all."""
    size = shape.draft_vocab_size
    if size == shape.vocab_size:
        return None
    return before.tensors.take("d2t", (size,)).long() + torch.arange(size)


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
        own_head: Whether to train an output head, initialised with the target's rows. Otherwise those
            rows are used as they are and are not saved.
        places: Origins of each sequence in a training step; more while fewer steps are unrolled, so that
            a step's work stays the same.
        prune: How many tokens can be drafted once `choose` has selected them; 0: all of ``vocabulary``.
        before: A saved head whose weights are taken instead of the target's last layer.
        shape: Fields of `EagleShape`: ``depths``, by default those of `default_depths`; ``kv_heads``, a
            multiple of the target's and by default as many (the embedding reaches the output only
            through the values, whose size this determines); variants, by default off.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        *,
        vocabulary: Tensor | None = None,
        steps: int = 4,
        own_head: bool = False,
        prune: int = 0,
        places: int = 64,
        before: Written | None = None,
        **shape: Any,
    ) -> None:
        inner: Any = target.model
        self.steps = self._now = steps
        self._places, self.begun = places, before is not None
        self._embedding = inner.embed_tokens.weight.detach().float()
        output: Any = target.get_output_embeddings()  # type: ignore[no-untyped-call]
        self.vocabulary = DraftVocabulary(output.weight, vocabulary, prune)
        self.chooses = self.vocabulary.chooses
        fields = {"depths": default_depths(len(inner.layers))} | _sizes(target) | shape
        made = EagleShape(**fields, draft_vocab_size=len(self.vocabulary.ids))
        self.depths = made.depths
        self._rotary = RotaryTable.of(target, made.head_dim)
        self.module: EagleModule = EagleModule(made, self.vocabulary.rows if own_head else None)
        if before is None:
            begin_like(self.module, inner)
        else:
            before.into(self.module)

    def choose(self, counts: Tensor) -> None:
        """See `ChoosesTokens.choose`."""
        self.vocabulary.choose(counts)
        if self.module.lm_head is not None:
            self.module.lm_head.weight.data.copy_(self.vocabulary.rows)

    def unroll(self, done: float) -> None:
        """See `Unrolls.unroll`; a head loaded from ``options.init`` unrolls all steps from the start.

        Fewer steps come first, since later steps build on the first, which costs a quarter of all four.
        """
        steps = (few for until, few in _UNROLLED if done < until)
        self._now = self.steps if self.begun else min(self.steps, next(steps, self.steps))

    def losses(self, batch: TrainingBatch, *, acceptance: float) -> Losses:
        """See `Trainee.losses`; ``accepted`` has one entry for each unrolled step.

        While gradients are on, the target's distribution is normalised over the tokens that can be
        drafted, as in the paper's code; while they are off (measuring), it is exact.
        """
        tokens = batch.token_ids
        wanted = batch.replies[:, 1:]  # [b, t]: whether the token after t is to be predicted
        learning = torch.is_grad_enabled()
        log_p, row_of = self.vocabulary.log_p(batch.final[:, :-1], wanted, exact=not learning)
        steps, most = self.steps, None
        if learning:
            steps, most = self._now, self._places * self.steps // self._now
        origins, valid = _origins(wanted, most)
        module, each = self.module, torch.arange(tokens.shape[0]).unsqueeze(1)
        embeddings = F.embedding(tokens, self._embedding)
        features = module.fuse(batch.states.float())
        cos, sin = (one.unsqueeze(1) for one in self._rotary.wide(tokens.shape[1] + self.steps))
        true = tokens.shape[1] - 1
        prefix = module.prefix(embeddings[:, 1:], features[:, :-1], cos[:true], sin[:true])
        after = torch.arange(true) > origins.unsqueeze(-1)
        seen = torch.zeros(after.shape).masked_fill_(after, -torch.inf)[:, :, None, None]
        x, own, rows = features[each, origins], None, list[Rows]()
        parts = list[tuple[Tensor, Tensor]]()
        for step in range(steps):
            at = origins + step
            read = (at + 1).clamp_max(true - 1)
            valid = valid & (at + 1 < true) & wanted[each, read]
            if not bool(valid.any()):
                break
            x = module.step(embeddings[each, read], x, cos[at], sin[at], seen, prefix, own)
            states = module.norm(x[valid])
            head = self.vocabulary.rows if module.lm_head is None else module.lm_head.weight
            logits = F.linear(states, head)
            parts.append(distance(logits, log_p[row_of[each, read][valid]], acceptance))
            x, own = module.fed_back(x), rows
        return joined(parts, _DECAY)

    def save(self, folder: Path, card: Mapping[str, str]) -> None:
        """See `Trainee.save`: bfloat16, in the layout of the original repository and of SpecForge."""
        shape = self.module.shape
        more = {}
        if shape.draft_vocab_size != shape.vocab_size:
            allowed = torch.zeros(shape.vocab_size, dtype=torch.bool)
            allowed[self.vocabulary.ids] = True
            offsets = self.vocabulary.ids - torch.arange(shape.draft_vocab_size)
            more = {"t2d": allowed, "d2t": offsets}
        config = shape.config | {"torch_dtype": "bfloat16"}
        write_head(folder, "EAGLE-3 head", self.module, config, card, more=more)


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
