from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from specstream.bench.load import padded as padded_module
from specstream.bench.load.padded import Shape, choose_shape, heads_for, pad, padded_target, save_padded
from specstream.bench.prompts import Padding, parse_padding
from specstream.config import EngineConfig
from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.heads.base import read_head_config
from specstream.model.heads.block import BlockShape
from specstream.models.kept import bundled_heads, located
from tests.support.tiny import byte_tokenizer, tiny_model

TINY = tiny_model(64)  # 2 layers, width 32, MLP 64, 4 heads in 2 groups
SHAPES = [
    Shape(5, 32, 64, 4, 2),
    Shape(2, 32, 192, 4, 2),
    Shape(3, 128, 64, 16, 8),
    Shape(4, 128, 256, 16, 8),
    Shape(2, 512, 64, 64, 32),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tied", [False, True])
@torch.inference_mode()
def test_logits_are_those_of_the_model_that_was_padded(shape: Shape, tied: bool) -> None:
    model = tiny_model(64)
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    padded = pad(model, shape)
    ids = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(padded(ids).logits, model(ids).logits, atol=2e-5, rtol=1e-5)
    assert padded.config.num_hidden_layers == shape.layers
    assert padded.model.layers[0].mlp.gate_proj.weight.shape == (shape.intermediate, shape.hidden)


def test_what_need_not_be_zero_is_random() -> None:
    padded = pad(TINY, Shape(4, 128, 256, 16, 8))
    for name, weights in padded.state_dict().items():
        if "layers.3" in name and "norm" not in name:
            zeros = name.endswith(("o_proj.weight", "down_proj.weight"))
            assert bool((weights == 0).all()) == zeros, name
            assert zeros or float(weights.std()) > 0.01
    rows = padded.state_dict()["model.layers.0.mlp.up_proj.weight"][64:]
    assert float((rows == 0).float().mean()) < 0.01


def test_a_shape_comes_close_to_the_size_that_was_asked_for() -> None:
    config = TINY.config
    for text in ("1M", "5M:4", "20M:6"):
        padding = parse_padding(text)
        shape = choose_shape(config, padding)
        made = pad(TINY, shape)
        size = sum(parameter.numel() for parameter in made.parameters())
        assert size == pytest.approx(padding.parameters, rel=0.15)
        assert shape.layers == (padding.layers or shape.layers)


def test_a_large_target_is_not_padded_to_a_small_one() -> None:
    with pytest.raises(ConfigError, match="larger already"):
        choose_shape(TINY.config, Padding(20_000, 2))


def test_it_is_saved_as_a_folder_that_loads(tmp_path: Path) -> None:
    TINY.save_pretrained(tmp_path / "small")
    byte_tokenizer().save_pretrained(tmp_path / "small")
    shape, size = save_padded(str(tmp_path / "small"), Padding(1_000_000, 3), tmp_path / "large")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "large", dtype="auto")
    assert isinstance(loaded, LlamaForCausalLM)
    assert loaded.dtype == torch.bfloat16
    assert loaded.config.num_hidden_layers == shape.layers == 3
    assert sum(parameter.numel() for parameter in loaded.parameters()) == size


def test_another_family_is_refused(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path / "gpt2"
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2)).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    with pytest.raises(ModelUnsupported, match="plain Llama"):
        save_padded(str(folder), Padding(1_000_000, 3), tmp_path / "large")


def test_a_block_head_is_told_of_the_layers_that_padding_adds(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 12}')
    heads = heads_for(tmp_path, bundled_heads())
    made = BlockShape.of(read_head_config(heads["block"]))
    own = BlockShape.of(read_head_config(located("bundled-block")))
    assert made == replace(own, target_layers=12) and own.target_layers == 8
    same = load_file(Path(heads["block"]) / "model.safetensors")
    assert same.keys() == load_file(Path(located("bundled-block")) / "model.safetensors").keys()
    assert heads | {"block": "bundled-block"} == bundled_heads()
    assert heads_for(tmp_path, {"eagle": "mine"}) == {"eagle": "mine"}


async def test_a_padded_target_is_there_as_long_as_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(target: str, padding: object, folder: Path) -> tuple[Shape, int]:
        (folder / "config.json").write_text(target)
        return Shape(12, 64, 256, 4, 2), 5_000_000

    monkeypatch.setattr(padded_module, "save_padded", save)
    config = EngineConfig(target="mine", threads=1)
    async with padded_target(config, Padding(5_000_000)) as (padded, words):
        file = Path(padded.target) / "config.json"
        assert file.read_text() == "mine"
        assert words.startswith("5M parameters, 12 layers of width 64")
    assert not file.exists()
    async with padded_target(config, None) as (same, words):
        assert (same, words) == (config, "")
