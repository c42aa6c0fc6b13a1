"""The adapters of one connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anyio import to_thread

from specstream.pipeline.adapters import AdapterKind, stage_of
from specstream.pipeline.stage import Pipeline, Stage
from specstream.pipeline.stages import SegmentStage

__all__ = ["AdapterPool", "Factories", "Factory"]

Factory = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Factories:
    """Makers of each adapter, or of a ready stage in its place; None: no such adapter.

    An adapter serves one response at a time and may remember earlier ones, so connections share none.
    """

    voice: Factory | None = None
    avatar: Factory | None = None
    prompt: Factory | None = None


class AdapterPool:
    """Lends a set of adapters to each running response; they are made on first use and then reused."""

    def __init__(self, factories: Factories) -> None:
        self._factories = factories
        self._idle: list[dict[AdapterKind, Any]] = []
        self._used: dict[Pipeline, dict[AdapterKind, Any]] = {}

    async def pipeline(self, *, audio: bool, avatar: bool, prompt: bool) -> Pipeline:
        """Build a pipeline of branches that are wanted and available; `release` it after the response.

        Raises:
            AdapterUnavailable: an adapter can't be made.
        """
        adapters = self._idle.pop() if self._idle else {}
        branches: list[list[Stage[Any, Any]]] = []
        try:
            if audio:
                branches.append([await self._stage(adapters, "voice")])
                if avatar and self._factories.avatar:
                    branches[0].append(await self._stage(adapters, "avatar"))
            if prompt and self._factories.prompt:
                branches.append([await self._stage(adapters, "prompt")])
        except BaseException:
            self._idle.append(adapters)
            raise
        # Nobody hears a reply without branches, so it needn't be cut into phrases.
        pipeline = Pipeline(branches, head=SegmentStage(lookahead=True) if branches else None)
        self._used[pipeline] = adapters
        return pipeline

    def names(self) -> dict[str, str]:
        """Return the names of the idle adapters that have one, by kind."""
        found: dict[str, str] = {}
        for kind, adapter in ((k, a) for made in self._idle for k, a in made.items()):
            if name := getattr(getattr(adapter, "capabilities", None), "name", ""):
                found[kind] = name
        return found

    async def _stage(self, adapters: dict[AdapterKind, Any], kind: AdapterKind) -> Stage[Any, Any]:
        if kind not in adapters:
            # Making an adapter may read large files; a thread keeps other sessions going meanwhile.
            adapters[kind] = await to_thread.run_sync(getattr(self._factories, kind))
        return stage_of(kind, adapters[kind])

    def release(self, pipeline: Pipeline) -> None:
        """Return a pipeline's adapters to the pool: its response is over."""
        self._idle.append(self._used.pop(pipeline))

    async def aclose(self) -> None:
        """Close all adapters."""
        for adapters in (*self._idle, *self._used.values()):
            for adapter in adapters.values():
                if hasattr(adapter, "aclose"):
                    await adapter.aclose()
        self._idle.clear()
        self._used.clear()
