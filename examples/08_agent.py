"""A talking agent: it answers aloud, into a WAV file, and prints what it says as it says it."""

import asyncio
import tempfile
from pathlib import Path

from specstream import Agent, Phrase


async def main(path: Path) -> None:
    async with Agent(voice="reference", play=path) as agent:
        await agent.say("I'd like to book a table for two.")
        agent.finish()
        async for event in agent:
            if isinstance(event.item, Phrase):
                print(event.item.text)


if __name__ == "__main__":
    asyncio.run(main(Path(tempfile.gettempdir()) / "reply.wav"))
