"""The voice's service."""

from __future__ import annotations

import pytest
from pipecat.frames.frames import (
    ErrorFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import TTFBMetricsData, TTSUsageMetricsData
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.settings import TTSSettings
from pipecat.tests.utils import run_test
from pipecat.utils.errors import ErrorCategory
from pipecat_specstream import SpecstreamTTSService
from specstream.errors import AdapterFailed, ConfigError
from specstream.stages import RemoteStage, voice_from_function
from specstream.testing import ScriptedVoice
from support import FrameWatch, TimedOutput, running

REPLY = "Well, that is 3. Dr. Smith comes, too!"


def reply(*texts: str) -> list:
    return [
        LLMFullResponseStartFrame(),
        *(LLMTextFrame(text) for text in texts),
        LLMFullResponseEndFrame(),
    ]


def tokens(text: str) -> list[str]:
    return [text[at : at + 4] for at in range(0, len(text), 4)]


async def test_words_lie_between_the_samples():
    voice = ScriptedVoice(word_ms=100)
    down, up = await run_test(
        SpecstreamTTSService(voice=voice),
        frames_to_send=reply(*tokens("Well, yes. No.")),
        pipeline_params=PipelineParams(enable_metrics=True, enable_usage_metrics=True),
    )
    said, samples = [], 0
    for frame in down:
        if isinstance(frame, TTSAudioRawFrame):
            samples += len(frame.audio) // 2
        elif isinstance(frame, TTSTextFrame):
            said.append((frame.text, samples))
    # The voice gives a mark with the buffer (of 1440 samples) that its word ends in.
    assert said == [("Well,", 1440), (" yes.", 4320), (" No.", 6240)]
    assert samples == 7200
    kinds = [type(frame) for frame in down]
    assert kinds.index(TTSStartedFrame) < kinds.index(TTSAudioRawFrame)
    assert kinds.count(TTSStartedFrame) == kinds.count(TTSStoppedFrame) == 1
    assert kinds.index(TTSStoppedFrame) < kinds.index(LLMFullResponseEndFrame)
    data = [each for frame in down if isinstance(frame, MetricsFrame) for each in frame.data]
    assert [e.value for e in data if isinstance(e, TTSUsageMetricsData)] == [len("Well, yes. No.")]
    assert any(isinstance(each, TTFBMetricsData) and each.value for each in data)
    assert not [frame for frame in up if isinstance(frame, ErrorFrame)]
    assert voice.spoken == ["Well, yes. ", "No."]


async def heard(*turns: list, voice=None, **options) -> tuple[list[str], FrameWatch]:
    """What enters the context of each frame list, played ten times faster than it is spoken."""
    context, watch = LLMContext(), FrameWatch()
    tts = SpecstreamTTSService(voice=voice or ScriptedVoice(word_ms=50), **options)
    out, pair = TimedOutput(times=10), LLMContextAggregatorPair(context)
    async with running([tts, out, pair.assistant()], watch) as worker:
        for count, frames in enumerate(turns, 1):
            for frame in frames:
                await worker.queue_frame(frame)
            await watch.until(lambda: watch.count(out, TTSStoppedFrame) == count)  # noqa: B023
    return [message["content"] for message in context.get_messages()], watch


async def test_replies_enter_the_context_letter_for_letter():
    said, _ = await heard(reply(*tokens(REPLY)), reply("Yes", ", **sir**.\n", "Bye…"))
    assert said == [REPLY, "Yes, **sir**.\nBye…"]


async def test_a_text_to_speak_is_a_turn_of_its_own():
    said, _ = await heard(
        [TTSSpeakFrame("One moment, please.")],
        [TTSSpeakFrame("Not for the context.", append_to_context=False)],
        reply("It is 8."),
    )
    assert said == ["One moment, please.", "It is 8."]


async def test_uninterruptible_speech_is_spoken_to_its_end():
    watch = FrameWatch()
    tts, out = SpecstreamTTSService(voice=ScriptedVoice(word_ms=50)), TimedOutput(times=10)
    async with running([tts, out], watch) as worker:
        speak = TTSSpeakFrame("This call is recorded.")
        speak.interruptible = False
        await worker.queue_frame(speak)
        await watch.seen(lambda who, f: who is tts and isinstance(f, TTSAudioRawFrame))
        await worker.queue_frame(InterruptionFrame())
        await watch.seen(lambda who, f: who is out and isinstance(f, TTSStoppedFrame))
    said = [f.text for who, f in watch.frames if who is out and isinstance(f, TTSTextFrame)]
    assert "".join(said) == "This call is recorded."


async def test_text_with_nothing_to_say_is_ten_milliseconds_of_silence():
    said, watch = await heard(reply("…"), reply("…"), reply("…"), reply("Yes."))
    assert "".join(said).endswith("Yes.")
    assert not watch.of(ErrorFrame)
    silences = [f for f in watch.of(TTSAudioRawFrame) if f.context_id and not any(f.audio)]
    assert [len(frame.audio) for frame in silences] == [480] * 3


async def test_a_voice_without_word_marks_gives_its_phrases_behind_their_audio():
    voice = voice_from_function(lambda text: bytes(480 * len(text)), 24_000)
    said, _ = await heard(reply(*tokens(REPLY)), voice=voice)
    assert said == [REPLY]


class BrokenVoice(ScriptedVoice):
    async def synthesize(self, phrase):
        async for buffer in super().synthesize(phrase):
            yield buffer
            raise AdapterFailed("the voice lost its model")


async def test_a_broken_voice_is_told_and_the_service_goes_on():
    service = SpecstreamTTSService(voice=BrokenVoice(word_ms=200))
    down, up = await run_test(service, frames_to_send=[*reply("One two."), *reply("Three.")])
    errors = [frame for frame in up if isinstance(frame, ErrorFrame)]
    assert len(errors) == 2 and service.is_usable
    assert {error.category for error in errors} == {ErrorCategory.SERVER}
    assert "lost its model" in errors[0].error
    assert sum(isinstance(frame, TTSStoppedFrame) for frame in down) == 2


async def test_a_remote_voice_that_is_not_there_is_told():
    stage = RemoteStage("ws://127.0.0.1:9", "voice")
    _, up = await run_test(SpecstreamTTSService(voice=stage), frames_to_send=reply("One two."))
    first = next(frame for frame in up if isinstance(frame, ErrorFrame))
    assert first.category is ErrorCategory.CONNECTIVITY


class ClosedCounting(ScriptedVoice):
    """Counts the phrases that were begun and not ended."""

    open = 0

    async def synthesize(self, phrase):
        self.open += 1
        try:
            async for buffer in super().synthesize(phrase):
                yield buffer
        finally:
            self.open -= 1


async def test_nothing_is_synthesized_after_an_interruption():
    voice = ClosedCounting(real_time_factor=1.0)
    tts, watch = SpecstreamTTSService(voice=voice), FrameWatch()
    async with running([tts], watch) as worker:
        for frame in reply(*["One two three four five. "] * 5):
            await worker.queue_frame(frame)
        await watch.seen(lambda _, frame: isinstance(frame, TTSAudioRawFrame))
        begun = len(voice.spoken)
        await worker.queue_frame(InterruptionFrame())
        await watch.seen(lambda who, f: who is tts and isinstance(f, InterruptionFrame))
        given = len(watch.of(TTSAudioRawFrame))
        await worker.queue_frame(TTSSpeakFrame("Yes."))
        await watch.seen(lambda _, frame: isinstance(frame, TTSTextFrame) and frame.text == "Yes.")
    assert (begun, voice.spoken[1:], voice.open) == (1, ["Yes."], 0)
    later = watch.of(TTSAudioRawFrame)[given:]
    assert len({frame.context_id for frame in later}) == 1


async def test_settings_of_the_voice_are_refused():
    change = TTSUpdateSettingsFrame(delta=TTSSettings(voice="another"))
    service = SpecstreamTTSService(voice=ScriptedVoice(word_ms=50))
    down, up = await run_test(service, frames_to_send=[change, *reply("Yes.")])
    (error,) = [frame for frame in up if isinstance(frame, ErrorFrame)]
    assert "voice" in error.error and service.is_usable
    assert service.settings.voice == "scripted"


async def test_options_that_are_decided_are_refused_by_name():
    with pytest.raises(ConfigError, match="skip_text_types"):
        SpecstreamTTSService(voice=ScriptedVoice(), skip_text_types=["code"])
    with pytest.raises(ConfigError, match="reuse_context_id_within_turn"):
        SpecstreamTTSService(voice=ScriptedVoice(), reuse_context_id_within_turn=False)


async def test_words_of_two_speeches_are_parted_by_a_space():
    tts, watch = SpecstreamTTSService(voice=ScriptedVoice(word_ms=50)), FrameWatch()
    async with running([tts], watch) as worker:
        for count, text in enumerate(("One moment.", "It is 8."), 1):
            await worker.queue_frame(TTSSpeakFrame(text))
            await watch.until(lambda: watch.count(tts, TTSStoppedFrame) == count)  # noqa: B023
    said = [frame.text for frame in watch.of(TTSTextFrame)]
    assert "".join(said) == "One moment. It is 8."
