"""``/v1/realtime/client_secrets``: short-lived keys with which browsers open Realtime sessions."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from specstream.realtime import protocol as pr
from specstream.realtime.wire import Refused
from specstream.server.api.body import Body
from specstream.server.api.errors import ApiError
from specstream.server.keys import ClientSecrets
from specstream.server.sessions.request import Service
from specstream.server.sessions.session import RealtimeSession

__all__ = ["SecretBody", "client_secret"]


class Expiry(BaseModel):
    """When a secret expires."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=10, le=7200)] = 600


class SecretBody(Body):
    """What is asked for: how long the secret is good, and the settings that its sessions begin with."""

    expires_after: Expiry = Expiry()
    session: dict[str, Any] = {}


def client_secret(body: SecretBody, service: Service, secrets: ClientSecrets) -> dict[str, Any]:
    """Make a secret.

    Raises:
        ApiError: a setting is refused, or a client secret was sent instead of a key.
    """
    session = RealtimeSession(
        service.settings, service.params, has_voice=service.factories.voice is not None
    )
    update = {"type": "session.update", "session": {"type": "realtime", **body.session}}
    tools, hears = service.engine.no_tools is None, service.ears is not None
    try:
        session.answer(pr.parse_client_event(json.dumps(update), tools=tools, hears=hears))
    except Refused as refusal:
        raise ApiError(400, refusal.message, param=refusal.param, code=refusal.code) from None
    value, until = secrets.issue(service.caller, body.expires_after.seconds, session.settings)
    told = session.created().session
    return {"value": value, "expires_at": until, "session": told}
