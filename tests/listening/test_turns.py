"""Cutting turns: pure, on the audio's own clock, with a detector that hears any sample but 0."""

from random import Random

import pytest

from specstream.errors import ConfigError
from specstream.listening.events import ListenerSettings
from specstream.listening.interfaces import SpeechStarted, Transcript
from specstream.listening.turns import Closed, Heard, Opened, Paused, Step, TurnAudio, Turns
from specstream.testing import ScriptedTurnDetector

RATE = 16_000
BY_SILENCE = ListenerSettings(by_words=False)


def voice(ms: int) -> bytes:
    return b"\x01\x02" * (RATE * ms // 1000)


def silence(ms: int) -> bytes:
    return bytes(2 * (RATE * ms // 1000))


class Cut(Turns):
    """Turns that hear and cut in one call."""

    def hear(self, pcm: bytes) -> list[Step]:
        return self.add(self.detect(pcm))


def turns(settings: ListenerSettings = BY_SILENCE) -> Cut:
    return Cut(ScriptedTurnDetector().open(RATE), RATE, settings)


def marks(steps: list[Step]) -> list[Step]:
    return [step for step in steps if not isinstance(step, TurnAudio)]


def audio(steps: list[Step]) -> bytes:
    return b"".join(step.pcm for step in steps if isinstance(step, TurnAudio))


def test_a_turn_has_its_prefix_and_ends_after_the_silence() -> None:
    steps = turns().hear(silence(960) + voice(640) + silence(960))
    assert marks(steps) == [Opened(960.0, 660.0), Paused(), Closed(660.0, 2112.0)]
    # Prefix and voice, and of the silence what came before the pause was noticed.
    assert audio(steps) == silence(300) + voice(640) + silence(96)


def test_the_prefix_never_reaches_into_the_turn_before() -> None:
    both = ListenerSettings(by_words=False, prefix_ms=2000, silence_ms=100)
    steps = turns(both).hear(voice(320) + silence(192) + voice(320) + silence(192))
    first, second = (step for step in steps if isinstance(step, Closed))
    assert second.start_ms == first.end_ms


def test_a_pause_within_a_turn_loses_no_audio() -> None:
    sound = voice(320) + silence(320) + voice(320) + silence(640)
    steps = turns().hear(sound)
    assert [type(step) for step in marks(steps)] == [Opened, Paused, Paused, Closed]
    assert audio(steps) == sound[: 2 * RATE * (960 + 96) // 1000]


@pytest.mark.parametrize(
    ("text", "wait"),
    [("Is it?", 300), ("It is.", 500), ("it does it", 800), ("it does and", 2500), (None, 800)],
)
def test_words_decide_how_long_silence_lasts(text: str | None, wait: int) -> None:
    cut = turns(ListenerSettings())
    steps = cut.hear(voice(320) + silence(96))
    assert isinstance(steps[-1], Paused)
    steps = [] if text is None else cut.said(Transcript(text))
    steps += cut.hear(silence(4000))
    (closed,) = marks(steps)
    assert isinstance(closed, Closed)
    assert abs(closed.end_ms - 320 - wait) <= 16  # the nearest block's end


@pytest.mark.parametrize(("language", "wait"), [("de", 500), ("fr", 500), ("en", 2500)])
def test_words_count_in_their_own_language(language: str, wait: int) -> None:
    cut = turns(ListenerSettings())
    steps = cut.hear(voice(320) + silence(96)) + cut.said(Transcript("Ruf mich an."), language)
    (closed,) = [s for s in steps + cut.hear(silence(4000)) if isinstance(s, Closed)]
    assert abs(closed.end_ms - 320 - wait) <= 16


def test_words_that_come_late_end_the_turn_at_once() -> None:
    cut = turns(ListenerSettings())
    cut.hear(voice(320) + silence(640))
    assert cut.said(Transcript("Is it?")) == [Closed(0.0, 960.0)]
    assert cut.said(Transcript("Is it?")) == []


def test_words_of_an_earlier_pause_end_nothing() -> None:
    cut = turns(ListenerSettings())
    cut.hear(voice(320) + silence(96) + voice(320))
    assert cut.said(Transcript("Is it?")) == []


def test_patience_scales_only_the_silences_by_words() -> None:
    slow = ListenerSettings(patience=2.0)
    cut = turns(slow)
    cut.hear(voice(320) + silence(96))
    steps = cut.said(Transcript("It is.")) + cut.hear(silence(2000))
    assert [s.end_ms for s in steps if isinstance(s, Closed)] == [pytest.approx(1320, abs=32)]
    steps = turns(ListenerSettings(by_words=False, patience=2.0)).hear(voice(320) + silence(2000))
    assert [s.end_ms for s in steps if isinstance(s, Closed)] == [pytest.approx(820, abs=32)]


def test_a_turn_that_is_too_long_is_cut_and_goes_on() -> None:
    steps = turns(ListenerSettings(max_turn_s=1.0)).hear(voice(2560))
    assert [type(step) for step in marks(steps)] == [Opened, Closed, Opened, Closed, Opened]
    assert audio(steps) == voice(2560)


def test_commit_ends_and_clear_forgets() -> None:
    cut = turns()
    assert cut.commit() == []
    cut.hear(voice(320))
    assert cut.held_ms == 320
    assert cut.commit() == [Closed(0.0, 320.0)]
    cut.hear(silence(640) + voice(320))
    assert cut.clear()
    assert cut.held_ms == 0
    assert cut.commit() == []
    assert not cut.clear()


def test_manual_turns_hold_everything() -> None:
    cut = Cut(None, RATE, ListenerSettings(manual=True))
    steps = cut.hear(silence(640))
    assert steps[0] == Opened(0.0, 0.0)
    assert audio(steps) == silence(640)
    assert cut.commit() == [Closed(0.0, 640.0)]
    assert cut.hear(voice(32))[0] == Opened(640.0, 640.0)


def test_memory_is_bounded_where_nobody_speaks() -> None:
    cut = turns()
    assert cut.hear(silence(60_000)) == []
    assert len(cut._ring) <= 2 * RATE * 0.8


def test_how_audio_is_cut_changes_nothing() -> None:
    sound = silence(500) + voice(700) + silence(300) + voice(500) + silence(900) + voice(300)
    random, whole = Random(1), turns(BY_SILENCE)
    for _ in range(20):
        cut, at, steps = turns(), 0, []
        while at < len(sound):
            size = 2 * random.choice([1, 160, 512, 1000, 5000])
            steps += cut.hear(sound[at : at + size])
            at += size
        kinds = [type(step) for step in marks(steps)]
        assert kinds == [Opened, Paused, Paused, Closed, Opened]
        opened = [step for step in steps if isinstance(step, Opened)]
        assert [o.at_ms for o in opened] == [pytest.approx(500, abs=32), pytest.approx(2900, abs=32)]
    assert marks(whole.hear(sound))


@pytest.mark.parametrize(
    "wrong",
    [{"threshold": 1.1}, {"silence_ms": -1}, {"partial_ms": 5}, {"max_turn_s": 0}, {"patience": 0}],
)
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ListenerSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("forgets", [False, True])
def test_a_voice_that_goes_on_after_a_commit_or_clear_is_another_turn(forgets: bool) -> None:
    cut = turns()
    cut.hear(voice(1000))
    if forgets:
        cut.clear()
    else:
        assert marks(cut.commit()) == [Closed(0.0, 1000.0)]
    steps = cut.hear(voice(3000) + silence(960))
    opened, paused, closed = marks(steps)
    assert opened == Opened(1000.0, 1000.0) and isinstance(paused, Paused)
    assert isinstance(closed, Closed) and closed.start_ms == 1000.0
    assert audio(steps).startswith(voice(3000))


@pytest.mark.parametrize("forgets", [False, True])
def test_the_end_of_a_voice_is_no_turn_after_a_commit_or_clear(forgets: bool) -> None:
    """The detector tells the voice's end 96 ms late."""
    cut = turns()
    cut.hear(voice(1000))
    _ = cut.clear() if forgets else cut.commit()
    assert marks(cut.hear(voice(100) + silence(960))) == []
    assert [type(step) for step in marks(cut.hear(voice(300) + silence(960)))] == [
        *(Opened, Paused, Closed)
    ]


def test_a_turn_ended_because_another_voice_goes_on_is_not_joined_with_the_next() -> None:
    class Silent:
        def add(self, pcm: bytes) -> tuple[()]:
            return ()

    def heard(blocks: int, level: float, *events: SpeechStarted) -> list[Step]:
        block = bytes(RATE // 10 * 2)
        told = [Heard(block, events if at == 0 else (), level) for at in range(blocks)]
        return marks(cut.add(told))

    cut = Turns(Silent(), RATE, BY_SILENCE)
    assert heard(20, -30, SpeechStarted(0.0)) == [Opened(0.0, 0.0)]  # the user, and a television
    assert marks(cut.commit(others=True)) == [Closed(0.0, 2000.0)]
    cut.understood(-30.0)
    assert heard(100, -30) == []
    assert heard(10, -20) == [Opened(12_000.0, 11_700.0)]
