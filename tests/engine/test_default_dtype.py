"""Other code may change torch's default dtype, as transformers does while it loads a model."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import specstream
from specstream import Engine, SamplingParams
from specstream.params import Grammar

PROMPT = "Tell me a story about a fox."
SAMPLED = {
    "temperature": 0.9,
    "seed": 7,
    "top_p": 0.9,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.2,
    "logit_bias": {300: 1.5},
    "bad_words": ("the fox", "blue"),
    "logprobs": 2,
}


@pytest.fixture(params=[torch.bfloat16, torch.float64], ids=str)
def other(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    yield request.param
    torch.set_default_dtype(torch.float32)


async def replies(engine: Engine) -> list[str]:
    made: list[str] = []
    schema = Grammar("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}')
    for params in (
        SamplingParams(max_tokens=40),
        SamplingParams(max_tokens=40, **SAMPLED),  # type: ignore[arg-type]
        SamplingParams(max_tokens=12, temperature=1.0, seed=3, typical_p=0.8, grammar=schema),
    ):
        async with engine.generate(PROMPT, params) as generation:
            made.append("".join([chunk.text async for chunk in generation]))
    return made


HEADS = ["eagle", "medusa", "early-exit", "streaming", "block"]
CASES = [
    pytest.param(
        proposer, compile, marks=[] if compile is None and proposer == "draft" else pytest.mark.slow
    )
    for proposer in ["off", "draft", "suffix", "auto", "lookahead", *HEADS]
    for compile in (None, False)
]


@pytest.mark.parametrize(("proposer", "compile"), CASES)
async def test_a_running_engine_does_not_care(
    proposer: str, compile: bool | None, other: torch.dtype
) -> None:
    draft = f"bundled-{proposer}" if proposer in HEADS else None
    options: dict[str, Any] = {"proposer": proposer, "compile": compile, "dtype": "float32"}
    async with Engine.load(draft=draft, **options) as engine:
        before = await replies(engine)
        torch.set_default_dtype(other)
        assert await replies(engine) == before


def test_native_code_is_given_buffers_of_a_named_dtype() -> None:
    """A buffer of half the bytes would be written past its end."""
    folder = Path(specstream.__file__).parent / "model" / "native"
    unnamed = [
        f"{file.name}:{call.lineno}"
        for file in folder.glob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("torch.empty", "torch.zeros", "torch.ones", "torch.full")
        and not any(keyword.arg == "dtype" for keyword in call.keywords)
    ]
    assert unnamed == []
