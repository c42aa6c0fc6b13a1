"""From the names of arms to arms that run: loads what they need, and lets go of it at the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from specstream.bench.arms.base import PEERS, Arm
from specstream.bench.arms.engine import EngineArm
from specstream.config import EngineConfig, parse_config
from specstream.errors import VocabularyMismatch
from specstream.session import Engine

__all__ = ["Wanted", "open_arms"]


@dataclass(slots=True)
class Wanted:
    """Which arms, and how.

    Attributes:
        names: See `parse_arms`.
        few: Leave out the settings of peers that are seldom the best.
        compiled: Let transformers compile, too, where it can.
        gguf: A file for llama.cpp.
        notes: What couldn't be had is written here, in words.
    """

    names: Sequence[str]
    few: bool = False
    compiled: bool = False
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
    async with AsyncExitStack() as stack:
        arms: list[Arm] = []
        if {"own", "auto"} & set(names):
            engine = await stack.enter_async_context(Engine(config))
            ours = [name for name in names if name in ("own", "auto")]
            arms += [EngineArm(name, engine, speculate=name == "auto") for name in ours]
        for name in names:
            if name not in ("own", "auto", *PEERS):
                other = Engine(_with_proposer(config, name))
                arms.append(EngineArm(name, await stack.enter_async_context(other)))
        if set(PEERS) & set(names):
            arms += await _open_peers(stack, wanted, config)
        arms.sort(key=lambda arm: names.index(arm.name))
        yield arms


def _with_proposer(config: EngineConfig, name: str) -> EngineConfig:
    kind, _, count = name.partition("-")
    proposer: dict[str, Any] = {"kind": kind}
    if count:
        proposer["num_tokens"] = int(count)
    return parse_config({**config.model_dump(), "proposer": proposer})


async def _open_peers(stack: AsyncExitStack, wanted: Wanted, config: EngineConfig) -> list[Arm]:
    from specstream.bench.arms import transformers_peers as peers
    from specstream.bench.arms.gguf import GgufArm, has_llama_cpp

    names = list(wanted.names)
    threads = config.threads or 1
    models = peers.PeerModels(config, threads)
    stack.callback(models.close)
    await models.load()
    if "assisted" in names:
        try:
            await models.load_draft()
        except VocabularyMismatch as error:
            wanted.notes.append(f"assisted generation was left out: {error}")
            names.remove("assisted")
    on_gpu = models.target.device.type == "cuda"  # elsewhere transformers doesn't compile by itself
    settings = {
        "generate": peers.generate_settings(compiled=wanted.compiled and on_gpu),
        "assisted": peers.assisted_settings(few=wanted.few),
        "lookup": peers.LOOKUP,
    }
    arms: list[Arm] = [
        peers.PeerArm(name, setting, options, models)
        for name in names
        for setting, options in settings.get(name, {}).items()
    ]
    if wanted.gguf is None:
        wanted.notes.append("llama.cpp was not measured: no GGUF file of the target (--llama-cpp)")
    elif not has_llama_cpp():
        wanted.notes.append("llama.cpp was not measured: llama-cpp-python is not installed")
    else:
        arms.append(await GgufArm.load(wanted.gguf, models, threads))
    return arms
