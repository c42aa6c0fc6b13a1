"""Loading of the arms by name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from specstream.bench.arms import transformers_peers as peers
from specstream.bench.arms.base import METHOD_ARMS, PEERS, Arm, BenchThread
from specstream.bench.arms.engine import CoreArm
from specstream.bench.arms.transformers_peers import GgufArm
from specstream.config import EngineConfig, parse_config
from specstream.engine.build import build_engine
from specstream.engine.core.step import EngineCore
from specstream.errors import ConfigError, ModelUnsupported, VocabularyMismatch

__all__ = ["Wanted", "open_arms"]


@dataclass(slots=True)
class Wanted:
    """The arms to load, and options for loading them."""

    names: Sequence[str]  # see `parse_arms`
    few: bool = False  # leave out settings of peers that are seldom the best
    gguf: str | None = None  # a file for llama.cpp, checked by `check_gguf`
    notes: list[str] = field(default_factory=list)  # gets a sentence about every arm left out
    heads: Mapping[str, str] = field(default_factory=dict)  # bundled heads by method


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
    shared: EngineCore | None = None  # the core of both own and auto
    if getattr(config.proposer, "store", "") == "engine":
        wanted.notes.append("auto remembers replies to prompts that are repeated (store = engine)")
    for name in wanted.names:
        if name in ("own", "auto"):
            if shared is None:
                shared = await thread.call(partial(build_engine, config))
            who = config.proposer.kind if name == "auto" else "off"
            arms.append(CoreArm(name, shared, thread, who))
        elif name not in PEERS:
            settings = METHOD_ARMS[name]
            changed = {**config.model_dump(), "proposer": settings}
            head = wanted.heads.get(settings["kind"])
            try:
                core = await thread.call(partial(_core, changed, head))
            except (ConfigError, ModelUnsupported, VocabularyMismatch) as error:
                wanted.notes.append(f"{name} was left out: {error}")
            else:
                arms.append(CoreArm(name, core, thread, settings["kind"]))
    return arms


def _core(config: dict[str, Any], head: str | None) -> EngineCore:
    """Build an engine with ``head``, or without it if it was made for another target."""
    if head is not None:
        with suppress(ModelUnsupported):
            return build_engine(parse_config({**config, "draft": head}))
    return build_engine(parse_config(config))


async def _open_peers(wanted: Wanted, config: EngineConfig, thread: BenchThread) -> list[Arm]:
    models = await thread.call(partial(peers.PeerModels, config, thread))
    settings: dict[str, peers.Settings] = {"generate": {"": {}}, "lookup": peers.LOOKUP}
    if config.compile and models.target.device.type == "cuda":  # transformers compiles there only
        settings["generate"]["static cache, compiled"] = {"cache_implementation": "static"}
    if "assisted" in wanted.names:
        try:
            await thread.call(models.load_draft)
            seldom = {"heuristic"} if wanted.few else set[str]()
            assisted = peers.ASSISTED.items()
            settings["assisted"] = {name: way for name, way in assisted if name not in seldom}
        except VocabularyMismatch as error:
            wanted.notes.append(f"assisted generation was left out: {error}")
    arms: list[Arm] = [
        peers.PeerArm(name, setting, options, models)
        for name in wanted.names
        for setting, options in settings.get(name, {}).items()
    ]
    if wanted.gguf is None:
        wanted.notes.append(
            "llama.cpp was not measured: it needs a GGUF file of the target (--llama-cpp FILE)"
        )
    else:
        make = partial(GgufArm, wanted.gguf, models, config.threads or 1)
        arms.append(await thread.call(make))
    return arms
