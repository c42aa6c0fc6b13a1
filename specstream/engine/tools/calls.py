"""Separates tool calls from the reply during generation."""

from __future__ import annotations

from collections.abc import Callable

from specstream.engine.tools.formats import CallFormat, CallLog
from specstream.engine.tools.readers import (
    CutOff,
    Malformed,
    PendingText,
    Step,
    first_of,
    read_calls,
    read_function,
    read_keys_and_values,
    read_value,
)
from specstream.tools import Tools, new_call_id

__all__ = ["Calls"]


_OPENER = 3  # characters of an opener that was cut, from which on it isn't text


class Calls:
    """Follows one reply, token by token; how the text is split into tokens changes nothing.

    Nothing that a model writes is lost, but for a call that was cut before its name: text that
    begins like a call but can't be parsed becomes a call with a problem and that text as its
    arguments. White space at the beginning of the reply and after a call belongs to the reply only
    if text follows.

    Attributes:
        log: The calls that were parsed.
        markers: Special tokens that decode to no text; `add` must be given these texts for them, by id.
        end: Index of the token after the last one that belongs to a call.
    """

    def __init__(self, form: CallFormat, tools: Tools, new_id: Callable[[], str] = new_call_id) -> None:
        self.log = CallLog(tools, new_id)
        self.markers = form.markers
        self.end = 0
        self._form = form
        self._forced = bool(tools.forced)  # the reply is calls: what may begin an opener does
        self._inlet = PendingText()
        self._said: list[str] = []
        self._speaking = False  # while False, white space is held back until text follows
        self._space = ""
        self._count = 0
        self._inside = self._cut = False
        self._reading = self._read()
        self._resume()

    @property
    def speaking(self) -> bool:
        """Whether the next text belongs to the reply, provided that no opener begins in it."""
        waits = self._inside or self.log.writing or bool(self._inlet.pending)
        return self._speaking and not waits

    def opens(self, text: str) -> bool:
        """Whether the first character of an opener occurs in this text, so that a call may begin."""
        return any(opener[0] in text for opener in self._form.openers if opener)

    def add(self, text: str) -> str:
        """Add the text that became final with a token; return the part of it that is the reply."""
        self._count += 1
        was_inside = self._inside or self.log.writing
        reply = self._take(text)
        if (was_inside or self._inside or self.log.writing) and not reply:
            self.end = self._count
        return reply

    def finish(self, text: str = "", *, cut: bool = False) -> str:
        """End the reply with ``text``; return the part of pending text that is the reply. Idempotent.

        ``cut``: the model had more to write. A call whose name isn't whole then is none.
        """
        self._cut = cut
        reply = self._take(text)
        self._inlet.ended = True
        reply += self._take("")
        space, self._space = self._space, ""
        return reply if self.log.calls or self._forced else reply + space

    def _take(self, text: str) -> str:
        self._inlet.feed(text)
        self._resume()
        said = "".join(self._said)
        self._said.clear()
        return said

    def _resume(self) -> None:
        next(self._reading, None)

    def _read(self) -> Step[None]:
        if self._form.bare:
            yield from self._bare()
        while opener := (yield from self._text()):
            self._inside, self._speaking, self._space = True, False, ""
            closer = self._form.openers[opener]
            self._inlet.mark()
            try:
                yield from self._section(opener, closer)
            except (Malformed, CutOff) as error:
                yield from self._mend(error, closer)
            self._inlet.release()
            self._inside = False

    def _say(self, text: str) -> None:
        if self.log.full:
            return
        self._space += text
        if self._speaking or self._space.strip():
            self._said.append(self._space)
            self._space, self._speaking = "", True

    def _text(self) -> Step[str]:
        """Read text of the reply up to an opener and return the opener; "" at the reply's end."""
        openers = tuple(self._form.openers)
        while True:
            pending = self._inlet.pending
            at, opener = first_of(openers, pending)
            begun = self._cut and len(pending) - at >= _OPENER  # of an opener that was cut
            if not opener and self._inlet.ended and not self._forced and not begun:
                at = len(pending)
            self._inlet.skip(at + len(opener))
            if at:
                self._say(pending[:at])
            if opener or self._inlet.ended:
                return opener
            yield

    def _bare(self) -> Step[None]:
        """Parse a reply that is a call without an opener if it begins with a brace; else leave it."""
        inlet, log = self._inlet, self.log
        while (char := (yield from inlet.peek())).isspace():
            inlet.skip(1)
            self._say(char)
        if char != "{":
            return
        try:
            yield from read_calls(inlet, log, expected=False)
        except (Malformed, CutOff) as error:
            if log.writing or log.calls:
                yield from self._mend(error, "")
            elif not self._forced:
                inlet.rewind()
        inlet.release()
        if log.calls:
            self._space = ""

    def _section(self, opener: str, closer: str) -> Step[None]:
        inlet, log = self._inlet, self.log
        char = yield from inlet.space()
        if opener == "<function=":
            yield from read_function(inlet, log)
        elif char and char in "[{":
            yield from read_calls(inlet, log)
        elif opener == "[TOOL_CALLS]":
            yield from self._named()
        elif opener == "<tool_call>" and char == "<":
            if not (yield from inlet.takes("<function=")):
                raise Malformed
            yield from read_function(inlet, log)
        elif opener == "<tool_call>" and "<arg_key>" in self._form.template:
            yield from read_keys_and_values(inlet, log, closer)
        else:
            raise Malformed if char else CutOff
        if closer:
            yield from self._close(closer)

    def _named(self) -> Step[None]:
        """Parse Mistral's ``name[ARGS]{…}`` or ``name{…}``, with or without ``[CALL_ID]``."""
        inlet = self._inlet
        name, mark = yield from inlet.until("[CALL_ID]", "[ARGS]", "{")
        if mark == "[CALL_ID]":
            _, mark = yield from inlet.until("[ARGS]", "{")
        if not mark:
            raise CutOff
        if mark == "{":
            inlet.skip(-1)
        self.log.open(name.strip())
        yield from inlet.space()
        yield from read_value(inlet, self.log.write)
        self.log.close()

    def _close(self, closer: str) -> Step[None]:
        """Read up to the closing tag. Text before it, other than brackets, becomes a broken call.

        A reply may end within the tag.
        """
        self._inlet.mark()
        rest, found = yield from self._inlet.until(closer)
        left = rest.strip(" \n\t}]")
        if left and (found or not closer.startswith(left)):
            self.log.open("")
            self.log.write(rest)
            self.log.close()

    def _mend(self, error: Malformed | CutOff, closer: str) -> Step[None]:
        """Make a call with a problem of text that can't be parsed, up to its closing tag."""
        inlet, log = self._inlet, self.log
        if not log.writing:
            before = inlet.since_mark()
            if isinstance(error, CutOff) and (self._cut or (log.calls and not before.strip())):
                return  # no call yet, or behind a whole one, as before the bracket of its list
            log.open("")
            log.write(before)
        if isinstance(error, CutOff):
            log.close(cut=True)
            return
        rest, _ = yield from inlet.until(*([closer] if closer else []))
        log.write(rest)
        log.close()
