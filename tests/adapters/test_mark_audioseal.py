"""AudioSeal's loading and streaming, on small weights that are made here."""

import importlib
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.stages.interfaces import MarkTrack
from specstream.testing import check_mark
from specstream_adapters.mark.audioseal import AudioSealMark

torch = pytest.importorskip("torch")
builder = pytest.importorskip("audioseal.builder")

RATE = 16_000
SEANET: dict[str, Any] = {
    **{"channels": 1, "dimension": 16, "n_filters": 4, "n_residual_layers": 1},
    **{"ratios": [8, 5, 4, 2], "activation": "ELU", "activation_params": {"alpha": 1.0}},
    **{"norm": "weight_norm", "norm_params": {}, "kernel_size": 7, "last_kernel_size": 7},
    **{"residual_kernel_size": 3, "dilation_base": 2, "causal": True, "pad_mode": "constant"},
    **{"true_skip": True, "compress": 2, "lstm": 2, "disable_norm_outer_blocks": 0},
}
DECODER = {"final_activation": None, "final_activation_params": None, "trim_right_ratio": 1.0}
CONFIG: dict[str, Any] = {"nbits": 16, "seanet": SEANET, "decoder": DECODER}


def generator(**seanet: Any) -> Any:
    """A small generator whose watermark is faint."""
    torch.manual_seed(3)
    settings = builder.SEANetConfig(**{**SEANET, "norm": "none", **seanet})
    config = builder.AudioSealWMConfig(16, settings, builder.DecoderConfig(**DECODER))
    model = builder.create_generator(config).eval()
    with torch.no_grad():
        for tensor in list(model.decoder.parameters())[-2:]:
            tensor.mul_(0.02)
    return model


def old_names(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name.replace(".inner_conv.", "."): tensor for name, tensor in tensors.items()}


@pytest.fixture(scope="module", params=["old", "new"])
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the settings of the training, as omegaconf has them, and names of before 0.2 or after."""
    folder = tmp_path_factory.mktemp("weights")
    settings = importlib.import_module("omegaconf").OmegaConf.create(CONFIG)
    tensors = generator().state_dict()
    tensors = old_names(tensors) if request.param == "old" else tensors
    torch.save({"xp.cfg": settings, "model": tensors}, folder / "generator_streaming.pth")
    return folder


def tune(samples: int) -> bytes:
    wave = (round(9000 * math.sin(at / 9) * math.sin(at / 700)) for at in range(samples))
    return struct.pack(f"<{samples}h", *wave)


async def through(track: MarkTrack, pcm: bytes, size: int) -> bytes:
    out = b""
    for at in range(0, len(pcm), 2 * size):
        out += await track.add(pcm[at : at + 2 * size])
    return out + await track.close()


@pytest.mark.slow
async def test_it_keeps_the_contract(weights: Path) -> None:
    report = await check_mark(lambda: AudioSealMark(weights=weights))
    report.assert_passed()
    assert report.skipped == ()


async def test_samples_are_those_of_the_packages_own_streaming(weights: Path) -> None:
    mark = AudioSealMark(weights=weights, message=5)
    sound = tune(4 * 2560)
    model, message = generator(), torch.tensor([[1, 0, 1, *[0] * 13]])
    given = torch.frombuffer(bytearray(sound), dtype=torch.int16).float()[None, None] / 32768
    compiling = importlib.import_module("audioseal.libs.moshi.utils.compile")
    with torch.inference_mode(), model.streaming(1), compiling.no_compile():
        own = [model(part, message=message) for part in given.split(2560, -1)]
    wanted = (torch.cat(own, -1)[0, 0] * 32768).round().clamp(-32768, 32767).to(torch.int16)
    made = await through(mark.open(RATE), sound, 333)
    assert made == wanted.numpy().tobytes() and made != sound
    await mark.aclose()


async def test_message_and_strength_change_the_samples(weights: Path) -> None:
    sound, made = tune(8000), set[bytes]()
    for options in ({}, {"message": 1}, {"message": 65_535}, {"strength": 0.5}):
        mark = AudioSealMark(weights=weights, **options)
        made.add(await through(mark.open(RATE), sound, 960))
        await mark.aclose()
    assert len(made) == 4
    mark = AudioSealMark(weights=weights, strength=0)
    assert await through(mark.open(RATE), sound, 960) == sound
    await mark.aclose()
    with pytest.raises(AdapterFailed, match="closed"):
        await mark.open(RATE).add(sound)


def test_a_card_beside_the_weights_comes_first(weights: Path, tmp_path: Path) -> None:
    small = {**SEANET, "n_filters": 2}
    importlib.import_module("omegaconf").OmegaConf.save(
        {**CONFIG, "seanet": small}, tmp_path / "config.yaml"
    )
    torch.save(generator(n_filters=2).state_dict(), tmp_path / "mine.pt")
    assert AudioSealMark(weights=tmp_path).open(RATE)
    other = torch.load(weights / "generator_streaming.pth", weights_only=False)
    torch.save(other, tmp_path / "mine.pt")
    with pytest.raises(AdapterUnavailable, match="is no generator of AudioSeal"):
        AudioSealMark(weights=tmp_path)


def test_weights_that_can_not_be_used_are_refused(weights: Path, tmp_path: Path) -> None:
    def told(checkpoint: Any, says: str) -> None:
        torch.save(checkpoint, tmp_path / "one.pth")
        with pytest.raises(AdapterUnavailable, match=says):
            AudioSealMark(weights=tmp_path)

    with pytest.raises(AdapterUnavailable, match="one file .* it has none"):
        AudioSealMark(weights=tmp_path)
    tensors = generator().state_dict()
    told({"xp.cfg": {**CONFIG, "seanet": {**SEANET, "causal": False}}, "model": tensors}, "causal")
    name, _ = tensors.popitem()
    told({"xp.cfg": CONFIG, "model": tensors}, f"lacks 1 tensors, {name}")
    told({"xp.cfg": CONFIG, "model": Path("x")}, "is no generator")  # code is not run
    (tmp_path / "one.pth").write_bytes(b"junk")
    with pytest.raises(AdapterUnavailable, match="is no generator"):
        AudioSealMark(weights=tmp_path)
    (tmp_path / "two.pth").write_bytes(b"junk")
    with pytest.raises(AdapterUnavailable, match="it has 2 files"):
        AudioSealMark(weights=tmp_path)


def test_options_out_of_range_are_refused(weights: Path) -> None:
    for options in ({"message": 65_536}, {"message": -1}, {"strength": 2}, {"chunk_ms": 5}):
        with pytest.raises(ConfigError):
            AudioSealMark(weights=weights, **options)
    with pytest.raises(ConfigError, match="write audioseal=FOLDER"):
        AudioSealMark()
    with pytest.raises(AdapterFailed, match="chunk_ms higher"):
        AudioSealMark(weights=weights, chunk_ms=20).open(8000)
