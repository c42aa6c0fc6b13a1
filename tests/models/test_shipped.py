"""Drafting heads that ship for models that can be pulled."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from specstream.config import DEFAULT_TARGET, parse_config
from specstream.engine import build
from specstream.errors import ConfigError
from specstream.model.heads.base import read_head_config
from specstream.model.heads.recognise import kind_of, told_acceptance
from specstream.model.runner import ModelRunner
from specstream.models.kept import bundled_heads, head_names, located, parameters_of, shipped_heads
from specstream.types import SamplingParams
from tests.support.tiny import answered, save_pair


def test_each_is_there_with_its_card_and_recognised() -> None:
    folders = [located(name) for name in head_names()]
    assert set(folders) > set(shipped_heads("HuggingFaceTB/SmolLM2-135M-Instruct"))
    kinds = {located(name): kind for kind, name in bundled_heads().items()}
    for folder in map(Path, folders):
        assert kind_of(read_head_config(folder)) == kinds.get(str(folder), "eagle")
        assert (parameters_of(folder) or 0) > 100_000
        assert "held" in (folder / "README.md").read_text(encoding="utf-8")


def test_the_acceptance_that_each_tells_is_its_cards() -> None:
    for folder in map(Path, (located(name) for name in head_names())):
        card = (folder / "README.md").read_text(encoding="utf-8")
        told = told_acceptance(read_head_config(folder))
        written = [", ".join(f"{one:.{d}f}"[1:] for one in told) for d in (2, 3)]
        assert told and any(figures in card for figures in written), folder


def test_no_other_target_has_one() -> None:
    assert shipped_heads("some/other") == ()


@pytest.mark.parametrize(
    ("changed", "device", "width", "taken"),
    [
        ({}, "cpu", None, True),
        ({"compile": True}, "cpu", None, True),
        ({"compile": True}, "cuda", None, True),
        ({"mode": "reproducible"}, "cpu", 16, False),
        ({"mode": "reproducible"}, "cpu", None, True),
    ],
)
def test_where_states_cost_something_none_is_taken(
    changed: dict[str, object], device: str, width: int | None, taken: bool
) -> None:
    """Passes of a fixed width give no hidden states; captured ones of a GPU do."""
    target = cast(
        ModelRunner, SimpleNamespace(device=torch.device(device), lean=True, fixed_width=width)
    )
    found = build.heads_for(parse_config({"target": "smollm2", **changed}), target)
    assert found == (shipped_heads("smollm2") if taken else ())


def test_the_bundled_target_has_a_head_for_each_method_that_is_asked_for_by_name() -> None:
    """``auto`` takes none of them: on so small a target they cost more than they gain."""
    for kind, name in bundled_heads().items():
        for target in ("bundled-target", DEFAULT_TARGET):
            assert shipped_heads(target, kind) == (located(name),)
            assert shipped_heads(target, "auto") == shipped_heads(target, "mtp") == ()
        assert kind == "eagle" or shipped_heads("smollm2", kind) == ()
    assert shipped_heads("smollm2", "eagle") == shipped_heads("smollm2")
    assert shipped_heads("some/other", "eagle") == ()


@pytest.mark.parametrize("kind", bundled_heads())
def test_a_head_method_finds_the_bundled_head(kind: str) -> None:
    core = build.build_engine(parse_config({"proposer": kind, "threads": 1, "dtype": "float32"}))
    _, inbox = answered(core, "I need a taxi.", SamplingParams(max_tokens=5), proposer=kind)
    assert core.proposer.name == kind and not inbox.errors and len(inbox.token_ids) == 5


def test_another_target_without_a_head_is_one_error(tmp_path: Path) -> None:
    target, _ = save_pair(tmp_path)
    with pytest.raises(ConfigError, match="--proposer eagle needs a head .* --draft"):
        build.build_engine(parse_config({"target": str(target), "proposer": "eagle"}))
