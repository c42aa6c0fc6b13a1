"""An EAGLE-3 head as trainable modules, under the names of the published checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from specstream.model.heads.eagle_format import EagleShape
from specstream.model.layers import rotated
from specstream.train.layer_module import Mlp, projections

__all__ = ["EagleModule", "Rows", "begin_like"]

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
            nn.ModuleList(nn.RMSNorm(s.target_hidden, eps) for _ in range(taps))
            if s.fc_norm
            else None
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
        self,
        entry: Tensor,
        cos: Tensor,
        sin: Tensor,
        seen: Tensor,
        prefix: Rows,
        own: Sequence[Rows],
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
