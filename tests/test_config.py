from pathlib import Path
from typing import Any

import pytest

from specstream import Engine
from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET, EngineConfig, parse_config
from specstream.errors import ConfigError
from specstream.methods import EagleProposerConfig, SuffixProposerConfig


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
            {"proposer": "eagel"},
            "proposer: eagel is no method (auto, block, draft, eagle, early-exit, lookahead, medusa, "
            "mirror, mtp, off, streaming, suffix); did you mean eagle?",
        ),
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


def test_a_method_by_its_name_has_its_defaults() -> None:
    assert EngineConfig(proposer="suffix").proposer == SuffixProposerConfig()  # type: ignore[arg-type]
    assert parse_config({"proposer": "eagle"}).proposer == EagleProposerConfig()


def test_the_bundled_pair_has_names() -> None:
    made = parse_config({"target": "bundled-target", "draft": ("bundled-draft", "bundled-eagle")})
    assert made.target == DEFAULT_TARGET
    assert made.drafts == (DEFAULT_DRAFT, "bundled-eagle")
    assert parse_config({"draft": "bundled-draft"}).drafts == (DEFAULT_DRAFT,)
    assert parse_config({}).drafts == ()
    assert Engine.load(draft=[Path("a"), "b"]).config.drafts == ("a", "b")


@pytest.mark.parametrize("draft", [5, "", ["a", ""], {"a": 1}])
def test_what_names_no_draft_is_refused(draft: Any) -> None:
    with pytest.raises(ConfigError, match="draft: name a model or a head"):
        Engine.load(draft=draft)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"threads: .*; mod: .*did you mean mode"):
        parse_config({"threads": 0, "mod": 9})
