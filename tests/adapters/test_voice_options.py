"""Options that a voice refuses, each by its name."""

from collections.abc import Callable

import pytest

from specstream.errors import ConfigError
from specstream_adapters.voice import EspeakVoice, HibariVoice, ReferenceVoice
from specstream_adapters.voice.elevenlabs import ElevenLabsVoice
from specstream_adapters.voice.openai import OpenAIVoice
from specstream_adapters.voice.piper import PiperVoice

NEEDS: dict[object, str] = {HibariVoice: "hibari", OpenAIVoice: "openai"}
URLS: dict[object, str] = {OpenAIVoice: "http://127.0.0.1:1/v1", ElevenLabsVoice: "ws://127.0.0.1:1/v1"}


@pytest.mark.parametrize(
    ("voice", "options"),
    [
        (EspeakVoice, {"speed": 0.4}),
        (EspeakVoice, {"speed": "fast"}),
        (EspeakVoice, {"pitch": 2.5}),
        (EspeakVoice, {"voice": ""}),
        (EspeakVoice, {"voice": "en\x00us"}),
        (HibariVoice, {"language": "de"}),
        (HibariVoice, {"language": 3}),
        (HibariVoice, {"speed": 2.5}),
        (HibariVoice, {"speed": "fast"}),
        (HibariVoice, {"pitch": 1.1}),
        (HibariVoice, {"speaker": "nobody"}),
        (HibariVoice, {"speaker": 3}),
        (PiperVoice, {"speed": 2.5}),
        (PiperVoice, {"pitch": 0.9}),
        (PiperVoice, {"model": 3}),
        (ReferenceVoice, {"sample_rate": 4000}),
        (ReferenceVoice, {"sample_rate": 22050.0}),
        (ReferenceVoice, {"speed": float("nan")}),
        (ReferenceVoice, {"pitch": 0.1}),
        (ReferenceVoice, {"seed": -1}),
        (OpenAIVoice, {"speed": 3}),
        (OpenAIVoice, {"sample_rate": 4000}),
        (OpenAIVoice, {"model": 3}),
        (OpenAIVoice, {"url": "ws://127.0.0.1/v1"}),
        (OpenAIVoice, {"url": "http://127.0.0.1/v1?colour=red"}),
        (OpenAIVoice, {"api_key": "line\nbreak"}),
        (OpenAIVoice, {"first_s": 0}),
        (ElevenLabsVoice, {"speed": 1.5}),
        (ElevenLabsVoice, {"sample_rate": 12_345}),
        (ElevenLabsVoice, {"voice": ""}),
        (ElevenLabsVoice, {"model": "a\nb"}),
        (ElevenLabsVoice, {"url": "http://127.0.0.1/v1"}),
        (ElevenLabsVoice, {"api_key": "schlüssel"}),
        (ElevenLabsVoice, {"between_s": -1}),
    ],
)
def test_bad_options_are_refused(voice: Callable[..., object], options: dict[str, object]) -> None:
    if voice in NEEDS:
        pytest.importorskip(NEEDS[voice])
    given = {"url": URLS[voice], **options} if voice in URLS else options
    with pytest.raises(ConfigError, match=next(iter(options))):
        voice(**given)
