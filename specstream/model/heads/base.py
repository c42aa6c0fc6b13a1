"""What every drafting head tells of itself."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Head"]


class Head(Protocol):
    """Trained weights that draft from a target's hidden states; made by its method's loader.

    Attributes:
        kind: The drafting method, a key of `specstream.speculation.proposers.KINDS`.
        parameters: Trained parameters; weights shared with the target don't count.
        nbytes: Memory that the head adds, in bytes.
    """

    kind: str
    parameters: int
    nbytes: int
