"""Chunked prefill: how many prompt tokens a step reads beside the rounds of other requests."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from specstream.engine.request import Request
from specstream.engine.sequence import Sequence
from specstream.speculation.proposal import Proposal

__all__ = ["Part", "Pass", "PrefillBudget", "plan_step"]

_LEAST = 16  # tokens; fewer would spend the step on reading the weights
_FIRST_GUESS = 64
_WEIGHT = 0.2  # of a new sample in a moving average
_SHARE = 1.25  # of a usual round's time: what prompt tokens and proposals may add to a step


class Part(NamedTuple):
    """One request's part of a target pass."""

    request: Request  # admitted
    tokens: int  # how many of its committed tokens are read
    proposal: Proposal | None  # verified behind them; None where the prompt isn't read to its end

    @property
    def sequence(self) -> Sequence:
        """The request's sequence."""
        return self.request.sequence

    @property
    def proposed(self) -> int:
        """How many tokens are proposed."""
        return 0 if self.proposal is None else self.proposal.length


class Pass:
    """A target pass that is over. The parts that take a round come first, as in `plan_step`."""

    def __init__(
        self, parts: list[Part], starts: list[int], logits: list[Tensor], states: list[Tensor]
    ) -> None:
        self.parts = parts
        self.starts = starts  # the position of each part's first token
        self.logits = logits  # [K + 1, V] of each part
        self.states = states  # [n, depths, hidden] of each part, where the proposer reads them
        self.rounds = [part for part in parts if part.proposal is not None]
        self.sequences = [part.sequence for part in self.rounds]
        self.proposals = [part.proposal for part in parts if part.proposal is not None]


def plan_step(
    ready: list[Request], proposals: list[Proposal], *, chunk: int, budget: int, empty: Proposal
) -> list[Part]:
    """The parts of a step's pass: first those that take a round, then those that only read.

    Args:
        ready: Admitted requests, oldest first.
        proposals: One for each of them that has had a round before.
        chunk: Maximum prompt tokens of one request in a pass.
        budget: Maximum prompt tokens of the pass; the oldest prompt is served first. A prompt that is
            read to its end takes its first round, which drafts nothing: the first token doesn't wait
            for the draft to read the prompt.
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
    """Learns how many prompt tokens fit into a quarter more than the time of a decoding round.

    Reading them beside a round makes the gap between two chunks a little more than twice as long,
    which a listener can't hear. A larger budget makes longer gaps and hardly saves time; a smaller one
    keeps new requests waiting. Proposed tokens take as long as prompt tokens and are deducted, so that
    all steps take about equally long.
    """

    def __init__(self) -> None:
        self._round_ms: float | None = None
        self._token_ms: float | None = None
        self._mixed = False  # whether a pass was seen that did both

    def observe(self, ms: float, read: int, *, beside: bool) -> None:
        """A target pass took ``ms`` and read so many prompt tokens; ``beside``: and decoded others."""
        if beside and read == 0:
            self._round_ms = _moved(self._round_ms, ms)
        elif self._round_ms is None or read < _LEAST:
            return
        elif beside and self._token_ms is not None:
            # Either estimate may be off: where somebody always reads, no round is seen alone.
            error = _WEIGHT * (ms - self._round_ms - self._token_ms * read)
            self._round_ms = max(self._round_ms + error, 1e-3)
            self._token_ms = max(self._token_ms + error / read, 0.0)
            self._mixed = True
        elif not self._mixed:  # a pass that only reads says little of what reading adds to a round
            self._token_ms = _moved(self._token_ms, max(0.0, ms - self._round_ms) / read)

    def tokens(self, most: int, proposed: int) -> int:
        """Prompt tokens for a pass with so many ``proposed`` ones, at most ``most``."""
        if self._round_ms is None or self._token_ms is None:
            return min(most, _FIRST_GUESS)
        ms = _SHARE * self._round_ms
        if (most + proposed) * self._token_ms <= ms:
            return most
        return min(most, max(_LEAST, int(ms / self._token_ms) - proposed))


def _moved(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
