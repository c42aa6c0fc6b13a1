"""The options of the Realtime server, as its constructor, its command and a config file take them."""

from __future__ import annotations

import ipaddress
from typing import Any

from pydantic import Field, ValidationError, field_validator

from specstream.checks import problem
from specstream.errors import ConfigError
from specstream.methods import StrictConfig
from specstream.realtime.wire import MAX_FRAME
from specstream.server.auth import check_names

__all__ = ["ServerAccess", "ServerLimits"]


class _Options(StrictConfig):
    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = f"{first['loc'][0]}: " if first["loc"] else ""
            raise ConfigError(place + problem(first, type(self).model_fields)) from None


class ServerAccess(_Options):
    """Which pages, names and proxies requests may come from.

    Attributes:
        origins: Pages of other origins that may connect from a browser; ``"*"``: any.
        hosts: Names accepted in ``Host``, in addition to literal addresses and ``localhost``; ``"*"``:
            any. Requests for another name are refused with 421. A server that other machines can reach
            (so it has a key) accepts any name if none is given.
        proxies: Addresses or networks of proxies whose ``X-Forwarded-For`` names the client; ``"*"``:
            any, for a server that only its proxy can reach.

    Raises:
        ConfigError: an origin, name or address that no request can have.
    """

    origins: tuple[str, ...] = Field(default=(), description="of other pages that may connect")
    hosts: tuple[str, ...] = Field(default=(), description="names of this server")
    proxies: tuple[str, ...] = Field(
        default=(), description="addresses of proxies that tell the client's"
    )

    @field_validator("origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check_names(value, ())
        return value

    @field_validator("hosts")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check_names((), value)
        return value

    @field_validator("proxies")
    @classmethod
    def _proxies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in value:
            try:
                _ = proxy == "*" or ipaddress.ip_network(proxy)
            except ValueError:
                raise ValueError(f"{proxy!r} is no address or network") from None
        return value


class ServerLimits(_Options):
    """What the clients of a server may use.

    Attributes:
        max_sessions: Connections and requests at once; more are refused with 503.
        max_per_address: Those of one address; see `ConnectionLimit`.
        idle_s: A client that sends no frame for this long while no response runs is closed (1008).
        longest_s: A session that is older than this gets the error ``session_expired`` and is closed
            (1001), as soon as no response runs.
        resume_s: Seconds that a session waits for its client to come back, if the client has asked for
            that; see docs/reference/realtime.md.
        max_output: Bytes that a session is sent whose client acknowledges nothing; then it gets the
            error ``output_limit`` and is closed (1008). A proxy that never makes its sender wait keeps
            as much of what its client doesn't read.
        max_frame: Bytes of the largest frame a client may send; larger ones close with 1009.
        lead_s: Audio is sent at most this many seconds ahead of its play-out, so that a cancel takes
            effect; the first ``lead_s`` seconds are sent at once.
        buffer_s: Seconds of audio that pacing may hold back; then back-pressure stops the reply.

    Raises:
        ConfigError: a number out of range.
    """

    max_sessions: int = Field(default=32, ge=1, description="connections and requests at once")
    max_per_address: int | None = Field(
        default=None, ge=1, description="of one address; default: half, for this machine all"
    )
    idle_s: float = Field(default=600.0, gt=0, description="a silent client is closed")
    longest_s: float = Field(default=3600.0, gt=0, description="of a session")
    resume_s: float = Field(default=60.0, gt=0, description="a session waits for its client")
    max_output: int = Field(
        default=256 << 20, ge=1 << 16, description="bytes of a session that acknowledges nothing"
    )
    max_frame: int = Field(default=MAX_FRAME, ge=1024, description="bytes of a client's frame")
    lead_s: float = Field(default=2.0, ge=0.2, description="audio is sent ahead of its play-out")
    buffer_s: float = Field(default=30.0, ge=0.2, description="audio that waits to be sent")
