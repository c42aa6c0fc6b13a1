"""The state of one Realtime session, without a socket: settings and conversation."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from specstream.realtime import events as ev, protocol as pr
from specstream.realtime.items import parse_input, tools_of
from specstream.realtime.resources import Extra, GeneratedAudio
from specstream.realtime.settings import (
    ResponseSettings,
    Sampling,
    SessionSettings,
    sampling_params,
    truncation_of,
)
from specstream.realtime.wire import Ignored, Refused, new_id
from specstream.server.sessions.entries import ConversationItems
from specstream.server.sessions.request import ResponseRequest
from specstream.types import SamplingParams

__all__ = ["RealtimeSession"]

_log = logging.getLogger("specstream.realtime")


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class RealtimeSession:
    """Applies client events and returns the server events that answer them.

    Running responses belong to the connection; their items are in ``conversation``.

    Attributes:
        settings: The session's settings; an update replaces the object.
        params: Sampling parameters where neither the session nor a response sets them.
        has_voice: Whether replies can be spoken.
        languages: Those that the recogniser knows; empty: any.
        resume: How the session can be resumed, if it can. Told in its first event.
        names: What answers: model, draft, voice, mark, recogniser. Told in the session's first event.
    """

    settings: SessionSettings
    params: SamplingParams
    has_voice: bool
    languages: Sequence[str] = ()
    resume: Mapping[str, Any] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    id: str = field(default_factory=lambda: new_id("sess"))
    conversation: ConversationItems = field(default_factory=ConversationItems)
    _audio_reported: bool = field(default=False, init=False)

    def created(self) -> ev.SessionEvent:
        """Return the session's first event."""
        resume = dict(self.resume) if self.resume is not None else None
        generated = None
        if self.has_voice:
            named = self.names.get
            generated = GeneratedAudio(model=named("target"), voice=named("voice"), mark=named("mark"))
        extra = Extra(names=dict(self.names) or None, generated=generated, resume=resume)
        return ev.SessionEvent(type="session.created", session=self._as_dict(), specstream=extra)

    def answer(self, event: pr.ClientEvent) -> list[ev.ServerEvent]:
        """Apply an event about the session or its items; returns the answers.

        Raises:
            Refused: the event can't be served; nothing has changed.
        """
        match event:
            case pr.SessionUpdate():
                return [self._update(event)]
            case pr.InputAudio():
                return self._input_audio()
            case pr.ItemCreate(item=message, previous_item_id=after):
                entry, previous = self.conversation.create(message, after)
                return [*ev.ItemEvent.both(entry.wire(), previous)]
            case pr.ItemDelete(item_id=item_id):
                self.conversation.delete(item_id)
                return [ev.ItemDeleted(item_id=item_id)]
            case pr.ItemRetrieve(item_id=item_id):
                return [ev.ItemRetrieved(item=self.conversation.get(item_id, "retrieve").wire())]
            case pr.ItemTruncate(item_id=item_id, content_index=index, audio_end_ms=end_ms):
                self.conversation.truncate(item_id, index, end_ms)
                cut: dict[str, Any] = {"content_index": index, "audio_end_ms": end_ms}
                return [ev.ItemTruncated(item_id=item_id, **cut)]
        raise AssertionError(event)

    def request(self, asked: ResponseSettings, said: str = "") -> ResponseRequest:
        """Resolve the response that ``asked`` describes, with the session's settings as defaults.

        ``said``: what the user is saying and the conversation doesn't have yet.

        Raises:
            Refused: a value is out of range, an item is unknown, or there is no voice.
        """
        session, own = self.settings, self.settings.specstream
        instructions = _given(asked.instructions, session.instructions)
        tools = _given(asked.tools, session.tools)
        if not tools and asked.tool_choice not in (None, "auto", "none"):
            message = "A call is asked for, and the response has no tools."
            raise Refused("invalid_value", message, param="response.tool_choice")
        parallel = _given(asked.parallel_tool_calls, session.parallel_tool_calls)
        limit = asked.max_output_tokens or session.max_output_tokens
        items = None if asked.input is None else parse_input(asked.input)
        output = asked.audio.output if asked.audio is not None else None
        spoken = session.audio.output
        messages = self.conversation.messages(instructions, items)
        if said:
            messages.append({"role": "user", "content": said})
        return ResponseRequest(
            messages=messages,
            params=sampling_params(
                self.params, own.sampling, asked.specstream.sampling, limit, at="response"
            ),
            audio=self._speaks(asked.output_modalities or session.output_modalities),
            wants=frozenset(own.events),
            conversation=None if asked.conversation == "none" else self.conversation,
            max_output_tokens=limit,
            voice=(output and output.voice) or spoken.voice,
            format=(output and output.format) or spoken.format,
            metadata=asked.metadata,
            tools=tools_of(tools, asked.tool_choice or session.tool_choice, parallel, at="response"),
            template_kwargs=own.chat_template_kwargs | asked.specstream.chat_template_kwargs,
            speculate=asked.specstream.speculate,
            learn=own.learn and asked.specstream.learn,
            truncation=truncation_of(session.truncation),
        )

    def _as_dict(self) -> dict[str, Any]:
        settings = self.settings.model_dump(mode="json")
        return {"id": self.id, "object": "realtime.session", **settings}

    def _updated(self, ignored: list[Ignored]) -> ev.SessionEvent:
        """List ignored settings with all settings: at an ``error``, pipecat would end its session."""
        extra = Extra(ignored=ignored or None)
        session = self._as_dict()
        return ev.SessionEvent(type="session.updated", session=session, specstream=extra)

    def _update(self, event: pr.SessionUpdate) -> ev.SessionEvent:
        settings = self.settings.merged(event.session)
        tools_of(settings.tools, settings.tool_choice, settings.parallel_tool_calls, at="session")
        self._speaks(settings.output_modalities)
        sampling_params(self.params, settings.specstream.sampling, Sampling(), "inf", at="session")
        heard, ignored = settings.audio.input.transcription, event.ignored
        known = self.languages
        if heard is not None and heard.language and known and heard.language not in known:
            message = f"Ignored: the recogniser knows only: {', '.join(known)}."
            param = "session.audio.input.transcription.language"
            ignored = [*ignored, Ignored(param=param, message=message)]
            heard.language = None
        self.settings = settings
        return self._updated(ignored)

    def _input_audio(self) -> list[ev.ServerEvent]:
        """Report audio that is ignored, once: a microphone sends fifty frames a second."""
        if self._audio_reported:
            return []
        self._audio_reported = True
        _log.warning("a client sends microphone audio; this server hears none and ignores it")
        message = "Audio is ignored: this server hears none; send text as an item."
        ignored = Ignored(code="input_audio_not_supported", param="type", message=message)
        return [self._updated([ignored])]

    def _speaks(self, modalities: list[Any]) -> bool:
        audio = modalities == ["audio"]
        if audio and not self.has_voice:
            message = 'This server has no voice; ask for ["text"].'
            raise Refused("audio_not_available", message, param="output_modalities")
        return audio


def _given(asked: T | None, default: T) -> T:
    return default if asked is None else asked
