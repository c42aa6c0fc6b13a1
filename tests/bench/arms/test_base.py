import pytest

from specstream.bench.arms.base import DEFAULT_ARMS, label, parse_arms
from specstream.errors import ConfigError


def test_names_are_taken_once_and_in_order() -> None:
    assert parse_arms("auto, own,auto,draft-12,draft,suffix") == [
        *("auto", "own", "draft-12", "draft", "suffix")
    ]
    assert parse_arms(DEFAULT_ARMS) == list(DEFAULT_ARMS)
    assert parse_arms("suffix-8,suffix") == ["suffix-8", "suffix"]
    assert {"own", "draft-2", "suffix", "lookup"} <= set(parse_arms("all"))


@pytest.mark.parametrize(
    "text", ["", "fast", "off", "draft-0", "draft-33", "draft-4x", "suffix-0", "own,,auto"]
)
def test_unknown_arms_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="unknown arm"):
        parse_arms(text)


def test_a_setting_stands_behind_its_arm() -> None:
    assert label("own", "") == "own"
    assert label("assisted", "3 tokens") == "assisted (3 tokens)"
