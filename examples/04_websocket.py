"""Server and client in one file: text, audio and cues arrive as typed events."""

import asyncio
import sys

from specstream import Engine
from specstream.client import AudioDelta, Done, RealtimeClient, TextDelta
from specstream.errors import SpecstreamError
from specstream.server import RealtimeServer
from specstream.stages import load_adapter


async def main() -> None:
    async with Engine.load() as engine:
        server = RealtimeServer(
            engine,
            voice=lambda: load_adapter("voice", "reference"),
            avatar=lambda: load_adapter("avatar", "viseme"),
            system="You are a helpful voice assistant.",
            port=0,
        )
        async with server.start() as port:
            address = f"ws://127.0.0.1:{port}"
            async with RealtimeClient.connect(address) as client:
                samples = 0
                async for event in client.respond("I need a taxi to the station.", audio=True):
                    match event:
                        case TextDelta(text=text):
                            print(text, end="", flush=True)
                        case AudioDelta(pcm=pcm):
                            samples += len(pcm) // 2
                        case Done(status=status):
                            print(f"\n{status}: {samples / 24_000:.1f} s of speech")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except SpecstreamError as error:  # a taken port, a missing voice: one line says what to do
        sys.exit(str(error))
