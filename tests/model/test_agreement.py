"""The comparison with a model's own forward sees wrong kernels, and allows rounding."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.config import DEFAULT_TARGET, EngineConfig
from specstream.model.attention.kernels import Kernel, Kernels, Ragged, padded
from specstream.model.attention.pooled import PooledAttention
from specstream.model.decoder import Decoder
from specstream.model.forward import ForwardInput
from specstream.model.load import load_model
from specstream.model.numerics import off_by, rounding, trial_tokens
from specstream.model.weights import DecoderWeights, RotaryTable


def scale_of_two(q: Tensor, k: Tensor, v: Tensor, places: Ragged) -> Tensor:
    return padded(q * 2, k, v, places)


def last_key_unseen(q: Tensor, k: Tensor, v: Tensor, places: Ragged) -> Tensor:
    return padded(q, k, v, replace(places, limits=(places.limits - 1).clamp_min(1)))


def exchanged_heads(q: Tensor, k: Tensor, v: Tensor, places: Ragged) -> Tensor:
    return padded(q, k.flip(1), v.flip(1), places)


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(DEFAULT_TARGET, EngineConfig(), "bfloat16")


@torch.inference_mode()
def off(model: Any, kernel: Kernel) -> float:
    """How far a decoder with this kernel is off the bundled target, in bfloat16."""
    weights = DecoderWeights.of(model)
    assert weights is not None
    attention = PooledAttention(weights, 1024, Kernels(kernel, kernel, kernel))
    decoder = Decoder(weights, RotaryTable.of(model, weights.head_dim), attention)
    tokens = trial_tokens(8, model.config.vocab_size, model.device)
    wanted = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0].float()
    cache, found = decoder.new_cache(), list[Tensor]()
    for part in (tokens[:5], tokens[5:]):
        found += decoder([ForwardInput(part, cache, part.shape[0])]).logits
    return off_by(torch.cat(found), wanted)


def test_rounding_is_a_quarter_of_what_is_allowed(model: Any) -> None:
    assert off(model, padded) < rounding(torch.bfloat16) / 4


@pytest.mark.parametrize("wrong", [scale_of_two, last_key_unseen, exchanged_heads])
def test_a_wrong_kernel_is_off_by_more(model: Any, wrong: Kernel) -> None:
    assert off(model, wrong) > 1.2 * rounding(torch.bfloat16)
