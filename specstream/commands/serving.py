"""Address, key, TLS, limits and SIGTERM of ``serve`` and ``adapter``."""

from __future__ import annotations

import argparse
import os
import signal
import ssl
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Self

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specstream.checks import problem
from specstream.commands.common import tables_of
from specstream.commands.output import note
from specstream.commands.terminal import adding_to
from specstream.errors import ConfigError
from specstream.server.auth import check_names

__all__ = [
    "PORT",
    "ServerConfig",
    "add_server_options",
    "api_key_of",
    "server_config",
    "until_stopped",
]

PORT = 8765  # of `serve`, unless another one is named
KEY_VARIABLE = "SPECSTREAM_API_KEY"


class ServerConfig(BaseModel):
    """The server's options, and for ``serve`` the config file's table ``[server]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int | None = Field(default=None, ge=0, le=65535)
    api_key_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    drain: float = Field(default=10.0, ge=0, allow_inf_nan=False, description="seconds")
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_sessions: int = Field(default=32, ge=1)
    max_per_address: int | None = Field(default=None, ge=1)
    idle: float = Field(default=600.0, gt=0, description="seconds")
    lead: float = Field(default=2.0, ge=0.2, description="seconds")

    @model_validator(mode="after")
    def _names_that_match(self) -> Self:
        check_names(self.origins, self.hosts)  # now, before the models are loaded
        return self

    def tls(self) -> ssl.SSLContext | None:
        """The context to serve with; None without a certificate.

        Raises:
            ConfigError: the files can't be used.
        """
        if self.tls_cert is None:
            if self.tls_key is not None:
                raise ConfigError("--tls-key needs --tls-cert")
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = " with ".join(filter(None, (self.tls_cert, self.tls_key)))

        def locked() -> str:
            raise ConfigError(
                f"the TLS certificate {files} can't be used: its key has a pass phrase, and nobody is "
                "there to be asked; `openssl pkey -in OLD -out NEW` writes one without"
            )

        try:
            # Without this, OpenSSL asks on a terminal; where there is none it may wait for ever.
            password = None if sys.stdin is not None and sys.stdin.isatty() else locked
            context.load_cert_chain(self.tls_cert, self.tls_key, password)
        except (OSError, ssl.SSLError) as error:
            hint = "; both are PEM files, and a key in a file of its own needs --tls-key"
            hint = hint if isinstance(error, ssl.SSLError) else ""
            raise ConfigError(f"the TLS certificate {files} can't be used: {error}{hint}") from None
        return context


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("a port is a number from 0 to 65535")
    return port


def add_server_options(parser: argparse.ArgumentParser, port: int, *, clients: bool) -> None:
    """Add the options of a server; ``clients`` adds origins, hosts and limits for its clients."""
    add = adding_to(parser, "address and clients")
    add("--host", "address to listen on (default: 127.0.0.1)")
    add("--port", f"default: {port or 'any free one'}", type=_port)
    add(
        "--api-key-file FILE",
        f"clients must send the key in this file, or the one in ${KEY_VARIABLE}; required for an "
        "address that other machines can reach",
    )
    add("--api-key KEY", "the key itself, which ps shows to others on this machine")
    add("--tls-cert FILE", "serve TLS with this certificate (PEM)")
    add("--tls-key FILE", "the certificate's key, if not in its file")
    drain = "after SIGTERM, time for running requests to end (default: 10)"
    add("--drain SECONDS", drain, type=float)
    if not clients:
        return
    add("--origins URL", "other origins whose pages may connect; '*': any", nargs="+")
    add("--hosts NAME", "host names of this server; '*': any", nargs="+")
    add("--max-sessions N", "connections at once (default: 32)", type=int)
    each = "connections from one address (default: half of --max-sessions; this machine: all)"
    add("--max-per-address N", each, type=int)
    add("--idle SECONDS", "close clients silent for this long (default: 600)", type=float)
    add("--lead SECONDS", "send audio this far ahead of play-out (default: 2)", type=float)


def server_config(args: argparse.Namespace, *, table: bool) -> ServerConfig:
    """The server's options; with ``table``, the config file's ``[server]`` for those not given.

    Raises:
        ConfigError: an unknown key, or a value out of range.
    """
    values: dict[str, Any] = tables_of(args)["server"] if table else {}
    given = {name: getattr(args, name, None) for name in ServerConfig.model_fields}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        return ServerConfig.model_validate(values | given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        place = f"--{name.replace('_', '-')}" if name in given else f"{args.config}: server.{name}"
        told = problem(first, ServerConfig.model_fields)
        raise ConfigError(f"{place}: {told}") from None


def api_key_of(args: argparse.Namespace, config: ServerConfig) -> str | None:
    """The key that clients must send: the option's, else the file's, else the environment's, or None.

    Raises:
        ConfigError: the file can't be read, or the key is empty or contains white space.
    """
    if args.api_key is not None:
        key, source = args.api_key, "--api-key"
    elif config.api_key_file is not None:
        key, source = _read(config.api_key_file), config.api_key_file
    elif KEY_VARIABLE in os.environ:
        key, source = os.environ[KEY_VARIABLE], f"${KEY_VARIABLE}"
    else:
        return None
    key = key.strip()
    if not key or len(key.split()) > 1:
        raise ConfigError(f"{source} must hold one key, without spaces; leave it out for none")
    return str(key)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(4096)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"can't read the key file {path}: {why}") from None


async def until_stopped(
    drain: Callable[[float], Coroutine[Any, Any, None]],
    seconds: float,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Wait for SIGTERM, then drain; return the exit code: 0, or 130 if a second SIGTERM cut it short.

    ``ready`` is called once a SIGTERM would be received: whoever reads that a server is ready may stop
    it at once.
    """
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        ready()
        await anext(signals)
        note(
            f"stopping: running requests have {seconds:g} s to end (a second SIGTERM stops at once)"
        )
        hurried = False
        async with anyio.create_task_group() as group:

            async def hurry() -> None:
                nonlocal hurried
                await anext(signals)
                hurried = True
                group.cancel_scope.cancel()

            group.start_soon(hurry)
            await drain(seconds)
            group.cancel_scope.cancel()
    return 130 if hurried else 0
