"""The figures of a spoken conversation, with scripted parts in virtual time."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from specstream import Agent
from specstream.bench.load.conversation import (
    ConversationFigures,
    HeardAt,
    ask_aloud,
    ask_in_writing,
    converse,
    heard_as,
    interrupted,
)
from specstream.commands import main as cli
from specstream.errors import AdapterFailed, EngineError
from specstream.listening.ears import Ears
from specstream.listening.events import ListenerSettings
from specstream.playback.playout import Playout
from specstream.testing import ScriptedEngine
from specstream.testing.doubles import ScriptedRecognizer, ScriptedTurnDetector
from tests.server.doubles import OneCueFace, WordVoice

RATE = 16_000
REPLY = "One two three."
virtual = pytest.mark.virtual_time


def agent_of(heard: list[str | Exception] | None = None, **options: Any) -> Agent:
    ears = Ears(ScriptedRecognizer(heard or ["Hello there."]), ScriptedTurnDetector())
    options.setdefault("play", Playout(paced=False))
    return Agent(
        engine=ScriptedEngine([REPLY]),
        voice=WordVoice(),
        ears=ears,
        sample_rate=RATE,
        listening=ListenerSettings(silence_ms=300, by_words=False, partial_ms=None),
        **options,
    )


@virtual
async def test_a_typed_turn_is_timed_part_by_part() -> None:
    async with agent_of() as agent:
        turn = await ask_in_writing(agent, "Hi")
        again = await ask_in_writing(agent, "Hi again")
    assert list(turn.parts) == ["first token", "first phrase", "voice", "silence before the sound"]
    assert turn.reply == again.reply == REPLY
    assert turn.spoken.split() == ["One", "two", "three"]
    assert len(turn.pcm) == round(2 * 3 * 0.2 * turn.sample_rate)
    assert turn.wait_ms == pytest.approx(0, abs=5), "scripted parts take no virtual time"


@virtual
async def test_a_spoken_turn_counts_from_the_last_sound_of_the_question() -> None:
    pcm = b"\0\4" * int(RATE * 0.4) + b"\0\0" * int(RATE * 0.2)  # the voice ends with silence
    async with agent_of() as agent:
        turn = await ask_aloud(agent, "Hello there.", pcm, RATE)
    assert turn.heard == "Hello there."
    assert turn.parts["end of turn"] == pytest.approx(300, abs=25)
    assert turn.wait_ms == pytest.approx(turn.parts["end of turn"], abs=5)


@virtual
async def test_an_interruption_is_silent_within_the_sinks_lead() -> None:
    def playing(playout: Playout) -> Agent:
        return agent_of(play=playout)

    waits = await interrupted(playing, ["Hi", "Hi"], after_s=0.1)
    assert len(waits) == 2
    assert all(20 <= wait <= 121 for wait in waits), "80 ms of lead and one piece of 40 ms"
    assert not await interrupted(playing, ["Hi"], after_s=9.0), "that reply had ended"


@virtual
async def test_a_turn_without_an_answer_is_an_error() -> None:
    async with agent_of([AdapterFailed("deaf")]) as agent:
        with pytest.raises(AdapterFailed, match="deaf"):
            await ask_aloud(agent, "Hi", b"\0\4" * RATE, RATE)
    silent = Agent(engine=ScriptedEngine([REPLY]), voice=None)
    async with silent as agent:
        with pytest.raises(EngineError, match="nothing was heard"):
            await ask_in_writing(agent, "Hi")


@virtual
async def test_speech_is_brought_to_the_recognisers_rate() -> None:
    recognizer = ScriptedRecognizer(["Fine."])
    assert await heard_as(recognizer, b"\0\4" * 24_000, 24_000) == "Fine."
    assert recognizer.open_streams == 0


@virtual
async def test_a_long_conversation_counts_its_turns_and_measures_its_cues() -> None:
    heard = HeardAt()
    async with agent_of(avatar=OneCueFace(), play=Playout(heard)) as agent:
        figures = await converse(agent, heard, WordVoice(), 30.0)
    document = figures.to_dict()
    assert 0.5 <= document["minutes"] < 0.6
    assert document["turns"] > 6
    assert list(document["memory_mb"]) == ["after 6 turns", "the end"]
    assert all(mb > 1 for mb in document["memory_mb"].values())
    assert document["largest_cue_delay_ms"] == document["longest_gaps_ms"] == 0


@virtual
async def test_late_cues_and_gaps_are_told() -> None:
    heard, began = HeardAt(), anyio.current_time()
    heard(bytes(4800), 24_000)  # 100 ms
    await anyio.sleep(0.15)
    heard(bytes(4800), 24_000)
    cues = [(began - 1, 0), (began + 0.02, 2399), (began + 0.14, 2400), (began + 9, 99_999)]
    late, gaps = heard.reply_over(cues)
    assert late == pytest.approx(20) and gaps == pytest.approx(50)
    heard(bytes(4800), 24_000)
    assert max(heard.reply_over([])) == 0, "each reply has a clock of its own"


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "1e9"])
def test_bad_minutes_are_told_before_anything_is_loaded(
    minutes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "--conversation", f"--minutes={minutes}"]) == 2
    assert "--minutes must be above 0" in capsys.readouterr().err


def test_figures_without_turns_are_null() -> None:
    document = ConversationFigures().to_dict()
    assert document["written"]["first_audible_ms"] is None
    assert json.loads(json.dumps(document)) == document


def test_a_bad_limit_is_told_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--conversation", "--limit", "0"]) == 2
    assert "--limit must be at least 1" in capsys.readouterr().err


@pytest.mark.nightly
def test_with_the_bundled_pair_a_real_voice_and_real_ears(tmp_path: Path) -> None:
    given = ["bench", "--conversation", "--limit", "2", "--max-tokens", "12", "--out", str(tmp_path)]
    assert cli.main(given) == 0
    document = json.loads((tmp_path / "conversation.json").read_text())
    assert document["word_error_rate"]["questions"]["rate"] < 0.5
    for turn in document["each"]:
        assert all(ms >= 0 for ms in turn["parts_ms"].values())
