"""From the names of arms to arms that run: loads what they need, and lets go of it at the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from specstream.bench.arms.base import PEERS, Arm
from specstream.bench.arms.engine import EngineArm
from specstream.config import EngineConfig, parse_config
from specstream.session import Engine

__all__ = ["open_arms"]


@asynccontextmanager
async def open_arms(
    names: Sequence[str], config: EngineConfig, *, compiled: bool = False, gguf: Path | None = None
) -> AsyncGenerator[tuple[list[Arm], Engine], None]:
    """Every arm that is named, once for each of its settings; and the engine of own and auto.

    Raises:
        ModelError: the pair can't be loaded.
    """
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine(config))
        arms: list[Arm] = []
        for name in names:
            if name in ("own", "auto"):
                arms.append(EngineArm(name, engine, speculate=name == "auto"))
            elif name not in PEERS:
                other = Engine(_with_proposer(config, name))
                arms.append(EngineArm(name, await stack.enter_async_context(other)))
        if any(name in PEERS for name in names):
            arms += await _open_peers(stack, names, config, compiled=compiled, gguf=gguf)
        arms.sort(key=lambda arm: list(names).index(arm.name))
        yield arms, engine


def _with_proposer(config: EngineConfig, name: str) -> EngineConfig:
    kind, _, count = name.partition("-")
    proposer: dict[str, Any] = {"kind": kind}
    if count:
        proposer["num_tokens"] = int(count)
    return parse_config({**config.model_dump(), "proposer": proposer})


async def _open_peers(
    stack: AsyncExitStack,
    names: Sequence[str],
    config: EngineConfig,
    *,
    compiled: bool,
    gguf: Path | None,
) -> list[Arm]:
    from specstream.bench.arms import transformers_peers as peers

    models = peers.PeerModels(config, config.threads or 1)
    stack.callback(models.close)
    await models.load(draft="assisted" in names)
    on_gpu = models.target.device.type == "cuda"  # elsewhere transformers doesn't compile by itself
    settings = {
        "generate": peers.generate_settings(compiled=compiled and on_gpu),
        "assisted": peers.ASSISTED,
        "lookup": peers.LOOKUP,
    }
    arms: list[Arm] = [
        peers.PeerArm(name, setting, options, models)
        for name in names
        for setting, options in settings.get(name, {}).items()
    ]
    return arms
