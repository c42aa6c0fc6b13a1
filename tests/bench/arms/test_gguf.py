"""llama.cpp as an arm, with a stand-in for the library: what we ask of it, what we make of it."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio

from specstream.bench.arms.base import Ask
from specstream.bench.arms.gguf import GgufArm
from specstream.bench.arms.thread import BenchThread
from specstream.bench.arms.transformers_peers import PeerModels
from specstream.config import EngineConfig
from specstream.errors import ConfigError
from tests.tiny import EOS, byte_tokenizer, tiny_model

ASK = Ask(({"role": "user", "content": "ab"},), max_tokens=4)


class FakeLlama:
    """Counts up from the prompt's last token; ends after ``ends_after`` tokens."""

    vocabulary = 258
    ends_after = 99

    def __init__(self, **options: Any) -> None:
        if "broken" in options["model_path"]:
            raise ValueError("bad magic")
        self.options = options
        self.resets = 0
        self.asked: dict[str, Any] = {}

    def n_vocab(self) -> int:
        return self.vocabulary

    def reset(self) -> None:
        self.resets += 1

    def set_seed(self, seed: int) -> None:
        self.seed = seed

    def generate(self, tokens: list[int], **options: Any) -> Iterator[int]:
        self.asked = {"tokens": tokens, **options}
        for i in range(1, 100):
            yield EOS if i > self.ends_after else tokens[-1] + i


@pytest_asyncio.fixture
async def models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[PeerModels, None]:
    module: Any = ModuleType("llama_cpp")
    module.Llama = FakeLlama
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    tiny_model(len(tokenizer)).save_pretrained(tmp_path)
    thread = BenchThread(1)
    made = PeerModels(EngineConfig(target=str(tmp_path), dtype="float32", device="cpu"), thread)
    await made.load()
    yield made
    thread.close()


async def test_it_writes_until_it_may_write_no_more(models: PeerModels) -> None:
    arm = await GgufArm.load("some/tiny-q8.gguf", models, 3)
    run = await arm.run(ASK)
    llama: FakeLlama = arm._llama
    prompt = llama.asked["tokens"]
    assert arm.setting == "tiny-q8"
    assert run.token_ids == tuple(prompt[-1] + i for i in range(1, 5))
    assert run.finish == "length"
    assert len(run.emissions) == 4
    assert llama.options["n_threads"] == 3
    assert llama.asked["temp"] == 0.0
    assert llama.asked["repeat_penalty"] == 1.0
    await arm.run(ASK)
    assert llama.resets == 2  # nothing of the prompt is left over from the time before


async def test_it_ends_where_the_model_ends(
    models: PeerModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLlama, "ends_after", 2)
    run = await (await GgufArm.load("x.gguf", models, 1)).run(ASK)
    assert run.token_ids[-1] == EOS
    assert (len(run.token_ids), run.finish) == (3, "stop")


async def test_another_models_file_is_refused(
    models: PeerModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLlama, "vocabulary", 32000)
    with pytest.raises(ConfigError, match="32000 tokens and the target 258"):
        await GgufArm.load("x.gguf", models, 1)


async def test_a_file_that_cannot_be_read_is_a_typed_error(models: PeerModels) -> None:
    with pytest.raises(ConfigError, match=r"broken\.gguf can't be read: bad magic"):
        await GgufArm.load("broken.gguf", models, 1)
