"""A client of the Realtime server, for Python programs; it needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specstream.lazy import offers

if TYPE_CHECKING:
    from specstream.client.client import (
        AudioDelta as AudioDelta,
        AvatarDelta as AvatarDelta,
        Done as Done,
        Problem as Problem,
        PromptDelta as PromptDelta,
        RealtimeClient as RealtimeClient,
        RealtimeEvent as RealtimeEvent,
        RealtimeReport as RealtimeReport,
        ReasoningDelta as ReasoningDelta,
        Reply as Reply,
        Revoked as Revoked,
        TextDelta as TextDelta,
        TextPreview as TextPreview,
        ToolCalled as ToolCalled,
        ToolDelta as ToolDelta,
    )

__all__, __getattr__, __dir__ = offers(
    __name__,
    {
        "specstream.client.client": (
            "AudioDelta AvatarDelta Done Problem PromptDelta RealtimeClient RealtimeEvent "
            "RealtimeReport ReasoningDelta Reply Revoked TextDelta TextPreview ToolCalled "
            "ToolDelta"
        )
    },
)
