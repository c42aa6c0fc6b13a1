"""The adapters of a command by name or address, and the pipeline of voice, avatar and scene prompts."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from specstream.commands.shared.output import note
from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET, EngineConfig
from specstream.engine.protocol import TextEngine
from specstream.errors import AdapterUnavailable, ConfigError
from specstream.methods import OwnProposerConfig
from specstream.models.kept import shipped_heads
from specstream.remote.stage import RemoteStage
from specstream.stages.adapters import AdapterKind, default_voice, load_adapter, stage_of
from specstream.stages.interfaces import SpeechSynthesizer
from specstream.stages.marking import marked
from specstream.stages.pipeline import Pipeline, Stage
from specstream.stages.stages import SegmentStage

__all__ = ["BUNDLED", "delivery_of", "load_voice", "names_of", "open_pipeline", "stage_or_adapter"]

BUNDLED = "bundled-target"
"""What the target is called that comes with the package."""
_OWN = {DEFAULT_TARGET: BUNDLED, DEFAULT_DRAFT: "bundled-draft"}


def delivery_of(args: argparse.Namespace) -> dict[str, Any]:
    """The voice's speed and pitch, as far as they were given."""
    given = {name: getattr(args, name, None) for name in ("speed", "pitch")}
    return {name: value for name, value in given.items() if value is not None}


def load_voice(name: str, **delivery: Any) -> SpeechSynthesizer:
    """Load a voice by adapter name; ``auto`` is `default_voice`. ``delivery``: its speed and pitch.

    A note tells where ``auto`` gives a test voice, and where an installed voice is broken.

    Raises:
        AdapterUnavailable: the name is unknown, or what the voice needs is missing.
        ConfigError: the voice can't be set so.
    """
    if name != "auto":
        try:
            voice: SpeechSynthesizer = load_adapter("voice", name, **delivery)
        except AdapterUnavailable as error:
            if delivery and isinstance(error.__cause__, TypeError):
                what = f"the voice {name!r} can't be set with {_options(delivery)}"
                raise ConfigError(f"{what}: {error.__cause__}") from error
            raise
        return voice
    chosen = default_voice(**delivery)
    if chosen.announcement:
        note(chosen.announcement)
    return chosen.voice


def stage_or_adapter(
    kind: AdapterKind, name: str, *, engine: TextEngine | None = None, **delivery: Any
) -> Any:
    """Load an adapter by its name, or make the remote stage of a ``ws://`` address.

    ``engine`` is passed to the prompt adapter ``model``; ``delivery`` is a voice's speed and pitch. A
    remote adapter's key is read from ``$SPECSTREAM_ADAPTER_KEY``, since command lines are visible in the
    list of processes.

    Raises:
        AdapterUnavailable: the name is unknown, or what the adapter needs is missing.
        ConfigError: an option is wrong.
    """
    options = _options(delivery)
    if delivery and kind != "voice":
        raise ConfigError(f"{options} is for voices; leave it out for the {kind} adapter")
    if name.startswith(("ws://", "wss://")):
        if delivery:
            raise ConfigError(
                f"{name}: {options} is set where that voice runs: specstream adapter voice {options} …"
            )
        return RemoteStage(name, kind=kind, api_key=os.environ.get("SPECSTREAM_ADAPTER_KEY"))
    if "://" in name.partition("=")[0]:
        rest = name.partition("://")[2]
        raise AdapterUnavailable(f"{name}: a {kind} stage speaks WebSocket; write ws://{rest}")
    if kind == "voice":
        return load_voice(name, **delivery)
    generator = {"generator": engine} if (kind, name) == ("prompt", "model") else {}
    if generator and engine is None:
        raise ConfigError("the prompt adapter 'model' needs a language model; choose --prompts template")
    return load_adapter(kind, name, **generator)


def _options(delivery: Mapping[str, Any]) -> str:
    return " ".join(f"--{option}" for option in delivery)


@asynccontextmanager
async def open_pipeline(
    engine: TextEngine | None,
    voice: str,
    avatar: str,
    prompt: str,
    *,
    mark: str | None = None,
    names: dict[str, str] | None = None,
    **delivery: Any,
) -> AsyncGenerator[Pipeline, None]:
    """Open the pipeline of a voice turn, each part by its name or address; the engine need not run yet.

    ``mark`` names what marks the speech. ``names`` is given the names of what makes it: ``voice``,
    ``mark``. ``delivery`` is the voice's speed and pitch.

    Leaving the block releases the voice and closes the connections.

    Raises:
        AdapterUnavailable: an adapter's name is unknown, or what it needs is missing.
        ConnectionFailed, ProtocolError, ConfigError: see `RemoteStage.connect`.
    """
    told = {} if names is None else names
    async with AsyncExitStack() as stack:

        async def stage(kind: AdapterKind, name: str, **delivery: Any) -> Stage[Any, Any]:
            made = stage_or_adapter(kind, name, engine=engine, **delivery)
            told[kind] = name.partition("?")[0]
            if isinstance(made, RemoteStage):
                await stack.enter_async_context(made)
                await made.connect()
            elif kind == "voice":
                stack.push_async_callback(made.aclose)
                told[kind] = made.capabilities.name
            return stage_of(kind, made)

        speaking = await stage("voice", voice, **delivery)
        if mark is not None:
            marker = load_adapter("mark", mark)
            stack.push_async_callback(marker.aclose)
            speaking = marked(speaking, marker)
            told["mark"] = marker.capabilities.name
        speech = [speaking, await stage("avatar", avatar)]
        yield Pipeline([speech, [await stage("prompt", prompt)]], head=SegmentStage(lookahead=True))


def names_of(config: EngineConfig) -> dict[str, str]:
    """Name the target and what drafts for it; of a folder or file only its last part."""
    drafts = config.drafts or shipped_heads(config.target, config.proposer.kind)
    if not drafts and config.target == DEFAULT_TARGET:
        drafts = (DEFAULT_DRAFT,)
    if (kind := config.proposer.kind) in ("off", "suffix", "lookahead"):  # these read no draft
        drafts = () if kind == "off" else (kind,)
    if isinstance(config.proposer, OwnProposerConfig):
        drafts = (config.proposer.name,)
    called = [_OWN.get(name) or Path(name).name for name in (config.target, *drafts)]
    names = {"target": called[0], "draft": ", ".join(called[1:])}
    return {what: name for what, name in names.items() if name}
