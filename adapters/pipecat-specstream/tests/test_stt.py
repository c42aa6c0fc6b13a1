"""The recogniser's service."""

from __future__ import annotations

import anyio
import pytest
from pipecat.frames.frames import (
    ErrorFrame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    MetricsFrame,
    STTUpdateSettingsFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import STTUsageMetricsData, TTFBMetricsData
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.settings import STTSettings
from pipecat.tests.utils import run_test
from pipecat.transcriptions.language import Language
from pipecat.utils.errors import ErrorCategory
from pipecat_specstream import SpecstreamSTTService
from specstream.errors import AdapterFailed, ConfigError
from specstream.testing import ScriptedRecognizer
from support import FrameWatch, running

RATE = 16_000
METRICS = PipelineParams(enable_metrics=True, enable_usage_metrics=True)


def audio(seconds: float, rate: int = RATE) -> list[InputAudioRawFrame]:
    """Frames of 20 ms."""
    frame = bytes(2 * (rate // 50))
    return [InputAudioRawFrame(frame, rate, 1) for _ in range(round(seconds * 50))]


def spoken(seconds: float) -> list:
    return [
        VADUserStartedSpeakingFrame(start_secs=0.2),
        *audio(seconds),
        VADUserStoppedSpeakingFrame(stop_secs=0.2),
    ]


def service(recognizer: ScriptedRecognizer, **options) -> SpecstreamSTTService:
    return SpecstreamSTTService(recognizer=recognizer, ttfs_p99_latency=0.5, **options)


async def test_utterances_are_transcribed_in_order():
    recognizer = ScriptedRecognizer(["one two", "...", "three"], takes_s=0.01)
    down, up = await run_test(
        service(recognizer, interim_s=None),
        frames_to_send=[*audio(2.0), *spoken(0.5), *audio(0.1), *spoken(0.4), *spoken(0.2)],
        pipeline_params=METRICS,
    )
    finals = [frame for frame in down if isinstance(frame, TranscriptionFrame)]
    assert [frame.text for frame in finals] == ["one two", "three"]  # "..." is noise
    assert all(frame.finalized and frame.language is Language.EN for frame in finals)
    # A second from before the voice was detected, or as much as there is.
    assert [len(pcm) / 2 / RATE for pcm in recognizer.audio] == pytest.approx([1.5, 0.5, 0.2])
    assert recognizer.open_streams == 0 and not recognizer.closed
    data = [each for frame in down if isinstance(frame, MetricsFrame) for each in frame.data]
    usage = [e.value.audio_seconds for e in data if isinstance(e, STTUsageMetricsData)]
    assert sum(usage) == pytest.approx(3.2)
    assert any(isinstance(each, TTFBMetricsData) and each.value for each in data)
    assert not [frame for frame in up if isinstance(frame, ErrorFrame)]


async def test_interim_transcripts_come_before_the_final_one():
    recognizer, watch = ScriptedRecognizer(["one two three four"], word_ms=100), FrameWatch()
    async with running([service(recognizer, interim_s=0.1)], watch) as worker:
        await worker.queue_frame(VADUserStartedSpeakingFrame(start_secs=0.2))
        for count in (1, 2):
            for frame in audio(0.1):
                await worker.queue_frame(frame)
            await watch.until(lambda: len(watch.of(InterimTranscriptionFrame)) == count)  # noqa: B023
        await worker.queue_frame(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        await watch.until(lambda: bool(watch.of(TranscriptionFrame)))
    assert [f.text for f in watch.of(InterimTranscriptionFrame)] == ["one", "one two"]
    assert [f.text for f in watch.of(TranscriptionFrame)] == ["one two three four"]


async def test_the_end_does_not_wait_for_an_interim_transcript():
    recognizer, watch = ScriptedRecognizer(["one"], takes_s=float("inf")), FrameWatch()
    async with running([service(recognizer, interim_s=0.1)], watch) as worker:
        await worker.queue_frame(VADUserStartedSpeakingFrame(start_secs=0.2))
        for frame in audio(0.1):
            await worker.queue_frame(frame)
        while recognizer.asked != [1]:
            await anyio.lowlevel.checkpoint()
        recognizer.takes_s = 0.0
        await worker.queue_frame(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        await watch.until(lambda: bool(watch.of(TranscriptionFrame)))
    assert [f.text for f in watch.of(TranscriptionFrame)] == ["one"]


async def test_audio_of_another_rate_is_converted():
    recognizer = ScriptedRecognizer(["one"])
    await run_test(
        service(recognizer, sample_rate=8000),
        frames_to_send=[
            VADUserStartedSpeakingFrame(start_secs=0.2),
            *audio(1.0, 8000),
            VADUserStoppedSpeakingFrame(stop_secs=0.2),
        ],
    )
    # The resampler looks ahead: its last 50 ms come with the next audio.
    assert len(recognizer.audio[0]) / 2 / RATE == pytest.approx(1.0, abs=0.1)


async def test_a_broken_recogniser_is_told_and_the_service_goes_on():
    recognizer = ScriptedRecognizer([AdapterFailed("the model is gone"), "two"])
    down, up = await run_test(service(recognizer), frames_to_send=[*spoken(0.1), *spoken(0.1)])
    (error,) = [frame for frame in up if isinstance(frame, ErrorFrame)]
    assert error.category is ErrorCategory.SERVER and "model is gone" in error.error
    assert [f.text for f in down if isinstance(f, TranscriptionFrame)] == ["two"]
    assert recognizer.open_streams == 0


async def test_the_language_is_the_recognisers():
    recognizer = ScriptedRecognizer(["one"])
    english = service(recognizer, settings=STTSettings(language=Language.EN_GB))
    german = STTUpdateSettingsFrame(delta=STTSettings(language=Language.DE))
    _, up = await run_test(english, frames_to_send=[german, *spoken(0.1)])
    (error,) = [frame for frame in up if isinstance(frame, ErrorFrame)]
    assert "'de'" in error.error and english.is_usable
    assert recognizer.languages == ["en"]


async def test_what_the_recogniser_cannot_do_is_refused_by_name():
    recognizer = ScriptedRecognizer(["one"])
    with pytest.raises(ConfigError, match="'de'.*knows en"):
        service(recognizer, settings=STTSettings(language="de-DE"))
    with pytest.raises(ConfigError, match="model"):
        service(recognizer, settings=STTSettings(model="large"))
    with pytest.raises(ConfigError, match="interim_s"):
        service(recognizer, interim_s=0.0)
