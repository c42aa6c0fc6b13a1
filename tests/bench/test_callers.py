"""What is made of the audio that callers got, and the capacity in virtual time."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specstream.bench.load.callers import Caller, figures
from specstream.bench.load.capacity import Order, ServingCosts, capacity, measured_costs, simulate
from specstream.testing import ScriptedEngine, ScriptedVoice
from specstream.types import Phrase, SpeechBuffer

pytestmark = pytest.mark.slow

COSTS = ServingCosts(pass_s=0.018, row_s=0.002, prompt_s=0.03, phrase_s=0.012, sound_s=0.01)


def caller(*pieces: tuple[float, float], asked: float = 10.0) -> Caller:
    return Caller(asked, "play-out", 2, list(pieces), "completed")


def test_silence_inside_a_reply_is_what_an_ideal_player_lacks() -> None:
    smooth = caller((11.0, 1.0), (11.9, 0.5), (12.5, 0.5))
    assert (smooth.first_s, smooth.late_s) == (1.0, 0.0)
    late = caller((11.0, 1.0), (12.5, 1.0), (13.0, 1.0), (15.0, 1.0))
    assert late.late_s == pytest.approx(0.5 + 0.5)


def test_the_sound_ahead_at_a_time() -> None:
    one = caller((11.0, 1.0), (11.5, 1.0))
    assert [one.ahead(at) for at in (10.5, 11.25, 11.75, 14.0)] == [0.0, 0.75, 1.25, 0.0]


def test_figures_of_callers() -> None:
    found = figures([caller((11.0, 1.0)), caller((10.5, 1.0), (13.0, 1.0)), caller()])
    assert found == {
        "callers": 3, "first_audio_s_p50": 0.75, "first_audio_s_max": 1.0, "unheard": 1,
        "late": 1,
        "late_s_max": 1.5, "audio_s": 3.0,
    }  # fmt: skip


@pytest.mark.parametrize("order", ["play-out", "arrival"])
def test_a_caller_alone_waits_for_its_prompt_its_tokens_and_the_voice(order: Order) -> None:
    first_s, late_s, listeners = simulate(COSTS, order, 0.001, replies=20)
    sound_s = 8 * COSTS.token_sound_s
    own = 0.03 + 8 * 0.02 + 0.012 + 0.01 * sound_s
    assert first_s == pytest.approx(own) and late_s == 0.0
    assert 0.0 < listeners < 0.1


def test_by_play_out_more_callers_are_kept_without_a_gap() -> None:
    costs = replace(COSTS, places=4)
    first, others = capacity(costs, "play-out"), capacity(costs, "arrival")
    assert first.replies_per_minute > 2 * others.replies_per_minute > 0
    assert first.first_audio_s_p99 <= 1.0
    # Neither writes more than passes of four can.
    assert first.replies_per_minute < 60 * 4 / (140 * (0.018 + 4 * 0.002))


def test_a_machine_that_is_too_slow_keeps_nobody() -> None:
    slow = ServingCosts(pass_s=1.0, row_s=0.1, prompt_s=1.0, phrase_s=0.1, sound_s=0.1)
    assert capacity(slow, "play-out").replies_per_minute == 0.0


def test_a_conversation_costs_what_its_parts_cost() -> None:
    costs = ServingCosts(
        pass_s=0.016,
        row_s=0.001,
        prompt_s=0.12,
        phrase_s=0.0,
        sound_s=0.1,
        places=16,
        token_sound_s=0.25,
        hearing_s=0.2,
        hearers=2,
    )
    parts = costs.conversation(cores=2, threads=1, speaks=0.5, listens=0.25)
    assert parts["engine"] == pytest.approx(0.7 / (2 * 0.002 + 0.12 / 12))
    assert parts["voice"] == pytest.approx(0.7 / 0.05)
    assert parts["recogniser"] == pytest.approx(0.7 / (0.05 / 2))
    assert parts["cores"] == pytest.approx(0.7 * 2 / (0.014 + 0.05 + 0.05))
    alone = replace(costs, hearing_s=0.0).conversation(cores=2, threads=1)
    assert "recogniser" not in alone, "nobody listens"


async def test_what_a_voice_does_once_or_once_too_slowly_is_not_in_its_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, said = ScriptedEngine(["Hi"]), list[str]()
    clock = [0.0]

    class Voice(ScriptedVoice):
        async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
            said.append(phrase.text)
            times, sound_s = said.count(phrase.text), len(phrase.text.split()) * 0.25
            clock[0] += 0.01 + 0.02 * sound_s + {1: 0.5, 3: 0.2}.get(times, 0.0)
            yield SpeechBuffer(b"\0\0" * round(24_000 * sound_s))

    async def ask(work: Any) -> tuple[float, float]:
        return 10.0, 25.0

    monkeypatch.setattr(engine, "ask", ask, raising=False)
    monkeypatch.setattr(engine, "places", 16, raising=False)
    monkeypatch.setattr(engine, "manner", SimpleNamespace(system=""), raising=False)
    monkeypatch.setattr("specstream.bench.load.capacity.time.perf_counter", lambda: clock[0])
    costs = await measured_costs(cast("Any", engine), Voice())
    assert costs.phrase_s == pytest.approx(0.01)
    assert costs.sound_s == pytest.approx(0.02)
    assert costs.pass_s == pytest.approx(0.009) and costs.row_s == pytest.approx(0.001)
