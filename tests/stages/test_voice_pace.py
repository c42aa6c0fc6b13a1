"""What phrases tell of a voice, in the buffers of 60 ms that voices give."""

import random

import pytest

from specstream.stages.deadline import ReleasedPhrase, VoicePace

BUFFER_S = 0.06


def phrase(
    *sentences: float, first_s: float, factor: float, whole: bool, jitter_s: float = 0.0
) -> ReleasedPhrase:
    """Speak a phrase of sentences of these lengths, by a voice that gives whole sentences or streams."""
    rng, made = random.Random(1), ReleasedPhrase(10, 0, 10, 0.0)
    for sentence in sentences:
        count = round(sentence / BUFFER_S)
        for at in range(count):
            work_s = factor * (count if whole and at == 0 else not whole) * BUFFER_S
            begins = first_s if made.first_s is None else 0.0
            made.made(BUFFER_S, begins + work_s + rng.uniform(0, jitter_s))
    return made


def learned(*phrases: ReleasedPhrase) -> VoicePace:
    pace = VoicePace()
    for one in phrases:
        pace.learn(one)
    return pace


@pytest.mark.parametrize("jitter_s", [0.0, 0.0005])
def test_a_sentence_whose_buffers_come_at_once_is_the_work_of_a_voice_that_does_not_stream(
    jitter_s: float,
) -> None:
    lengths = (1.5, 2.4, 1.2, 4.2, 3.0, 1.8)
    pace = learned(
        *(phrase(seconds, first_s=0.1, factor=0.3, whole=True, jitter_s=jitter_s) for seconds in lengths)
    )
    assert pace.streams is False
    assert pace.first_s == pytest.approx(0.1, abs=0.03)
    assert pace.factor == pytest.approx(0.3, abs=0.03)


def test_sentence_by_sentence_is_not_streaming() -> None:
    known = phrase(3.0, first_s=0.1, factor=0.3, whole=True)
    for sentences in ((0.6, 3.0), (3.0, 0.6), (0.6, 0.6), (0.6, 0.6, 0.6)):
        two = phrase(*sentences, first_s=0.1, factor=0.3, whole=True)
        assert learned(known, two).streams is False
        assert learned(two, known).streams is False


@pytest.mark.parametrize("first_s", [0.02, 0.15, 0.4])
@pytest.mark.parametrize("factor", [0.1, 0.5, 0.9])
def test_a_voice_that_works_while_its_audio_comes_streams(first_s: float, factor: float) -> None:
    heard = (phrase(s, first_s=first_s, factor=factor, whole=False) for s in (3.0, 1.2, 2.4))
    pace = learned(*heard)
    assert pace.streams is True
    assert pace.factor == pytest.approx(factor)
    assert pace.first_s == pytest.approx(first_s + BUFFER_S * factor)


def test_a_short_phrase_of_a_voice_that_is_not_known_tells_no_more_than_a_guess() -> None:
    pace = learned(phrase(0.6, first_s=0.3, factor=0.9, whole=True))
    assert pace.streams is None and pace.known
    assert 0 < pace.factor <= 0.5


def test_the_newest_phrases_count() -> None:
    """A voice that was replaced by one of the other kind, with the same pipeline."""
    whole = [phrase(2.4, first_s=0.1, factor=0.3, whole=True) for _ in range(4)]
    streams = [phrase(2.4, first_s=0.1, factor=0.3, whole=False) for _ in range(4)]
    assert learned(*whole, *streams).streams is True
    assert learned(*streams, *whole).streams is False
