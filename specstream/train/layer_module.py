"""Parts of a head's decoder layers as trainable modules, under the names of transformers' Llama."""

from __future__ import annotations

from torch import Tensor, nn
from transformers.activations import ACT2FN

from specstream.model.heads.shape import LayerShape

__all__ = ["Mlp", "projections"]


def projections(sizes: LayerShape, wide: int = 1) -> dict[str, nn.Module]:
    """Make the four matrices of attention; the output matrix has no bias.

    Args:
        sizes: Sizes of the layer.
        wide: Width of the input of queries, keys and values, in multiples of the hidden size.
    """
    s = sizes
    rows, kv_rows, entry = s.heads * s.head_dim, s.kv_heads * s.head_dim, wide * s.hidden
    return {
        "q_proj": nn.Linear(entry, rows, bias=s.bias),
        "k_proj": nn.Linear(entry, kv_rows, bias=s.bias),
        "v_proj": nn.Linear(entry, kv_rows, bias=s.bias),
        "o_proj": nn.Linear(rows, s.hidden, bias=False),
    }


class Mlp(nn.Module):
    """The layer's gated MLP, with the activation of its config."""

    def __init__(self, sizes: LayerShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)
        self._activation = ACT2FN[sizes.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Map states ``[..., hidden]`` to the layer's second addend, of the same shape."""
        result: Tensor = self.down_proj(self._activation(self.gate_proj(x)) * self.up_proj(x))
        return result
