"""``compile=True``: the same replies by captured passes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from specstream import Engine, SamplingParams
from specstream.engine import build
from specstream.engine.worker import EngineWorker
from specstream.errors import ConfigError
from specstream.model.graphs import CapturePlan
from specstream.model.graphs.inductor import InductorPasses
from tests.model.graphs.uncompiled import Uncompiled
from tests.tiny import save_pair

# A compiler on a busy machine takes its time.
pytestmark = pytest.mark.timeout(600)
PROMPTS = ("hello", "a b c a b c a b", "one more, and a longer one than the others")


async def replies(engine: Engine) -> list[tuple[int, ...]]:
    """Greedy ones, two turns of a conversation, and a sampled one."""
    found = []
    async with engine:
        for prompt in PROMPTS:
            async with engine.generate(prompt, SamplingParams(max_tokens=60)) as generation:
                found += [
                    tuple(token for c in [c async for c in generation] for token in c.token_ids)
                ]
        async with engine.session() as session:
            for prompt in PROMPTS[:2]:
                async with session.generate(prompt, SamplingParams(max_tokens=30)) as generation:
                    chunks = [chunk async for chunk in generation]
                found.append(tuple(token for chunk in chunks for token in chunk.token_ids))
        sampled = SamplingParams(temperature=0.8, seed=3, max_tokens=20)
        async with engine.generate("hello", sampled) as generation:
            assert sum([len(chunk.token_ids) async for chunk in generation]) == 20
    return found


async def test_greedy_replies_are_those_of_eager_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = [str(path) for path in save_pair(tmp_path, eos=False)]
    calls = {"pass": 0, "chain": 0}
    once, chain = InductorPasses.__call__, InductorPasses.chain

    def counted(self: InductorPasses, *args: Any) -> list[torch.Tensor] | None:
        found = once(self, *args)
        calls["pass"] += found is not None
        return found

    def counted_chain(self: InductorPasses, *args: object) -> object:
        found = chain(self, *args)  # type: ignore[arg-type]
        calls["chain"] += found is not None
        return found

    monkeypatch.setenv("SPECSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(InductorPasses, "__call__", counted)
    monkeypatch.setattr(InductorPasses, "chain", counted_chain)
    monkeypatch.setattr(build, "TARGET", CapturePlan((5,)))
    monkeypatch.setattr(build, "DRAFT", CapturePlan((), chain_widths=(1,), chain_steps=3))
    draft = {"kind": "draft", "num_tokens": 4}
    eager = await replies(Engine.load(*pair, dtype="float32", proposer=draft))
    assert calls == {"pass": 0, "chain": 0}
    compiled = await replies(Engine.load(*pair, dtype="float32", proposer=draft, compile=True))
    assert compiled == eager
    assert calls["pass"] > 50 and calls["chain"] > 10


async def test_who_leaves_while_it_compiles_waits_for_one_package_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = save_pair(tmp_path)
    monkeypatch.setenv("SPECSTREAM_CACHE", str(tmp_path / "cache"))
    compiler, left, close = Uncompiled(monkeypatch), threading.Event(), EngineWorker.close
    loop = asyncio.get_running_loop()

    def closed(worker: EngineWorker) -> None:
        close(worker)
        left.set()

    def leave() -> None:
        """On the engine's thread, in the middle of a package."""
        if len(compiler.made) == 2:
            loop.call_soon_threadsafe(entering.cancel)
            left.wait()

    compiler.before_next = leave
    monkeypatch.setattr(EngineWorker, "close", closed)
    engine = Engine.load(*pair, dtype="float32", compile=True)
    entering = asyncio.create_task(engine.__aenter__())
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert len(compiler.made) == 3


def test_one_fixed_width_and_captured_ones_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="choose one of them"):
        Engine.load(compile=True, mode="reproducible")
