"""The pair that ships: it loads, drafts well, and never changes a greedy reply."""

from pathlib import Path
from typing import Any

import pytest

from specstream import Engine, SamplingParams
from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET
from specstream.model.native.library import library
from specstream.models.kept import bundled_heads
from specstream.server.page import SUGGESTIONS
from specstream.types import Message

VOICE = "You are a helpful voice assistant."
PROMPTS: list[list[Message]] = [
    [{"role": "system", "content": VOICE}, {"role": "user", "content": "Find me a dentist in Davis."}],
    [
        {"role": "system", "content": "You are a storyteller. Mark feelings and gestures in brackets."},
        {"role": "user", "content": "Tell me about a beaver who builds a radio."},
    ],
    [
        {
            "role": "user",
            "content": "A pen costs 3 dollars and a book 12. What do 4 pens and 2 books cost?",
        }
    ],
    [{"role": "user", "content": "Write a Python function that says whether a word is a palindrome."}],
]


async def replies(
    proposer: str, params: SamplingParams | None = None, **options: Any
) -> tuple[list[tuple[int, ...]], float]:
    ids, accepted, drafted = [], 0, 0
    params = params or SamplingParams(max_tokens=48)
    head = bundled_heads().get(proposer)
    async with Engine.load(draft=head, proposer=proposer, **options) as engine:
        for messages in PROMPTS:
            async with engine.generate(messages, params) as generation:
                async for _ in generation:
                    pass
                report = generation.report
                ids.append(report.token_ids)
                accepted += report.accepted
                drafted += report.drafted
    return ids, accepted / drafted if drafted else 0.0


async def test_greedy_replies_are_the_same_with_every_proposer() -> None:
    plain, none = await replies("off")
    drafted, rate = await replies("draft")
    assert drafted == plain
    for method in ("suffix", *bundled_heads()):
        assert (await replies(method))[0] == plain, method
    assert none == 0
    assert rate > 0.25  # a trained draft, not a random one


async def test_reproducible_replies_are_the_same_with_heads_that_read_states() -> None:
    if library(None) is None:
        pytest.skip("without native passes this mode takes chains of a draft model only")
    params = SamplingParams(temperature=0.9, seed=4, max_tokens=32)
    plain, _ = await replies("off", params, mode="reproducible")
    for method in bundled_heads():
        assert (await replies(method, params, mode="reproducible"))[0] == plain, method


async def test_one_request_can_do_without() -> None:
    async with Engine.load() as engine:
        params = SamplingParams(max_tokens=30)
        reports = []
        for speculate in (True, False):
            async with engine.generate(PROMPTS[1], params, speculate=speculate) as generation:
                async for _ in generation:
                    pass
                reports.append(generation.report)
    assert reports[0].token_ids == reports[1].token_ids
    assert reports[0].drafted > 0
    assert (reports[1].drafted, reports[1].proposer) == (0, "off")


async def test_a_reference_shortens_the_way() -> None:
    async with Engine.load(proposer="suffix") as engine:
        params = SamplingParams(max_tokens=60)
        rounds = []
        reference = ""
        for _ in range(2):
            async with engine.generate(PROMPTS[1], params, reference=reference) as generation:
                async for _ in generation:
                    pass
                rounds.append(generation.report.rounds)
                reference = generation.text
    assert rounds[1] < rounds[0] / 2


@pytest.mark.parametrize("folder", [DEFAULT_TARGET, DEFAULT_DRAFT])
def test_the_folders_are_complete(folder: str) -> None:
    names = {path.name for path in Path(folder).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert (Path(folder).parent / "MODEL_CARD.md").is_file()


async def test_what_the_demo_page_suggests_is_answered_well() -> None:
    topics = (("fox", "snowy forest"), ("robot", "dusty workshop"), ("What time",))
    async with Engine.load(dtype="float32") as engine:
        for text, words in zip(SUGGESTIONS, topics, strict=True):
            async with engine.generate(text, SamplingParams(max_tokens=220)) as generation:
                reply = "".join([chunk.text async for chunk in generation])
                assert generation.report.finish_reason == "stop", reply
            assert all(word in reply for word in words), reply
