"""Function calling: a model calls a Python function, and answers with its result."""

import asyncio
import json
import sys

from specstream import Engine
from specstream.errors import SpecstreamError

TARGET = None  # the bundled model calls no tools; name one that does, such as "Qwen/Qwen3-0.6B"


def get_weather(city: str) -> str:
    """The weather in a city, now.

    Args:
        city: The name of the city.
    """
    return json.dumps({"city": city, "celsius": 22, "sky": "clear"})


async def main() -> None:
    async with Engine.load(TARGET) as engine, engine.session() as talk:
        if engine.no_tools is not None:
            print(engine.no_tools)
            return
        asked: str | None = "How is the weather in Rome?"
        for _ in range(3):  # a model may call once more before it answers
            async with talk.generate(asked, tools=[get_weather]) as reply:
                async for chunk in reply:
                    print(chunk.text, end="", flush=True)
            print()
            for call in reply.tool_calls:
                result = call.problem or get_weather(**json.loads(call.arguments))
                print(f"{call.name}({call.arguments}) → {result}")
                talk.add_result(call, result)
            if not reply.tool_calls:
                break
            asked = None


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except SpecstreamError as error:
        sys.exit(str(error))
