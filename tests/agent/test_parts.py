"""The parts of an agent by name; names are loaded on a thread, so in real time."""

from typing import Any

import pytest

from specstream import Agent
from specstream.agent import ReplyEnded
from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.testing import ScriptedEngine
from specstream.types import AvatarCue, ScenePrompt, Speech
from tests.support.standins import BitMark, ToneVoice


class FactsOf:
    """Has the members of a voice and of a recogniser, and any capabilities."""

    def __init__(self, capabilities: object) -> None:
        self.capabilities = capabilities

    def synthesize(self, phrase: object) -> None: ...

    def open(self, *args: object) -> None: ...

    async def aclose(self) -> None: ...


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"voice": "no-such-voice"}, AdapterUnavailable, "no-such-voice"),
        ({"voice": None, "avatar": "viseme"}, ConfigError, "follows a voice"),
        ({"voice": None, "mark": BitMark()}, ConfigError, "a mark goes into speech"),
        ({"voice": "reference", "mark": "no-such"}, AdapterUnavailable, "no mark adapter"),
        ({"voice": "reference", "mark": object()}, AdapterUnavailable, "is no mark: it lacks"),
        ({"voice": None, "ears": object(), "turns": None}, ConfigError, "turn detector"),
        ({"voice": lambda text: b""}, AdapterUnavailable, "voice_from_function"),
        ({"voice": None, "prompts": object()}, AdapterUnavailable, "lacks open"),
        ({"voice": type("Mine", (), {})}, AdapterUnavailable, r"a class.* as in Mine\(\)"),
        ({"voice": FactsOf({"sample_rate": 24_000})}, AdapterFailed, r"VoiceCapabilities\(.*not dict"),
        ({"voice": None, "ears": object(), "turns": object()}, ConfigError, "no recogniser"),
        ({"voice": None, "ears": FactsOf(0), "turns": object()}, ConfigError, "no turn detector"),
        ({"voice": None, "ears": FactsOf, "turns": object()}, ConfigError, "no recogniser"),
        ({"voice": None, "params": {"max_tokens": 3}}, ConfigError, "must be SamplingParams"),
        ({"voice": None, "engine": "smollm2"}, ConfigError, "name is the first argument"),
        ({"voice": None, "preempt": True}, ConfigError, "must be a Preempt"),
        ({"voice": None, "system": 5}, ConfigError, "system must be a text"),
        ({"voice": None, "sample_rate": 0}, ConfigError, "sample_rate must be"),
        ({"voice": None, "play": 5}, ConfigError, "no audio sink"),
        ({"voice": None, "tools": print}, ConfigError, r"tools must be a list, .*get_weather"),
        ({"voice": None, "meanwhile": 5}, ConfigError, "meanwhile must be a text"),
        ({"voice": None, "echo": "nope"}, AdapterUnavailable, "no echo adapter is called 'nope'"),
        ({"voice": None, "recognizer": "whisper"}, ConfigError, "no option recognizer; it is ears"),
        ({"voice": None, "voise": "espeak"}, ConfigError, "voise; did you mean voice"),
    ],
)
async def test_parts_that_do_not_fit_are_named(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        async with Agent(**{"engine": ScriptedEngine(["x"]), **options}):
            pass


@pytest.mark.parametrize(("play", "match"), [("none/a.wav", "no folder"), ("a.mp3", r"\.wav")])
def test_a_file_that_cannot_be_made_is_refused_at_once(play: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Agent(engine=ScriptedEngine(["x"]), play=play)


async def test_parts_by_name_work_together(tmp_path: Any) -> None:
    engine = ScriptedEngine(["A fox runs. It sleeps."])
    names: dict[str, Any] = {"voice": "reference", "avatar": "viseme", "prompts": "template"}
    async with Agent(engine=engine, play=tmp_path / "a.wav", **names) as agent:
        await agent.say("Hi")
        agent.finish()
        items = [event.item async for event in agent]
    for kind in (Speech, AvatarCue, ScenePrompt):
        assert any(isinstance(item, kind) for item in items)
    [ended] = [item for item in items if isinstance(item, ReplyEnded)]
    assert ended.outcome.heard == "A fox runs. It sleeps."


async def test_all_that_an_agent_plays_is_marked() -> None:
    played, mark = bytearray(), BitMark(300)

    def play(pcm: bytes, sample_rate: int) -> None:
        played.extend(pcm)

    engine = ScriptedEngine(["A fox runs. It sleeps."])
    async with Agent(engine=engine, voice=ToneVoice(), mark=mark, play=play) as agent:
        await agent.say("Hi")
        agent.finish()
        items = [event.item async for event in agent]
    said = b"".join(item.pcm for item in items if isinstance(item, Speech))
    assert said and all(byte & 1 for byte in said[::2])
    assert bytes(played) == said
    [ended] = [item for item in items if isinstance(item, ReplyEnded)]
    assert ended.outcome.heard == "A fox runs. It sleeps."
    assert mark.closed == 1
