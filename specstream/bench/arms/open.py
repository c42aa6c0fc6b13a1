"""From the names of arms to arms that run: loads what they need, and lets go of it at the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from specstream.bench.arms import transformers_peers as peers
from specstream.bench.arms.base import PEERS, Arm
from specstream.bench.arms.engine import CoreArm
from specstream.bench.arms.gguf import GgufArm
from specstream.bench.arms.thread import BenchThread
from specstream.config import EngineConfig, parse_config
from specstream.engine.build import build_engine
from specstream.errors import VocabularyMismatch

__all__ = ["Wanted", "open_arms"]


@dataclass(slots=True)
class Wanted:
    """Which arms, and how.

    Attributes:
        names: See `parse_arms`.
        few: Leave out the settings of peers that are seldom the best.
        gguf: A file for llama.cpp, looked at by `check_gguf`.
        notes: What couldn't be had is written here, in words.
    """

    names: Sequence[str]
    few: bool = False
    gguf: str | None = None
    notes: list[str] = field(default_factory=list)


@asynccontextmanager
async def open_arms(wanted: Wanted, config: EngineConfig) -> AsyncGenerator[list[Arm], None]:
    """Every arm that is wanted, once for each of its settings, in the order of their names.

    Raises:
        ModelError: the pair can't be loaded.
        ConfigError: the GGUF file can't be used.
    """
    names = list(wanted.names)
    thread = BenchThread(config.threads or 1)
    try:
        arms = await _open_ours(wanted, config, thread)
        if set(PEERS) & set(names):
            arms += await _open_peers(wanted, config, thread)
        arms.sort(key=lambda arm: names.index(arm.name))
        yield arms
    finally:
        thread.close()


async def _open_ours(wanted: Wanted, config: EngineConfig, thread: BenchThread) -> list[Arm]:
    arms: list[Arm] = []
    shared = [name for name in wanted.names if name in ("own", "auto")]
    if shared:
        core = await thread.call(lambda: build_engine(config))
        for name in shared:
            kind = config.proposer.kind if name == "auto" else "off"
            arms.append(CoreArm(name, core, thread, kind))
    for name in wanted.names:
        if name not in ("own", "auto", *PEERS):
            other = _with_proposer(config, name)
            try:
                core = await thread.call(partial(build_engine, other))
            except VocabularyMismatch as error:
                wanted.notes.append(f"{name} was left out: {error}")
                continue
            arms.append(CoreArm(name, core, thread, other.proposer.kind))
    return arms


def _with_proposer(config: EngineConfig, name: str) -> EngineConfig:
    kind, _, count = name.partition("-")
    proposer: dict[str, Any] = {"kind": kind}
    if count:
        proposer["num_tokens"] = int(count)
    return parse_config({**config.model_dump(), "proposer": proposer})


async def _open_peers(wanted: Wanted, config: EngineConfig, thread: BenchThread) -> list[Arm]:
    names = list(wanted.names)
    models = peers.PeerModels(config, thread)
    await models.load()
    if "assisted" in names:
        try:
            await models.load_draft()
        except VocabularyMismatch as error:
            wanted.notes.append(f"assisted generation was left out: {error}")
            names.remove("assisted")
    on_gpu = models.target.device.type == "cuda"  # elsewhere transformers doesn't compile by itself
    settings = {
        "generate": peers.generate_settings(compiled=config.compile and on_gpu),
        "assisted": peers.assisted_settings(few=wanted.few),
        "lookup": peers.LOOKUP,
    }
    arms: list[Arm] = [
        peers.PeerArm(name, setting, options, models)
        for name in names
        for setting, options in settings.get(name, {}).items()
    ]
    if wanted.gguf is None:
        wanted.notes.append(
            "llama.cpp was not measured: that takes a GGUF file of the target (--llama-cpp FILE)"
        )
    else:
        arms.append(await GgufArm.load(wanted.gguf, models, config.threads or 1))
    return arms
