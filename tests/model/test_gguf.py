"""GGUF files as models, written here by the package that llama.cpp's own scripts write them with."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("gguf", reason="the optional package gguf is not installed")
pytest.importorskip("transformers", minversion="5.20")  # as the extra "gguf" asks for

from gguf import GGMLQuantizationType as Kind, quants
from safetensors import SafetensorError
from transformers import PreTrainedModel

from specstream.config import DEFAULT_TARGET, EngineConfig
from specstream.engine.build import build_engine
from specstream.errors import ConfigError, ModelBroken, ModelError, ModelNotFound, ModelUnsupported
from specstream.methods import OffProposerConfig
from specstream.model.gguf import convert, read_gguf_model, read_gguf_tokenizer
from specstream.model.load import load_config, load_model, load_tokenizer
from specstream.models.sources import check_models
from specstream.types import SamplingParams
from tests.support.gguf_files import SPECIAL, TEMPLATE, TOKENS, source_model, write_gguf
from tests.support.missing import uninstall
from tests.support.tiny import answered


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def read(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return read_gguf_model(path, load_config(str(path)), dtype)


def test_the_weights_are_those_that_were_written(file: Path) -> None:
    ours, theirs = read(file).state_dict(), source_model().state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_blocks_and_half_precision_are_unpacked(tmp_path: Path) -> None:
    up, down, key = "blk.0.ffn_up.weight", "blk.1.ffn_down.weight", "blk.0.ffn_gate.weight"
    model = write_gguf(tmp_path / "mixed.gguf", kinds={up: Kind.Q8_0, down: Kind.F16, key: Kind.BF16})
    ours, theirs = read(tmp_path / "mixed.gguf").state_dict(), model.state_dict()
    name = "model.layers.0.mlp.up_proj.weight"
    packed = quants.quantize(theirs[name].numpy(), Kind.Q8_0)
    assert torch.equal(ours[name], torch.from_numpy(quants.dequantize(packed, Kind.Q8_0)))
    assert not torch.equal(ours[name], theirs[name])
    for name, dtype in (
        ("model.layers.1.mlp.down_proj.weight", torch.float16),
        ("model.layers.0.mlp.gate_proj.weight", torch.bfloat16),
    ):
        assert torch.equal(ours[name], theirs[name].to(dtype).float())


def test_text_is_split_as_the_file_states(file: Path, tmp_path: Path) -> None:
    tokenizer = read_gguf_tokenizer(file)
    cases = {
        "a  12": ["a", "ĠĠ", "1", "2"],  # GPT-2's way would leave one space to the number
        "x\n\n1.": ["x", "ĊĊ", "1", "."],
        "hello 7": ["hel", "lo", "Ġ", "7"],
        "<|stop|>he": ["<|stop|>", "he"],
    }
    for text, tokens in cases.items():
        assert tokenizer.tokenize(text) == tokens
        assert tokenizer.decode(tokenizer.encode(text)) == text
    write_gguf(tmp_path / "gpt2.gguf", split="gpt-2")
    assert read_gguf_tokenizer(tmp_path / "gpt2.gguf").tokenize("a  12") == ["a", "Ġ", "Ġ", "1", "2"]


def test_special_tokens_and_chat_template_are_the_files(file: Path) -> None:
    tokenizer = load_tokenizer(str(file))
    assert tokenizer.get_vocab() == {token: i for i, token in enumerate(TOKENS)}
    assert tokenizer.chat_template == TEMPLATE
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.encode("h")[0] not in (1, 2)  # the file asks for no token in front
    added = tokenizer.added_tokens_decoder
    assert [(added[i].content, added[i].special) for i in sorted(added)] == [
        (token, True) for token in SPECIAL
    ]


def test_files_beside_it_are_not_looked_at(file: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        shutil.copy(Path(DEFAULT_TARGET) / name, file.parent)
    tokenizer = load_tokenizer(str(file))
    assert len(tokenizer) == len(TOKENS) and tokenizer.chat_template == TEMPLATE
    assert load_config(str(file)).vocab_size == len(TOKENS)


@pytest.mark.parametrize("split", ["no-such-rules", None])
def test_an_unknown_way_of_splitting_is_refused(tmp_path: Path, split: str | None) -> None:
    write_gguf(tmp_path / "odd.gguf", split=split)
    with pytest.raises(ModelUnsupported, match=r"splits text by the rules .*safetensors folder"):
        load_tokenizer(str(tmp_path / "odd.gguf"))


def test_every_end_that_the_file_names_ends_a_reply(tmp_path: Path) -> None:
    write_gguf(tmp_path / "two.gguf", more={"tokenizer.ggml.eot_token_id": 0})
    config = read(tmp_path / "two.gguf").generation_config
    assert config is not None and config.eos_token_id == [0, 2]


def tokens_of(target: Path) -> list[int]:
    config = EngineConfig(target=str(target), proposer=OffProposerConfig(), dtype="float32")
    core = build_engine(config)
    _, inbox = answered(core, "hello you", SamplingParams(max_tokens=24))
    assert not inbox.errors
    return inbox.token_ids


def test_it_is_served_like_the_folder_that_it_was_made_from(file: Path, tmp_path: Path) -> None:
    source = source_model()
    assert source.generation_config is not None
    source.generation_config.eos_token_id = 2
    source.save_pretrained(tmp_path / "folder")
    read_gguf_tokenizer(file).save_pretrained(tmp_path / "folder")
    check_models(EngineConfig(target=str(file)))
    assert len(tokens_of(file)) == 24
    assert tokens_of(file) == tokens_of(tmp_path / "folder")


def test_converting_writes_a_folder_that_loads(file: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    convert(file, tmp_path / "folder", lambda done, total: steps.append((done, total)))
    assert steps[0][0] == 0 and steps[-1][0] == steps[-1][1] == len(steps) - 1
    name = str(tmp_path / "folder")
    loaded = load_model(name, EngineConfig(device="cpu"))
    assert "quantization_config" not in loaded.config.to_dict()
    for key, weight in source_model().state_dict().items():
        assert torch.equal(loaded.state_dict()[key], weight.bfloat16().float())
    ours = load_tokenizer(name)
    text = "he said:\n\n12  times <|stop|>"
    assert ours.encode(text) == read_gguf_tokenizer(file).encode(text)
    assert ours.chat_template == TEMPLATE


def test_converting_fails_with_one_clear_error(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **options: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedModel, "save_pretrained", full)
        with pytest.raises(OSError, match="No space left"):
            convert(file, tmp_path / "folder", lambda done, total: None)
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(ModelBroken, match=r"^tiny\.gguf can't be converted: "):
        convert(file, tmp_path / "folder", lambda done, total: None)


def refused(path: Path, kind: type[ModelError]) -> str:
    with pytest.raises(kind) as caught:
        load_model(str(path), EngineConfig(device="cpu"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_missing_or_left_over_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, without="blk.1.ffn_up.weight")
    assert "model.layers.1.mlp.up_proj.weight is missing" in refused(path, ModelBroken)
    write_gguf(path, extra_tensor="blk.0.attn_sinks.weight")
    assert "no place for the weight blk.0.attn_sinks.weight" in refused(path, ModelBroken)
    write_gguf(path, extra_tensor="rope_freqs.weight")
    assert "rotary scaling can't be converted" in refused(path, ModelUnsupported)
    write_gguf(path, more={"llama.rope.scaling.type": "yarn"})
    assert "rotary scaling can't be converted" in refused(path, ModelUnsupported)


def test_damaged_files_are_one_clear_line(file: Path) -> None:
    whole = file.read_bytes()
    for size in (60, len(whole) // 3, len(whole) - 5000):
        file.write_bytes(whole[:size])
        said = refused(file, ModelBroken)
        assert str(file) in said and said.endswith("(was the file copied as a whole?)")
    file.write_bytes(b"no model at all")
    assert "is not a GGUF file" in refused(file, ModelBroken)
    file.unlink()
    assert "no such model file" in refused(file, ModelNotFound)


def test_an_architecture_that_cant_be_converted_is_named(file: Path) -> None:
    values = np.frombuffer(file.read_bytes(), dtype=np.uint8).tobytes()
    file.write_bytes(values.replace(b"llama", b"alpha"))
    assert "the architecture 'alpha' can't be converted" in refused(file, ModelUnsupported)


def test_without_the_package_it_says_what_to_install(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninstall(monkeypatch, "gguf")
    with pytest.raises(ConfigError, match=r"specstream-sdk\[gguf\]"):
        check_models(EngineConfig(target=str(file)))
