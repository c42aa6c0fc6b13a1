"""A scenario of Pipecat's evals, in writing, against a bot of the three parts."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from pipecat.evals.scenario import EvalScenarioFile
from pipecat.evals.serializer import EvalSerializer
from pipecat.evals.session import EvalSession, EvalSessionParams
from pipecat.evals.transport import EvalTransport, EvalTransportParams
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.settings import LLMSettings
from pipecat.workers.runner import WorkerRunner
from pipecat_specstream import SpecstreamLLMService, SpecstreamTTSService
from specstream import Engine
from specstream.stages import load_adapter


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the successor needs fastapi
async def test_a_scenario_of_the_evals():
    (scenario,) = EvalScenarioFile.load(Path(__file__).with_name("booking.yaml"))
    port = free_port()
    params = EvalTransportParams(
        audio_in_enabled=True, audio_out_enabled=True, serializer=EvalSerializer()
    )
    transport = EvalTransport(params, host="127.0.0.1", port=port)
    pair = LLMContextAggregatorPair(LLMContext())
    async with Engine.load() as engine:
        llm = SpecstreamLLMService(engine=engine, settings=LLMSettings(temperature=0.0))
        tts = SpecstreamTTSService(voice=load_adapter("voice", "hibari"))
        parts = [transport.input(), pair.user(), llm, tts, transport.output(), pair.assistant()]
        worker = PipelineWorker(Pipeline(parts), cancel_on_idle_timeout=False)
        started = asyncio.Event()

        @transport.event_handler("on_websocket_ready")
        async def _ready(*_: object) -> None:
            started.set()

        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        bot = asyncio.create_task(runner.run())
        await started.wait()
        session = EvalSession.from_scenario(
            scenario, f"ws://127.0.0.1:{port}", params=EvalSessionParams(default_timeout_ms=20_000)
        )
        result = await session.run()
        await worker.cancel()
        await bot
    assert result.passed, result.failures
