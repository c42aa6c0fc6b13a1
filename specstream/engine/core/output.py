"""Text of one reply: decodes tokens, splits off reasoning and tool calls, cuts at a stop string."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from specstream.engine.core.detokenizer import Detokenizer, Repeats, StopMatcher, TextDecoder
from specstream.engine.core.reasoning import Reasoning
from specstream.engine.tools.calls import Calls

__all__ = ["ReplyOutput"]


class ReplyOutput:
    """Turns committed tokens into the text that is final.

    Attributes:
        text: The reply's text that was emitted; maintained by the caller of `add` and `finish`.
        decoded: The text of all tokens, reasoning and its tags included.
        replied: The reply without reasoning and calls, including an end that is still held back because
            it may begin a stop string.
        reasoning: Tracks the reasoning spans.
        calls: Tracks the tool calls; None if the request has no tools.
    """

    def __init__(
        self,
        decoder: TextDecoder,
        stops: Sequence[str],
        reasoning: Reasoning,
        calls: Calls | None = None,
        repeats: Repeats | None = None,
    ) -> None:
        self.text = self.decoded = self.replied = ""
        self.reasoning = reasoning
        self.calls = calls
        self._detokenizer = Detokenizer(decoder)
        self._stops = StopMatcher(stops)
        self._repeats = repeats
        self._tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the reply."""
        return self._stops.stopped

    @property
    def looping(self) -> str:
        """The sentence that was written too often; "" if there is none."""
        return self._repeats.looping if self._repeats is not None else ""

    @property
    def aside_end(self) -> int:
        """Index of the token after the last one that belongs to reasoning or to a call."""
        return max(self.reasoning.end, self.calls.end if self.calls is not None else 0)

    def fork(self) -> ReplyOutput:
        """Return a copy that continues from here, to find the text of drafted tokens.

        The copy's ``text``, ``decoded`` and ``replied`` begin empty, and it doesn't look for calls.
        """
        twin = copy.copy(self)
        twin.text = twin.decoded = twin.replied = ""
        twin.calls = twin._repeats = None
        twin.reasoning = copy.copy(self.reasoning)
        twin._detokenizer, twin._stops = self._detokenizer.fork(), copy.copy(self._stops)
        return twin

    def add(self, token: int, *, shown: bool = True, searching: bool = True) -> str:
        """Add a token; return the text that became final with it, which the caller adds to ``text``.

        Args:
            token: The next token of the reply.
            shown: False for an end-of-sequence token, which has no text.
            searching: False while a stop string may not end the reply yet.
        """
        self._tokens += 1
        decoded = self._detokenizer.add(token) if shown else ""
        self.decoded += decoded
        if self.calls is not None and shown:
            decoded += self.calls.markers.get(token, "")
        reply = self.reasoning.add(decoded, token)
        if self.calls is not None:
            reply = self.calls.add(reply)
        self.replied += reply
        if self._repeats is not None:
            self._repeats.read(self.replied)
        return self._stops.add(reply, searching=searching)

    def finish(self, *, cut: bool) -> str:
        """End the reply; return text held back as part of a character, tag or stop. Idempotent.

        ``cut``: the model had more to write.
        """
        rest = self._detokenizer.finish()
        self.decoded += rest
        reply = self.reasoning.finish(rest)
        if self.calls is not None:
            reply = self.calls.finish(reply, cut=cut)
        self.replied += reply
        return self._stops.add(reply) + self._stops.finish()
