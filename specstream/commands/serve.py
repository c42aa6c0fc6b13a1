"""``specstream serve`` and ``specstream adapter``: the chain, or one adapter, behind a WebSocket."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
from anyio import to_thread

from specstream.commands.shared.chain import (
    BUNDLED,
    delivery_of,
    names_of,
    open_pipeline,
    stage_or_adapter,
)
from specstream.commands.shared.common import engine_of, params_of, speed_line, text_engine_of
from specstream.commands.shared.output import note
from specstream.commands.shared.progress import loaded
from specstream.commands.shared.serving import PORT, ServerConfig, keys_of, server_config, until_stopped
from specstream.engine.engine import Engine
from specstream.engine.openai.engine import OpenAIEngine
from specstream.errors import AdapterUnavailable, ConfigError, JournalFailed
from specstream.listening.ears import Ears
from specstream.listening.preempt import Preempt
from specstream.remote.server import AdapterServer
from specstream.server.asgi import Front, check_address, listen_app, location
from specstream.server.auth import check_key
from specstream.server.keys import Key
from specstream.server.logs import log_json
from specstream.server.options import ServerAccess, ServerLimits
from specstream.server.server import RealtimeServer
from specstream.stages.adapters import default_turns, load_adapter

__all__ = ["load_ears", "opened_server", "run_adapter", "run_server"]

_DEFAULTS = {"voice": "auto", "avatar": "viseme", "prompt": "template"}
_FOR_MODELS = ("target", "draft", "proposer", "dtype", "quantize", "max_running")


async def run_server(args: argparse.Namespace) -> int:
    """Serve the Realtime protocol and the demo page until SIGINT or SIGTERM."""
    config = server_config(args, table=True)
    tls, keys = config.tls(), keys_of(args, config)
    port = PORT if config.port is None else config.port
    check_key(config.host, bool(keys))
    if config.log_json:
        log_json(sys.stdout)
    front = Front()
    options: dict[str, Any] = {"max_frame": config.max_frame, "reuse_port": config.reuse_port}
    async with (
        listen_app(front, config.host, port, tls=tls, **options) as bound,
        opened_server(args, config) as (server, engine),
    ):

        def renew() -> None:
            read = keys_of(args, config)
            if tls is not None:
                config.load_certificate(tls)
            check_key(config.host, bool(read))
            server.keys.replace(read)

        front.app = server.app
        told = partial(_note_all, *_ready(config, bound, engine))
        ended = engine.wait_closed if isinstance(engine, Engine) else anyio.sleep_forever
        return await until_stopped(server.drain, config.drain, told, renew, ended)


@asynccontextmanager
async def opened_server(
    args: argparse.Namespace, config: ServerConfig
) -> AsyncGenerator[tuple[RealtimeServer, Engine | OpenAIEngine], None]:
    """The server that the options describe, with its engine, open while the block runs.

    Raises:
        ConfigError, ModelError, AdapterError: it can't be.
    """
    keys = keys_of(args, config)
    described, delivery = text_engine_of(args), delivery_of(args)
    params_of(args)  # so that a wrong value is reported before the models are loaded
    if config.preempt and args.ears == "off":
        raise ConfigError("--preempt begins answers to what is said aloud: leave out --ears off")
    if (journal := config.open_journal()) is not None:
        try:
            await journal.sweep()  # one that can't be used would refuse every client later
        except JournalFailed as error:
            why = error.__cause__ or error
            raise JournalFailed(f"--journal: sessions can't be written down there: {why}") from error
        finally:
            await journal.aclose()
    parts = (args.voice, args.avatar, args.prompts)
    async with open_pipeline(described, *parts, mark=args.mark, **delivery):
        pass  # opened once, so that a wrong adapter is reported before the models are loaded
    ears = await to_thread.run_sync(load_ears, args.ears)
    async with loaded(described) as engine:
        server = _server(args, config, keys, engine, ears)
        async with server.open():
            yield server, engine


def _ready(config: ServerConfig, port: int, engine: Engine | OpenAIEngine) -> list[str]:
    """The lines that say that and where requests are served."""
    s, place = "s" if config.tls_cert else "", location(config.host, port)
    lines = [f"ready – page: http{s}://{place}/   realtime: ws{s}://{place}/v1/realtime"]
    if not isinstance(engine, OpenAIEngine):
        lines.append(f"{engine.places} replies are written side by side (--max-running sets it)")
    return [*lines, speed_line(engine)]


def _server(
    args: argparse.Namespace,
    config: ServerConfig,
    keys: Sequence[Key],
    engine: Engine | OpenAIEngine,
    ears: Ears | None,
) -> RealtimeServer:
    delivery = delivery_of(args)
    if isinstance(engine, OpenAIEngine):
        names = {"target": engine.model}
    else:
        names = names_of(engine.config)
    return RealtimeServer(
        engine,
        voice=partial(stage_or_adapter, "voice", args.voice, **delivery),
        mark=partial(load_adapter, "mark", args.mark) if args.mark is not None else None,
        avatar=partial(stage_or_adapter, "avatar", args.avatar),
        prompts=partial(stage_or_adapter, "prompt", args.prompts, engine=engine),
        ears=(lambda: ears) if ears is not None else None,
        params=params_of(args, engine.manner.params),
        system=args.system,
        host=config.host,
        keys=keys,
        access=config.part(ServerAccess),
        limits=config.part(ServerLimits),
        preempt=Preempt() if config.preempt else None,
        journal=config.open_journal(),
        bundled=names["target"] == BUNDLED,
        names=names,
    )


async def run_adapter(args: argparse.Namespace) -> int:
    """Serve one adapter until SIGINT or SIGTERM; the prompt adapter ``model`` gets an engine."""
    config = server_config(args, table=False)
    tls, keys = config.tls(), keys_of(args, config)
    if len(keys) > 1:
        raise ConfigError(f"an adapter has one key, and {config.api_key_file} holds {len(keys)}")
    key = keys[0].secret if keys else None
    name = args.name or _DEFAULTS[args.kind]

    if (args.kind, name) != ("prompt", "model"):
        for option in _FOR_MODELS:
            if getattr(args, option):
                raise ConfigError(
                    f"{args.kind} adapters load no model: leave out --{option.replace('_', '-')}"
                )

    async def serve(make: partial[object]) -> int:
        server = AdapterServer(
            args.kind, make, host=config.host, port=config.port or 0, api_key=key, tls=tls
        )
        return await _serve(server, config, f"ready – {args.kind} adapter: ws{{s}}://{{place}}")

    if (args.kind, name) == ("prompt", "model"):
        await check_address(config.host, config.port or 0, bool(keys))
        async with loaded(engine_of(args)) as engine:
            return await serve(partial(stage_or_adapter, args.kind, name, engine=engine))
    return await serve(partial(stage_or_adapter, args.kind, name, **delivery_of(args)))


async def _serve(server: AdapterServer, config: ServerConfig, line: str) -> int:
    """Serve until SIGTERM; ``line`` tells where, with fields ``s`` ("s" with TLS) and ``place``."""
    async with server.start() as port:
        told = line.format(s="s" if config.tls_cert else "", place=location(config.host, port))
        return await until_stopped(server.drain, config.drain, lambda: _note_all(told))


def _note_all(*lines: str) -> None:
    for line in lines:
        note(line)


def load_ears(name: str) -> Ears | None:
    """Load ears by the value of ``--ears``: None for ``off``, and for ``auto`` if unavailable.

    ``NAME=VALUE`` is as in `load_adapter`: ``whisper=small``, ``openai=http://127.0.0.1:8000/v1``.

    Raises:
        AdapterUnavailable: the named recogniser, or the turn detector for it, is unavailable.
        ConfigError: an option is wrong, or recogniser and turn detector share no sample rate.
    """
    if name == "off":
        return None
    try:
        ears = Ears(load_adapter("recognizer", "whisper" if name == "auto" else name), default_turns())
    except AdapterUnavailable as error:
        if name != "auto":
            raise
        note(f"no speech recognition ({error}); --ears off hides this line")
        return None
    _ = ears.sample_rate  # raises if they share none
    return ears
