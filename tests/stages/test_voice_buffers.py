"""What a voice may yield, and what the stage around it refuses."""

from array import array
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from specstream.errors import AdapterFailed
from specstream.stages.stages import VoiceStage
from specstream.types import Phrase, Span, Speech, SpeechBuffer
from tests.stages.test_stages import PHRASES, Dictated
from tests.support.standins import ToneVoice, feed


@pytest.mark.parametrize("size", [1, 3, 401])
async def test_half_a_sample_is_an_error_that_names_the_voice(size: int) -> None:
    with pytest.raises(AdapterFailed, match="'tone' gave half a sample"):
        await feed(VoiceStage(Dictated(SpeechBuffer(bytes(size)))), PHRASES)


async def test_audio_that_is_no_bytes_is_an_error_that_names_the_voice() -> None:
    wrong: Any = "text"
    with pytest.raises(AdapterFailed, match="'tone' gave str as PCM"):
        await feed(VoiceStage(Dictated(SpeechBuffer(wrong))), PHRASES)


class Reusing(ToneVoice):
    """Fills the same array for every buffer, and gives a view of its samples."""

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        samples = array("h", bytes(400))
        for level in (1, 2):
            samples[:] = array("h", [level] * 200)
            yield SpeechBuffer(memoryview(samples))  # type: ignore[arg-type]


async def test_a_voice_may_use_its_buffer_again() -> None:
    spoken: list[Speech] = await feed(VoiceStage(Reusing()), PHRASES[:1])
    assert [(one.samples, one.pcm) for one in spoken if one.pcm] == [
        (Span(0, 200), b"\1\0" * 200),
        (Span(200, 400), b"\2\0" * 200),
    ]


async def one_buffer(phrase: Phrase) -> SpeechBuffer:
    return SpeechBuffer(bytes(400))


@pytest.mark.parametrize("synthesize", [one_buffer, lambda phrase: [SpeechBuffer(bytes(400))]])
async def test_a_voice_that_does_not_yield_is_told_how(
    synthesize: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    voice = Dictated()
    monkeypatch.setattr(voice, "synthesize", synthesize, raising=False)
    with pytest.raises(AdapterFailed, match="'tone' gave (coroutine|list) .* async generator"):
        await feed(VoiceStage(voice), PHRASES)


@pytest.mark.parametrize("wrong", [b"", None])
async def test_a_voice_that_yields_no_buffers_is_told_so(wrong: Any) -> None:
    with pytest.raises(AdapterFailed, match="'tone' gave (bytes|NoneType); it must yield Speech"):
        await feed(VoiceStage(Dictated(wrong)), PHRASES)
