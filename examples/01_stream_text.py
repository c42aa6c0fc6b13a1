"""The smallest use: print a reply while it is being written."""

import asyncio

from specstream import Engine, SamplingParams


async def main() -> None:
    async with Engine.load() as engine:
        params = SamplingParams(temperature=0.7, seed=1, max_tokens=60)
        async with engine.generate("I need a table for four tonight.", params) as chunks:
            async for chunk in chunks:
                print(chunk.text, end="", flush=True)
            report = chunks.report
    print(f"\n{report.mean_acceptance_length:.2f} tokens for each pass of the target")


if __name__ == "__main__":
    asyncio.run(main())
