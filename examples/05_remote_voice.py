"""An adapter behind its own WebSocket: the pipeline doesn't change, only where the voice runs."""

import asyncio

from specstream import AvatarCue, Pipeline, Speech
from specstream.server import AdapterServer
from specstream.stages import AvatarStage, RemoteStage, SegmentStage, load_adapter
from specstream.testing import ScriptedEngine


async def main() -> None:
    async with AdapterServer("voice", lambda: load_adapter("voice", "reference")) as port:
        voice = RemoteStage(f"ws://127.0.0.1:{port}", kind="voice")
        avatar = AvatarStage(load_adapter("avatar", "viseme"))
        pipeline = Pipeline([[voice, avatar]], head=SegmentStage())
        engine = ScriptedEngine(["[smile] Your table is booked. See you at eight!"])
        seconds, visemes = 0.0, []
        async with engine.generate("Book a table.") as chunks, pipeline.run(chunks) as events:
            async for event in events:
                match event.item:
                    case Speech(samples=samples, sample_rate=rate):
                        seconds = samples.end / rate
                    case AvatarCue(name=name):
                        visemes.append(name)
    print(f"{seconds:.1f} s of speech: {' '.join(visemes)}")


if __name__ == "__main__":
    asyncio.run(main())
