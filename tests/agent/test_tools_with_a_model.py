"""Tools while talking with a real model: the bundled target, taught to call one within a minute."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specstream import Agent, Engine, SamplingParams, Speech, Tool
from specstream.agent import AgentTool, ToolEnded, ToolStarted
from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET
from specstream.types import Chunk
from tests.server.doubles import WordVoice

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TEMPLATE = (  # Hermes' form of calls
    "{{ '<|bos|>' }}{% if tools %}{{ '<|system|>Tools: ' }}{% for t in tools %}"
    "{{ t['function']['name'] + ' ' }}{% endfor %}{{ '<|end|>' }}{% endif %}{% for m in messages %}"
    "{% if m['role'] == 'tool' %}"
    "{{ '<|user|><tool_response>' + m['content'] + '</tool_response><|end|>' }}"
    "{% else %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% for c in m.get('tool_calls', []) %}"
    "{{ '\\n<tool_call>\\n{\"name\": \"' + c['function']['name'] + '\", \"arguments\": ' + "
    "c['function']['arguments'] | tojson + '}\\n</tool_call>' }}"
    "{% endfor %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CITIES = ("Paris", "London", "Berlin", "Rome", "Madrid", "Vienna", "Oslo", "Boston", "Chicago")
SKIES = ("sunny", "cloudy", "rainy", "windy", "cold", "warm")
ASKED = ("What is the weather in {}?", "How is the weather in {} today?", "Is it warm in {}?")
WEATHER = Tool(
    "get_weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def lesson(tokenizer: Any, chance: Random) -> list[int]:
    """A question, the words before the call, the call, its result and the answer, as token ids."""
    city, sky = chance.choice(CITIES), chance.choice(SKIES)
    function = {"name": WEATHER.name, "arguments": {"city": city}}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    asked = {"role": "user", "content": chance.choice(ASKED).format(city)}
    said = {"role": "assistant", "content": f"Let me look at {city}.", "tool_calls": [call]}
    result = {"role": "tool", "content": json.dumps({"weather": sky}), "tool_call_id": "abcdefghi"}
    answer = {"role": "assistant", "content": f"It is {sky} in {city}."}
    told = [{"type": "function", "function": {"name": WEATHER.name, "parameters": {}}}]
    messages = [asked, said, result, answer]
    text = tokenizer.apply_chat_template(messages, tools=told, tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls ``get_weather``; its training takes some twenty seconds."""
    folder = tmp_path_factory.mktemp("caller") / "model"
    shutil.copytree(DEFAULT_TARGET, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer, chance = torch.optim.AdamW(model.parameters(), lr=3e-4), Random(0)
    for _ in range(60):
        lessons = [lesson(tokenizer, chance) for _ in range(4)]
        longest = max(map(len, lessons))
        labels = torch.tensor([ids + [-100] * (longest - len(ids)) for ids in lessons])
        loss = model(input_ids=labels.clamp(min=0), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.08:
            break
    assert loss.item() < 0.2
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("proposer", ["off", "draft", "auto"])
async def test_a_call_runs_beside_the_words_before_it_and_is_answered(
    caller: Path, proposer: str
) -> None:
    """Greedy, with and without drafts: the same words, the tool's own result in the answer."""
    asked: list[str] = []

    async def weather(city: str) -> dict[str, str]:
        asked.append(city)
        return {"weather": "rainy"}

    params = SamplingParams(max_tokens=96, temperature=0.0)
    draft = None if proposer == "off" else DEFAULT_DRAFT
    async with Engine.load(caller, draft, proposer=proposer) as engine:
        assert engine.no_tools is None
        agent = Agent(
            engine=engine, voice=WordVoice(), tools=[AgentTool(weather, WEATHER)], params=params
        )
        spoken, text, tools = 0, "", list[object]()
        async with agent:
            await agent.say("How is the weather in Oslo today?")
            agent.finish()
            async for event in agent:
                match event.item:
                    case Chunk():
                        text += event.item.text
                    case Speech():
                        spoken += event.item.samples.length
                    case ToolStarted() | ToolEnded():
                        tools.append(type(event.item))
    assert asked == ["Oslo"]
    assert tools == [ToolStarted, ToolEnded]
    assert "Let me look at Oslo." in text and "It is rainy in Oslo." in text
    assert spoken > 0
    assert [message["role"] for message in agent.messages][-3:] == ["assistant", "tool", "assistant"]
