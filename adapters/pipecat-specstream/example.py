# Ask the bundled test pair one question; its answer is spoken into answer.wav.
import asyncio

import soundfile
from pipecat.frames.frames import EndFrame, LLMRunFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner
from pipecat_specstream import SpecstreamLLMService as LLM, SpecstreamTTSService as TTS
from specstream import Engine
from specstream.stages import load_adapter


class Speaker(BaseOutputTransport):
    async def start(self, frame):
        await super().start(frame)
        self.wav = soundfile.SoundFile("answer.wav", "w", self.sample_rate, 1, "PCM_16")
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame):
        self.wav.buffer_write(frame.audio, "int16")
        return True


async def main():
    asked = LLMContext([{"role": "user", "content": "I need a table for two, please."}])
    pair, out = LLMContextAggregatorPair(asked), Speaker(TransportParams(audio_out_enabled=True))
    async with Engine.load() as engine:  # engine and voice are yours: many pipelines may share them
        parts = [LLM(engine=engine), TTS(voice=load_adapter("voice", "hibari")), out]
        worker = PipelineWorker(Pipeline([pair.user(), *parts, pair.assistant()]))
        await worker.queue_frames([LLMRunFrame(), EndFrame()])
        await (runner := WorkerRunner()).add_workers(worker)
        await runner.run()
    print(asked.get_messages()[-1], f"{out.wav.frames / out.sample_rate:.1f} s in answer.wav")


asyncio.run(main())
