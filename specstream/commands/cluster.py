"""``serve`` on many machines: the server as an application of Ray Serve (extra ``ray``).

::

    serve run specstream.commands.cluster:app options="--target smollm2 --journal postgresql://…"
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from pydantic import Field, ValidationError
from starlette.applications import Starlette
from starlette.routing import Mount

from specstream.checks import problem
from specstream.commands.main import read_arguments
from specstream.commands.serve import opened_server
from specstream.commands.shared.serving import keys_of, server_config
from specstream.engine.protocol import TextEngine
from specstream.errors import ConfigError, EngineFailed
from specstream.methods import StrictConfig
from specstream.server.asgi import Front
from specstream.server.auth import check_key

__all__ = ["ClusterConfig", "app", "replica_app"]


class ClusterConfig(StrictConfig):
    """What a Ray Serve application of this name is given; a deployment's settings in Ray's file win.

    Attributes:
        options: Those of ``specstream serve``, as on a command line. Each replica loads the models.
        replicas: How many there are, unless ``most`` is larger; then at least so many.
        most: How many there may be: Ray adds one where the others have ``sessions`` each, and takes it
            away when they have fewer. A replica that goes away ends its sessions first.
        sessions: See ``most``.
        cpus: Cores of a replica.
        gpus: GPUs of a replica.
        stop_s: Seconds that a replica's sessions may go on while it is replaced. Then its sockets are
            cut, and clients come back by the journal.
    """

    options: str = ""
    replicas: int = Field(default=1, ge=1)
    most: int = Field(default=1, ge=1)
    sessions: float = Field(default=8, gt=0)
    cpus: float = Field(default=1, ge=0)
    gpus: float = Field(default=0, ge=0)
    stop_s: float = Field(default=600, ge=0)


class Replica:
    """What Ray asks of a replica besides requests."""

    engine: ClassVar[TextEngine | None] = None  # this process's

    async def check_health(self) -> None:
        """Raise what has ended the engine; Ray then starts another replica."""
        if (failure := getattr(Replica.engine, "failure", None)) is not None:
            raise EngineFailed(f"the engine has ended: {failure!r}") from failure


def app(arguments: dict[str, Any]) -> Any:
    """Describe the application; Ray's ``serve run`` and ``serve deploy`` call it.

    Raises:
        ConfigError: an unknown or wrong argument or option, or Ray isn't installed.
    """
    try:
        from ray import serve
    except ImportError:
        raise ConfigError("this needs Ray: pip install 'specstream-sdk[ray]'") from None
    try:
        asked = ClusterConfig(**arguments)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        told = problem(first, ClusterConfig.model_fields)
        raise ConfigError(f"{first['loc'][0]}: {told}") from None
    options = shlex.split(asked.options)
    config = server_config(read_arguments(["serve", *options]), table=True)  # wrong options end here
    scale: dict[str, Any] = {"num_replicas": asked.replicas}
    if asked.most > asked.replicas:
        few, many = asked.replicas, asked.most
        target = {"target_ongoing_requests": asked.sessions}
        scale = {"autoscaling_config": {"min_replicas": few, "max_replicas": many, **target}}

    def build() -> Starlette:  # by each replica
        return replica_app(options)

    deployment = serve.deployment(
        serve.ingress(build)(Replica),
        name="specstream",
        max_ongoing_requests=config.max_sessions,
        max_queued_requests=config.max_sessions,
        graceful_shutdown_timeout_s=asked.stop_s,
        graceful_shutdown_wait_loop_s=1.0,
        ray_actor_options={"num_cpus": asked.cpus, "num_gpus": asked.gpus},
        **scale,
    )
    return deployment.bind()


def replica_app(options: list[str]) -> Starlette:
    """The server as an ASGI application that loads its models when it starts (``lifespan``)."""
    front = Front()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        args = read_arguments(["serve", *options])
        config = server_config(args, table=True)
        check_key(config.host, bool(keys_of(args, config)))
        async with opened_server(args, config) as (server, Replica.engine):
            front.app = server.app
            yield

    return Starlette(lifespan=lifespan, routes=[Mount("/", app=front)])
