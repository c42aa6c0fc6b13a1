"""Which words claim the turn, and which only show that somebody listens."""

import pytest

from specstream.listening.endings import claims_turn, is_backchannel


@pytest.mark.parametrize(
    "text",
    ["Mm hmm.", "Mm-hmm.", "Uh huh.", "uh-huh", "Right.", "Right, right.", "Ja.", "Ja, genau.", "Okay."],
)
def test_a_listeners_words_claim_nothing(text: str) -> None:
    assert is_backchannel(text)
    assert not claims_turn(text, again=True)


@pytest.mark.parametrize("text", ["Right now.", "Stop.", "Yes.", "No.", "Okay, stop.", "Mama.", "右"])
def test_other_words_are_a_turn(text: str) -> None:
    assert not is_backchannel(text)


def test_one_word_claims_the_turn_when_it_is_there_again() -> None:
    assert not claims_turn("Stop", again=False)
    assert claims_turn("Stop", again=True)
    assert claims_turn("Stop it", again=False)
    assert claims_turn("等一下", again=False)
    assert not claims_turn("", again=True)
    assert not is_backchannel("...")
