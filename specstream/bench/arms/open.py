"""Loads the arms that are asked for by name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from specstream.bench.arms import transformers_peers as peers
from specstream.bench.arms.base import PEERS, Arm, BenchThread
from specstream.bench.arms.engine import CoreArm
from specstream.bench.arms.gguf import GgufArm
from specstream.config import EngineConfig, parse_config
from specstream.engine.build import build_engine
from specstream.engine.step import EngineCore
from specstream.errors import VocabularyMismatch

__all__ = ["Wanted", "open_arms"]


@dataclass(slots=True)
class Wanted:
    """Which arms, and how.

    Attributes:
        names: See `parse_arms`.
        few: Leave out settings of peers that are seldom the best.
        gguf: A file for llama.cpp, checked by `check_gguf`.
        notes: Receives a sentence about every arm that was left out.
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
    core: EngineCore | None = None
    for name in wanted.names:
        if name in ("own", "auto"):
            if core is None:
                core = await thread.call(partial(build_engine, config))
            arms.append(
                CoreArm(name, core, thread, config.proposer.kind if name == "auto" else "off")
            )
        elif name not in PEERS:
            kind, _, count = name.partition("-")
            proposer: dict[str, Any] = {"kind": kind} | (
                {"num_tokens": int(count)} if count else {}
            )
            other = parse_config({**config.model_dump(), "proposer": proposer})
            try:
                arms.append(
                    CoreArm(name, await thread.call(partial(build_engine, other)), thread, kind)
                )
            except VocabularyMismatch as error:
                wanted.notes.append(f"{name} was left out: {error}")
    return arms


async def _open_peers(wanted: Wanted, config: EngineConfig, thread: BenchThread) -> list[Arm]:
    models = peers.PeerModels(config, thread)
    await models.load()
    settings: dict[str, peers.Settings] = {"generate": {"": {}}, "lookup": peers.LOOKUP}
    if config.compile and models.target.device.type == "cuda":  # transformers compiles there only
        settings["generate"]["static cache, compiled"] = {"cache_implementation": "static"}
    if "assisted" in wanted.names:
        try:
            await models.load_draft()
            settings["assisted"] = {
                name: options
                for name, options in peers.ASSISTED.items()
                if not (wanted.few and name == "heuristic")
            }
        except VocabularyMismatch as error:
            wanted.notes.append(f"assisted generation was left out: {error}")
    arms: list[Arm] = [
        peers.PeerArm(name, setting, options, models)
        for name in wanted.names
        for setting, options in settings.get(name, {}).items()
    ]
    if wanted.gguf is None:
        wanted.notes.append(
            "llama.cpp was not measured: that takes a GGUF file of the target (--llama-cpp FILE)"
        )
    else:
        arms.append(await GgufArm.load(wanted.gguf, models, config.threads or 1))
    return arms
