"""Padded targets: the same distribution at the cost of a larger model.

Added layers have output projections (``o_proj``, ``down_proj``) of zero; added units of MLPs and
attention have output columns of zero. Where that isn't enough, the residual stream is widened by a
power of four with channels that stay zero: RMSNorm then divides by a power of two more, and its weight
compensates exactly in binary floating point. All other weights are random, so that nothing is saved on
zeros. Logits are those of the original model, up to the order of summation.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specstream.bench.arms.base import BenchThread
from specstream.bench.prompts import Padding
from specstream.config import EngineConfig
from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.load import load_model, load_tokenizer
from specstream.models.kept import located

__all__ = ["Shape", "choose_shape", "heads_for", "pad", "padded_target", "save_padded"]

_USUAL_RATIO = 4.0  # of an MLP's width to the residual stream's
_STEP = 64  # MLP widths are multiples of this
_USUAL_LAYERS = ((2e8, 12), (7e8, 24), (2e9, 16), (5e9, 28), (2e10, 32))  # (most weights, layers)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a padded model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int


def choose_shape(config: LlamaConfig, padding: Padding) -> Shape:
    """Choose the shape of about the wanted size whose ratio of MLP to residual width is most usual.

    Raises:
        ConfigError: the target is larger than that already.
    """
    usual = (layers for size, layers in _USUAL_LAYERS if padding.parameters <= size)
    layers = max(padding.layers or next(usual, 80), config.num_hidden_layers)
    found: list[tuple[float, Shape]] = []
    for power in range(4):
        widen = 4**power
        hidden = config.hidden_size * widen
        heads, kv_heads = config.num_attention_heads * widen, config.num_key_value_heads * widen
        head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
        embeddings = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
        attention = 2 * hidden * head_dim * (heads + kv_heads)
        room = (padding.parameters - embeddings) / layers - attention
        intermediate = int(room / (3 * hidden)) // _STEP * _STEP
        if intermediate >= config.intermediate_size:
            off = abs(math.log(intermediate / hidden / _USUAL_RATIO))
            found.append((off, Shape(layers, hidden, intermediate, heads, kv_heads)))
    if not found:
        raise ConfigError(
            f"the target can't be padded to {padding.parameters / 1e6:.0f}M parameters in {layers} "
            "layers: it is larger already; ask for more parameters or fewer layers"
        )
    return min(found, key=lambda candidate: candidate[0])[1]


@torch.no_grad()
def pad(
    model: LlamaForCausalLM, shape: Shape, *, seed: int = 0, device: torch.device | str = "cpu"
) -> LlamaForCausalLM:
    """Make a model of ``shape`` on ``device`` with the distribution of ``model``, in its dtype."""
    old = model.config
    sizes = {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": old.head_dim or old.hidden_size // old.num_attention_heads,
    }
    config = LlamaConfig(**{**old.to_dict(), **sizes})
    widen = shape.hidden // old.hidden_size
    config.rms_norm_eps = old.rms_norm_eps / widen
    with torch.device("meta"):
        made: Any = LlamaForCausalLM(config)
    made = made.to(model.dtype).to_empty(device=device)
    made.model.rotary_emb = type(made.model.rotary_emb)(config).to(device)
    # One block of noise, repeated: drawing 8 billion numbers would take minutes.
    noise = torch.randn(2**20 + 7, generator=torch.Generator().manual_seed(seed))
    noise = (noise * old.initializer_range).to(device, model.dtype)
    originals = dict(model.named_parameters())
    for name, parameter in made.named_parameters():
        _fill(name, parameter, originals.get(name), math.isqrt(widen), noise)
    made.generation_config = model.generation_config
    made.tie_weights()
    ready: LlamaForCausalLM = made.eval()
    return ready


_OUTPUTS = ("o_proj.weight", "down_proj.weight", "embed_tokens.weight", "lm_head.weight")


def _fill(name: str, parameter: Tensor, original: Tensor | None, root: int, noise: Tensor) -> None:
    """Copy ``original`` into the leading corner; elsewhere zeros where exactness needs them, or noise.

    ``root`` is the square root of the factor by which the residual stream is widened.
    """
    if name.endswith("norm.weight"):
        parameter.fill_(1.0)
    elif name.endswith(_OUTPUTS):
        parameter.zero_()
    else:
        for part in torch.split(parameter.view(-1), len(noise)):
            part.copy_(noise[: len(part)])
    if original is None:
        return
    if original.dim() == 1:
        parameter.narrow(0, 0, len(original)).copy_(original / root)
        if name.endswith("norm.weight"):
            parameter[len(original) :] = 0.0
        return
    rows, columns = original.shape
    parameter[:rows, :columns] = original


def save_padded(target: str, padding: Padding, folder: Path) -> tuple[Shape, int]:
    """Write the padded target and its tokenizer to ``folder``; return its shape and parameters.

    Raises:
        ModelUnsupported: the target isn't of the Llama family.
        ConfigError: it is larger than that already.
        ModelError: it can't be read.
    """
    model = load_model(target, EngineConfig(target=target, device="cpu", dtype="bfloat16"))
    if not isinstance(model, LlamaForCausalLM) or model.config.attention_bias:
        raise ModelUnsupported(f"{target}: only a plain Llama target can be padded")
    shape = choose_shape(model.config, padding)
    made = pad(model, shape)
    made.save_pretrained(folder)
    load_tokenizer(target).save_pretrained(folder)
    return shape, sum(parameter.numel() for parameter in made.parameters())


def heads_for(target: Path, heads: Mapping[str, str]) -> dict[str, str]:
    """Return the heads by method for the padded target in the folder ``target``.

    Padding doesn't change the hidden states before the added layers, which a block head reads. Such a
    head would be refused only because its config names the number of layers of its own target, so it is
    copied into the folder with the padded target's number.
    """
    made = dict(heads)
    if "block" in made:
        layers = json.loads((target / "config.json").read_text())["num_hidden_layers"]
        source, folder = Path(located(made["block"])), target / "block-head"
        folder.mkdir()
        told = json.loads((source / "config.json").read_text()) | {"num_target_layers": layers}
        (folder / "config.json").write_text(json.dumps(told))
        (folder / "model.safetensors").symlink_to((source / "model.safetensors").resolve())
        made["block"] = str(folder)
    return made


@asynccontextmanager
async def padded_target(
    config: EngineConfig, padding: Padding | None
) -> AsyncGenerator[tuple[EngineConfig, str], None]:
    """Yield the config with a padded target, in a temporary folder, and the target's description.

    Without a padding, the config is unchanged and the description empty.

    Raises:
        ConfigError: the target is larger already.
        ModelError: the target can't be read or padded.
    """
    if padding is None:
        yield config, ""
        return
    with tempfile.TemporaryDirectory(prefix="specstream-padded-") as folder:
        thread = BenchThread(config.threads or 1)
        try:
            save = partial(save_padded, config.target, padding, Path(folder))
            shape, parameters = await thread.call(save)
        finally:
            thread.close()
        words = (
            f"{parameters / 1e6:.0f}M parameters, {shape.layers} layers of width {shape.hidden}, MLPs "
            f"of {shape.intermediate}: same distribution as the unpadded target, larger cost"
        )
        yield config.model_copy(update={"target": folder}), words
