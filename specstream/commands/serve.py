"""``specstream serve`` and ``specstream adapter``: the chain, or one adapter, behind a WebSocket."""

from __future__ import annotations

import argparse
import ssl
from functools import partial

from specstream.commands.chain import open_pipeline, stage_or_adapter
from specstream.commands.common import engine_of, note, params_of
from specstream.commands.loading import loaded
from specstream.errors import ConfigError
from specstream.ws.adapter_server import serve_adapter
from specstream.ws.listen import check_address
from specstream.ws.server import RealtimeServer

__all__ = ["run_adapter", "run_server"]

_DEFAULTS = {"voice": "auto", "avatar": "viseme", "prompt": "template"}


async def run_server(args: argparse.Namespace) -> None:
    """Serve the Realtime protocol and the demo page until interrupted."""
    tls = _tls(args)
    await check_address(args.host, args.port, args.api_key)
    engine, params = engine_of(args), params_of(args)
    async with open_pipeline(engine, args.voice, args.avatar, args.prompts):
        pass  # tried, so that what is wrong with one is told before the models are loaded
    async with loaded(engine):
        server = RealtimeServer(
            engine,
            voice=partial(stage_or_adapter, "voice", args.voice),
            avatar=partial(stage_or_adapter, "avatar", args.avatar),
            prompt=partial(stage_or_adapter, "prompt", args.prompts, engine),
            params=params,
            system=args.system,
            host=args.host,
            port=args.port,
            api_key=args.api_key,
            tls=tls,
        )
        async with server.start() as port:
            s = "s" if tls else ""
            place = f"{args.host}:{port}"
            note(f"ready – page: http{s}://{place}/   realtime: ws{s}://{place}/v1/realtime")
            await server.serve_forever()


async def run_adapter(args: argparse.Namespace) -> None:
    """Serve one adapter until interrupted; a prompt adapter that asks a model gets an engine."""
    name = args.name or _DEFAULTS[args.kind]

    async def serve(make: partial[object]) -> None:
        await serve_adapter(
            args.kind,
            make,
            host=args.host,
            port=args.port,
            api_key=args.api_key,
            ready=lambda port: note(f"ready – {args.kind} adapter: ws://{args.host}:{port}"),
        )

    if (args.kind, name) == ("prompt", "model"):
        await check_address(args.host, args.port, args.api_key)
        async with loaded(engine_of(args)) as engine:
            await serve(partial(stage_or_adapter, args.kind, name, engine))
    else:
        await serve(partial(stage_or_adapter, args.kind, name))


def _tls(args: argparse.Namespace) -> ssl.SSLContext | None:
    if args.tls_cert is None:
        if args.tls_key is not None:
            raise ConfigError("--tls-key needs --tls-cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(args.tls_cert, args.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the TLS certificate can't be used: {error}") from None
    return context
