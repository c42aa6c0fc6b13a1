"""Address, key, TLS, limits and SIGTERM of ``serve`` and ``adapter``."""

from __future__ import annotations

import argparse
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import anyio
from pydantic import BaseModel, Field, ValidationError

from specstream.checks import problem
from specstream.commands.shared.common import tables_of
from specstream.commands.shared.output import note
from specstream.commands.shared.terminal import adding_to
from specstream.errors import ConfigError, EngineFailed
from specstream.server.journal.base import Journal
from specstream.server.journal.postgres import PostgresJournal
from specstream.server.journal.sqlite import SqliteJournal
from specstream.server.keys import Key, read_keys
from specstream.server.options import ServerAccess, ServerLimits

__all__ = ["PORT", "ServerConfig", "add_server_options", "keys_of", "server_config", "until_stopped"]

_Part = TypeVar("_Part", ServerAccess, ServerLimits)

PORT = 8765  # of `serve`, unless another one is named
KEY_VARIABLE = "SPECSTREAM_API_KEY"


class ServerConfig(ServerLimits, ServerAccess):
    """The server's options, and for ``serve`` the config file's table ``[server]``."""

    host: str = "127.0.0.1"
    port: int | None = Field(default=None, ge=0, le=65535)
    reuse_port: bool = Field(default=False, description="others may listen there, too")
    api_key_file: str | None = Field(default=None, description="keys, one a line")
    tls_cert: str | None = None
    tls_key: str | None = None
    drain: float = Field(
        default=10.0, ge=0, allow_inf_nan=False, description="seconds for replies to end"
    )
    preempt: bool = Field(default=False, description="answers begin before questions are over")
    log_json: bool = Field(default=False, description="log lines on standard output")
    journal: str | None = Field(
        default=None, description="folder or database for sessions to outlive the server"
    )
    journal_age_s: float = Field(default=3600.0, ge=120, description="older sessions are dropped")
    journal_durable: bool = Field(default=False, description="wait for the disk")

    def __init__(self, **values: Any) -> None:
        BaseModel.__init__(self, **values)  # its error tells the place

    def part(self, kind: type[_Part]) -> _Part:
        """Those of the options that ``kind`` has."""
        return kind(**{name: getattr(self, name) for name in kind.model_fields})

    def open_journal(self) -> Journal | None:
        """Where sessions are written down; None: nowhere.

        Raises:
            ConfigError: the folder can't be used, or the database's driver isn't installed.
        """
        if self.journal is None:
            return None
        if self.journal.startswith(("postgresql://", "postgres://")):
            return PostgresJournal(self.journal, max_age_s=self.journal_age_s)
        if not self.journal or "://" in self.journal:
            raise ConfigError("--journal: name a folder, or a database as postgresql://HOST/NAME")
        options: dict[str, Any] = {"durable": self.journal_durable, "max_age_s": self.journal_age_s}
        return SqliteJournal(Path(self.journal), **options)

    def load_certificate(self, context: ssl.SSLContext) -> None:
        """Give the certificate to ``context``; connections from now on use it.

        Raises:
            ConfigError: the files can't be used.
        """
        files = " with ".join(filter(None, (self.tls_cert, self.tls_key)))

        def locked() -> str:
            raise ConfigError(
                f"the TLS certificate {files} can't be used: its key has a pass phrase, and nobody is "
                "there to be asked; `openssl pkey -in OLD -out NEW` writes one without"
            )

        try:
            # Without this, OpenSSL asks on a terminal; where there is none it may wait for ever.
            password = None if sys.stdin is not None and sys.stdin.isatty() else locked
            context.load_cert_chain(str(self.tls_cert), self.tls_key, password)
        except (OSError, ssl.SSLError) as error:
            hint = "; both are PEM files, and a key in a file of its own needs --tls-key"
            hint = hint if isinstance(error, ssl.SSLError) else ""
            raise ConfigError(f"the TLS certificate {files} can't be used: {error}{hint}") from None

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
        self.load_certificate(context)
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
        f"clients must send a key of this file (one a line; else, the one in ${KEY_VARIABLE}); required "
        "for an address that other machines can reach",
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
    add("--proxies ADDRESS", "proxies whose X-Forwarded-For names the client; '*': any", nargs="+")
    add("--max-sessions N", "connections at once (default: 32)", type=int)
    each = "connections from one address (default: half of --max-sessions; this machine: all)"
    add("--max-per-address N", each, type=int)
    silent, old = "close clients silent for this long (default: 600)", "close sessions this old"
    add("--idle SECONDS", silent, type=float, dest="idle_s")
    add("--longest SECONDS", f"{old} (default: 3600)", type=float, dest="longest_s")
    ahead = "send audio this far ahead of play-out (default: 2)"
    add("--lead SECONDS", ahead, type=float, dest="lead_s")
    where = "write sessions down here, so that clients resume them after a restart: a folder, or postgresql://…"
    add("--journal PLACE", where)
    kept = "drop sessions from the journal after so long (default: 3600, at least 120)"
    add("--journal-age SECONDS", kept, type=float, dest="journal_age_s")
    more: dict[str, Any] = {"action": "store_true", "default": None}
    add("--journal-durable", "wait for the disk at each write: outlives a power cut, too", **more)
    add("--preempt", "begin to answer before a spoken question is over", **more)
    add("--reuse-port", "let other processes listen there, too, such as the next version", **more)
    add("--log-json", "write log lines, sessions and requests as JSON to standard output", **more)


def server_config(args: argparse.Namespace, *, table: bool) -> ServerConfig:
    """The server's options; with ``table``, the config file's ``[server]`` for those not given.

    Raises:
        ConfigError: an unknown key, or a value out of range.
    """
    values: dict[str, Any] = tables_of(args)["server"] if table else {}
    given = {name: getattr(args, name, None) for name in ServerConfig.model_fields}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        return ServerConfig(**values | given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        option = f"--{name.removesuffix('_s').replace('_', '-')}"
        place = option if name in given else f"{args.config}: server.{name}"
        told = problem(first, ServerConfig.model_fields)
        raise ConfigError(f"{place}: {told}") from None


def keys_of(args: argparse.Namespace, config: ServerConfig) -> list[Key]:
    """The keys that clients must send: the option's, else the file's, else the environment's, or none.

    Raises:
        ConfigError: the file can't be read, or a key is empty or contains white space.
    """
    if args.api_key is None and config.api_key_file is not None:
        return read_keys(_read(config.api_key_file), config.api_key_file)
    source = "--api-key" if args.api_key is not None else f"${KEY_VARIABLE}"
    key = args.api_key if args.api_key is not None else os.environ.get(KEY_VARIABLE)
    if key is None:
        return []
    if len(key.split()) != 1:
        raise ConfigError(f"{source} must hold one key, without spaces; leave it out for none")
    return [Key(key.strip())]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(1 << 20)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"can't read the key file {path}: {why}") from None


async def until_stopped(
    drain: Callable[[float], Coroutine[Any, Any, None]],
    seconds: float,
    ready: Callable[[], None] = lambda: None,
    renew: Callable[[], None] = lambda: None,
    ended: Callable[[], Awaitable[None]] = anyio.sleep_forever,
) -> int:
    """Wait for SIGTERM, then drain; return the exit code: 0, or 130 if a second SIGTERM cut it short.

    ``ready`` is called once a SIGTERM would be received: whoever reads that a server is ready may stop
    it at once. ``renew`` is called at each SIGHUP; a ConfigError of it is told, and changes nothing.

    Raises:
        EngineFailed: by ``ended``, which stands for a SIGTERM; after the drain.
    """
    hangup = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none
    with anyio.open_signal_receiver(signal.SIGTERM, hangup) as signals:
        ready()
        failed = await _stop_asked(signals, renew, ended)
        note(f"stopping: running requests have {seconds:g} s to end (a second SIGTERM stops at once)")
        hurried = False
        async with anyio.create_task_group() as group:

            async def hurry() -> None:
                nonlocal hurried
                while await anext(signals) != signal.SIGTERM:
                    pass
                hurried = True
                group.cancel_scope.cancel()

            group.start_soon(hurry)
            await drain(seconds)
            group.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return 130 if hurried else 0


async def _stop_asked(
    signals: AsyncIterator[int], renew: Callable[[], None], ended: Callable[[], Awaitable[None]]
) -> EngineFailed | None:
    """Wait for SIGTERM, and call ``renew`` at other signals; or until ``ended`` raises."""
    failed: EngineFailed | None = None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            nonlocal failed
            try:
                await ended()
            except EngineFailed as error:
                failed = error
                group.cancel_scope.cancel()

        group.start_soon(watch)
        while await anext(signals) != signal.SIGTERM:
            try:
                renew()
                note("keys and certificate were read again")
            except ConfigError as error:
                note(f"what was in use stays: {error}")
        group.cancel_scope.cancel()
    return failed
