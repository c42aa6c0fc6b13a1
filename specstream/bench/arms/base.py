"""The interface and the names of the arms, and the thread on which all of them compute."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from specstream.bench.records import BenchRun
from specstream.errors import ConfigError
from specstream.methods import PROPOSERS
from specstream.types import Message, SamplingParams

__all__ = [
    "COMPARABLE",
    "DEFAULT_ARMS",
    "MEANINGS",
    "METHODS",
    "METHOD_ARMS",
    "PEERS",
    "Arm",
    "BenchThread",
    "Stopped",
    "label",
    "parse_arms",
]

T = TypeVar("T")
DEFAULT_ARMS = ("own", "auto", "generate", "assisted", "lookup")
COMPARABLE = ("max_tokens", "seed", "temperature", "top_k", "top_p")
"""The sampling parameters that mean the same to every arm."""
PEERS = ("generate", "assisted", "lookup", "llama.cpp")
MEANINGS = {
    "own": "our engine without speculation",
    "auto": "our engine with speculation as configured",
    "draft": "our engine, drafts by the draft model (-K: always K tokens a round)",
    "medusa": "our engine, drafts by Medusa heads",
    "eagle": "our engine, drafts by an EAGLE head",
    "block": "our engine, blocks drafted in parallel",
    "streaming": "our engine, speculative streaming",
    "early-exit": "our engine, drafts by the target's first layers",
    "mirror": "our engine, drafts while the target verifies",
    "mtp": "our engine, drafts by the target's own multi-token prediction module",
    "lookahead": "our engine, lookahead decoding",
    "suffix": "our engine, drafts by lookup only",
    "generate": "transformers without speculation",
    "assisted": "transformers with the draft model",
    "lookup": "transformers with prompt lookup",
    "llama.cpp": "llama.cpp on the GGUF file, without speculation",
}
"""The meaning of each arm, by the beginning of its name."""
_ALL = (*DEFAULT_ARMS, "draft-2", "draft-4", "draft-6", "draft-8", "suffix")
_FIELDS = {method.model_fields["kind"].default: method.model_fields for method in PROPOSERS}
METHODS = [kind for kind in _FIELDS if kind not in ("auto", "off")]
"""The drafting methods that can be arms of their own."""
_COUNTED = [kind for kind, fields in _FIELDS.items() if "num_tokens" in fields]
METHOD_ARMS: dict[str, dict[str, Any]] = {kind: {"kind": kind} for kind in METHODS} | {
    f"{kind}-{count}": {"kind": kind, "num_tokens": count} for kind in _COUNTED for count in range(1, 33)
}
"""The proposer's settings for each arm such as ``"eagle"`` or ``"draft-4"``."""


class Arm(Protocol):
    """One way to generate a reply. ``name`` is the family, ``setting`` names one of its settings."""

    name: str
    setting: str

    async def run(self, messages: Sequence[Message], params: SamplingParams) -> BenchRun:
        """Generate one reply and record when its tokens were emitted.

        Of ``params``, only those in `COMPARABLE` count: they mean the same to every arm.
        """


def label(name: str, setting: str) -> str:
    """The name of an arm in tables."""
    return f"{name} ({setting})" if setting else name


def parse_arms(text: str | Sequence[str]) -> list[str]:
    """Split ``"own,auto,draft-4"`` into names, each once.

    ``all`` stands for the default arms, draft-2, -4, -6 and -8, and suffix.

    Raises:
        ConfigError: an unknown name.
    """
    given = text.split(",") if isinstance(text, str) else list(text)
    names: list[str] = []
    for name in (part.strip() for part in given):
        if name == "all":
            names += _ALL
        elif name in (*DEFAULT_ARMS, "llama.cpp") or name in METHOD_ARMS:
            names.append(name)
        else:
            several = (f"{kind}-K" for kind in _COUNTED)
            known = ", ".join((*DEFAULT_ARMS, "llama.cpp", *METHODS, *several, "all"))
            raise ConfigError(f"unknown arm {name!r}; known, with K from 1 to 32: {known}")
    return list(dict.fromkeys(names))


class Stopped(Exception):
    """Raised on the thread: the work under way was cancelled."""


class BenchThread:
    """One thread, and so one OpenMP pool, for everything that is measured.

    Each thread that calls torch gets a pool of its own. Where the pools together have more threads than
    the machine has cores, libgomp puts workers to sleep between operations and everything slows down by
    a third. Nothing else in the process may compute with torch while this is open.
    """

    def __init__(self, threads: int) -> None:
        import torch

        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(
            1, "specstream-bench", initializer=torch.set_num_threads, initargs=(threads,)
        )

    async def call(self, work: Callable[[], T]) -> T:
        """Run ``work()`` on the thread; when cancelled, wait until it has stopped."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._stopping.set()
            await asyncio.wait([future])
            future.cancelled() or future.exception()  # retrieved, or asyncio would log it
            raise

    @property
    def stopping(self) -> bool:
        """Whether the work under way is to end."""
        return self._stopping.is_set()

    def check(self) -> None:
        """Raise if the work under way is to end; called between tokens.

        Raises:
            Stopped: the work is to end.
        """
        if self.stopping:
            raise Stopped

    def close(self) -> None:
        """End the thread, and with it its pool."""
        self._pool.shutdown()
