"""Tags to gestures and emotions."""

import pytest

from specstream_adapters.avatar.directions import ARKIT_SHAPES, DIRECTIONS, direct


@pytest.mark.parametrize(
    ("tag", "kind", "name"),
    [
        ("smile", "emotion", "smile"),
        ("Smiles", "emotion", "smile"),
        ("grinning", "emotion", "smile"),
        ("happy", "emotion", "happy"),
        ("laughing", "emotion", "laugh"),
        ("sad", "emotion", "sad"),
        ("worried", "emotion", "worried"),
        ("sighs", "gesture", "sigh"),
        ("surprised", "emotion", "surprised"),
        ("wide eyes", "emotion", "wide eyes"),
        ("eyes_wide", "emotion", "wide eyes"),
        ("angry", "emotion", "angry"),
        ("winks", "gesture", "wink"),
        ("nodded", "gesture", "nod"),
        ("shakes his head", "gesture", "shake head"),
        ("shake-head", "gesture", "shake head"),
        ("waving", "gesture", "wave"),
        ("points", "gesture", "point"),
        ("shrugs", "gesture", "shrug"),
        ("leans in", "gesture", "lean in"),
        ("looking around", "gesture", "look around"),
        ("whispers", "gesture", "whisper"),
        ("pause", "gesture", "pause"),
        ("thinking", "gesture", "think"),
        ("cries", "emotion", "cry"),
    ],
)
def test_common_tags_are_understood(tag: str, kind: str, name: str) -> None:
    found = direct(tag)
    assert (found.kind, found.name) == (kind, name)


def test_words_of_degree_change_the_strength() -> None:
    weak, plain, strong = direct("smiles softly"), direct("smile"), direct("big smile")
    assert weak.weight < plain.weight < strong.weight
    assert weak.weights["mouthSmileLeft"] < plain.weights["mouthSmileLeft"]
    assert strong.weights["mouthSmileLeft"] <= 1.0


@pytest.mark.parametrize("tag", ["moonwalk", "Plays the Lute", "???", "微笑", ""])
def test_an_unknown_tag_is_a_gesture_of_that_name(tag: str) -> None:
    found = direct(tag)
    assert found.kind == "gesture"
    assert found.name == tag.casefold()
    assert found.weights == {}
    assert found.duration_ms > 0


def test_the_table_is_sound() -> None:
    for name, known in DIRECTIONS.items():
        assert direct(name) is known
        assert set(known.weights) <= set(ARKIT_SHAPES), name
        assert all(0.0 < w <= 1.0 for w in known.weights.values())
        assert 100 <= known.duration_ms <= 10_000
        if known.kind == "emotion" and name != "neutral":
            assert known.weights, name
            # speech owns the jaw and the lips' opening: an emotion must not hold them
            assert not {"jawOpen", "mouthClose", "mouthFunnel", "mouthPucker"} & set(known.weights)
