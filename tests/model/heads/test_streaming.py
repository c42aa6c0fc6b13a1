"""Streams: the same numbers as in training, no influence on the target, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.forward import Extras, ForwardInput, ForwardOutput
from specstream.model.heads.recognise import kind_of, load_head
from specstream.model.heads.research.streaming import StreamingHead, StreamingShape, Streams
from specstream.model.runner import ModelRunner
from tests.model.families import FAMILY, build
from tests.support.streams import STREAMS, streaming_head, trainee_of
from tests.support.tiny import tiny_model

MODEL = tiny_model(64, seed=5, layers=3, scale=2.0)
RUNNER = ModelRunner(MODEL)
IDS = torch.randint(2, 30, (14,), generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def run(runner: ModelRunner, streams: Streams | None, depths: tuple[int, ...] = ()) -> ForwardOutput:
    """Fourteen tokens, of which six are in the cache; and two other sequences."""
    cache = runner.new_cache()
    runner.forward([ForwardInput(IDS[:6], cache)])
    inputs = [
        ForwardInput(IDS[6:], cache, 4),
        ForwardInput(IDS[:3], runner.new_cache()),
        ForwardInput(IDS[:5], runner.new_cache()),
    ]
    made = runner.forward(inputs, Extras(depths, rider=streams))
    assert cache.length == 14
    return made


def ride(head: StreamingHead, runner: ModelRunner, least: float = 0.0) -> tuple[Streams, Tensor]:
    """The last three tokens of the first sequence are proposed, and none of the second."""
    streams = Streams(head, [IDS[11:14], IDS[:0]], least)
    return streams, torch.cat(run(runner, streams).logits)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("layers", [1, 2])
def test_service_computes_what_training_computes(name: str, layers: int) -> None:
    model = build(name) if layers == 1 else MODEL
    runner = ModelRunner(model)
    options = {"stream_layers": layers}
    head, trainee = streaming_head(runner, 0.1, **options), trainee_of(model, 0.1, **options)
    for one in trainee.module.parameters():
        one.data = one.data.bfloat16().float()  # as it is saved
    streams, _ = ride(head, runner)
    item = ForwardInput(IDS, runner.new_cache())
    with torch.inference_mode():
        (states,) = runner.forward([item], Extras(trainee.depths)).states
    plain = states[:, 0].clone().unsqueeze(0)
    cos, sin = trainee.rotary.upto(32)
    rows = trainee.module.text_rows(plain, (cos[:14].unsqueeze(1), sin[:14].unsqueeze(1)))
    at = torch.arange(10, 14).unsqueeze(0)
    with torch.inference_mode():
        wanted = trainee.module(plain, at, rows, (cos, sin))[0]
        found = head.norm(streams.states[0].flatten(0, 1)).view(4, STREAMS, -1)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert streams.states[1].shape == (1, STREAMS, 32)
    assert len(streams.states) == 2


@torch.inference_mode()
@pytest.mark.parametrize("native", [None, False])
def test_the_target_does_not_notice_them(native: bool | None) -> None:
    """No bit of its logits changes, nor of its states before, within and after the streams' layers."""
    runner = ModelRunner(MODEL, native=native)
    streams = Streams(streaming_head(runner, 3.0, stream_layers=2), [IDS[11:14], IDS[:0]])
    for depths in ((), (0, 1, 2, 3), (2,)):
        found, plain = run(runner, streams, depths), run(runner, None, depths)
        for one, other in zip(found.logits + found.states, plain.logits + plain.states, strict=True):
            assert torch.equal(one, other)
        assert [one.shape[1] for one in found.states] == [len(depths)] * (3 if depths else 0)


@torch.inference_mode()
def test_streams_of_nan_stay_among_themselves() -> None:
    head = streaming_head(RUNNER, stream_layers=2)
    head.entry = lambda x: torch.full((x.shape[0], STREAMS * x.shape[1]), torch.nan)
    streams, logits = ride(head, RUNNER)
    assert bool(streams.states[0].isnan().all())
    assert bool(logits.isfinite().all())


def test_streams_do_not_see_later_ones_nor_later_tokens() -> None:
    head = streaming_head(RUNNER, 0.1, stream_layers=2)
    before, _ = ride(head, RUNNER)
    entered = head.entry

    def other(x: Tensor) -> Tensor:
        made = entered(x).view(x.shape[0], STREAMS, -1).clone()
        made[:, -1] += 5.0
        made[-2:] += 5.0
        return made.flatten(1)

    head.entry = other
    after, _ = ride(head, RUNNER)
    same, changed = before.states[0][:-1, :-1], after.states[0][:-1, :-1]
    torch.testing.assert_close(same, changed, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(before.states[0][0, -1], after.states[0][0, -1])


def test_an_early_exit_prunes_a_chain_behind_its_first_unlikely_token() -> None:
    head = streaming_head(RUNNER, 0.1, stream_layers=2)
    whole, _ = ride(head, RUNNER, 1e-9)
    none, logits = ride(head, RUNNER, 1.0)
    assert [one.shape[0] for one in whole.states] == [4, 1]
    assert [one.shape[0] for one in none.states] == [1, 1]
    torch.testing.assert_close(none.states[0], whole.states[0][:1], rtol=1e-4, atol=1e-5)
    plain = ride(head, RUNNER)[1]
    torch.testing.assert_close(logits, plain, rtol=1e-5, atol=1e-4)


def save(folder: Path, **changes: Any) -> Path:
    trainee_of(MODEL, stream_layers=2).save(folder, {"target": "tiny"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def test_its_folder_is_recognised_and_loaded(tmp_path: Path) -> None:
    head: Any = load_head(save(tmp_path), RUNNER)
    assert kind_of(head.shape.config) == head.kind == "streaming"
    assert StreamingShape.of(head.shape.config) == head.shape
    saved = load_file(tmp_path / "model.safetensors")
    assert head.parameters == sum(one.numel() for one in saved.values())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"hidden_size": 48}, "hidden states of size 48, and this target has 32"),
        ({"vocab_size": 99}, "a vocabulary of 99"),
        ({"num_target_layers": 36}, "36, and this target has 3|36 layers|no states at"),
    ],
)
def test_a_head_of_another_target_is_refused(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnsupported, match=match):
        load_head(save(tmp_path, **changes), RUNNER)


@pytest.mark.parametrize(
    "changes", [{"streams": 0}, {"streams": 99}, {"stream_layers": 3}, {"rank": "x"}, {"rank": None}]
)
def test_a_damaged_config_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelBroken):
        load_head(save(tmp_path, **changes), RUNNER)


def test_missing_and_wrong_tensors_are_named(tmp_path: Path) -> None:
    whole = load_file(save(tmp_path) / "model.safetensors")
    file = tmp_path / "model.safetensors"
    save_file({k: v for k, v in whole.items() if k != "layers.1.out_a"}, file)
    with pytest.raises(ModelBroken, match=r"layers\.1\.out_a"):
        load_head(tmp_path, RUNNER)
    save_file(whole | {"norm.weight": torch.ones(7)}, file)
    with pytest.raises(ModelBroken, match="shape"):
        load_head(tmp_path, RUNNER)
    save_file(whole | {"norm.weight": torch.ones(32, dtype=torch.int64)}, file)
    with pytest.raises(ModelBroken, match="int64"):
        load_head(tmp_path, RUNNER)


def test_a_target_whose_passes_take_no_rider_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path)
    for runner in (ModelRunner(MODEL, lean=False), ModelRunner(MODEL, fixed_width=8, context_length=64)):
        with pytest.raises(ModelUnsupported):
            load_head(folder, runner)
