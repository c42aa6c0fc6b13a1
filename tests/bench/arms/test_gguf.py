"""llama.cpp as an arm, with a stand-in for the library: what we ask of it, what we make of it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from specstream.bench.arms.base import BenchThread
from specstream.bench.arms.transformers_peers import GgufArm, PeerModels
from specstream.config import EngineConfig
from specstream.errors import ConfigError
from specstream.types import Message, SamplingParams
from tests.bench.llama import FakeLlama, install_llama_cpp
from tests.support.tiny import EOS, byte_tokenizer, tiny_model

MESSAGES: list[Message] = [{"role": "user", "content": "ab"}]
PARAMS = SamplingParams(max_tokens=4)


@pytest_asyncio.fixture
async def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[PeerModels, None]:
    install_llama_cpp(tmp_path, monkeypatch)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    tiny_model(len(tokenizer)).save_pretrained(tmp_path)
    thread = BenchThread(1)
    config = EngineConfig(target=str(tmp_path), dtype="float32", device="cpu")
    yield await thread.call(lambda: PeerModels(config, thread))
    thread.close()


async def loaded(file: str, models: PeerModels, threads: int) -> GgufArm:
    return await models.thread.call(lambda: GgufArm(file, models, threads))


async def test_it_writes_until_it_may_write_no_more(models: PeerModels) -> None:
    arm = await loaded("some/tiny-q8.gguf", models, 3)
    run = await arm.run(MESSAGES, PARAMS)
    llama: FakeLlama = FakeLlama.latest
    (prompt,) = llama.prompts
    assert arm.setting == "tiny-q8"
    assert run.token_ids == tuple(prompt[-1] + i for i in range(1, 5))
    assert run.finish == "length"
    assert len(run.emissions) == 4
    assert llama.n_threads == (3, 3)
    assert llama.asked == {"temp": 0, "top_k": 0, "top_p": 1, "min_p": 0, "repeat_penalty": 1}
    await arm.run(MESSAGES, PARAMS)
    assert llama.read == [len(prompt)] * 2  # nothing of the prompt is left from the time before


async def test_it_ends_where_the_model_ends(models: PeerModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeLlama, "ends_after", 2)
    run = await (await loaded("x.gguf", models, 1)).run(MESSAGES, PARAMS)
    assert run.token_ids[-1] == EOS
    assert (len(run.token_ids), run.finish) == (3, "stop")


async def test_another_models_file_is_refused(
    models: PeerModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLlama, "vocabulary", 32000)
    with pytest.raises(ConfigError, match="32000 tokens and the target 258"):
        await loaded("x.gguf", models, 1)


async def test_a_file_that_cannot_be_read_is_a_typed_error(models: PeerModels) -> None:
    with pytest.raises(ConfigError, match=r"broken\.gguf can't be read: Failed to load"):
        await loaded("broken.gguf", models, 1)
