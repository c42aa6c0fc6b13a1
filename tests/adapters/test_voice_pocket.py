"""The voice on pocket-tts, with a small model of random weights that the test makes (no speech)."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.types import Phrase, Span
from specstream_adapters.voice.pocket import PocketVoice, shared_model

pytestmark = pytest.mark.filterwarnings("default")  # of the library


def phrase(text: str) -> Phrase:
    return Phrase(text, Span(0, len(text)), Span(0, 1), index=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has one: configuration, weights, tokenizer, a recording of a speaker."""
    pytest.importorskip("pocket_tts")
    import safetensors.torch
    import tokenizers
    import yaml
    from pocket_tts import TTSModel
    from pocket_tts.default_parameters import DEFAULT_SAMPLER_DECODE_STEPS
    from pocket_tts.models import tts_model
    from pocket_tts.utils.config import load_config

    place = tmp_path_factory.mktemp("pocket")
    configs = Path(tts_model.CONFIGS_DIR)
    config = yaml.safe_load((configs / "english_2m_2026-10.yaml").read_text())
    config["flow_lm"]["transformer"]["num_layers"] = 2
    config["mimi"]["transformer"]["num_layers"] = 1
    lookup = config["flow_lm"]["lookup_table"]
    letters = {chr(code): number for number, code in enumerate(range(32, 127))}
    model = tokenizers.models.BPE(vocab={**letters, "<unk>": 95}, merges=[], unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.save(str(place / "tokenizer.json"))
    lookup |= {"n_bins": 96, "tokenizer": "tokenizers", "tokenizer_path": "hf://a/b/tokenizer.json@1"}
    (place / "small.yaml").write_text(yaml.safe_dump(config))
    unread = {**config, "weights_path": None, "weights_path_without_voice_cloning": None}
    unread["flow_lm"]["lookup_table"] = {**lookup, "tokenizer_path": str(place / "tokenizer.json")}
    (place / "unread.yml").write_text(yaml.safe_dump(unread))
    made: Any = TTSModel._from_pydantic_config_with_weights(
        load_config(place / "unread.yml"), 0.3, DEFAULT_SAMPLER_DECODE_STEPS, None, -4.0
    )
    (place / "unread.yml").unlink()
    safetensors.torch.save_file(made.state_dict(), place / "model.safetensors")
    tone = 0.3 * np.sin(np.arange(24_000) * 0.05)
    soundfile.write(place / "anna.wav", tone, 24_000)
    return place


async def test_sound_comes_in_pieces(folder: Path) -> None:
    voice = PocketVoice(folder=str(folder))
    assert voice.capabilities.streaming
    pieces = [len(b.pcm) async for b in voice.synthesize(phrase("Hello there, how are you?"))]
    assert len(pieces) >= 2 and all(length % 2 == 0 for length in pieces)
    assert [b async for b in voice.synthesize(phrase("…"))] == []


async def test_closing_stops_it_and_the_next_phrase_is_spoken(folder: Path) -> None:
    voice = PocketVoice(folder=str(folder), speaker="anna")
    long = voice.synthesize(phrase("A long sentence, of many words, that is not heard to its end."))
    await anext(long)
    await long.aclose()
    assert [b async for b in voice.synthesize(phrase("Yes."))]
    await voice.aclose()
    with pytest.raises(AdapterFailed, match="closed"):
        await anext(voice.synthesize(phrase("No.")))


async def test_a_model_that_breaks_is_a_typed_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    voice = PocketVoice(folder=str(folder))

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of sorts")

    model = shared_model(str(folder), None)
    monkeypatch.setattr(model.model, "generate_audio_stream", broken)
    with pytest.raises(AdapterFailed, match="out of sorts"):
        async for _ in voice.synthesize(phrase("Hello.")):
            pass


@pytest.mark.parametrize("missing", ["tokenizer.json", "model.safetensors", "small.yaml"])
def test_a_folder_that_lacks_a_file_says_which(folder: Path, tmp_path: Path, missing: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / missing).unlink()
    with pytest.raises(AdapterUnavailable, match="there are 0" if "yaml" in missing else missing):
        PocketVoice(folder=str(copy))


def test_options_that_it_has_not_are_refused(folder: Path, tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{}, {"folder": str(tmp_path / "none")}, {"folder": str(tmp_path)}]
    for options in wrong:
        with pytest.raises(ConfigError):
            PocketVoice(**options)
    with pytest.raises(ConfigError, match="anna"):
        PocketVoice(folder=str(folder), speaker="otto")
    with pytest.raises(ConfigError, match="its model's own"):
        PocketVoice(folder=str(folder), speed=1.2)
