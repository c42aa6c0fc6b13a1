"""Engine and voice behind servers: a URL in place of the loaded part."""

from __future__ import annotations

from pipecat.frames.frames import ErrorFrame, LLMContextFrame, TTSStoppedFrame
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat_specstream import SpecstreamLLMService, SpecstreamTTSService
from specstream import OpenAIEngine
from specstream.server import AdapterServer, RealtimeServer
from specstream.stages import RemoteStage
from specstream.testing import ScriptedEngine, ScriptedVoice
from support import FrameWatch, TimedOutput, asked, running

SAID = "Your table for 2 is booked, at 8."


async def test_a_whole_reply_from_two_servers():
    served = RealtimeServer(ScriptedEngine([SAID]), voice=lambda: ScriptedVoice(word_ms=50), port=0)
    voices = AdapterServer("voice", lambda: ScriptedVoice(word_ms=50))
    context, watch, out = asked("A table, please."), FrameWatch(), TimedOutput(times=10)
    pair = LLMContextAggregatorPair(context)
    async with served.start() as text_port, voices as voice_port:
        async with (
            OpenAIEngine(f"http://127.0.0.1:{text_port}/v1") as engine,
            RemoteStage(f"ws://127.0.0.1:{voice_port}", "voice") as voice,
        ):
            llm, tts = SpecstreamLLMService(engine=engine), SpecstreamTTSService(voice=voice)
            async with running([llm, tts, out, pair.assistant()], watch) as worker:
                await worker.queue_frame(LLMContextFrame(context))
                await watch.seen(lambda who, f: who is out and type(f) is TTSStoppedFrame)
    assert not watch.of(ErrorFrame)
    assert context.get_messages()[-1] == {"role": "assistant", "content": SAID}
