"""Four requests at once on one engine, each with its own stream; then one that is given up early."""

import asyncio
import time

from specstream import Engine, SamplingParams

QUESTIONS = [
    "I need a taxi to the station at six.",
    "Tell me a story about a brave little fox.",
    "A pen costs 3 dollars. What do 12 pens cost?",
    "Write a function that adds two numbers.",
]


async def ask(engine: Engine, question: str, patience: float | None = None) -> tuple[int, str]:
    """Return the reply's number of tokens and finish reason; give up after ``patience`` seconds."""
    params = SamplingParams(max_tokens=96)
    async with engine.generate(question, params) as chunks:
        try:
            async with asyncio.timeout(patience):
                async for _ in chunks:
                    pass
        except TimeoutError:
            chunks.cancel()  # leaving the block would do it, too
            async for _ in chunks:  # what was committed meanwhile, up to the last chunk
                pass
        return len(chunks.report.token_ids), str(chunks.report.finish_reason)


async def main() -> None:
    async with Engine.load() as engine:
        await ask(engine, QUESTIONS[0])  # warm-up: an engine's first reply is a little slower

        began = time.perf_counter()
        alone = [await ask(engine, question) for question in QUESTIONS]
        between = time.perf_counter()
        together = await asyncio.gather(*(ask(engine, question) for question in QUESTIONS))
        ended = time.perf_counter()

        for question, (tokens, reason) in zip(QUESTIONS, together, strict=True):
            print(f"{tokens:4} tokens, {reason:6}  {question}")
        print(f"one after another {sum(n for n, _ in alone) / (between - began):.0f} tokens a second")
        print(f"all at once       {sum(n for n, _ in together) / (ended - between):.0f}")

        staying, leaving = await asyncio.gather(
            ask(engine, QUESTIONS[1]), ask(engine, QUESTIONS[1], patience=0.05)
        )
        print(f"who stayed has {staying[0]} tokens ({staying[1]}), who left {leaving[0]} ({leaving[1]})")


if __name__ == "__main__":
    asyncio.run(main())
