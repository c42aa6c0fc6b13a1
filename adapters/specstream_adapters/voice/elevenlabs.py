"""Speech over a WebSocket as ElevenLabs' ``stream-input`` has it, with the times of words."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.protocol import State

from specstream.checks import check_numbers
from specstream.errors import AdapterError, AdapterFailed, AdapterUnavailable, ConfigError
from specstream.stages.interfaces import VoiceCapabilities
from specstream.types import Phrase, SpeechBuffer
from specstream_adapters.checks import in_range, one_of
from specstream_adapters.servers import address_of, key_of, said
from specstream_adapters.voice.elevenlabs_marks import AudioPieces
from specstream_adapters.voice.shared import plain, speakable

__all__ = ["ElevenLabsVoice"]

_URL = "wss://api.elevenlabs.io/v1"
_VOICE = "JBFqnCBsd6RMkjVDRZzb"  # the one of their own examples
_RATES = ("8000", "16000", "22050", "24000", "44100", "48000")  # of their PCM
_MOST_FRAME = 4 << 20
_SPARE_S = 15.0  # they close a connection on which nothing was said for 20 s
_CLOSE_S = 1.0  # what a closing handshake may take
_POLICY = 1008  # the code of a close for the key or the quota

# The library logs requests with their headers, and so the key, at the level DEBUG.
_log = logging.getLogger("specstream.elevenlabs")
_log.setLevel(logging.WARNING)


class ElevenLabsVoice:
    """A `SpeechSynthesizer` behind ElevenLabs' WebSocket, or another server with the same frames.

    Each phrase has a connection; while it is spoken, the next one's is made. Words are marked by the
    times of their characters. A word's mark comes late where the server cuts a word between two pieces.

    Args:
        voice: The speaker's id; None: the one of ElevenLabs' own examples.
        url: The base address, such as ``ws://127.0.0.1:9000/v1``; the path
            ``/text-to-speech/VOICE/stream-input`` is added.
        model: The model's id.
        sample_rate: Samples a second: 8000, 16000, 22050, 24000, 44100 or 48000.
        speed: 1 is usual, and isn't sent; 0.7 to 1.2.
        language: The language's tag, by which numbers and dates are put into words; its first part is
            sent as ``language_code``, if given.
        settings: Further ``voice_settings``, such as ``{"stability": 0.5}``.
        api_key: Sent as ``xi-api-key``; None: ``$ELEVENLABS_API_KEY``. Never logged.
        first_s: Seconds for the handshake, and until a phrase's first audio.
        between_s: Seconds between two pieces of audio.

    Raises:
        AdapterUnavailable: ElevenLabs' own server is named without a key.
        ConfigError: an option is wrong.
    """

    named_by = "voice"

    def __init__(
        self,
        *,
        voice: str | None = None,
        url: str = _URL,
        model: str = "eleven_flash_v2_5",
        sample_rate: int = 24_000,
        speed: float = 1.0,
        language: str = "",
        settings: Mapping[str, Any] | None = None,
        api_key: str | None = None,
        first_s: float = 10.0,
        between_s: float = 10.0,
    ) -> None:
        voice = _VOICE if voice is None else voice
        for option, value in (("voice", voice), ("model", model)):
            if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 100:
                raise ConfigError(f"{option} must be an id, not {value!r:.80}")
        one_of("sample_rate", str(sample_rate), _RATES)
        in_range("speed", speed, 0.7, 1.2)
        check_numbers(0.1, 600, first_s=first_s, between_s=between_s)
        self._url = address_of(url, "ws", "wss")
        query = {"model_id": model, "output_format": f"pcm_{sample_rate}", "sync_alignment": "true"}
        query |= {"language_code": language.partition("-")[0]} if language else {}
        path = f"/text-to-speech/{quote(voice, safe='')}/stream-input"
        self._address = f"{self._url}{path}?{urlencode(query)}"
        needed = self._url if self._url == _URL else ""
        self._key = key_of(api_key, "ELEVENLABS_API_KEY", needed=needed)
        self._settings = dict(settings or {}) | ({} if speed == 1 else {"speed": speed})
        self._first_s, self._between_s = first_s, between_s
        self._spare: tuple[ClientConnection, float] | None = None  # and when it was made
        self._speaking: set[ClientConnection] = set()
        self._closed = False
        name = f"elevenlabs:{voice}"
        self.capabilities = VoiceCapabilities(
            name, sample_rate, streaming=True, words=True, language=language
        )

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """Speak ``phrase.spoken`` in buffers of at most 60 ms as they come; nothing for no words.

        Closing the generator or cancelling the task that waits for it closes the connection of this
        phrase; the next phrase's connection stays, if it is made.

        Raises:
            AdapterUnavailable: nobody answers, or the server refuses the key or the voice.
            AdapterFailed: the server refuses or breaks, with its own words; or the voice was closed.
        """
        if self._closed:
            raise AdapterFailed("the voice is closed; make a new one")
        text = plain(phrase.spoken)
        if not speakable(text):
            return
        pieces = AudioPieces(text, phrase.chars.start, self.capabilities.sample_rate)
        try:
            socket, first = await self._begin(text)
        except AdapterError:
            if self._closed:
                return
            raise
        ahead = asyncio.create_task(self._dial_ahead())
        try:
            message: dict[str, Any] | None = first
            while message is not None and not self._closed:
                for buffer in self._taken(pieces, message):
                    yield buffer
                    if self._closed:
                        return
                message = None if message.get("isFinal") else await self._next(socket, pieces.begun)
            if not self._closed:
                for buffer in self._ended(pieces):
                    yield buffer
        except AdapterError:
            if not self._closed:
                raise
        finally:
            ahead.cancel()  # if it isn't done by now; a phrase leaves no task behind
            await asyncio.wait({ahead})
            await self._close(socket)

    def _taken(self, pieces: AudioPieces, message: dict[str, Any]) -> list[SpeechBuffer]:
        try:
            return pieces.add(message)
        except ValueError as error:
            raise AdapterFailed(f"voice elevenlabs: {self._url} sends {error}") from error

    def _ended(self, pieces: AudioPieces) -> list[SpeechBuffer]:
        if not pieces.begun:
            raise AdapterFailed(f"voice elevenlabs: {self._url} sends no audio")
        return pieces.end()

    async def _begin(self, text: str) -> tuple[ClientConnection, dict[str, Any] | None]:
        """Send a text; return its connection and the first frame of the answer.

        A connection that was made ahead may have ended meanwhile: then a new one is made, once.
        """
        spare, self._spare = self._spare, None
        fresh = spare is None or spare[0].state is not State.OPEN
        if spare is not None and anyio.current_time() - spare[1] > _SPARE_S:
            fresh = True
        if spare is not None and fresh:
            await self._close(spare[0])
        if spare is not None and not fresh:
            try:
                return spare[0], await self._ask(spare[0], text)
            except AdapterError:
                if self._closed:
                    raise
        socket = await self._dial()
        return socket, await self._ask(socket, text)

    async def _ask(self, socket: ClientConnection, text: str) -> dict[str, Any] | None:
        begin: dict[str, Any] = {"text": " "}
        if self._settings:
            begin["voice_settings"] = self._settings
        self._speaking.add(socket)
        words = {"text": f"{text.strip()} ", "try_trigger_generation": True, "flush": True}
        try:
            with suppress(ConnectionClosed):  # what it says for a reason is read below
                for frame in (begin, words, {"text": ""}):
                    await socket.send(json.dumps(frame))
            return await self._next(socket, False)
        except BaseException:
            await self._close(socket)
            raise

    async def _next(self, socket: ClientConnection, begun: bool) -> dict[str, Any] | None:
        """Return the next frame; None where the server ends an answer that has begun."""
        seconds = self._between_s if begun else self._first_s
        try:
            with anyio.fail_after(seconds):
                frame = json.loads(await socket.recv())
        except TimeoutError as error:
            raise AdapterFailed(f"voice elevenlabs: {self._url} was silent for {seconds:g} s") from error
        except ConnectionClosed as error:
            received = error.rcvd
            if begun and received is not None and received.code == 1000:
                return None
            words = said(received.reason) if received is not None and received.reason else str(error)
            refused = received is not None and received.code == _POLICY
            kind = AdapterUnavailable if refused else AdapterFailed
            raise kind(f"voice elevenlabs: {self._url} ended the connection: {words}") from error
        except ValueError as error:
            raise AdapterFailed(f"voice elevenlabs: {self._url} sent a frame that is no JSON") from error
        if not isinstance(frame, dict):
            raise AdapterFailed(f"voice elevenlabs: {self._url} sent a frame that is no object")
        if frame.get("error") or ("message" in frame and "audio" not in frame):
            kind = AdapterUnavailable if frame.get("code") == _POLICY else AdapterFailed
            raise kind(f"voice elevenlabs: {self._url} says: {said(frame)}")
        return frame

    async def _dial(self) -> ClientConnection:
        local = urlsplit(self._url).hostname in ("localhost", "127.0.0.1", "::1")
        try:
            return await connect(
                self._address,
                additional_headers={"xi-api-key": self._key} if self._key else None,
                open_timeout=self._first_s,
                close_timeout=_CLOSE_S,
                ping_interval=None,  # a phrase takes seconds, and has time limits of its own
                max_size=_MOST_FRAME,
                compression=None,  # audio in base64 is hardly made smaller
                proxy=None if local else True,
                logger=_log,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            words = f"{self._url} answers {status}: {said(error.response.body or b'')}"
            if status in (401, 403):
                words += "; check the key ($ELEVENLABS_API_KEY or api_key)"
            kind = AdapterUnavailable if status in (401, 403, 404) else AdapterFailed
            raise kind(f"voice elevenlabs: {words}") from error
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI, ImportError) as error:
            raise AdapterUnavailable(
                f"voice elevenlabs: nobody answers at {self._url} ({str(error) or type(error).__name__})"
            ) from error

    async def _dial_ahead(self) -> None:
        """Make the next phrase's connection; if that fails, the next phrase says why."""
        if self._spare is None:
            with suppress(AdapterError):
                socket = await self._dial()
                if self._closed or self._spare is not None:
                    await self._close(socket)
                else:
                    self._spare = socket, anyio.current_time()

    async def aclose(self) -> None:
        """Stop what is being spoken and close the connections; idempotent."""
        self._closed = True
        spare, self._spare = self._spare, None
        for socket in [*self._speaking, *([spare[0]] if spare else [])]:
            await self._close(socket)

    async def _close(self, socket: ClientConnection) -> None:
        """Close a connection without waiting for its peer: nothing that it sends is wanted."""
        self._speaking.discard(socket)
        socket.transport.abort()
        with anyio.CancelScope(shield=True):
            await socket.wait_closed()
