"""The arms of our own engine, and the loading of all arms by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from specstream.bench.arms import transformers_peers as peers
from specstream.bench.arms.base import METHOD_ARMS, PEERS, Arm, BenchThread
from specstream.bench.arms.transformers_peers import GgufArm
from specstream.bench.records import BenchRun, Emission
from specstream.config import EngineConfig, parse_config
from specstream.drafting.candidate import DraftWeights
from specstream.engine.build import build_engine
from specstream.engine.core.request import Delivery, Request
from specstream.engine.core.step import EngineCore
from specstream.engine.engine import Engine
from specstream.engine.generation import ThreadBridge
from specstream.errors import ConfigError, ModelUnsupported, SpecstreamError, VocabularyMismatch
from specstream.metrics import Report
from specstream.types import Chunk, Message, Preview, SamplingParams

__all__ = ["CoreArm", "EngineArm", "Wanted", "open_arms", "run_of"]

_PARTS = ("draft", "verify", "sample", "rollback", "emit")


class CoreArm:
    """The engine's core on the thread of all arms, with or without speculation.

    Two arms that share a core differ in nothing but speculation. Chunks go to the event loop as they do
    in `Engine`, so that cost is measured as well.

    Attributes:
        core: It serves the arm's requests.
    """

    def __init__(self, name: str, core: EngineCore, thread: BenchThread, proposer: str) -> None:
        self.name = name
        self.setting = ""
        self.core = core
        self._thread = thread
        self._proposer = proposer
        self.weights = core.draft_weights if proposer != "off" else DraftWeights()

    async def run(self, messages: Sequence[Message], params: SamplingParams) -> BenchRun:
        """Write one reply; the times are those of the engine's own clock."""
        arrived: list[Chunk | Preview | SpecstreamError] = []
        handover = ThreadBridge(asyncio.get_running_loop())
        request = Request(
            list(messages),
            params,
            Delivery(partial(handover.put, arrived.append), limit=2**62),
            proposer=self._proposer,
        )
        try:
            await self._thread.call(lambda: self._serve(request))
        finally:
            handover.deliver()
        if request.error is not None:
            raise request.error
        chunks = [item for item in arrived if isinstance(item, Chunk)]
        return run_of(chunks, request.report())

    def _serve(self, request: Request) -> None:
        self.core.submit(request)
        with torch.inference_mode():  # the engine's own thread is always in this mode
            while request.finish_reason is None and request.error is None:
                request.delivery.cancelled = self._thread.stopping
                self.core.step()


class EngineArm:
    """The engine as a program uses it: on its own thread, many requests at once."""

    name, setting = "auto", ""

    def __init__(self, engine: Engine, *, speculate: bool = True) -> None:
        self._engine, self._speculate = engine, speculate

    async def run(self, messages: Sequence[Message], params: SamplingParams) -> BenchRun:
        """Write one reply."""
        async with self._engine.generate(messages, params, speculate=self._speculate) as generation:
            chunks = [chunk async for chunk in generation]
            return run_of(chunks, generation.report)


def run_of(chunks: list[Chunk], report: Report) -> BenchRun:
    """The record of a finished generation.

    In ``spent_ms``, ``prefill`` is the time to the first token, and ``other`` the rest of the total.
    """
    emissions = tuple(
        Emission(c.t_ms, len(c.token_ids), c.drafted, c.accepted, c.draft_ms, c.verify_ms)
        for c in chunks
        if c.token_ids
    )
    spent: dict[str, float] = {part: getattr(report, f"{part}_ms") for part in _PARTS}
    if emissions:  # round 0 belongs to the prefill
        spent["prefill"] = emissions[0].t_ms
        spent["draft"] -= emissions[0].draft_ms
        spent["verify"] -= emissions[0].verify_ms
    spent["other"] = max(0.0, report.total_ms - sum(spent.values()))
    return BenchRun(
        token_ids=report.token_ids,
        emissions=emissions,
        total_ms=report.total_ms,
        finish=str(report.finish_reason),
        tells=True,
        spent_ms=spent,
        predicted_speedup=report.predicted_speedup,
        explanation=report.explanation,
        proposer_rounds=report.proposer_rounds,
    )


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
