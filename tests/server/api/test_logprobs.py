"""Raw prompts and log probabilities as OpenAI's own client sees them, over a real engine."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

openai = pytest.importorskip("openai")

from specstream import Engine  # noqa: E402
from specstream.engine.core.prompt import check_messages  # noqa: E402
from specstream.types import RawPrompt, SamplingParams  # noqa: E402
from tests.server.api.test_with_openai import HI, collect, served  # noqa: E402
from tests.server.doubles import Stand, wait_for  # noqa: E402


@asynccontextmanager
async def served_by(engine: Engine) -> AsyncGenerator[Any, None]:
    """A client of a real engine."""
    stand = Stand(cast(Any, engine), voice=None)
    async with stand.running():
        base = f"http://127.0.0.1:{stand.port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            yield client


async def test_completions_go_on_with_texts_and_tell_how_likely_tokens_were() -> None:
    prompt = "Once upon a time"
    async with Engine.load() as engine, served_by(engine) as client:
        asked: dict[str, Any] = {"model": "specstream", "prompt": prompt}
        asked |= {"max_tokens": 12, "temperature": 0}
        whole = await client.completions.create(**asked, logprobs=2)
        async with await client.completions.create(**asked, logprobs=2, stream=True) as stream:
            parts = await collect(stream)
        both = await client.completions.create(**{**asked, "prompt": [prompt, "A dog"]})
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(**{**asked, "prompt": ["a"] * 5})
        async with engine.generate(RawPrompt(prompt), SamplingParams(max_tokens=12)) as own:
            expected = "".join([chunk.text async for chunk in own])
    choice = whole.choices[0]
    assert choice.text == expected
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.text_offset[0] == 0
    likeliest = [max(top.values()) for top in choice.logprobs.top_logprobs]
    assert choice.logprobs.token_logprobs == likeliest, "greedy"
    choices = [part.choices[0] for part in parts if part.choices]
    assert "".join(choice.text for choice in choices) == choice.text
    offsets = [at for one in choices for at in one.logprobs.text_offset]
    assert offsets == choice.logprobs.text_offset
    assert len(both.choices) == 2 and both.choices[0].text == choice.text
    assert both.choices[0].logprobs is None
    assert caught.value.param == "prompt"
    assert both.usage.prompt_tokens > whole.usage.prompt_tokens


async def test_a_prompt_of_tokens_may_be_told_before_its_reply() -> None:
    prompt = "Once upon a time"
    async with Engine.load() as engine, served_by(engine) as client:
        said = check_messages(RawPrompt(prompt))
        ids = await engine.ask(lambda core: core.admission.encode(said).ids)
        create, asked = client.completions.create, {"model": "specstream", "max_tokens": 8}
        by_text = await create(**asked, prompt=prompt, echo=True)
        by_ids = await create(**asked, prompt=ids, echo=True)
        several = await create(**asked, prompt=[ids, ids], n=2, temperature=0)
        async with await create(**asked, prompt=[ids], echo=True, stream=True) as stream:
            parts = await collect(stream)
        refused = [
            ({"prompt": [10**9]}, "prompt"),
            ({"prompt": ""}, "prompt"),
            ({"prompt": [1, "x"]}, "prompt"),
            ({"prompt": []}, "prompt"),
            ({"prompt": ids * 4000}, "prompt"),
        ]
        params = list[str | None]()
        for fields, _ in refused:
            with pytest.raises(openai.BadRequestError) as caught:
                await create(**asked, **cast(Any, fields))
            params.append(caught.value.param)
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert by_ids.choices[0].text.startswith(prompt)
    assert by_ids.usage.prompt_tokens == len(ids) == by_text.usage.prompt_tokens
    reply = by_ids.choices[0].text.removeprefix(prompt)
    assert [choice.text for choice in several.choices] == [reply] * 4
    assert several.usage.prompt_tokens == 2 * len(ids)
    texts = [choice.text for part in parts for choice in part.choices]
    assert texts[0] == prompt and "".join(texts) == by_text.choices[0].text
    assert params == [param for _, param in refused]


@pytest.mark.parametrize("context", ["Once upon a time", "<|bos|>Once upon a time"])
async def test_echoed_prompts_have_log_probabilities_as_evaluation_harnesses_read_them(
    context: str,
) -> None:
    """Those of the texts that follow a context are added up; the prompt's first token has none."""
    ending = " there was a little dog"
    async with Engine.load() as engine, served_by(engine) as client:
        asked: dict[str, Any] = {"model": "specstream", "max_tokens": 1, "temperature": 0}
        asked |= {"logprobs": 1, "echo": True, "prompt": context + ending}
        whole = (await client.completions.create(**asked)).choices[0]
        asked |= {"stream": True, "max_tokens": 6, "prompt": [context + ending, context]}
        async with await client.completions.create(**asked) as stream:
            parts = [part.choices[0] async for part in stream if part.choices]
        async with engine.generate(
            RawPrompt(context + ending), SamplingParams(max_tokens=1, prompt_logprobs=1)
        ) as own:
            _ = [chunk async for chunk in own]
    told = whole.logprobs
    assert "".join(told.tokens) == whole.text and whole.text.startswith(context + ending)
    assert told.token_logprobs[0] is None and told.top_logprobs[0] is None
    assert (told.tokens[0] == "<|bos|>") == context.startswith("<|bos|>")
    expected = [one.logprob for one in own.report.prompt_logprobs[1:]]
    assert told.token_logprobs[1:-1] == pytest.approx(expected)
    assert told.token_logprobs[-1] == max(told.top_logprobs[-1].values())
    starts = [whole.text[at:].startswith(one) for at, one in zip(told.text_offset, told.tokens)]
    assert all(starts)
    for index in (0, 1):
        mine = [part for part in parts if part.index == index]
        text = "".join(part.text for part in mine)
        assert text.startswith(context)
        assert "".join(one for part in mine for one in part.logprobs.tokens) == text
        offsets = [at for part in mine for at in part.logprobs.text_offset]
        assert offsets == sorted(offsets) and offsets[0] == 0


async def test_a_part_of_a_character_keeps_its_own_number() -> None:
    asked: dict[str, Any] = {"model": "specstream", "max_tokens": 1, "temperature": 0}
    asked |= {"prompt": "The fox é 🎉 ran 日本", "echo": True, "logprobs": 5}
    async with Engine.load() as engine, served_by(engine) as client:
        told = (await client.completions.create(**asked)).choices[0].logprobs
    parts = 0
    for token, own, top in zip(told.tokens, told.token_logprobs, told.top_logprobs):
        parts += token == "\N{REPLACEMENT CHARACTER}"
        assert own is None or top[token] == own
    assert parts


async def test_what_harnesses_slice_off_is_there_whatever_the_reply_is() -> None:
    """They take the entries from the context's end to the last one, which is the reply's only token."""
    async with Engine.load() as engine, served_by(engine) as client:
        create = client.completions.create
        asked: dict[str, Any] = {"model": "specstream", "temperature": 0, "logprobs": 1}
        asked["echo"] = True
        ended = [
            (await create(**asked, prompt=text, max_tokens=1)).choices[0]
            for text in ("I need a taxi.", "Thank you very much!", "The dog ran home.")
        ]
        silent = await create(**asked, prompt=["I need a taxi.", "A fox"], max_tokens=0)
        async with await create(**asked, prompt="I need a taxi.", max_tokens=0, stream=True) as stream:
            parts = await collect(stream)
        odd = (await create(**asked, prompt="\U0001f98a ok", max_tokens=2)).choices[0]
        spelled = (await create(**asked, prompt=[0, 1, 2, 300, 301], max_tokens=1)).choices[0]
    assert "stop" in {choice.finish_reason for choice in ended}, "an end is among them"
    for choice in ended:
        given = silent.choices[0].logprobs.tokens if "taxi" in choice.text else None
        assert given is None or choice.logprobs.tokens[:-1] == given
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)
    assert [choice.text for choice in silent.choices] == ["I need a taxi.", "A fox"]
    assert {choice.finish_reason for choice in silent.choices} == {"length"}
    assert silent.usage.completion_tokens == 0
    assert "".join(part.choices[0].text for part in parts if part.choices) == "I need a taxi."
    assert odd.text.startswith("\U0001f98a ok")
    assert odd.logprobs.text_offset[-1] <= len(odd.text) and odd.logprobs.text_offset[1] == 0
    assert spelled.logprobs.text_offset[:3] != [0, 0, 0]
    assert spelled.text.startswith("".join(spelled.logprobs.tokens[:5]))
    own = [top[token] for top, token in zip(odd.logprobs.top_logprobs, odd.logprobs.tokens) if top]
    assert len(own) == len(odd.logprobs.tokens) - 1, "the token itself is always among them"


async def test_a_client_that_leaves_several_streamed_replies_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(*["one two three four"] * 36) as (client, _, stand):
        for _ in range(12):
            stream = await client.completions.create(
                model="scripted", prompt=["a", "b", "c"], stream=True
            )
            async for _part in stream:
                break
            await stream.close()
        await wait_for(lambda: not stand.server.limit.clients)
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_an_engine_without_a_tokenizer_takes_texts_only() -> None:
    async with served("fine.") as (client, engine, _):
        told = await client.completions.create(model="scripted", prompt=["a ", "b "], echo=True)
        with pytest.raises(openai.BadRequestError, match="no token prompts") as caught:
            await client.completions.create(model="scripted", prompt=[1, 2])
    assert [choice.text for choice in told.choices] == ["a fine.", "b fine."]
    assert caught.value.param == "prompt" and len(engine.requests) == 2


async def test_chat_tells_how_likely_the_tokens_of_its_text_were() -> None:
    ask: dict[str, Any] = {"model": "specstream", "messages": HI, "max_tokens": 40, "temperature": 0}
    async with Engine.load() as engine, served_by(engine) as client:
        create = client.chat.completions.create
        whole = await create(**ask, logprobs=True, top_logprobs=2)
        async with await create(**ask, logprobs=True, stream=True) as stream:
            parts = await collect(stream)
        with pytest.raises(openai.BadRequestError, match="top_logprobs needs logprobs"):
            await create(**ask, top_logprobs=2)
    choice = whole.choices[0]
    content = choice.logprobs.content
    assert b"".join(bytes(one.bytes) for one in content).decode() == choice.message.content
    assert all(one.top_logprobs[0].logprob >= one.logprob for one in content)
    told = [
        one.logprob for part in parts for c in part.choices if c.logprobs for one in c.logprobs.content
    ]
    assert told == pytest.approx([one.logprob for one in content])


async def test_what_is_told_before_a_stop_string_is_the_same_however_long_the_rounds() -> None:
    ask: dict[str, Any] = {"model": "specstream", "messages": HI, "max_tokens": 30}
    ask |= {"temperature": 0, "logprobs": True}
    async with Engine.load() as engine, served_by(engine) as client:
        create = client.chat.completions.create
        text = (await create(**ask)).choices[0].message.content
        words = text.split()
        stops = [f"{words[4]} {words[5][:2]}", words[2][1:], text[7:22]]
        for stop in stops:
            told = []
            for drafted in (False, {"num_speculative_tokens": 1}, True):
                ask |= {"stop": [stop], "extra_body": {"speculative": drafted}}
                whole = (await create(**ask)).choices[0]
                async with await create(**ask, stream=True) as stream:
                    parts = [c for part in await collect(stream) for c in part.choices]
                streamed = [e.token for c in parts if c.logprobs for e in c.logprobs.content]
                tokens = [one.token for one in whole.logprobs.content]
                assert streamed == tokens
                before, last = "".join(tokens[:-1]), "".join(tokens)
                assert last.startswith(whole.message.content) and before < whole.message.content
                told.append((whole.message.content, tokens))
            assert told[0] == told[1] == told[2]
            assert told[0][0] == text[: text.index(stop)]


async def test_a_response_tells_the_same_likelihoods_as_a_chat() -> None:
    ask: dict[str, Any] = {"model": "specstream", "temperature": 0.8}
    ask |= {"top_logprobs": 2, "extra_body": {"seed": 3, "speculative": False}}
    include: Any = ["message.output_text.logprobs"]
    async with Engine.load() as engine, served_by(engine) as client:
        create = client.responses.create
        chat = await client.chat.completions.create(**ask, messages=HI, max_tokens=30, logprobs=True)
        ask |= {"input": "Hi", "max_output_tokens": 30}
        whole = await create(**ask, include=include)
        async with await create(**ask, include=include, stream=True) as stream:
            events = await collect(stream)
        with pytest.raises(openai.BadRequestError) as caught:
            await create(**ask)
    assert caught.value.param == "top_logprobs" and whole.top_logprobs == 2
    expected = [one.to_dict() for one in chat.choices[0].logprobs.content]
    assert whole.output_text == chat.choices[0].message.content and expected
    checked = type(whole.output[0].content[0]).model_validate(whole.output[0].content[0].to_dict())
    assert [one.to_dict() for one in checked.logprobs] == expected
    assert {len(one.top_logprobs) for one in checked.logprobs} == {2}
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    told = [one.to_dict() for event in deltas for one in event.logprobs]
    assert told == [one.to_dict() for one in done.logprobs]
    assert [one["logprob"] for one in told] == [one["logprob"] for one in expected]
    for event in (*deltas, done):
        type(event).model_validate(event.to_dict())
    assert events[-1].response.output[0].content[0].logprobs == checked.logprobs


async def test_likelihoods_of_a_response_need_an_engine_that_has_them() -> None:
    async with served("fine.") as (client, engine, _):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(
                model="scripted", input="Hi", include=["message.output_text.logprobs"]
            )
    assert caught.value.param == "include" and engine.requests == []
