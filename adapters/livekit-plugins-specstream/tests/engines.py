"""Scripted engines that fail, or record more."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from specstream import Chunk
from specstream.errors import SpecstreamError
from specstream.testing import ScriptedEngine, ScriptedGeneration


class BrokenGeneration(ScriptedGeneration):
    """Raises an error after some chunks."""

    def __init__(self, chunks: Sequence[Chunk], after: int, fault: SpecstreamError) -> None:
        super().__init__(chunks, lambda: None)
        self._left, self._fault = after, fault

    async def __anext__(self) -> Chunk:
        if not self._left:
            raise self._fault
        self._left -= 1
        return await super().__anext__()


class BreakingEngine(ScriptedEngine):
    """The first requests fail, each after a number of chunks; ``sessions`` records their caches."""

    def __init__(
        self, replies: Sequence[Any], *faults: tuple[int, SpecstreamError], **options: Any
    ) -> None:
        super().__init__(replies, **options)
        self._faults = list(faults)
        self.sessions: list[str | None] = []
        self.forgotten: list[str] = []

    @asynccontextmanager
    async def generate(
        self, messages: Any, params: Any = None, *, session: str | None = None, **options: Any
    ) -> AsyncGenerator[ScriptedGeneration, None]:
        self.sessions.append(session)
        async with super().generate(messages, params, session=session, **options) as generation:
            if self._faults:
                yield BrokenGeneration(generation.ahead, *self._faults.pop(0))
            else:
                yield generation

    def forget(self, session: str) -> None:
        self.forgotten.append(session)
