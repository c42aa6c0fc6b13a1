"""The chain in-process: text to speech, lip cues and scene prompts, with one clock."""

import asyncio

from specstream import AvatarCue, Engine, Phrase, Pipeline, ScenePrompt, Speech
from specstream.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage, load_adapter

SYSTEM = "You are a storyteller. Mark feelings and gestures in brackets."


async def main() -> None:
    pipeline = Pipeline(
        [
            [
                VoiceStage(load_adapter("voice", "reference")),
                AvatarStage(load_adapter("avatar", "viseme")),
            ],
            [PromptStage(load_adapter("prompt", "template"))],
        ],
        head=SegmentStage(),
    )
    seconds = cues = 0.0
    async with Engine.load() as engine, engine.session(SYSTEM) as talk:
        async with talk.generate("Tell me a story about a small robot.") as chunks:
            async with pipeline.run(chunks) as events:
                async for event in events:
                    match event.item:
                        case Phrase(text=text):
                            print(f"{event.t_ms:6.0f} ms  {text.strip()}")
                        case Speech(samples=samples, sample_rate=rate):
                            seconds = samples.end / rate
                        case AvatarCue():
                            cues += 1
                        case ScenePrompt(prompt=prompt):
                            print(f"{event.t_ms:6.0f} ms    shot: {prompt}")
    print(f"{seconds:.1f} s of speech, {cues:.0f} avatar cues")


if __name__ == "__main__":
    asyncio.run(main())
