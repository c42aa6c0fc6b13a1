"""What adapters for others' servers share: addresses, keys, time limits, errors in a server's words."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, urlsplit

import anyio

from specstream.checks import check_numbers
from specstream.errors import AdapterError, AdapterFailed, AdapterUnavailable, ConfigError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["OPENAI", "OpenAIServer", "address_of", "key_of", "said", "settings_of"]

OPENAI = "https://api.openai.com/v1"
_REDIRECTS = 3
_LONGEST = 300  # characters of a server's words in an error
T = TypeVar("T")


def address_of(url: str, *schemes: str) -> str:
    """Return an address without its query and without slashes at its end.

    Raises:
        ConfigError: it is no text that begins with one of the schemes, or has no host.
    """
    begins = " or ".join(f"{scheme}://" for scheme in schemes)
    try:
        parts = urlsplit(url)
        valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except (ValueError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise ConfigError(f"url must be an address that begins with {begins}, not {url!r:.80}")
    return parts._replace(query="", fragment="").geturl().rstrip("/")


def settings_of(url: str, **given: str | None) -> dict[str, str | None]:
    """Return options as given, else as the address's query names them: ``…/v1?model=kokoro``.

    Raises:
        ConfigError: the query names something else.
    """
    query = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    if unknown := sorted(query.keys() - given.keys()):
        known = ", ".join(given)
        raise ConfigError(f"url: {unknown[0]!r:.40} can't be set in the address; these can: {known}")
    return {name: query.get(name) if value is None else value for name, value in given.items()}


def key_of(given: str | None, variable: str, *, needed: str = "") -> str:
    """Return the key that is given, else that of an environment variable, else nothing.

    ``needed``: who asks for a key, if somebody is known to.

    Raises:
        ConfigError: it can't be sent in an HTTP header; the message doesn't quote it.
        AdapterUnavailable: there is none and one is needed.
    """
    key = (os.environ.get(variable, "") if given is None else given).strip()
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"the key (api_key or ${variable}) has a character that no HTTP header takes")
    if needed and not key:
        raise AdapterUnavailable(
            f"{needed} needs a key: set ${variable} or api_key, or name another server"
        )
    return key


def said(body: object) -> str:
    """Return a server's words, whatever shape an error's body has: an object, a list, a text."""
    if isinstance(body, bytes | bytearray):
        body = body.decode("utf-8", "replace")
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except ValueError:
            return " ".join(str(body).split())[:_LONGEST]
    for _ in range(3):
        if not isinstance(body, dict):
            break
        names = ("message", "detail", "error", "reason")
        body = next((body[name] for name in names if body.get(name)), json.dumps(body))
    words = body if isinstance(body, str) else json.dumps(body)
    return " ".join(words.split())[:_LONGEST]


class OpenAIServer:
    """A server of OpenAI's HTTP API as voices and recognisers ask it.

    Its connections are kept for the next request, one client for each event loop. Nothing is asked
    before the first request.

    Args:
        name: The adapter's name, for errors.
        url: The base address, such as ``http://127.0.0.1:8880/v1``.
        api_key: Sent as a bearer; None: ``$OPENAI_API_KEY``. Never logged.
        first_s: Seconds until a request's answer begins, with one more try if nobody answered or the
            server broke.
        between_s: Seconds until the next piece of it.

    Raises:
        AdapterUnavailable: the package openai is missing, or OpenAI's own server is named without a key.
        ConfigError: the address, the key or a time is wrong.
    """

    def __init__(
        self, name: str, url: str, api_key: str | None, first_s: float, between_s: float
    ) -> None:
        check_numbers(0.1, 600, first_s=first_s, between_s=between_s)
        self.name, self.url = name, address_of(url, "http", "https")
        needed = self.url if self.url == OPENAI else ""
        self._key = key_of(api_key, "OPENAI_API_KEY", needed=needed)
        self._first_s, self._between_s = first_s, between_s
        self._client: AsyncOpenAI | None = self._made()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closed = False

    def _made(self) -> AsyncOpenAI:
        try:
            from openai import AsyncOpenAI, DefaultAsyncHttpxClient
        except ImportError as error:
            raise AdapterUnavailable(
                f"{self.name} needs the package openai: pip install 'specstream-client[openai]'"
            ) from error
        longest = max(self._first_s, self._between_s) + 5.0
        # Its own HTTP client: openai's default one starts a task when it is garbage.
        return AsyncOpenAI(
            base_url=self.url,
            api_key=self._key or "none",
            max_retries=0,  # it would wait as long as a server says that is too busy
            timeout=longest,
            http_client=DefaultAsyncHttpxClient(timeout=longest, max_redirects=_REDIRECTS),
        )

    @property
    def client(self) -> AsyncOpenAI:
        """The client of the running event loop.

        Raises:
            AdapterFailed: the adapter was closed.
        """
        if self.closed:
            raise AdapterFailed(f"{self.name} is closed; make a new one")
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop not in (None, loop):
            self._client = self._made()  # connections belong to the loop that opened them
        self._loop = loop
        return self._client

    async def answer(self, ask: Callable[[AsyncOpenAI], Awaitable[T]]) -> T:
        """Ask for an answer, twice if need be, and wait until it begins.

        Raises:
            AdapterUnavailable: nobody answers, or the server refuses the key or knows no such thing.
            AdapterFailed: the server refuses or breaks, with its own words.
        """
        from openai import APIConnectionError, InternalServerError

        client = self.client

        async def asked() -> T:
            try:
                return await ask(client)
            except (APIConnectionError, InternalServerError):
                return await ask(client)

        return await self._within(asked, self._first_s, "before it began to answer")

    async def piece(self, work: Callable[[], Awaitable[T]]) -> T:
        """Wait for an answer's next piece; raises as `answer` does, and StopAsyncIteration."""
        return await self._within(work, self._between_s, "in the middle of its answer")

    async def _within(self, work: Callable[[], Awaitable[T]], seconds: float, when: str) -> T:
        try:
            with anyio.fail_after(seconds):
                return await work()
        except StopAsyncIteration:
            raise
        except TimeoutError as error:
            raise AdapterFailed(
                f"{self.name}: {self.url} was silent for {seconds:g} s {when}"
            ) from error
        except Exception as error:
            raise self.fault(error) from error

    def fault(self, error: Exception) -> AdapterError:
        """Return an exception of the client as one of ours."""
        import openai

        if isinstance(error, AdapterError):
            return error
        where = f"{self.name}: {self.url}"
        if isinstance(error, openai.APIStatusError):
            status = error.status_code
            answers = f"{where} answers {status}: {said(error.body or error.message)}"
            if status in (401, 403):
                return AdapterUnavailable(f"{answers}; check the key ($OPENAI_API_KEY or api_key)")
            return AdapterUnavailable(answers) if status == 404 else AdapterFailed(answers)
        if isinstance(error, openai.APIConnectionError):
            cause = error.__cause__ or error
            if type(cause).__name__ == "TooManyRedirects":
                return AdapterUnavailable(f"{where} sends us on and on; is that the address of its API?")
            return AdapterUnavailable(
                f"{where}: nobody answers ({str(cause) or type(cause).__name__}); is it running?"
            )
        return AdapterFailed(f"{where}: the answer broke ({str(error) or type(error).__name__})")

    async def aclose(self) -> None:
        """Close the connections; what is being read ends. Idempotent."""
        self.closed = True
        client, self._client = self._client, None
        if client is not None and self._loop in (None, asyncio.get_running_loop()):
            await client.close()
