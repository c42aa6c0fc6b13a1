"""`TTS`: words before their audio, silence, errors, voices near and far."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from livekit.agents import APIConnectionError, APIConnectOptions, APIError, APIStatusError
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT, TimedString
from specstream import Phrase, Speech
from specstream.errors import AdapterFailed, ConfigError
from specstream.server import AdapterServer
from specstream.stages import (
    Pipeline,
    Readout,
    RemoteStage,
    SegmentStage,
    VoiceStage,
    load_adapter,
    voice_from_function,
)
from specstream.testing import ScriptedVoice, chunks_of

from livekit.plugins.specstream import TTS

AT_ONCE = APIConnectOptions(max_retry=2, retry_interval=0.0)
TEXT = "Dr. Smith paid $5.50, then [smile] left. Was it 3 o'clock? Yes!\n"


class Failing(ScriptedVoice):
    """Fails at the phrase of a number, the first times."""

    def __init__(self, phrase: int, times: int) -> None:
        super().__init__()
        self._phrase, self._times = phrase, times

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[Any, None]:
        if phrase.index == self._phrase and self._times:
            self._times -= 1
            raise AdapterFailed("the voice broke")
        async for buffer in super().synthesize(phrase):
            yield buffer


async def speak(service: TTS, *pieces: str) -> tuple[list[TimedString], bytes, list[float]]:
    """Speak pieces of text; returns words, audio, and how much of it came before each word."""
    words: list[TimedString] = []
    before: list[float] = []
    pcm = bytearray()
    async with service.stream(conn_options=AT_ONCE) as stream:
        for piece in pieces:
            stream.push_text(piece)
        stream.end_input()
        async for made in stream:
            told = made.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])
            words += told
            before += [len(pcm) / 2 / service.sample_rate] * len(told)
            pcm += bytes(made.frame.data)
    return words, bytes(pcm), before


def cut(text: str, size: int = 3) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


async def test_words_are_the_written_text_and_come_before_their_audio() -> None:
    words, pcm, before = await speak(TTS(voice=load_adapter("voice", "hibari")), *cut(TEXT))
    assert "".join(words) == TEXT
    assert "Dr." in words and " $5.50," in words
    assert all(at <= float(word.end_time or 0) for word, at in zip(words, before))
    ends = [float(word.end_time or 0) for word in words]
    assert ends == sorted(ends) and ends[-1] <= len(pcm) / 2 / 24_000
    several = words.index(TimedString(" $5.50,")) + 1
    assert words[several] == "" and ends[several] > ends[several - 1]  # "dollars …"


async def test_times_are_those_of_the_voices_marks() -> None:
    text = "One small fox ran. It was cold."
    voice = load_adapter("voice", "hibari")
    words, _, _ = await speak(TTS(voice=voice), text)
    marks: list[tuple[float, float]] = []
    async with Pipeline([[VoiceStage(voice)]], head=SegmentStage()).run(_chunks(text)) as events:
        async for event in events:
            if isinstance(event.item, Speech):
                rate = event.item.sample_rate
                found = [mark.samples for mark in event.item.marks if mark.kind == "word"]
                marks += [(span.start / rate, span.end / rate) for span in found]
    assert [(word.start_time, word.end_time) for word in words] == marks


async def _chunks(text: str) -> AsyncGenerator[Any, None]:
    for chunk in chunks_of(text):
        yield chunk


@pytest.mark.parametrize("text", ["…", " ", "?!"])
async def test_a_text_without_a_word_is_ten_milliseconds_of_silence(text: str) -> None:
    words, pcm, _ = await speak(TTS(voice=ScriptedVoice()), text)
    assert pcm == bytes(2 * 240)
    assert "".join(words) == text


async def test_a_stream_without_text_gives_nothing() -> None:
    words, pcm, _ = await speak(TTS(voice=ScriptedVoice()))
    assert (words, pcm) == ([], b"")


async def test_words_of_a_voice_without_marks_are_timed_by_their_lengths() -> None:
    voice = voice_from_function(lambda text: bytes(2 * 100 * len(text)), 10_000)
    words, _, _ = await speak(TTS(voice=voice), "One fox ran away. ", "It was cold.")
    assert words == ["One", " fox", " ran", " away. ", "It", " was", " cold."]
    starts = [float(word.start_time or 0) for word in words]
    ends = [float(word.end_time or 0) for word in words]
    assert starts[0] == 0 and ends[:-1] == pytest.approx(starts[1:])
    assert ends[0] == pytest.approx(ends[3] * 3 / 18)


async def test_synthesize_speaks_a_whole_text() -> None:
    frame = await TTS(voice=ScriptedVoice()).synthesize("One two three.").collect()
    assert frame.duration == pytest.approx(0.75, abs=0.011)  # LiveKit may end it by 10 ms of silence


async def test_a_voice_that_breaks_is_tried_again_only_while_nothing_was_heard() -> None:
    words, _, _ = await speak(TTS(voice=Failing(0, times=1)), "One two. Three four.")
    assert "".join(words) == "One two. Three four."

    voice, errors = Failing(1, times=9), []
    service = TTS(voice=voice)
    service.on("error", lambda error: errors.append(error))
    with pytest.raises(APIError, match="the voice broke"):
        await speak(service, "One two. Three four.")
    assert [error.recoverable for error in errors] == [False]
    assert len(voice.spoken) == 1


async def test_closing_a_stream_stops_the_voice() -> None:
    voice = ScriptedVoice(real_time_factor=1.0)
    async with TTS(voice=voice).stream() as stream:
        stream.push_text("One two three. Four five six. ")
        await anext(stream)
    assert len(voice.spoken) == 1  # the second phrase was never asked for


async def test_a_voice_behind_a_websocket() -> None:
    async with (
        AdapterServer("voice", ScriptedVoice).start() as port,
        RemoteStage(f"ws://127.0.0.1:{port}", "voice") as stage,
    ):
        words, pcm, _ = await speak(TTS(voice=stage, sample_rate=24_000), "One two. Three.")
        assert words == ["One", " two.", " Three."]
        assert len(pcm) == pytest.approx(2 * 24_000 * 0.75, abs=2 * 240)
        with pytest.raises(APIStatusError, match="24000 samples a second"):
            await speak(TTS(voice=stage, sample_rate=16_000), "One.")
    stage = RemoteStage(f"ws://127.0.0.1:{port}", "voice", connect_timeout=1.0)
    with pytest.raises(APIConnectionError):  # nobody answers any more; all tries fail
        await speak(TTS(voice=stage, sample_rate=24_000), "One.")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"voice": "hibari"}, "load_adapter"),
        ({"voice": ScriptedVoice}, "voice must be"),
        ({"voice": ScriptedVoice(), "sample_rate": 8_000}, "sample_rate"),
        ({"voice": RemoteStage("ws://127.0.0.1:1", "voice")}, "sample_rate"),
        ({"voice": RemoteStage("ws://127.0.0.1:1", "voice"), "sample_rate": 10}, "sample_rate"),
        (
            {
                "voice": RemoteStage("ws://127.0.0.1:1", "voice"),
                "sample_rate": 24_000,
                "readout": Readout(),
            },
            "readout",
        ),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        TTS(**options)


async def test_a_voice_that_says_nothing_is_given_up_in_time() -> None:
    class Hung(ScriptedVoice):
        async def synthesize(self, phrase: Phrase) -> AsyncGenerator[Any, None]:
            await asyncio.sleep(3600)
            yield

    options = APIConnectOptions(max_retry=0, timeout=0.05)
    service = TTS(voice=Hung())
    async with service.stream(conn_options=options) as stream:
        stream.push_text("One two three.")
        stream.end_input()
        with pytest.raises(APIError):
            _ = [event async for event in stream]
