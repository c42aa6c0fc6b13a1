from __future__ import annotations

from typing import Any

import pytest

from specstream.config import parse_config
from specstream.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"thread": 2}, "thread: there is no such key; did you mean threads?"),
        ({"colour": 2}, "colour: there is no such key"),
        (
            {"proposer": {"kind": "draft", "num_token": 3}},
            "proposer.draft.num_token: there is no such key; did you mean num_tokens?",
        ),
        ({"num_tokens": 3}, "num_tokens: there is no such key"),
        (
            {"proposer": {"kind": "suffix", "max_tokens": 3}},
            "proposer.suffix.max_tokens: there is no such key; did you mean num_tokens?",
        ),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(values)
    assert str(caught.value) == said


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"threads: .*; mod: .*did you mean mode"):
        parse_config({"threads": 0, "mod": 9})
