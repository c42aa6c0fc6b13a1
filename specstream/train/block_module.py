"""A block-parallel head (DFlash) as trainable modules, under the names of the published checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specstream.model.heads.block_format import BlockShape
from specstream.model.layers import rotated
from specstream.train.layer_module import Mlp, projections

__all__ = ["BlockModule"]


class BlockModule(nn.Module):
    """Projection of tapped hidden states, decoder layers that attend to them and to the block, a norm.

    Embedding and output head belong to the target and are not part of the module.
    """

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = s = shape
        self.fc = nn.Linear(len(s.depths) * s.hidden, s.hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(s.hidden, s.eps)
        self.layers = nn.ModuleList(_Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden, s.eps)

    def forward(
        self,
        states: Tensor,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        positions: Tensor,
        seen: Tensor,
    ) -> Tensor:
        """Compute the normed hidden states ``[B, Q, hidden]`` of the blocks' tokens.

        Args:
            states: ``[B, T, depths, hidden]``: hidden states of the target.
            x: ``[B, Q, hidden]``: embeddings of the Q tokens of all blocks of a sequence.
            rotary: Cosines and signed sines by position; see `RotaryTable.upto`.
            positions: ``[B, Q]`` int64 of the blocks' tokens.
            seen: ``[B, 1, Q, T + Q]`` bool: attention mask over the T states, then the Q tokens.
        """
        features = self.hidden_norm(self.fc(states.flatten(-2)))
        context = _angles(rotary, torch.arange(states.shape[1], device=x.device).unsqueeze(0))
        block = _angles(rotary, positions)
        for layer in self.layers:
            x = layer(x, features, context, block, seen)
        normed: Tensor = self.norm(x)
        return normed


class _Layer(nn.Module):
    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = s = shape
        self.input_layernorm = nn.RMSNorm(s.hidden, s.eps)
        norms = {name: nn.RMSNorm(s.head_dim, s.eps) for name in ("q_norm", "k_norm")}
        self.self_attn = nn.ModuleDict(projections(s) | norms)
        self.post_attention_layernorm = nn.RMSNorm(s.hidden, s.eps)
        self.mlp = Mlp(s)

    def forward(
        self,
        x: Tensor,
        features: Tensor,
        context: tuple[Tensor, Tensor],
        block: tuple[Tensor, Tensor],
        seen: Tensor,
    ) -> Tensor:
        a, normed = self.self_attn, self.input_layernorm(x)
        queries = rotated(a["q_norm"](self._split(a["q_proj"](normed))), *block)
        keys = torch.cat([self._keys(features, context), self._keys(normed, block)], 1)
        values = torch.cat([a["v_proj"](features), a["v_proj"](normed)], 1)
        mixed = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            self._split(values).transpose(1, 2),
            attn_mask=seen,
            enable_gqa=self.shape.heads != self.shape.kv_heads,
        )
        x = x + a["o_proj"](mixed.transpose(1, 2).flatten(2))
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result

    def _keys(self, rows: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        a = self.self_attn
        return rotated(a["k_norm"](self._split(a["k_proj"](rows))), *angles)

    def _split(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:-1], -1, self.shape.head_dim)


def _angles(rotary: tuple[Tensor, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = rotary
    return cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)
