"""Connects to a Realtime server, which may still be loading its models; names of hosts, and logs."""

from __future__ import annotations

import errno
import ipaddress
import itertools
import logging
import re
import ssl
from typing import Any
from urllib.parse import urlsplit

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.uri import parse_uri

from specstream.errors import ConfigError, ConnectionFailed
from specstream.realtime.wire import PATH

__all__ = [
    "LOG",
    "READY_S",
    "bearer",
    "check_url",
    "dial",
    "hide_keys",
    "is_loopback",
    "literal_address",
    "shown",
    "with_query",
]

_SECRETS = (
    (re.compile(r"(?im)^(.*\b(?:authorization|cookie)\b['\"]?\s*[:=]\s*).*$"), r"\1…"),
    (re.compile(r"(?i)(\b(?:bearer|basic) )\S+"), r"\1…"),
    (re.compile(r"(invalid HTTP [a-z ]+: ).*"), r"\1…"),  # quotes the line that can't be parsed
    (re.compile(r"(?i)(api-key\.)[^\s,;'\"]+"), r"\1…"),  # a key sent as a subprotocol
    (re.compile(r"(\b(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH) [^\s?]*\?)\S*"), r"\1…"),
    (re.compile(r"(?i)(\b(?:token|resume)=)[^\s&#'\"]+"), r"\1…"),
)


def hide_keys(text: str) -> str:
    """Return ``text`` with every key that HTTP or the protocol can carry replaced by an ellipsis."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def shown(url: str) -> str:
    """Return an address without its query, which may hold a key."""
    return url.partition("?")[0]


class _WithoutKeys(logging.Filter):
    """Hides keys: the websockets library logs request lines, headers, and errors that quote them."""

    _format = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = hide_keys(record.getMessage()), ()
        if record.exc_info and not isinstance(record.exc_info, bool):
            record.exc_text = hide_keys(self._format.formatException(record.exc_info))
            record.exc_info = None
        return True


LOG = logging.getLogger("specstream.sockets")
"""For the libraries: their refused handshakes are printed only where somebody asks for logs."""
LOG.addHandler(logging.NullHandler())
for _name in (LOG.name, "specstream.server", "specstream.remote"):
    logging.getLogger(_name).addFilter(_WithoutKeys())


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``; the only name accepted is localhost."""
    address = literal_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def literal_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse a literal address, which no name server can point elsewhere; None for a name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


READY_S = 30.0
"""For how long a server that is still loading is waited for, unless a client says otherwise."""

PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.0)
"""Seconds between the attempts; the last value repeats."""

_MAX_FRAME = 4 << 20
_TRY_AGAIN_LATER = 1013


async def dial(
    url: str,
    *,
    api_key: str | None,
    open_timeout: float,
    ready_timeout: float,
    tls: ssl.SSLContext | None = None,
) -> tuple[ClientConnection, str | bytes]:
    """Connect, and return the connection with its first frame.

    Retries for ``ready_timeout`` seconds while nobody listens there yet.

    ``open_timeout`` bounds each handshake, and then the wait for the first frame. Cancelling the call
    closes the connection.

    Raises:
        ConnectionFailed: nobody answers, or the server refuses the connection.
        ConfigError: the address is not a WebSocket address, or the key can't be sent.
    """
    check_url(url, tls)
    parts = urlsplit(url)
    address = parts._replace(path=PATH).geturl() if parts.path in ("", "/") else url
    options: dict[str, Any] = {"additional_headers": bearer(api_key), "open_timeout": open_timeout}
    options |= {"logger": LOG} | ({"ssl": tls} if tls is not None else {})
    if is_loopback(urlsplit(address).hostname or ""):
        options["proxy"] = None  # the environment's proxy can't reach this machine
    deadline = anyio.current_time() + ready_timeout
    for pause in itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1])):
        found = await _attempt(url, address, options)
        if not isinstance(found, str):
            return found
        if anyio.current_time() + pause > deadline:
            break
        await anyio.sleep(pause)
    tried = f", for {ready_timeout:g} s" if ready_timeout > 0 else ""
    raise ConnectionFailed(
        f"no Realtime server answers at {shown(url)}: {found}{tried}; "
        "is `specstream serve` running there?"
    )


def with_query(url: str, query: str) -> str:
    """Return an address with ``query`` added to the one that it has."""
    return f"{url}{'&' if '?' in url else '?'}{query}"


def check_url(url: str, tls: ssl.SSLContext | None) -> None:
    """Require a WebSocket address, and one that begins with ``wss://`` if there is a ``tls``.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(url, str):
        raise _no_address(url)
    try:
        if urlsplit(url).port == 0:
            raise _no_address(url)
        secure = parse_uri(url).secure
    except (InvalidURI, ValueError) as error:
        raise _no_address(url) from error
    if tls is not None and not secure:
        raise ConfigError(f"tls is for wss:// addresses, and {shown(url)!r} is none")


def _no_address(url: object) -> ConfigError:
    named = shown(url) if isinstance(url, str) else url
    return ConfigError(f"{named!r:.80} isn't an address such as ws://host:port")


def bearer(api_key: str | None) -> dict[str, str]:
    """Return the HTTP header that carries a key; none without a key. White space around it is left out.

    Raises:
        ConfigError: the key can't be sent; the message doesn't quote it.
    """
    if not isinstance(api_key, str | None):
        raise ConfigError(f"api_key must be a text, not {type(api_key).__name__}")
    key = (api_key or "").strip()
    if not key.isprintable() or any(ord(character) > 255 for character in key):
        raise ConfigError(
            "api_key can't be sent in an HTTP header: it has a line break, a control character or a "
            "character that is not in Latin-1"
        )
    return {"Authorization": f"Bearer {key}"} if key else {}


async def _attempt(
    url: str, address: str, options: dict[str, Any]
) -> tuple[ClientConnection, str | bytes] | str:
    """Try once; returns the connection, or as a string the reason to try again."""
    try:
        socket = await connect(address, compression=None, max_size=_MAX_FRAME, **options)
    except InvalidStatus as error:
        raise ConnectionFailed(_refusal(shown(url), error.response.status_code)) from error
    except (InvalidURI, UnicodeError) as error:
        raise _no_address(url) from error
    except (OSError, TimeoutError, InvalidHandshake) as error:
        if _nobody_listens(error):
            return "the connection is refused"
        raise ConnectionFailed(_no_answer(url, error)) from error
    except ImportError as error:  # the environment names a SOCKS proxy
        raise ConnectionFailed(f"{_no_answer(url, error)}, or set $NO_PROXY") from error
    try:
        with anyio.fail_after(options["open_timeout"]):
            return socket, await socket.recv()
    except ConnectionClosed as error:
        if error.rcvd is not None and error.rcvd.code == _TRY_AGAIN_LATER:
            return error.rcvd.reason or "it asks to try again later"
        raise ConnectionFailed(f"the server closed the connection: {error}") from error
    except BaseException as error:
        socket.transport.abort()
        if isinstance(error, TimeoutError):
            raise ConnectionFailed(f"the server at {shown(url)} says nothing") from error
        raise


def _no_answer(url: str, error: Exception) -> str:
    """Say what went wrong; some errors of a broken handshake have no text."""
    return f"no Realtime server answers at {shown(url)}: {str(error) or type(error).__name__}"


def _nobody_listens(error: Exception) -> bool:
    """Return whether the connection was refused.

    For a name with several addresses, asyncio reports all errors as one text without errno.
    """
    number = f"[Errno {errno.ECONNREFUSED}]"
    return isinstance(error, ConnectionRefusedError) or number in str(error)


def _refusal(url: str, status: int) -> str:
    reasons = {
        401: "it wants a key; pass api_key (for a command, set $SPECSTREAM_API_KEY)",
        403: "it does not allow this origin",
        404: "there is no Realtime endpoint at that path",
        421: "it isn't known by that name; its owner can allow it",
        503: "all its sessions are taken, or it is stopping; try again later",
    }
    return f"{url} refused the connection: {reasons.get(status, 'see its log')} (HTTP {status})"
