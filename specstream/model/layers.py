"""One layer of the Llama family, in torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from specstream.model.attention.base import AttentionPlan
from specstream.model.norms import Norm
from specstream.model.products import Product
from specstream.model.weights import DecoderWeights, LayerWeights

__all__ = ["Layer", "layer_of", "rotated", "select"]


@dataclass(frozen=True, slots=True)
class Layer:
    """Norms and products of one layer, products of one input joined; whoever makes them chooses how.

    Results of ``norm`` and of products may be wider than the hidden states, which keep their dtype.
    """

    rotated: int  # heads of queries and keys
    heads: int
    head_dim: int
    split: tuple[int, int]  # heads of queries; of keys and values
    activation: Callable[[Tensor], Tensor]
    norm: Norm
    qkv: Product
    query_norm: Norm | None
    key_norm: Norm | None
    out: Product
    mlp_norm: Norm
    gate_up: Product
    down: Product

    def __call__(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        plan: AttentionPlan,
        index: int,
        rows: slice | Tensor | None = None,
        entry: Tensor | None = None,
    ) -> Tensor:
        """Hidden states ``[n, hidden]`` after the layer; ``x`` is overwritten.

        Args:
            x: ``[N, hidden]``.
            cos: ``[N, 1, head_dim]`` of each token's position.
            sin: Likewise, see `RotaryTable`.
            plan: Attention of the pass.
            index: The layer's number in ``plan``.
            rows: The n rows that go on, all of which ``plan`` takes as queries; None: all of N.
            entry: ``[N, wide]``: what queries, keys and values are made of, instead of ``norm(x)``.
        """
        joint = self.qkv(self.norm(x) if entry is None else entry)
        queries, kv = self._rotated(joint, cos, sin).split_with_sizes(self.split, 1)
        if rows is not None:
            x, queries = select(x, rows), select(queries, rows)
        x += self.out(plan.forward(index, queries, kv))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        x += self.down(self.activation(gate).mul_(up))
        return x

    def _rotated(self, joint: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary positions (Su et al. 2021), in place: ``[N, heads + 2 * kv_heads, head_dim]``."""
        joint = joint.view(-1, self.heads, self.head_dim)
        turned = joint[:, : self.rotated]
        if self.query_norm is not None and self.key_norm is not None:
            queries = self.split[0]
            turned[:, :queries] = self.query_norm(turned[:, :queries])
            turned[:, queries:] = self.key_norm(turned[:, queries:])
        swapped = turned.roll(self.head_dim // 2, -1)
        turned.mul_(cos).addcmul_(swapped, sin)
        return joint


def layer_of(
    sizes: DecoderWeights,
    weights: LayerWeights,
    norm: Callable[[Tensor], Norm],
    product: Callable[[Tensor, Tensor | None], Product],
) -> Layer:
    """A layer of ``weights``; ``norm`` and ``product`` make its parts of a weight (and a bias)."""
    w = weights
    return Layer(
        rotated=sizes.heads + sizes.kv_heads,
        heads=sizes.heads + 2 * sizes.kv_heads,
        head_dim=sizes.head_dim,
        split=(sizes.heads, 2 * sizes.kv_heads),
        activation=sizes.activation,
        norm=norm(w.norm),
        qkv=product(w.qkv, w.qkv_bias),
        query_norm=None if w.query_norm is None else norm(w.query_norm),
        key_norm=None if w.key_norm is None else norm(w.key_norm),
        out=product(w.out, w.out_bias),
        mlp_norm=norm(w.mlp_norm),
        gate_up=product(w.gate_up, None),
        down=product(w.down, None),
    )


def select(x: Tensor, rows: slice | Tensor) -> Tensor:
    """Some rows of ``x``, by a slice or by their numbers."""
    return x.index_select(0, rows) if isinstance(rows, Tensor) else x[rows]


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x [..., head_dim]`` turned by its positions' angles; see `RotaryTable`."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin
