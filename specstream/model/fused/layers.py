"""The layers of a model with one kernel for everything between two matrix products.

A layer's output is not added to the states at once: the kernel of the next norm does that. With the four
products and attention, a layer takes nine kernels (ten where attention splits its keys) instead of 15.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specstream.model import fused
from specstream.model.attention.pooled import PooledPlan
from specstream.model.forward import Taps
from specstream.model.layers import Layer, select
from specstream.model.weights import DecoderWeights

__all__ = ["FusedLayers"]

_LARGEST = 16_384  # hidden size: a norm's kernel keeps a row in registers


class FusedLayers:
    """Runs layers whose products are those of `Layer`; made by `of`."""

    def __init__(self, weights: DecoderWeights, layers: Sequence[Layer]) -> None:
        self._layers, self._weights, self._eps = layers, weights.layers, weights.eps
        self._norm = weights.norm

    @classmethod
    def of(cls, weights: DecoderWeights, layers: Sequence[Layer]) -> FusedLayers | None:
        """Make the layers; None where Triton isn't installed or the model is of another kind."""
        if not fused.installed() or weights.activation != "silu" or weights.hidden > _LARGEST:
            return None
        return cls(weights, layers)

    def run(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        plan: PooledPlan,
        *,
        first: int,
        stop: int | None,
        narrow: bool,
        taps: Taps | None,
    ) -> Tensor:
        """Run layers and the final norm; see `Decoder.run`. ``x [N, hidden]`` is overwritten."""
        from specstream.model.fused.elementwise import add_norm

        end = len(self._layers) if stop is None else stop
        wanted = taps.depths if taps is not None else ()
        last = end - 1 if narrow and end not in wanted else None
        rest: Tensor | None = None  # the output of a layer that is still to be added to x
        for index in range(first, end):
            if taps is not None and index in wanted:
                x, rest = x if rest is None else x.add_(rest), None
                taps.take(index, x.clone())
            x, rest = self._layer(x, rest, cos, sin, plan, index, narrow=index == last)
        if taps is not None and end in wanted:
            x, rest = x if rest is None else x.add_(rest), None
            taps.take(end, x)
            x = select(x, plan.narrow()) if narrow else x
        if stop is None:
            return add_norm(x, rest, self._norm, self._eps)
        return x if rest is None else x.add_(rest)

    def _layer(
        self,
        x: Tensor,
        rest: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        plan: PooledPlan,
        index: int,
        *,
        narrow: bool,
    ) -> tuple[Tensor, Tensor]:
        """One layer: the states with ``rest`` and attention added, and the output of the MLP."""
        from specstream.model.fused.elementwise import add_norm, rotate_and_store, silu_mul

        layer, weights = self._layers[index], self._weights[index]
        joint = layer.qkv(add_norm(x, rest, weights.norm, self._eps))
        joint = joint.view(-1, layer.heads, layer.head_dim)
        layer.norm_heads(joint)
        queries = rotate_and_store(joint, cos, sin, plan.rows, plan.pool(index), layer.split[0])
        if narrow:
            rows = plan.narrow()
            x, queries = select(x, rows), select(queries, rows)
        attended = layer.out(plan.attend(index, queries))
        normed = add_norm(x, attended, weights.mlp_norm, self._eps)
        return x, layer.down(silu_mul(layer.gate_up(normed)))
