"""Chunked prefill: chooses how many prompt tokens a step reads along with other requests' rounds."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from specstream.engine.request import Request
from specstream.engine.sequence import Sequence
from specstream.speculation.proposal import Proposal

__all__ = ["Part", "Pass", "PrefillBudget", "plan_step"]

_LEAST = 16  # prompt tokens of a pass; fewer would hardly amortise reading the weights
_FIRST_GUESS = 64  # prompt tokens of a pass, before its times are known
_WEIGHT = 0.2  # of a new sample in a moving average
_SHARE = 1.25  # what prompt tokens and proposals may add to a step, in usual rounds' times


class Part(NamedTuple):
    """One request's part of a target pass."""

    request: Request  # admitted
    tokens: int  # how many unread committed tokens (prompt or reply) the pass reads
    proposal: Proposal | None  # verified after them; None if the prompt isn't read to its end

    @property
    def sequence(self) -> Sequence:
        """The request's sequence."""
        return self.request.sequence

    @property
    def proposed(self) -> int:
        """How many tokens are proposed."""
        return 0 if self.proposal is None else self.proposal.length


class Pass:
    """The results of a target pass. Parts that take a round come first, as in `plan_step`."""

    def __init__(
        self, parts: list[Part], starts: list[int], logits: list[Tensor], states: list[Tensor]
    ) -> None:
        self.parts = parts
        self.starts = starts  # the position of each part's first token
        self.logits = logits  # [K + 1, V] of each part
        self.states = states  # [n, depths, hidden] of each part, if the proposer reads them
        self.rounds = [part for part in parts if part.proposal is not None]
        self.sequences = [part.sequence for part in self.rounds]
        self.proposals = [part.proposal for part in parts if part.proposal is not None]


def plan_step(
    ready: list[Request], proposals: list[Proposal], *, chunk: int, budget: int, empty: Proposal
) -> list[Part]:
    """Divide a step's pass among requests: first the parts that take a round, then pure prefill.

    A prompt that is read to its end takes its first round in the same pass, without a proposal, so that
    the first token doesn't wait until the draft has read the prompt.

    Args:
        ready: Admitted requests, oldest first.
        proposals: One for each of them that has had a round before, in their order.
        chunk: Maximum prompt tokens of one request in a pass.
        budget: Maximum prompt tokens of the pass; the oldest prompt is served first.
        empty: An empty proposal on the target's device.
    """
    decoding = [request for request in ready if request.stats.rounds]
    rounds = [
        Part(request, request.sequence.unread, proposal)
        for request, proposal in zip(decoding, proposals, strict=True)
    ]
    reading = []
    for request in ready:
        if request.stats.rounds:
            continue
        unread, share = request.sequence.unread, min(chunk, budget)
        if unread <= share:
            rounds.append(Part(request, unread, empty))
        elif share > 0:
            reading.append(Part(request, share, None))
        budget -= min(unread, share)
    return rounds + reading


class PrefillBudget:
    """Learns how many prompt tokens take 1.25 times as long as a usual decoding round.

    A step that prefills so many tokens along with a round makes the gap between two chunks a little more
    than twice as long, which a listener can't hear. A larger budget makes longer gaps and hardly saves
    time; a smaller one keeps new requests waiting. Proposed tokens take as long as prompt tokens and
    are deducted, so that all steps take about equally long.
    """

    def __init__(self) -> None:
        self._round_ms: float | None = None
        self._token_ms: float | None = None
        self._mixed = False  # whether a pass was seen that decoded and prefilled

    def observe(self, ms: float, read: int, *, beside: bool) -> None:
        """Add a target pass of ``ms`` milliseconds.

        Args:
            ms: Its time.
            read: Prompt tokens that it read.
            beside: Whether it also decoded requests whose prompts had been read before.
        """
        if beside and read == 0:
            self._round_ms = _moved(self._round_ms, ms)
        elif self._round_ms is None or read < _LEAST:
            return
        elif beside and self._token_ms is not None:
            # Correct both estimates: while some prompt is always being read, no round is seen alone.
            error = _WEIGHT * (ms - self._round_ms - self._token_ms * read)
            self._round_ms = max(self._round_ms + error, 1e-3)
            self._token_ms = max(self._token_ms + error / read, 0.0)
            self._mixed = True
        elif not self._mixed:  # pure prefill: a poor estimate of what it adds to a round
            self._token_ms = _moved(self._token_ms, max(0.0, ms - self._round_ms) / read)

    def tokens(self, most: int, proposed: int) -> int:
        """Return the prompt tokens for a pass that verifies ``proposed`` tokens, at most ``most``."""
        if self._round_ms is None or self._token_ms is None:
            return min(most, _FIRST_GUESS)
        ms = _SHARE * self._round_ms
        if (most + proposed) * self._token_ms <= ms:
            return most
        return min(most, max(_LEAST, int(ms / self._token_ms) - proposed))


def _moved(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
