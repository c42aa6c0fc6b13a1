"""The keys of a server: who they belong to, until when they are good, and how much they pay for."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from specstream.checks import meant
from specstream.errors import ConfigError, EngineBusy
from specstream.realtime.settings import SessionSettings

__all__ = ["CALLER", "ApiCaller", "ClientSecrets", "Key", "KeyAccount", "KeyRing", "read_keys"]

CALLER = "specstream.caller"
"""The key of an ASGI scope with the `ApiCaller` of a request that was let in."""
_DAY_S = 86_400
_MOST_SECRETS = 4096  # of one key that are good at once
_MOST_CHARS = 16 << 20  # of their sessions' settings as JSON


@dataclass(frozen=True, slots=True)
class Key:
    """A key that clients send, and its quotas.

    Attributes:
        secret: What clients send. Never shown, nor written to a log.
        name: Whose key it is, for logs and errors.
        sessions: Connections and requests at once; None: as many as the server has places.
        tokens_per_day: Tokens that replies may have in a day (UTC); None: any number. The reply under
            way when they are used up is finished.
        until: When the key ceases to be good (with a time zone); None: never.

    Raises:
        ConfigError: an empty secret or one with spaces, a quota below 1, or a time without a zone.
    """

    secret: str = field(repr=False)
    name: str = "default"
    sessions: int | None = None
    tokens_per_day: int | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if not self.secret or len(self.secret.split()) != 1:
            raise ConfigError(f"the key of {self.name!r} must be one word, without spaces")
        for quota in ("sessions", "tokens_per_day"):
            value = getattr(self, quota)
            if value is not None and value < 1:
                raise ConfigError(f"{quota} of the key of {self.name!r} must be at least 1")
        if self.until is not None and self.until.tzinfo is None:
            raise ConfigError(f"until of the key of {self.name!r} needs a time zone")


@dataclass(slots=True, eq=False)
class KeyAccount:
    """What was used of a key. A server without keys has one account, which has no quotas.

    Attributes:
        taken: Connections and requests that are open.
    """

    key: Key | None = None
    now: Callable[[], float] = time.time
    taken: int = 0
    _day: int = 0
    _tokens: int = 0

    def refusal(self) -> str | None:
        """Why nothing new may begin for this key; None if it may."""
        key = self.key
        if key is None:
            return None
        if key.until is not None and self.now() >= key.until.timestamp():
            return f"the key of {key.name!r} has expired"
        if key.tokens_per_day is not None and self._today() >= key.tokens_per_day:
            return f"the key of {key.name!r} has used its {key.tokens_per_day} tokens of today"
        return None

    def full(self) -> str | None:
        """Why no further connection or request may be opened; None if one may."""
        key = self.key
        if key is not None and key.sessions is not None and self.taken >= key.sessions:
            return f"the key of {key.name!r} has its {key.sessions} sessions; close some first"
        return None

    def spend(self, tokens: int) -> None:
        """Count tokens that a reply has."""
        self._tokens = self._today() + tokens

    def _today(self) -> int:
        day = int(self.now() // _DAY_S)
        if day != self._day:
            self._day, self._tokens = day, 0
        return self._tokens


@dataclass(frozen=True, slots=True)
class ApiCaller:
    """Who sent a request.

    Attributes:
        account: Of the key.
        session: The settings that a client secret's sessions begin with; None: a key was sent.
    """

    account: KeyAccount
    session: SessionSettings | None = None


class KeyRing:
    """The keys that are good; without any, everybody may come in.

    Keys are looked up by their digest, so how long that takes tells nothing about a key.
    """

    def __init__(self, keys: Sequence[Key] = (), now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._open = KeyAccount(now=now)
        self._accounts: dict[bytes, KeyAccount] = {}
        self.replace(keys)

    def replace(self, keys: Sequence[Key]) -> None:
        """Take these keys instead; what was used of one that stays is kept.

        Raises:
            ConfigError: two keys are the same.
        """
        accounts: dict[bytes, KeyAccount] = {}
        for key in keys:
            digest = _digest(key.secret)
            if digest in accounts:
                raise ConfigError(f"the key of {key.name!r} is there twice")
            accounts[digest] = self._accounts.get(digest) or KeyAccount(now=self._now)
        for key in keys:
            accounts[_digest(key.secret)].key = key
        gone = [account for digest, account in self._accounts.items() if digest not in accounts]
        for account in gone:  # its sessions begin nothing more
            if account.key is not None:
                past = datetime.fromtimestamp(0, UTC)
                account.key = Key(account.key.secret, account.key.name, until=past)
        self._accounts = accounts

    @property
    def needed(self) -> bool:
        """Whether a key is needed."""
        return bool(self._accounts)

    def find(self, sent: Iterable[str]) -> ApiCaller | None:
        """The caller of one of the keys that a request has; None if none is good."""
        if not self._accounts:
            return ApiCaller(self._open)
        found = (self._accounts.get(_digest(key)) for key in sent)
        return next((ApiCaller(account) for account in found if account is not None), None)


class _Secret(NamedTuple):
    until: int
    size: int  # characters of its settings
    caller: ApiCaller


class ClientSecrets:
    """Short-lived keys for browsers; good for Realtime sessions only, and charged to a caller's key.

    They live in this process: a server of several processes must send a client to the one that made
    its secret.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._secrets: dict[bytes, _Secret] = {}

    def issue(self, caller: ApiCaller, seconds: float, session: SessionSettings) -> tuple[str, int]:
        """Make a secret; returns it and the Unix time at which it expires.

        Raises:
            EngineBusy: the key has too many, or too large ones, that are good. None is forgotten for a
                new one: pages have them.
        """
        now, size = self._now(), len(session.model_dump_json())
        for digest in [digest for digest, one in self._secrets.items() if one.until <= now]:
            del self._secrets[digest]
        own = [one for one in self._secrets.values() if one.caller.account is caller.account]
        if len(own) >= _MOST_SECRETS or sum(one.size for one in own) + size > _MOST_CHARS:
            raise EngineBusy(
                f"{len(own)} client secrets of this key are good; let them expire sooner, or say less "
                "in their sessions' settings",
                retry_s=max(1.0, min(one.until for one in own) - now),
            )
        secret, until = f"ek_{secrets.token_urlsafe(32)}", int(now + seconds)
        self._secrets[_digest(secret)] = _Secret(until, size, ApiCaller(caller.account, session))
        return secret, until

    def find(self, sent: Iterable[str]) -> ApiCaller | None:
        """The caller of one of the secrets that a request has; None if none is good."""
        for secret in sent:
            found = self._secrets.get(_digest(secret))
            if found is not None and self._now() < found.until:
                return found.caller
        return None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()


_FIELDS = ("name", "sessions", "tokens_per_day", "until")


def read_keys(text: str, source: str) -> list[Key]:
    """Read keys of a file ``source``, one a line, as in ``KEY name=web sessions=8``.

    After the key come its name and quotas; also ``tokens_per_day=N`` and ``until=2027-01-31`` (or a
    time, ``2027-01-31T12:00+01:00``; UTC where no zone is named). A line that begins with ``#`` is a
    comment.

    Raises:
        ConfigError: a line can't be read, or there is no key. No key is shown.
    """
    keys = list[Key]()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            keys.append(_key(words[0], words[1:], f"key {len(keys) + 1}"))
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{source}, line {number}: {error}") from None
    if not keys:
        raise ConfigError(f"{source} must hold a key; leave it out for none")
    return keys


def _key(secret: str, said: Sequence[str], name: str) -> Key:
    fields: dict[str, Any] = {"name": name}
    for word in said:
        field, equals, value = word.partition("=")
        if not equals or field not in _FIELDS:
            hint = meant(field, _FIELDS) if equals else ""
            # Not the word itself: it may be part of a key.
            raise ValueError(f"after a key come name=, sessions=, tokens_per_day=, until={hint}")
        if field == "name":
            fields[field] = value
        elif field == "until":
            moment = datetime.fromisoformat(value)
            fields[field] = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        elif value.isascii() and value.isdigit():
            fields[field] = int(value)
        else:
            raise ValueError(f"{field} must be a whole number")
    return Key(secret, **fields)
