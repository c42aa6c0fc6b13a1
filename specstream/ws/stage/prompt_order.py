"""Checks that a remote rewriter's prompts show the text that it was given, and revise each other."""

from __future__ import annotations

from specstream.types import Revoke, ScenePrompt
from specstream.ws.stage.codec import Violation
from specstream.ws.stage.given import Given
from specstream.ws.stage.order import Order

__all__ = ["PromptOrder"]


class PromptOrder(Order):
    """The text of one turn, and the latest version of each shot.

    After a flush or a revoke, a board may number its shots anew, or go on with a version from before
    text that was withdrawn. So shots are compared with the versions since then only, except that a
    version that is replaced must have been given in this turn.
    """

    def __init__(self) -> None:
        self._given = Given()
        self._latest: dict[str, int] = {}  # version of each shot since the last flush or revoke
        self._versions: dict[str, tuple[str, int]] = {}  # all that were given, by "shot_id@rev"

    def send(self, item: object) -> None:
        """Count an item that is sent."""
        self._given.send(item)

    def check(self, prompt: ScenePrompt, read: int | None = None) -> None:
        """Count a prompt that was received, with the ``read`` of its frame.

        Raises:
            Violation: it shows text that was not given, or revises what it can't revise.
        """
        given, name = self._given.last, _prompt_name(prompt)
        first, end = prompt.span
        if prompt.t_start_ms < 0:
            raise Violation(f"{name} starts at {prompt.t_start_ms} ms")
        if end > given.chars.end or prompt.tokens.end > given.tokens:
            raise Violation(
                f"{name} shows characters {first} to {end}, tokens {prompt.tokens.start} to "
                f"{prompt.tokens.end}; the text that it was given ends at character "
                f"{given.chars.end}, token {given.tokens}"
            )
        if read is not None and not end <= read <= given.chars.end:
            raise Violation(
                f"{name} shows characters up to {end} and has 'read' {read}; the text that it was "
                f"given ends at {given.chars.end}"
            )
        self._revise(prompt)

    def _revise(self, prompt: ScenePrompt) -> None:
        shot, rev, old = prompt.shot_id, prompt.rev, prompt.supersedes
        latest = self._latest.get(shot)
        if rev < 0 or (latest is not None and rev <= latest):
            raise Violation(f"{_prompt_name(prompt)} came after version {latest}")
        if latest is not None and old != f"{shot}@{latest}":
            raise Violation(
                f"{_prompt_name(prompt)} must supersede '{shot}@{latest}', not {old!r:.80}"
            )
        if latest is None and old is not None:
            name, number = self._versions.get(old, ("", rev))
            if name != shot or number >= rev:
                raise Violation(
                    f"{_prompt_name(prompt)} supersedes {old!r:.80}, which is no earlier version"
                )
        self._latest[shot] = rev
        self._versions[f"{shot}@{rev}"] = shot, rev

    def flush(self) -> None:
        """The rewriter has answered a flush."""
        self._latest.clear()

    def revoke(self, revoke: Revoke) -> None:
        """The rewriter has answered to the first revoke that was unanswered."""
        self._given.revoke(revoke.from_char)
        self._latest.clear()


def _prompt_name(prompt: ScenePrompt) -> str:
    return f"version {prompt.rev} of shot {prompt.shot_id!r:.80}"
