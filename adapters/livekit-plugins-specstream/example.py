"""An agent without a room: answers one typed question aloud, into answer.wav."""

import asyncio

import soundfile
from livekit import rtc
from livekit.agents import Agent, AgentSession, voice
from specstream import Engine
from specstream.stages import load_adapter

from livekit.plugins.specstream import LLM, TTS


class FileOutput(voice.io.AudioOutput):
    file = soundfile.SoundFile("answer.wav", "w", 24_000, channels=1, subtype="PCM_16")

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        self.file.buffer_write(frame.data, dtype="int16")

    def flush(self) -> None:
        super().flush()
        self.on_playback_finished(playback_position=len(self.file) / 24_000, interrupted=False)

    def clear_buffer(self) -> None: ...


async def main() -> None:
    file = FileOutput(label="file", capabilities=voice.io.AudioOutputCapabilities(pause=False))
    async with Engine.load() as engine:
        parts = LLM(engine=engine), TTS(voice=load_adapter("voice", "hibari"))
        async with AgentSession[None](vad=None, turn_handling={"turn_detection": None}) as session:
            session.output.audio = file
            await session.start(Agent(instructions="", llm=parts[0], tts=parts[1]))
            await session.generate_reply(user_input="I'd like to book a table for two.")
            print(*(f"{m.role}: {m.text_content}" for m in session.history.messages()), sep="\n")
    print(f"answer.wav: {len(file.file) / 24_000:.1f} s of speech")


asyncio.run(main())
