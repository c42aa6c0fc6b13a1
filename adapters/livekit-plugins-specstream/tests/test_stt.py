"""`STT`: the listener's events as LiveKit's, and whole recordings."""

import asyncio
from typing import Any

import pytest
from fakes import frames
from livekit import rtc
from livekit.agents import APIConnectOptions, APIError, APIStatusError, APITimeoutError, stt
from livekit.agents.stt import SpeechEvent, SpeechEventType as Type
from specstream.errors import AdapterFailed, ConfigError
from specstream.listening import Ears, ListenerSettings
from specstream.testing import ScriptedRecognizer, ScriptedTurnDetector

from livekit.plugins.specstream import STT

LOUD = 9000
AT_ONCE = APIConnectOptions(max_retry=1, retry_interval=0.0)


def hearing(*texts: str | Exception, **settings: Any) -> tuple[STT, ScriptedRecognizer]:
    recognizer = ScriptedRecognizer(texts)
    ears = Ears(recognizer, ScriptedTurnDetector())
    return STT(ears=ears, settings=ListenerSettings(**settings)), recognizer


def push(stream: stt.RecognizeStream, *pieces: tuple[int, int]) -> None:
    for ms, sample in pieces:
        for frame in frames(ms, sample):
            stream.push_frame(frame)


async def collect(service: STT, *pieces: tuple[int, int], **options: Any) -> list[SpeechEvent]:
    async with service.stream(**options) as stream:
        push(stream, *pieces)
        stream.end_input()
        return [event async for event in stream]


def kinds(events: list[SpeechEvent]) -> list[str]:
    return [event.type.value for event in events if event.type != Type.INTERIM_TRANSCRIPT]


async def test_a_turn_is_start_preflight_final_end_and_usage() -> None:
    service, _ = hearing("Book a table.", "Thanks.")
    events = await collect(service, (400, 0), (1000, LOUD), (1500, 0), (600, LOUD), (1500, 0))
    assert (
        kinds(events)
        == [
            "start_of_speech",
            "preflight_transcript",
            "final_transcript",
            "end_of_speech",
            "recognition_usage",
        ]
        * 2
    )
    finals = [event for event in events if event.type == Type.FINAL_TRANSCRIPT]
    assert [event.alternatives[0].text for event in finals] == ["Book a table.", "Thanks."]
    data = finals[0].alternatives[0]
    assert data.language == "en"
    assert data.words is not None and [str(word) for word in data.words] == ["Book", "a", "table."]
    # The turn's audio begins 300 ms before the voice; the scripted words take 250 ms each.
    assert data.start_time == pytest.approx(0.1, abs=0.03)
    assert data.words[1].start_time == pytest.approx(data.start_time + 0.25)
    assert data.end_time == pytest.approx(data.start_time + 0.75)
    assert len({event.request_id for event in events}) == 1


async def test_words_so_far_are_interim_transcripts() -> None:
    service, _ = hearing("One two three four five six.", partial_ms=200)
    async with service.stream() as stream:
        texts: list[str] = []
        for ms in (600, 600, 600):
            push(stream, (ms, LOUD))
            async for event in stream:
                if event.type == Type.INTERIM_TRANSCRIPT:
                    texts.append(event.alternatives[0].text)
                    break
    assert texts == sorted(texts, key=len) and len(set(texts)) == 3
    assert all("One two three four five six.".startswith(text) for text in texts)


async def test_noise_without_words_has_no_transcript() -> None:
    service, _ = hearing("...")
    events = await collect(service, (600, LOUD), (1500, 0))
    assert kinds(events) == ["start_of_speech", "end_of_speech", "recognition_usage"]


async def test_flush_ends_the_turn_at_once() -> None:
    service, _ = hearing("Book a table.")
    async with service.stream() as stream:
        push(stream, (800, LOUD))
        stream.flush()
        async for event in stream:
            if event.type == Type.FINAL_TRANSCRIPT:
                break
    assert event.alternatives[0].text == "Book a table."


async def test_a_turn_that_is_lost_is_an_error_and_the_next_is_heard() -> None:
    service, _ = hearing(AdapterFailed("no more memory"), "Thanks.")
    errors: list[Any] = []
    service.on("error", errors.append)
    events = await collect(service, (600, LOUD), (1500, 0), (600, LOUD), (1500, 0))
    assert kinds(events).count("end_of_speech") == 2
    assert kinds(events).count("final_transcript") == 1
    assert [error.recoverable for error in errors] == [True]
    assert "no more memory" in str(errors[0].error)


async def test_a_recogniser_that_loses_every_turn_is_given_up() -> None:
    service, _ = hearing(*[AdapterFailed("no more memory")] * 3)
    options = APIConnectOptions(max_retry=0)
    with pytest.raises(APIError, match="no more memory"):
        await collect(service, *[(600, LOUD), (1500, 0)] * 3, conn_options=options)


async def test_each_lost_turn_ends_and_after_three_the_next_is_heard() -> None:
    service, _ = hearing(*[AdapterFailed("no more memory")] * 3, "Thanks.")
    options = APIConnectOptions(max_retry=1, retry_interval=0.0)
    events = await collect(service, *[(600, LOUD), (1500, 0)] * 4, conn_options=options)
    told = kinds(events)
    assert told.count("start_of_speech") == told.count("end_of_speech") == 4
    assert told.count("final_transcript") == 1


async def test_a_detector_that_breaks_is_an_error() -> None:
    detector = ScriptedTurnDetector()
    detector.error = AdapterFailed("the detector broke")
    service = STT(ears=Ears(ScriptedRecognizer(["x"]), detector))
    async with service.stream(conn_options=APIConnectOptions(max_retry=0)) as stream:
        push(stream, (100, LOUD))
        with pytest.raises(APIError, match="the detector broke"):
            await anext(stream)


async def test_the_language_is_asked_for() -> None:
    service, recognizer = hearing("Yes.")
    await collect(service, (600, LOUD), (1500, 0), language="en-US")
    assert recognizer.languages == ["en"]


async def test_stereo_is_refused() -> None:
    service, _ = hearing("x")
    async with service.stream(conn_options=AT_ONCE) as stream:
        stream.push_frame(rtc.AudioFrame(bytes(640), 16_000, 2, 160))
        with pytest.raises(APIStatusError, match="mono"):
            await anext(stream)


async def test_closing_a_stream_closes_the_recognition_but_not_the_recogniser() -> None:
    service, recognizer = hearing("Book a table.")
    async with service.stream() as stream:
        push(stream, (800, LOUD))
        await anext(stream)
    await service.aclose()
    assert recognizer.open_streams == 0 and not recognizer.closed


@pytest.mark.parametrize("rate", [16_000, 48_000])
async def test_a_recording_is_recognised_at_any_rate(rate: int) -> None:
    recognizer = ScriptedRecognizer(["Book a table."])
    service = STT(recognizer=recognizer)
    assert not service.capabilities.streaming
    event = await service.recognize(frames(1000, LOUD, rate), language="en-US")
    assert event.type == Type.FINAL_TRANSCRIPT
    assert event.alternatives[0].text == "Book a table."
    assert len(recognizer.audio[0]) == pytest.approx(2 * 16_000, rel=0.02)
    assert recognizer.open_streams == 0 and recognizer.languages == ["en"]


async def test_a_recogniser_that_is_too_slow_is_a_timeout() -> None:
    service = STT(recognizer=ScriptedRecognizer(["x"], takes_s=float("inf")))
    options = APIConnectOptions(max_retry=0, timeout=0.01)
    with pytest.raises(APITimeoutError, match="0.01 s"):
        await service.recognize(frames(100, LOUD), conn_options=options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "ears="),
        (
            {
                "ears": Ears(ScriptedRecognizer(["x"]), ScriptedTurnDetector()),
                "recognizer": ScriptedRecognizer(["x"]),
            },
            "either",
        ),
        ({"ears": "whisper"}, "ears must be"),
        ({"recognizer": "whisper"}, "recognizer must be"),
        ({"recognizer": ScriptedRecognizer(["x"]), "settings": ListenerSettings()}, "settings"),
        (
            {
                "ears": Ears(ScriptedRecognizer(["x"]), ScriptedTurnDetector()),
                "settings": {"silence_ms": 3},
            },
            "settings must be",
        ),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        STT(**options)


async def test_a_recogniser_alone_does_not_stream() -> None:
    with pytest.raises(ConfigError, match="ears"):
        STT(recognizer=ScriptedRecognizer(["x"])).stream()
    assert not asyncio.all_tasks() - {asyncio.current_task()}
