"""``specstream serve`` and ``specstream adapter``: the chain, or one adapter, behind a WebSocket."""

from __future__ import annotations

import argparse

from specstream.commands.chain import load_voice
from specstream.commands.common import engine_of, note, params_of
from specstream.pipeline.adapters import load_adapter

__all__ = ["run_adapter", "run_server"]


async def run_server(args: argparse.Namespace) -> None:
    """Serve the Realtime protocol and the demo page until interrupted."""
    from specstream.ws.server import RealtimeServer

    async with engine_of(args) as engine:
        server = RealtimeServer(
            engine,
            voice=load_voice(args.voice),
            avatar=load_adapter("avatar", args.avatar),
            prompt=load_adapter("prompt", args.prompts),
            params=params_of(args),
            system=args.system,
            host=args.host,
            port=args.port,
            api_key=args.api_key,
        )
        async with server.start() as port:
            note(
                f"page: http://{args.host}:{port}/   realtime: ws://{args.host}:{port}/v1/realtime"
            )
            await server.serve_forever()


async def run_adapter(args: argparse.Namespace) -> None:
    """Serve one adapter until interrupted."""
    from specstream.ws.adapter_server import serve_adapter

    name = args.name or {"voice": "auto", "avatar": "viseme", "prompt": "template"}[args.kind]
    adapter = load_voice(name) if args.kind == "voice" else load_adapter(args.kind, name)
    await serve_adapter(
        args.kind,
        adapter,
        host=args.host,
        port=args.port,
        ready=lambda port: note(f"{args.kind} adapter: ws://{args.host}:{port}"),
    )
