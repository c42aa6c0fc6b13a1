"""``compile``: the same replies by native passes, by default where they can be had."""

from pathlib import Path
from typing import Any

import pytest

from specstream import Engine, SamplingParams
from specstream.config import parse_config
from specstream.engine.build import build_engine
from specstream.errors import ConfigError
from specstream.model.native.layers import NativeLayers
from specstream.model.native.structs import PassStruct
from specstream.model.runner import ModelRunner
from tests.support.tiny import save_pair

PROMPTS = ("hello", "a b c a b c a b", "one more, and a longer one than the others")


async def replies(engine: Engine) -> list[tuple[int, ...]]:
    """Greedy ones, two turns of a conversation, and a sampled one."""
    found = []
    async with engine:
        for prompt in PROMPTS:
            async with engine.generate(prompt, SamplingParams(max_tokens=60)) as generation:
                found += [tuple(token for c in [c async for c in generation] for token in c.token_ids)]
        async with engine.session() as session:
            for prompt in PROMPTS[:2]:
                async with session.generate(prompt, SamplingParams(max_tokens=30)) as generation:
                    chunks = [chunk async for chunk in generation]
                found.append(tuple(token for chunk in chunks for token in chunk.token_ids))
        sampled = SamplingParams(temperature=0.8, seed=3, max_tokens=20)
        async with engine.generate("hello", sampled) as generation:
            assert sum([len(chunk.token_ids) async for chunk in generation]) == 20
    return found


async def test_greedy_replies_are_those_of_torchs_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = [str(path) for path in save_pair(tmp_path, eos=False)]
    calls, run = list[int](), NativeLayers.run_on

    def counted(self: NativeLayers, ready: PassStruct, first: int, end: int) -> None:
        calls.append(1)
        run(self, ready, first, end)

    monkeypatch.setattr(NativeLayers, "run_on", counted)
    draft = {"kind": "draft", "num_tokens": 4}
    torchs = await replies(Engine.load(*pair, dtype="float32", proposer=draft, compile=False))
    assert not calls
    assert torchs == await replies(Engine.load(*pair, dtype="float32", proposer=draft))
    assert len(calls) > 50


async def test_in_bfloat16_drafts_change_nothing_at_all(tmp_path: Path) -> None:
    """A pass of five tokens computes what five passes of one do, to the last bit."""
    pair = [str(path) for path in save_pair(tmp_path, eos=False)]
    draft = {"kind": "draft", "num_tokens": 4}
    kinds: list[dict[str, Any]] = [{"kind": "off"}, draft, {"kind": "suffix"}]
    off, *others = [await replies(Engine.load(*pair, dtype="bfloat16", proposer=kind)) for kind in kinds]
    assert all(other == off for other in others)


async def test_the_reproducible_mode_takes_native_passes_of_any_width(tmp_path: Path) -> None:
    pair, found = [str(path) for path in save_pair(tmp_path, eos=False)], []
    for kind in ({"kind": "off"}, {"kind": "draft", "num_tokens": 4}):
        config: dict[str, Any] = {
            "dtype": "bfloat16",
            "mode": "reproducible",
            "proposer": kind,
            "compile": True,
        }
        core = build_engine(parse_config({"target": pair[0], "draft": pair[1], **config}))
        assert core.target.fixed_width is None
        found.append(await replies(Engine.load(*pair, **config)))
    assert found[0] == found[1]


def test_without_them_it_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelRunner, "invariant", False)
    target = str(save_pair(tmp_path)[0])
    values = {"target": target, "dtype": "float32", "mode": "reproducible", "proposer": {"kind": "off"}}
    assert build_engine(parse_config(values)).target.fixed_width
    for more in ({"compile": True}, {"quantize": "int8"}):
        with pytest.raises(ConfigError, match="leave compile and quantize off"):
            build_engine(parse_config(values | more))
