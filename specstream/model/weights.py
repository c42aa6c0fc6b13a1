"""The sizes and tensors of a Llama-family model, for the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specstream.model.numerics import to_device

__all__ = ["FAMILY", "DecoderWeights", "LayerWeights", "RotaryTable", "drop_matrices"]

FAMILY = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
"""Classes of transformers whose models the decoder computes, with few exceptions."""
_STATIC_ROPE = {"default", "linear", "llama3"}
_MATRICES = ("qkv", "out", "gate_up", "down")
_FIRST_POSITIONS = 256  # that a rotary table has at first


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; matrices are ``[out, in]``, and those with the same input are concatenated."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Sizes and tensors of one model.

    Attributes:
        hidden: Size of the hidden states.
        intermediate: Size of the MLP's inner states.
        eps: Epsilon of the RMS norms.
        activation: The name of the MLP's elementwise function, as in transformers' ``ACT2FN``.
        embedding: ``[V, hidden]``.
        norm: ``[hidden]``, the final norm's weight.
        head: ``[V, hidden]``; often the embedding itself.
        nbytes: Memory of all parameters, in bytes.
    """

    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    eps: float
    activation: str
    embedding: Tensor
    norm: Tensor
    head: Tensor
    layers: tuple[LayerWeights, ...]
    nbytes: int

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self.embedding.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters and of the hidden states between layers."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.embedding.device

    @property
    def kv_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * len(self.layers) * self.kv_heads * self.head_dim * self.dtype.itemsize

    @classmethod
    def of(cls, model: PreTrainedModel) -> DecoderWeights | None:
        """Return the weights of ``model``; its parameters become views of the concatenated tensors.

        None for a model that `Decoder` can't compute exactly from these sizes and tensors.
        """
        if not _plain(model):
            return None
        config, inner = model.config, _inner(model)
        head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        return cls(
            heads=int(config.num_attention_heads),
            kv_heads=int(config.num_key_value_heads),
            head_dim=int(inner.layers[0].self_attn.head_dim),
            hidden=int(config.hidden_size),
            intermediate=int(config.intermediate_size),
            eps=float(config.rms_norm_eps),
            activation=str(config.hidden_act),
            embedding=inner.embed_tokens.weight.data,
            norm=inner.norm.weight.data,
            head=head.weight.data,
            layers=tuple(_join(layer) for layer in inner.layers),
            nbytes=sum(weight.nbytes for weight in model.parameters()),
        )

    def without_matrices(self) -> DecoderWeights:
        """Return a copy with meta tensors (shapes only) as layer matrices; embedding and head stay."""
        layers = list[LayerWeights]()
        for layer in self.layers:
            shapes = {name: getattr(layer, name).to("meta") for name in _MATRICES}
            layers.append(replace(layer, **shapes))
        return replace(self, layers=tuple(layers))


def drop_matrices(model: PreTrainedModel) -> None:
    """Free the matrices of a model's layers, once a decoder has its own quantised copies.

    The model's own forward raises a TypeError afterwards.
    """
    for module in _inner(model).layers.modules():
        if isinstance(module, nn.Linear):
            module.register_parameter("weight", None)  # a meta tensor would not raise


class RotaryTable:
    """Cosines and signed sines of the first positions, from the model's own rotary module.

    The first half of each row of sines is negated, so that a rotation is x * cos + swapped(x) * sin,
    where swapped exchanges the halves of x.
    """

    def __init__(self, rotary: nn.Module, probe: Tensor, head_dim: int) -> None:
        """Make the table of transformers' module ``rotary``, with the dtype and device of ``probe``."""
        self._rotary, self._probe, self._half = rotary, probe, head_dim // 2
        self._cos, self._sin = self._angles(_FIRST_POSITIONS)
        self._wide: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, model: PreTrainedModel, head_dim: int) -> RotaryTable:
        """Make the table of a model."""
        inner = _inner(model)
        return cls(inner.rotary_emb, inner.embed_tokens.weight.data[:1], head_dim)

    def at(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines of these positions, ``[n, 1, head_dim]`` each."""
        return self.rows(to_device(positions, self._cos.device), max(positions) + 1)

    def rows(self, positions: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """As `at`, for ``positions [n]`` int64 on the device, which are below ``end``."""
        cos, sin = self.upto(end)
        chosen = cos.index_select(0, positions), sin.index_select(0, positions)
        return chosen[0].unsqueeze(1), chosen[1].unsqueeze(1)

    def wide(self, end: int) -> tuple[Tensor, Tensor]:
        """As `upto`, in float32."""
        found = self._wide
        if found is None or end > found[0].shape[0]:
            cos, sin = self.upto(end)
            self._wide = found = cos.float(), sin.float()
        return found

    def upto(self, end: int) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines ``[positions, head_dim]`` for at least ``end`` positions."""
        if end > self._cos.shape[0]:
            self._cos, self._sin = self._angles(2 * end)
        return self._cos, self._sin

    def _angles(self, length: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(length, device=self._probe.device).unsqueeze(0)
        cos, sin = self._rotary(self._probe, positions)
        signed = torch.cat((-sin[..., : self._half], sin[..., self._half :]), -1)
        return cos[0].contiguous(), signed[0].contiguous()


def _inner(model: PreTrainedModel) -> Any:
    return model.model


def _plain(model: PreTrainedModel) -> bool:
    """Whether the model computes exactly what `Decoder` computes."""
    config = model.config
    if type(model).__name__ not in FAMILY or getattr(config, "mlp_bias", False):
        return False
    if set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        return False
    if type(model).__name__ == "MistralForCausalLM" and config.sliding_window is not None:
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    partial = float(rope.get("partial_rotary_factor", 1.0)) != 1.0
    if rope.get("rope_type", "default") not in _STATIC_ROPE or partial:
        return False
    # A quantised model may round the inputs of its products, even if its parameters look plain.
    if getattr(model, "hf_quantizer", None) is not None:
        return False
    # Tensor subclasses and replaced modules may compute anything: only plain ones are known.
    if not all(_dense(parameter) for parameter in model.parameters()):
        return False
    layers = _inner(model).layers
    kinds = {type(m) for layer in layers for m in layer.modules() if hasattr(m, "weight")}
    return all(kind is nn.Linear or kind.__name__.endswith("RMSNorm") for kind in kinds)


def _dense(parameter: Tensor) -> bool:
    """Whether the parameter is a plain tensor of floats, not a subclass such as a quantised one."""
    plain = type(parameter) is nn.Parameter and type(parameter.data) is Tensor
    return plain and parameter.layout is torch.strided and parameter.is_floating_point()


def _join(layer: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    three = (attention.q_proj, attention.k_proj, attention.v_proj)
    has_bias = attention.q_proj.bias is not None
    out_bias = attention.o_proj.bias
    query_norm, key_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return LayerWeights(
        norm=layer.input_layernorm.weight.data,
        qkv=_joined([linear.weight for linear in three]),
        qkv_bias=_joined([linear.bias for linear in three]) if has_bias else None,
        query_norm=query_norm.weight.data if query_norm is not None else None,
        key_norm=key_norm.weight.data if key_norm is not None else None,
        out=attention.o_proj.weight.data,
        out_bias=None if out_bias is None else out_bias.data,
        mlp_norm=layer.post_attention_layernorm.weight.data,
        gate_up=_joined([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight.data,
    )


def _joined(parts: Sequence[nn.Parameter]) -> Tensor:
    """Concatenate parameters, and make them views of the result, so that memory isn't used twice."""
    whole = torch.cat([part.data for part in parts])
    for part, view in zip(parts, torch.split(whole, [p.shape[0] for p in parts]), strict=True):
        part.data = view
    return whole
