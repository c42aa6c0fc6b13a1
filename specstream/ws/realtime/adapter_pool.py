"""The stages of one connection, made when they are first needed and kept from turn to turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anyio import to_thread

from specstream.pipeline.stage import Pipeline, Stage
from specstream.pipeline.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage

__all__ = ["AdapterPool", "Factories"]

Maker = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Factories:
    """How to make each adapter, or a ready stage that stands for it; None: there is none.

    An adapter serves one turn at a time and may remember earlier turns, so every connection gets
    its own.
    """

    voice: Maker | None = None
    avatar: Maker | None = None
    prompt: Maker | None = None


class AdapterPool:
    """One set of adapters; serves one turn at a time."""

    def __init__(self, makers: Factories) -> None:
        self._makers = makers
        self._made: dict[str, Any] = {}

    async def _stage(self, kind: str, wrap: Callable[[Any], Stage[Any, Any]]) -> Stage[Any, Any]:
        if kind not in self._made:
            # An adapter may read large files while it is made; the other sessions go on meanwhile.
            self._made[kind] = await to_thread.run_sync(getattr(self._makers, kind))
        made = self._made[kind]
        stage: Stage[Any, Any] = made if hasattr(made, "run") else wrap(made)
        return stage

    async def pipeline(self, *, audio: bool, avatar: bool, prompt: bool) -> Pipeline:
        """A turn's pipeline with the branches that are wanted and can be had.

        Raises:
            AdapterUnavailable: an adapter can't be made.
        """
        branches: list[list[Stage[Any, Any]]] = []
        if audio:
            branches.append([await self._stage("voice", VoiceStage)])
            if avatar and self._makers.avatar:
                branches[0].append(await self._stage("avatar", AvatarStage))
        if prompt and self._makers.prompt:
            branches.append([await self._stage("prompt", PromptStage)])
        return Pipeline(branches, head=SegmentStage())

    async def aclose(self) -> None:
        """Release what the adapters hold."""
        for made in self._made.values():
            if hasattr(made, "aclose"):
                await made.aclose()
        self._made.clear()
