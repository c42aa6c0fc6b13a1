"""The user's voice and others', told apart by level; what goes on behind the user's words is no turn."""

import numpy as np
import pytest

from specstream.listening.events import ListenerSettings
from specstream.listening.turns import Closed, LevelGate, Opened, Paused, Step, Turns, level_of
from specstream.testing import ScriptedTurnDetector

RATE = 16_000


def sound(ms: int, dbfs: float) -> bytes:
    level = round(32768 * 10 ** (dbfs / 20))
    return np.full(RATE * ms // 1000, level, dtype="<i2").tobytes()


def silence(ms: int) -> bytes:
    return bytes(2 * (RATE * ms // 1000))


class Talk:
    """Turns of one stream; every one of them is understood."""

    def __init__(self) -> None:
        settings = ListenerSettings(by_words=False, silence_ms=300)
        self.turns = Turns(ScriptedTurnDetector().open(RATE), RATE, settings)

    def hear(self, *sounds: bytes) -> list[Step]:
        steps = self.turns.add(self.turns.detect(b"".join(sounds)))
        for step in steps:
            if isinstance(step, Closed):
                self.turns.understood(step.level)
        return [step for step in steps if isinstance(step, Opened | Closed)]


def test_levels() -> None:
    assert level_of(sound(32, -20)) == pytest.approx(-20, abs=0.1)
    assert level_of(silence(32)) == level_of(b"") == pytest.approx(-100)


def test_before_the_user_has_spoken_every_voice_is_heard() -> None:
    assert len(Talk().hear(sound(500, -50), silence(800))) == 2


def test_a_quieter_voice_is_no_turn_and_ends_none() -> None:
    talk = Talk()
    talk.hear(sound(500, -20), silence(800))
    assert talk.hear(sound(3000, -40), silence(800)) == []
    opened, closed = talk.hear(sound(500, -22), sound(3000, -40))
    assert isinstance(opened, Opened)
    assert isinstance(closed, Closed)
    assert closed.end_ms - opened.start_ms < 500 + 300 + 700 + 200, "others go on, the turn doesn't"


def test_the_user_may_speak_up_over_others() -> None:
    talk = Talk()
    talk.hear(sound(500, -20), silence(800))
    steps = talk.hear(sound(1000, -40), sound(600, -18), silence(800))
    opened = steps[0]
    assert isinstance(opened, Opened)
    assert opened.at_ms == pytest.approx(1300 + 1000, abs=64)
    assert len(steps) == 2


def test_quiet_words_within_a_sentence_stay_in_it() -> None:
    talk = Talk()
    talk.hear(sound(500, -20), silence(800))
    steps = talk.hear(sound(400, -20), sound(350, -40), sound(400, -20), silence(1000))
    assert len(steps) == 2


def test_who_moves_away_is_heard_again_after_some_tries() -> None:
    talk = Talk()
    talk.hear(sound(500, -20), silence(800))
    tries = 0
    while not talk.hear(sound(500, -38), silence(800)):
        tries += 1
        assert tries < 9
    assert tries > 0


def test_a_turn_that_is_cleared_leaves_no_level_behind() -> None:
    talk = Talk()
    for _ in range(20):
        talk.hear(sound(500, -5))
        talk.turns.clear()
        talk.hear(silence(800))
    assert len(talk.hear(sound(500, -30), silence(800))) == 2
    assert len(talk.hear(sound(500, -35), silence(800))) == 2, "the cleared turns were louder"


@pytest.mark.parametrize("piece_ms", [10, 20, 500])
def test_another_voice_behind_the_last_word_is_silence_in_the_first_turn_too(piece_ms: int) -> None:
    """It begins no turn either, whether or not the first one's words are known already."""
    talk, steps = Talk(), list[Step]()
    heard = sound(1000, -20) + sound(2000, -38) + silence(300) + sound(1000, -38)
    size = 2 * RATE * piece_ms // 1000
    for at in range(0, len(heard), size):
        steps += talk.turns.add(talk.turns.detect(heard[at : at + size]))
    [closed] = [step for step in steps if isinstance(step, Closed)]
    assert len([step for step in steps if isinstance(step, Opened)]) == 1
    assert closed.end_ms == pytest.approx(1000 + 300, abs=200), "a syllable may be far, too"
    [paused] = [step for step in steps if isinstance(step, Paused)]
    assert paused.quiet_ms == pytest.approx(250, abs=40)


def test_a_turn_without_words_keeps_no_voice_out() -> None:
    talk = Talk()
    talk.turns.add(talk.turns.detect(sound(500, -10) + silence(800)))
    talk.turns.understood(None)
    assert len(talk.hear(sound(500, -40), silence(800))) == 2


def test_a_voice_that_is_nearly_as_loud_is_taken_for_the_users() -> None:
    talk = Talk()
    assert len(talk.hear(sound(1000, -20), sound(3000, -30))) == 1


def test_who_begins_behind_another_voice_is_measured_alone() -> None:
    """A quarter of the turn is the user's; what goes on behind is far below it."""
    steps = Talk().hear(sound(2400, -40), sound(800, -20), sound(2000, -40))
    assert [type(step) for step in steps] == [Opened, Closed]


def test_voices_that_are_no_turn_must_be_topped_until_they_end() -> None:
    gate = LevelGate(100.0)
    for n in range(40):
        gate.heard(near=gate.near(-30.0, n * 32.0), in_turn=True)
    gate.end(others=True)
    assert not gate.near(-30.0, 3000.0)
    assert gate.near(-18.0, 3032.0)
    gate.silent()
    assert gate.near(-30.0, 9000.0)
