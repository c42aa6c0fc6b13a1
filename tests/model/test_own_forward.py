"""A model's own forward: its cache, and the positions that it supports."""

from typing import Any, cast

import pytest
import torch
from transformers import (
    DynamicCache,
    Gemma3nConfig,
    Gemma3nTextConfig,
    Gemma4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    T5Config,
)

from specstream.errors import ModelUnsupported
from specstream.model.own_forward import TransformersCache, cache_argument, check_supported
from tests.model.families import build
from tests.support.tiny import tiny_model


def sliding_model() -> PreTrainedModel:
    torch.manual_seed(3)
    config = MistralConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=8,
        max_position_embeddings=512,
    )
    model: PreTrainedModel = MistralForCausalLM(config)
    model.train(False)
    return model


@torch.inference_mode()
def run(model: PreTrainedModel, ids: torch.Tensor, cache: object) -> torch.Tensor:
    given = {cache_argument(model): cache}
    logits: torch.Tensor = model(input_ids=ids, use_cache=True, **given).logits
    return logits


@pytest.mark.parametrize("make", [lambda: tiny_model(40), sliding_model], ids=["full", "sliding"])
def test_rows_rolled_back_leave_no_trace(make: object) -> None:
    """Random appends and rollbacks give the logits of a fresh read, also past a sliding window."""
    model = make()  # type: ignore[operator]
    generator = torch.Generator().manual_seed(7)
    cache = TransformersCache(model.config)
    ids: list[int] = []
    for _ in range(30):
        new = torch.randint(
            0, 40, (int(torch.randint(1, 7, (1,), generator=generator)),), generator=generator
        )
        logits = run(model, new[None], cache.transformers)
        ids += new.tolist()
        fresh = run(model, torch.tensor([ids]), DynamicCache(config=model.config))
        torch.testing.assert_close(logits[0], fresh[0, -len(new) :], atol=2e-5, rtol=1e-5)
        keep = int(torch.randint(max(0, len(ids) - 4), len(ids) + 1, (1,), generator=generator))
        cache.rollback_to(keep)
        cache.rollback_to(keep)
        assert cache.length == keep
        del ids[keep:]


def test_the_buffer_grows_past_its_first_capacity() -> None:
    model = tiny_model(40, context=2048)
    ids = torch.randint(0, 40, (1, 600), generator=torch.Generator().manual_seed(1))
    cache = TransformersCache(model.config)
    parts = [run(model, part, cache.transformers) for part in torch.split(ids, 150, dim=1)]
    whole = run(model, ids, DynamicCache(config=model.config))
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=5e-5, rtol=1e-4)
    assert cache.length == 600
    assert cache.nbytes > 0


@pytest.mark.parametrize("length", [-1, 6])
def test_rolling_back_to_rows_that_are_not_there_is_refused(length: int) -> None:
    model = tiny_model(40)
    cache = TransformersCache(model.config)
    run(model, torch.zeros(1, 5, dtype=torch.long), cache.transformers)
    with pytest.raises(ValueError, match="5 rows are valid"):
        cache.rollback_to(length)


def test_an_interrupted_forward_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(40)
    cache = TransformersCache(model.config)
    ids = torch.arange(6)[None]
    run(model, ids, cache.transformers)

    def explode(*args: object, **kwargs: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(model.model.layers[1], "forward", explode)
        with pytest.raises(RuntimeError, match="out of memory"):
            run(model, ids, cache.transformers)
    assert cache.length == 6
    cache.rollback_to(6)
    fresh = run(model, torch.cat([ids, ids], 1), DynamicCache(config=model.config))
    again = run(model, ids, cache.transformers)
    torch.testing.assert_close(again[0], fresh[0, 6:], atol=2e-5, rtol=1e-5)


def shared(make: Any, count: int = 2) -> Any:
    """A config of six layers of two kinds, the last of which share keys and values."""
    kinds = ["sliding_attention", "full_attention"] * 3
    return make(num_hidden_layers=6, layer_types=kinds, num_kv_shared_layers=count)


REUSING: dict[str, Any] = {"kv_sharing_modes": ["store", "reuse", "reuse", "reuse"]}


def test_layers_that_could_share_and_do_not_are_taken() -> None:
    check_supported(shared(Gemma3nTextConfig, 0))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (MambaConfig(num_hidden_layers=2), "mamba"),
        (Qwen3NextConfig(num_hidden_layers=4), "linear_attention"),
        (T5Config(), "encoder-decoder"),
        (shared(Gemma3nTextConfig), "2 of its layers attend to the keys and values of others"),
        (Gemma3nConfig(text_config=shared(Gemma3nTextConfig)), "gemma3n: 2 of its layers"),
        (shared(Gemma4TextConfig), "gemma4_text: 2 of its layers"),
        (LlamaConfig(**REUSING), "3 of its layers"),
    ],
)
def test_what_a_cache_cannot_hold_is_refused_by_name(config: object, why: str) -> None:
    with pytest.raises(ModelUnsupported, match=why):
        check_supported(config)  # type: ignore[arg-type]


class Older:
    def forward(self, input_ids: Any, past_key_values: Any = None, use_cache: bool = True) -> None:
        """As of transformers before 5.24."""


class Newer:
    def forward(self, input_ids: Any, cache: Any = None, use_cache: bool = True) -> None:
        """As of transformers from 5.24 on."""


class Both:
    def forward(self, input_ids: Any, cache: Any = None, past_key_values: Any = None) -> None:
        """Something else may be called a cache, too."""


@pytest.mark.parametrize(
    ("kind", "name"), [(Older, "past_key_values"), (Newer, "cache"), (Both, "past_key_values")]
)
def test_the_name_is_the_one_that_forward_declares(kind: type, name: str) -> None:
    assert cache_argument(cast(Any, kind())) == name


def test_transformers_own_models_declare_one() -> None:
    assert cache_argument(build("llama")) in ("cache", "past_key_values")
