"""What an `LLM` remembers of its chats: a cache's name, and the latest reply to each chat's end."""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from uuid import uuid4

from livekit.agents.llm import ChatContext, ChatItem
from specstream import TextEngine

from .dropped import DroppedReplies

__all__ = ["Attempt", "Chats"]

_MOST_CHATS = 64

Point = tuple[tuple[str, float], ...]


@dataclass(slots=True)
class Attempt:
    """One reply to a point of a chat.

    Attributes:
        session: The name of the chat's cache in the engine.
        before: The latest reply to the same point, which this one takes the place of.
        text: What was written so far.
        tokens: How many tokens that took.
        ended: Whether it was written to its end.
        counted: Whether it was counted as dropped.
    """

    session: str
    before: "Attempt | None" = None
    text: str = ""
    tokens: int = 0
    ended: bool = False
    counted: bool = False


@dataclass(slots=True)
class _Chat:
    session: str = field(default_factory=lambda: f"livekit-{uuid4().hex}")
    point: Point = ()
    latest: Attempt | None = None


class Chats:
    """The chats of one `LLM`; of the 64 that were used last, the older ones are forgotten.

    LiveKit hands over each request as a list of items and doesn't name the chat. A chat is known by its
    first item, which keeps its id and time; a point of it by the items before the user's last words,
    since each guess at these has an id of its own.
    """

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine
        self._chats: OrderedDict[tuple[str, float], _Chat] = OrderedDict()
        self.dropped = DroppedReplies()

    def attempt(self, context: ChatContext) -> Attempt:
        """Begin a reply to the end of a chat."""
        items = [(item.id, item.created_at) for item in context.items]
        if not items:
            return Attempt(f"livekit-{uuid4().hex}")
        chat = self._chats.setdefault(items[0], _Chat())
        self._chats.move_to_end(items[0])
        if len(self._chats) > _MOST_CHATS:
            _, oldest = self._chats.popitem(last=False)
            self._engine.forget(oldest.session)
        point = tuple(items[: _point(context.items)])
        before = chat.latest if chat.point == point else None
        chat.point, chat.latest = point, Attempt(chat.session, before if point else None)
        return chat.latest

    def reference(self, attempt: Attempt) -> str:
        """The text of the reply that ``attempt`` takes the place of; empty if there is none.

        Counts that reply as dropped.
        """
        before, attempt.before = attempt.before, None  # no chain of replies is kept
        if before is None:
            return ""
        if before.ended:
            self._count(before, superseded=1)
        if before.text and self._engine.capabilities.reference:
            self.dropped = replace(self.dropped, referenced=self.dropped.referenced + 1)
            return before.text
        return ""

    def cancelled(self, attempt: Attempt) -> None:
        """Count a reply that was stopped while it was written."""
        self._count(attempt, cancelled=1)

    def _count(self, attempt: Attempt, *, cancelled: int = 0, superseded: int = 0) -> None:
        if attempt.counted:
            return
        attempt.counted = True
        self.dropped = replace(
            self.dropped,
            cancelled=self.dropped.cancelled + cancelled,
            superseded=self.dropped.superseded + superseded,
            tokens=self.dropped.tokens + attempt.tokens,
        )

    def forget(self) -> None:
        """Let the engine drop the caches of all chats."""
        for chat in self._chats.values():
            self._engine.forget(chat.session)
        self._chats.clear()


def _point(items: list[ChatItem]) -> int:
    """How many items come before the user's last words."""
    end = len(items)
    while end and (last := items[end - 1]).type == "message" and last.role == "user":
        end -= 1
    return end
