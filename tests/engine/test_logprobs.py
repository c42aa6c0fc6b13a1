"""Log probabilities beside transformers' own, whatever is drafted; and prompts as they are."""

import math
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specstream import Engine, RawPrompt, SamplingParams, TokenLogprob
from specstream.errors import PromptError, SamplingError
from specstream.testing import ScriptedEngine
from specstream.types import Truncation
from tests.support.tiny import save_pair

PROMPT = "the cat sat on the mat, the cat"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"))


async def written(
    pair: tuple[Path, Path], params: SamplingParams, prompt: Any = PROMPT, **options: Any
) -> tuple[list[int], list[TokenLogprob], str]:
    async with Engine.load(*pair, dtype="float32", **options) as engine:
        async with engine.generate(prompt, params) as generation:
            chunks = [chunk async for chunk in generation]
            ids = list(generation.report.token_ids)
    assert all(len(chunk.logprobs) in (0, len(chunk.token_ids)) for chunk in chunks)
    return ids, [one for chunk in chunks for one in chunk.logprobs], generation.text


@pytest.mark.parametrize("proposer", ["off", "draft", "suffix"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_they_are_those_of_the_target_on_its_own(
    pair: tuple[Path, Path], proposer: str, temperature: float
) -> None:
    params = SamplingParams(
        max_tokens=24, temperature=temperature, seed=3, logprobs=3, frequency_penalty=1.0
    )
    prompt = RawPrompt(PROMPT)
    ids, told, _ = await written(pair, params, prompt, proposer=proposer)
    model = AutoModelForCausalLM.from_pretrained(pair[0], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(pair[0])
    before = tokenizer.encode(PROMPT)
    with torch.inference_mode():
        logits = model(torch.tensor([before + ids])).logits[0, len(before) - 1 : -1]
    expected = logits.log_softmax(-1)
    assert [one.token_id for one in told] == ids
    own = expected.gather(-1, torch.tensor(ids)[:, None])[:, 0]
    assert torch.tensor([one.logprob for one in told]).allclose(own, atol=1e-4)
    values, best = expected.topk(3)
    assert [[other.token_id for other in one.top] for one in told] == best.tolist()
    top = torch.tensor([[other.logprob for other in one.top] for one in told])
    assert top.allclose(values, atol=1e-4)


async def _beside(engine: Engine, other: str, params: SamplingParams) -> None:
    async with engine.generate(RawPrompt(other), params) as generation:
        async for _ in generation:
            pass


@pytest.mark.parametrize("chunk", [4, 256])
@pytest.mark.parametrize("proposer", ["off", "draft"])
async def test_the_prompt_s_are_those_of_the_target_on_its_own(
    pair: tuple[Path, Path], proposer: str, chunk: int
) -> None:
    """However it is divided, beside others, and though a cache holds its beginning already."""
    options: dict[str, Any] = {"proposer": proposer, "prefill_chunk": chunk}
    params = SamplingParams(max_tokens=8, prompt_logprobs=2)
    plain = SamplingParams(max_tokens=8)
    async with Engine.load(*pair, dtype="float32", **options) as engine:
        await _beside(engine, PROMPT, plain)  # leaves its beginning for others
        async with anyio.create_task_group() as group:
            group.start_soon(_beside, engine, PROMPT + " is here", plain)
            async with engine.generate(RawPrompt(PROMPT), params) as generation:
                chunks = [one async for one in generation]
        report = generation.report
        async with engine.generate(RawPrompt(PROMPT), plain) as unasked:
            texts = [one.text async for one in unasked]
    assert "".join(one.text for one in chunks) == "".join(texts), "the reply is what it was"
    assert not unasked.report.prompt_logprobs and not chunks[0].logprobs
    model = AutoModelForCausalLM.from_pretrained(pair[0], dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(pair[0]).encode(PROMPT)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    first, *told = report.prompt_logprobs
    assert first.token_id == ids[0] and math.isnan(first.logprob) and first.top == ()
    assert [one.token_id for one in told] == ids[1:] and report.reused_tokens == 0
    own = expected.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert torch.tensor([one.logprob for one in told]).allclose(own, atol=1e-4)
    assert [[other.token_id for other in one.top] for one in told] == expected.topk(2)[1].tolist()


async def test_of_a_prompt_of_one_token_there_is_nothing_to_foretell(pair: tuple[Path, Path]) -> None:
    async with Engine.load(*pair, proposer="off") as engine:
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        async with engine.generate(RawPrompt(tokens=(5,)), params) as generation:
            _ = [one async for one in generation]
    (only,) = generation.report.prompt_logprobs
    assert only.token_id == 5 and math.isnan(only.logprob)


async def test_the_pieces_are_the_text(pair: tuple[Path, Path]) -> None:
    _, told, text = await written(pair, SamplingParams(max_tokens=20, logprobs=0))
    assert b"".join(one.piece for one in told).decode(errors="replace") == text
    assert all(one.top == () for one in told)
    _, told, _ = await written(pair, SamplingParams(max_tokens=4))
    assert told == [], "nobody asked"


@pytest.mark.parametrize("wrong", [-1, 21, True, "3"])
def test_how_many(wrong: Any) -> None:
    with pytest.raises(SamplingError, match="logprobs"):
        SamplingParams(logprobs=wrong)


async def test_a_raw_prompt_is_gone_on_with_without_a_template(pair: tuple[Path, Path]) -> None:
    ids, _, _ = await written(pair, SamplingParams(max_tokens=16), RawPrompt(PROMPT))
    model = AutoModelForCausalLM.from_pretrained(pair[0], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(pair[0])
    given = tokenizer(PROMPT, return_tensors="pt")
    out = model.generate(**given, max_new_tokens=16, do_sample=False)[0]
    assert ids == out[given["input_ids"].shape[1] :].tolist()


async def test_raw_prompts_that_cannot_be() -> None:
    async with ScriptedEngine(["x"]) as engine:
        with pytest.raises(PromptError, match="empty"):
            async with engine.generate(RawPrompt("")):
                pass
        wrong: Any = [{"role": "raw", "content": "x"}]
        async with Engine.load(proposer="off") as own:
            with pytest.raises(PromptError, match="role"):
                async with own.generate(wrong):
                    pass
            for bad in (RawPrompt("x", (1,)), RawPrompt(), RawPrompt(tokens=cast(Any, ("x",)))):
                with pytest.raises(PromptError, match="not both|empty|whole numbers"):
                    async with own.generate(bad):
                        pass
            wanted = own.generate(RawPrompt(tokens=(3, -1)), truncation=Truncation())
            async with wanted as generation:
                with pytest.raises(PromptError, match="no token -1"):
                    await anext(aiter(generation))
            for raw in (RawPrompt("x"), RawPrompt(tokens=(3,))):
                asked = own.generate(raw, chat_template_kwargs={"a": 1})
                async with asked as generation:
                    with pytest.raises(PromptError, match="no chat template"):
                        await anext(aiter(generation))
