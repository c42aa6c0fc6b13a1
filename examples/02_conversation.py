"""A conversation: the prompt tokens of earlier turns stay in the KV cache and are not read again."""

import asyncio

from specstream import Engine

TURNS = ["I need a taxi to the station.", "From the airport.", "At six."]


async def main() -> None:
    async with Engine.load() as engine, engine.session("You are a helpful voice assistant.") as talk:
        for text in TURNS:
            async with talk.generate(text) as chunks:
                reply = "".join([chunk.text async for chunk in chunks])
                report = chunks.report
            print(f"> {text}\n{reply}")
            print(f"  ({report.reused_tokens} of {report.prompt_tokens} prompt tokens reused)")


if __name__ == "__main__":
    asyncio.run(main())
