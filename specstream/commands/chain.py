"""The adapters of a command by name or address, and the pipeline of voice, avatar and scene prompts."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from specstream.commands.output import note
from specstream.errors import AdapterUnavailable
from specstream.pipeline.adapters import AdapterKind, default_voice, load_adapter, stage_of
from specstream.pipeline.interfaces import SpeechSynthesizer
from specstream.pipeline.stage import Pipeline, Stage
from specstream.pipeline.stages import SegmentStage
from specstream.session import Engine
from specstream.ws.stage.remote import RemoteStage

__all__ = ["load_voice", "open_pipeline", "stage_or_adapter"]


def load_voice(name: str) -> SpeechSynthesizer:
    """Load a voice by adapter name; ``auto`` is `default_voice`.

    A note tells where ``auto`` gives a test voice, and where an installed voice is broken.
    """
    if name != "auto":
        voice: SpeechSynthesizer = load_adapter("voice", name)
        return voice
    chosen = default_voice()
    if chosen.announcement:
        note(chosen.announcement)
    return chosen.voice


def stage_or_adapter(kind: AdapterKind, name: str, engine: Engine | None = None) -> Any:
    """Load an adapter by its name, or make the remote stage of a ``ws://`` address.

    ``engine`` is passed to the prompt adapter ``model``; an avatar's name may be followed by a rig, as
    in ``viseme=vrm``. A remote adapter's key is read from ``$SPECSTREAM_ADAPTER_KEY``, since command
    lines are visible in the list of processes.
    """
    if name.startswith(("ws://", "wss://")):
        return RemoteStage(name, kind=kind, api_key=os.environ.get("SPECSTREAM_ADAPTER_KEY"))
    if "://" in name:
        rest = name.partition("://")[2]
        raise AdapterUnavailable(f"{name}: a {kind} stage speaks WebSocket; write ws://{rest}")
    if kind == "voice":
        return load_voice(name)
    options: dict[str, Any] = {"generator": engine} if (kind, name) == ("prompt", "model") else {}
    if kind == "avatar" and "=" in name:
        name, _, options["rig"] = name.partition("=")
    return load_adapter(kind, name, **options)


@asynccontextmanager
async def open_pipeline(
    engine: Engine, voice: str, avatar: str, prompt: str
) -> AsyncGenerator[Pipeline, None]:
    """Open the pipeline of a voice turn, each part by its name or address; the engine need not run yet.

    Leaving the block releases the voice and closes the connections.

    Raises:
        AdapterUnavailable: an adapter's name is unknown, or what it needs is missing.
        ConnectionFailed, ProtocolError, ConfigError: see `RemoteStage.connect`.
    """
    async with AsyncExitStack() as stack:

        async def stage(kind: AdapterKind, name: str) -> Stage[Any, Any]:
            made = stage_or_adapter(kind, name, engine)
            if isinstance(made, RemoteStage):
                await stack.enter_async_context(made)
                await made.connect()
            elif kind == "voice":
                stack.push_async_callback(made.aclose)
            return stage_of(kind, made)

        speech = [await stage("voice", voice), await stage("avatar", avatar)]
        yield Pipeline([speech, [await stage("prompt", prompt)]], head=SegmentStage(lookahead=True))
