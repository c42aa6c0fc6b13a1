"""Scenarios in virtual time: latencies that follow from the script, the same on every run; bad files."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any, Self

import pytest

from specstream import Agent
from specstream.agent import ReplyEnded
from specstream.commands import main as cli
from specstream.errors import AdapterFailed, ConfigError, EngineError
from specstream.stages.pipeline import Event
from specstream.testing import (
    LatencyReport,
    Parts,
    Scenario,
    ScriptedNetwork,
    ScriptedVoice,
    TurnLatency,
    assert_latency,
    read_scenario,
    run_scenario,
    run_virtual,
)

EXACT: dict[str, Any] = {
    "network": {"delay_ms": 20},
    "model": {"first_token_ms": 200, "round_ms": 30, "drafted": 0},
    "voice": {"first_audio_ms": 80, "real_time_factor": 0.1, "leading_silence_ms": 50},
    "recognizer": {"takes_ms": 80},
    "listening": {"silence_ms": 512},  # blocks of 32 ms
}
ANY: dict[str, Any] = {
    "network": {"delay_ms": 20, "jitter_ms": 30, "loss": 0.02},
    "turns": [
        {"user": "Hello?", "word_ms": 100, "reply": "Good day to you."},
        {"user": "Wait.", "word_ms": 100, "interrupts_after_ms": 200, "reply": "Yes?"},
        {"user": "Thanks.", "typed": True, "reply": "Bye."},
        {"user": "Bye.", "typed": True, "reply": "Bye."},
    ],
}


def measured(*turns: dict[str, Any], **changes: Any) -> list[TurnLatency]:
    scenario = Scenario.model_validate(EXACT | {"turns": turns} | changes)
    return list(run_virtual(run_scenario(scenario)).turns)


def test_every_part_of_a_typed_turn_is_what_the_script_says() -> None:
    [turn] = measured({"user": "Hi", "typed": True, "reply": "Fine."})
    assert {name: round(ms, 6) for name, ms in turn.parts.items()} == {
        "asked": 20,  # the network
        "first_token": 200,
        "first_phrase": 0,  # at the end of the reply, which is one token
        "first_speech": 80,
        "arrived": 20,
        "first_audio": 50,  # silence before the word
    }
    assert turn.wait_ms == pytest.approx(370)
    assert turn.stages["gap"] == 0
    assert turn.reply == "Fine."
    assert "turn_end" not in turn.stages and turn.interrupts is None


def test_a_spoken_turn_is_counted_from_the_users_last_sound() -> None:
    [turn] = measured({"user": "Hello there, you", "reply": "Fine."})
    # The voice ends with the frame of 900 ms, which arrives 20 ms later; the silence with one of 20 ms.
    assert turn.stages["turn_end"] == pytest.approx(512 + 20, abs=32)
    assert turn.stages["transcript"] == turn.stages["turn_end"], "it was made during the silence"
    assert turn.parts["first_token"] == pytest.approx(200)
    assert turn.wait_ms == pytest.approx(turn.stages["turn_end"] + 350)


def test_an_interruption_silences_the_reply() -> None:
    first, second = measured(
        {"user": "Go on", "reply": "One two three four five six seven eight nine ten."},
        {"user": "Stop it", "interrupts_after_ms": 1000, "reply": "Fine."},
    )
    # A frame of 20 ms is filled and sent; what has left the play-out by then (80 ms) is still heard,
    # and what was on its way.
    assert second.interrupts is True
    assert 40 < second.stages["interruption_silence"] <= 20 + 20 + 80 + 20 + 1
    assert first.stages["first_audio"] == first.wait_ms
    _, late = measured(
        {"user": "Go on", "reply": "One."},
        {"user": "Stop it", "interrupts_after_ms": 1000, "reply": "Fine."},
    )
    assert late.interrupts is False, "the reply was over"
    assert "interruption_silence" not in late.stages


@pytest.mark.parametrize(("after_ms", "left_ms"), [(900, 50), (940, 10), (960, None)])
def test_an_interruption_that_the_agent_does_not_notice_in_time_is_measured(
    after_ms: int, left_ms: float | None
) -> None:
    """Its reply is audible for 950 ms, and the notice comes later."""
    _, second = measured(
        {"user": "Go on", "reply": "One two three."},
        {"user": "Stop it now", "interrupts_after_ms": after_ms, "reply": "Fine."},
        voice=EXACT["voice"] | {"word_ms": 950 / 3},
    )
    assert second.interrupts is (left_ms is not None)
    assert second.stages.get("interruption_silence") == pytest.approx(left_ms, abs=1)


class Greeter(Agent):
    """It speaks first."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.say("Greet me.")
        return self


@pytest.mark.parametrize("typed", [True, False])
def test_what_the_agent_says_first_belongs_to_no_turn(typed: bool) -> None:
    def greeter(parts: Parts) -> Agent:
        return Greeter(
            engine=parts.model, voice=parts.voice, ears=parts.ears, listening=parts.listening,
            sample_rate=parts.sample_rate, play=parts.playout,
        )  # fmt: skip

    turns = [{"user": "Hi", "typed": typed, "reply": "Good day."}, {"user": "Bye.", "typed": True}]
    scenario = Scenario.model_validate(EXACT | {"turns": turns})
    greeted = run_virtual(run_scenario(scenario, greeter))
    plain = run_virtual(run_scenario(scenario))
    for turn, other in zip(greeted.turns, plain.turns, strict=True):
        assert turn.wait_ms == pytest.approx(other.wait_ms, abs=1) and turn.interrupts is None
    assert greeted.turns[0].reply == "All right.", "the greeting took the first text"


def test_a_reply_that_is_cancelled_before_its_first_sound_is_an_error() -> None:
    def stopped(parts: Parts) -> Agent:
        agent = parts.agent()
        asyncio.get_running_loop().call_later(0.3, agent.interrupt)
        return agent

    scenario = Scenario.model_validate(EXACT | {"turns": [{"user": "Hi", "typed": True}]})
    with pytest.raises(EngineError, match="nothing was heard in answer to 'Hi': the reply was canc"):
        run_virtual(run_scenario(scenario, stopped))


class Reminder(Agent):
    """It says something further after its first reply."""

    reminded = False

    async def __anext__(self) -> Event:
        event = await super().__anext__()
        if isinstance(event.item, ReplyEnded) and not self.reminded:
            self.reminded = True
            loop = asyncio.get_running_loop()
            loop.call_later(0.3, lambda: loop.create_task(self.say("And?")))
        return event


def test_a_further_reply_that_the_next_turn_cancels_unheard_is_no_missing_answer() -> None:
    def reminder(parts: Parts) -> Agent:
        return Reminder(
            engine=parts.model, voice=parts.voice, ears=parts.ears, listening=parts.listening,
            sample_rate=parts.sample_rate, play=parts.playout,
        )  # fmt: skip

    turns = [{"user": "Hello there", "reply": "Good day."}, {"user": "And now what"}]
    slow = {"first_token_ms": 400, "drafted": 0}
    scenario = Scenario.model_validate(EXACT | {"turns": turns, "model": slow})
    report = run_virtual(run_scenario(scenario, reminder))
    assert len(report.values("first_audio")) == 2


def test_a_stage_that_was_not_measured_has_no_slow_turn() -> None:
    report = LatencyReport("x", "virtual", (TurnLatency("a", True),))
    assert report.slow(50) is None and not any("p50 of" in line for line in report.lines())


@pytest.mark.slow
def test_parts_sum_to_the_wait_and_a_report_is_the_same_each_time() -> None:
    document, again = (run_many(times).to_dict() for times in (50, 5))
    assert json.dumps(document["each"][:20]) == json.dumps(again["each"])
    assert document["turns"] == 200 and document["missed_interruptions"] == 0
    for turn in document["each"]:
        assert abs(turn["wait_ms"] - sum(turn["parts_ms"].values())) < 1
        assert turn["residual_ms"] < 1
        assert turn["wait_ms"] == turn["stages_ms"]["first_audio"]
    stages = document["stages_ms"]
    assert stages["gap"]["max"] > 0, "messages were lost"
    assert stages["interruption_silence"]["turns"] == stages["turn_end"]["turns"] / 2 == 50
    assert len({turn["wait_ms"] for turn in document["each"]}) > 190, "each time other chances"


def run_many(times: int) -> LatencyReport:
    return run_virtual(run_scenario(Scenario.model_validate(ANY | {"repeat": times})))


def test_a_limit_that_is_passed_shows_where_the_time_went() -> None:
    turns = tuple(measured({"user": "Hi", "typed": True, "reply": "Fine."}))
    report = LatencyReport("x", "virtual", turns)
    with pytest.raises(AssertionError) as caught:
        assert_latency(report, stage="first_audio", p95_ms=300, max_ms=371)
    message = str(caught.value)
    assert message.startswith("first_audio: p95 is 370.0 ms, allowed are 300\n")
    assert "200.0 ms  first_token" in message and "max" not in message
    with pytest.raises(AssertionError, match="measured in 0 turns of 1"):
        assert_latency(report, stage="turn_end", p95_ms=300)
    with pytest.raises(ConfigError, match="no stage 'ttfa'; known: turn_end, "):
        assert_latency(report, stage="ttfa", p95_ms=300)
    with pytest.raises(ConfigError, match="give a limit"):
        assert_latency(report, stage="first_audio")
    for wrong in (math.nan, 0, "a"):
        with pytest.raises(ConfigError, match="above 0"):
            assert_latency(report, stage="first_audio", p95_ms=wrong)  # type: ignore[arg-type]


def test_percentiles_are_by_nearest_rank() -> None:
    turns = tuple(TurnLatency("x", True, {"gap": float(ms)}) for ms in range(20, 0, -1))
    report = LatencyReport("x", "virtual", turns)
    found = [report.percentile("gap", percent) for percent in (0, 5, 50, 95, 96, 100)]
    assert found == [1, 1, 10, 19, 20, 20]
    assert report.percentile("turn_end", 50) is None


def test_an_agents_own_part_is_measured_in_place_of_the_scripted_one() -> None:
    def make(parts: Parts) -> Agent:
        voice = ScriptedVoice(first_audio_ms=500)
        return Agent(engine=parts.model, voice=voice, play=parts.playout)

    scenario = Scenario.model_validate(EXACT | {"turns": [{"user": "Hi", "typed": True}]})
    [turn] = run_virtual(run_scenario(scenario, make)).turns
    assert turn.parts["first_speech"] == pytest.approx(500)


@pytest.mark.parametrize(
    ("voice", "error", "message"),
    [
        (ScriptedVoice(leading_silence_ms=100, word_ms=0), EngineError, "nothing was heard"),
        (None, AdapterFailed, "the voice is hoarse"),
    ],
)
def test_what_ends_a_conversation_is_told(
    voice: ScriptedVoice | None, error: type[Exception], message: str
) -> None:
    class Hoarse(ScriptedVoice):
        async def aclose(self) -> None: ...

        def synthesize(self, phrase: Any) -> Any:
            raise AdapterFailed("the voice is hoarse")

    def make(parts: Parts) -> Agent:
        return Agent(engine=parts.model, voice=voice or Hoarse(), play=parts.playout)

    scenario = Scenario.model_validate({"turns": [{"user": "Hi", "typed": True}]})
    with pytest.raises(error, match=message):
        run_virtual(run_scenario(scenario, make))


async def made_on_the_loop(parts: Parts) -> Agent:
    return parts.agent()


@pytest.mark.parametrize(
    ("make", "what"), [(made_on_the_loop, "coroutine"), (lambda parts: None, "None")]
)
def test_a_function_that_makes_no_agent_is_told_so(make: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=f"a plain function that returns an Agent, not a {what}"):
        run_virtual(run_scenario(Scenario.model_validate(ANY), make))


def test_a_network_keeps_the_order_and_sends_again_what_is_lost() -> None:
    network = ScriptedNetwork(delay_ms=20, jitter_ms=10, loss=0.2, retransmit_ms=100, seed=1)
    sent = [n / 100 for n in range(500)]
    arrived = [network.arrival(moment) for moment in sent]
    took = [(b - a) * 1e3 for a, b in zip(sent, arrived, strict=True)]
    assert arrived == sorted(arrived)
    assert 20 <= min(took) < 21 and max(took) > 120
    in_time = sum(ms <= 30 for ms in took)
    assert 40 < in_time < 350, "a loss delays what comes behind it, too"
    for wrong in ({"delay_ms": -1}, {"loss": 1}):
        with pytest.raises(ValueError, match="must be"):
            ScriptedNetwork(**wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "turns: Field required"),
        ("turns = []", "turns: Tuple should have at least 1 item"),
        ("[[turns]]\nuser = 'Hi'\n[[turns]]\nusr = 'Hi'", "turns.1.usr: there is no such key; did"),
        ("[[turns]]\nuser = 'Hi'\n[network]\nlos = 1", "network.los: there is no such key; did you"),
        ("repeats = 2\n[[turns]]\nuser = 'Hi'", "repeats: there is no such key; did you mean repeat?"),
        ("repeat = 100001\n[[turns]]\nuser = 'Hi'", "repeat: Input should be less than"),
        ("[[turns]]\nuser = 'Hi'\ninterrupts_after_ms = 1", "the first turn has no reply"),
        ("[[turns]]\nuser = '... 👩'", "a spoken turn needs a word"),
        (
            "[[turns]]\nuser = 'Hi'\n[[turns]]\nuser = 'Hi'\ntyped = true\ninterrupts_after_ms = 1",
            "a turn that interrupts is spoken",
        ),
        ("[[turns]", "is not valid TOML"),
    ],
)
def test_a_bad_scenario_is_one_clear_error(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_scenario(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)


def test_the_picture_shows_the_parts_of_three_turns(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "talk.toml"
    path.write_text("repeat = 3\n[[turns]]\nuser = 'Hi'\nreply = 'Fine.'\n[network]\njitter_ms = 50")
    for out in ("one", "two"):
        argv = ["latency", "--scenario", str(path), "--out", str(tmp_path / out)]
        assert cli.main(argv) == 0
    picture = (tmp_path / "one" / "latency.svg").read_text()
    each = json.loads((tmp_path / "one" / "latency.json").read_text())["each"]
    for step in each[0]["parts_ms"]:
        assert f">{step}<" in picture, "a colour's name"
    _, median, slowest = sorted(turn["wait_ms"] for turn in each)
    for label, ms in (("p50", median), ("p95", slowest), ("slowest", slowest)):
        assert f">{label}, {ms:.0f} ms<" in picture
    assert (tmp_path / "two" / "latency.svg").read_text() == picture


def test_the_command_prints_and_writes_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "talk.toml"
    path.write_text("name = 'hello'\n[[turns]]\nuser = 'Hi'\nreply = 'Fine.'")
    argv = ["latency", "--scenario", str(path), "--out", str(tmp_path / "out"), "--json"]
    assert cli.main(argv) == 0
    first = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "hello: 1 turns, virtual clock"
    assert json.loads(lines[-1])["stages_ms"]["first_audio"]["turns"] == 1
    assert json.loads(first["latency.json"])["each"][0]["user"] == "Hi"
    assert cli.main(["latency", "--scenario", str(tmp_path / "none.toml")]) == 2
    assert "can't read the scenario file" in capsys.readouterr().err
