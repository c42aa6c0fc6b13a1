"""The lean pass computes what the model computes, or isn't used."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specstream.model.attention.contiguous import Heads
from specstream.model.decoder import Decoder
from specstream.model.forward import ForwardInput
from specstream.model.native.layers import NativeLayers
from specstream.model.runner import ModelRunner
from tests.model.families import FAMILY, build, text, whole
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.usefixtures("passes")


@pytest.mark.parametrize("name", sorted(FAMILY))
@torch.inference_mode()
def test_chunks_and_rollbacks_give_the_models_own_logits(name: str) -> None:
    """Long and short chunks, at the start and behind; past the first capacity and the first angles."""
    model, ids = build(name), text(400)
    wanted = whole(model, ids)
    runner = ModelRunner(model)
    assert runner.lean
    cache, at = runner.new_cache(), 0
    for count in (90, 1, 5, 70, 2, 64, 65, 1, 9, 93):
        if at + 3 < ids.shape[0]:  # junk that is taken back leaves no trace
            runner.forward([ForwardInput(text(3, seed=at), cache)])
            cache.rollback_to(at)
        part = ids[at : at + count]
        (rows,) = runner.forward([ForwardInput(part, cache, keep=count)]).logits
        torch.testing.assert_close(rows, wanted[at : at + count], atol=1e-4, rtol=1e-4)
        at += count
    assert cache.length == at == 400
    torch.testing.assert_close(whole(model, ids), wanted)  # the model itself still works


@torch.inference_mode()
def test_sequences_share_a_pass_and_nothing_else() -> None:
    model = build("llama")
    runner = ModelRunner(model)
    texts = [text(n, seed=n) for n in (3, 40, 1, 80)]
    caches = [runner.new_cache() for _ in texts]
    for start, end in ((0, 1), (1, 3), (3, 40), (40, 80)):
        live = [(t[start:end], c) for t, c in zip(texts, caches, strict=True) if len(t) > start]
        rows = runner.forward([ForwardInput(t, c, keep=len(t)) for t, c in live]).logits
        for (part, cache), found in zip(live, rows, strict=True):
            full = next(t for t, c in zip(texts, caches, strict=True) if c is cache)
            wanted = whole(model, full)[cache.length - len(part) : cache.length]
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(FAMILY))
@torch.inference_mode()
def test_rows_that_nobody_wants_change_nothing(name: str) -> None:
    """The last layer runs for the kept rows only: of short and long parts, alone and together."""
    model = build(name)
    runner = ModelRunner(model)
    texts = [text(n, seed=n) for n in (230, 150, 12)]
    caches = [runner.new_cache() for _ in texts]
    splits = ((0, 100, 1), (100, 101, 1), (101, 200, 70), (200, 205, 2), (205, 230, 3))
    for start, end, keep in splits:
        live = [(t[start:end], c, t) for t, c in zip(texts, caches, strict=True) if len(t) > start]
        inputs = [ForwardInput(t, c, keep=min(keep, len(t))) for t, c, _ in live]
        for item, rows, (_, cache, full) in zip(
            inputs, runner.forward(inputs).logits, live, strict=True
        ):
            wanted = whole(model, full)[cache.length - item.keep : cache.length]
            torch.testing.assert_close(rows, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        runner.forward([ForwardInput(text(1), caches[0])]).logits[0],
        whole(model, torch.cat([texts[0], text(1)]))[-1:],  # all keys and values were written
        atol=1e-4,
        rtol=1e-4,
    )


@torch.inference_mode()
def test_an_interrupted_pass_counts_for_nothing(passes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(build("llama"))
    cache = runner.new_cache()
    runner.forward([ForwardInput(text(6), cache)])

    def explode(*args: object) -> None:
        raise RuntimeError("out of memory")

    broken: tuple[Any, str] = (NativeLayers, "run_on") if passes == "native" else (Heads, "fold")
    monkeypatch.setattr(*broken, explode)
    with pytest.raises(RuntimeError, match="out of memory"):
        runner.forward([ForwardInput(text(4), cache)])
    assert cache.length == 6


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mistral", {"sliding_window": 8}),
        ("llama", {"mlp_bias": True}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    ],
)
def test_what_it_does_not_compute_runs_as_it_is(name: str, changes: dict[str, Any]) -> None:
    model = build(name, **changes)
    runner = ModelRunner(model)
    assert not runner.lean
    (rows,) = runner.forward([ForwardInput(text(20), runner.new_cache(), keep=20)]).logits
    torch.testing.assert_close(rows, whole(model, text(20)), atol=1e-4, rtol=1e-4)


class Packed(torch.Tensor):
    """A weight as quantised ones are: eight-bit numbers and scales, which can only be multiplied by."""

    numbers: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def __new__(cls, weight: torch.Tensor) -> Packed:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, weight.shape, dtype=weight.dtype)
        made.scales = weight.abs().amax(-1, keepdim=True) / 127
        made.numbers = (weight / made.scales).round().to(torch.int8)
        found: Packed = made
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight, *bias = args
            return func(x, weight.numbers.to(x.dtype) * weight.scales, *bias)
        plain: Any = super().__torch_function__
        return plain(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise AssertionError(f"{func} on a packed weight")


@torch.inference_mode()
def test_weights_that_can_only_be_multiplied_by_are_left_alone() -> None:
    with torch.inference_mode(False), torch.no_grad():
        model = build("llama")
        for layer in model.model.layers:
            layer.mlp.up_proj.weight = torch.nn.Parameter(
                Packed(layer.mlp.up_proj.weight.data), requires_grad=False
            )
    runner, ids = ModelRunner(model), text(20)
    assert not runner.lean
    cache = runner.new_cache()
    parts = [runner.forward([ForwardInput(p, cache, keep=10)]).logits[0] for p in (ids[:10], ids[10:])]
    torch.testing.assert_close(torch.cat(parts), whole(model, ids), atol=1e-4, rtol=1e-4)


def test_a_model_that_does_something_else_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model(40)
    own = model.model.norm.forward
    model.model.norm.forward = lambda x: own(x) * 1.5
    assert Decoder.of(model) is None
    assert "its own forward is used" in caplog.text
