"""Proposals of a step: the engine's guarded calls to its proposer, and the pass that verifies them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from specstream.drafting.checking import Explanation, checked, marked
from specstream.drafting.optional import (
    AdaptiveProposer,
    MidwayProposer,
    Passenger,
    SelectiveReader,
    StateReader,
    States,
    StepTimes,
)
from specstream.drafting.proposal import Proposal, Proposer, Verdict
from specstream.engine.core.request import Request, TokenSequence
from specstream.errors import ProposalError
from specstream.model.forward import PLAIN, Extras, Midway
from specstream.model.numerics import own_device, to_device
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import check_trees
from specstream.types import Preview, Span

__all__ = ["PassPart", "Proposing", "TargetPass", "plan_step", "preview", "previews"]


class PassPart(NamedTuple):
    """One request's part of a target pass."""

    request: Request  # admitted
    tokens: int  # how many unread committed tokens (prompt or reply) the pass reads
    proposal: Proposal | None  # verified after them; None if the prompt isn't read to its end

    @property
    def sequence(self) -> TokenSequence:
        """The request's sequence."""
        return self.request.sequence

    @property
    def proposed(self) -> int:
        """How many tokens are proposed."""
        return 0 if self.proposal is None else self.proposal.length


class TargetPass:
    """The results of a target pass. Parts that take a round come first, as in `plan_step`."""

    def __init__(
        self, parts: list[PassPart], starts: list[int], logits: list[Tensor], states: list[Tensor]
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
) -> list[PassPart]:
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
        PassPart(request, request.sequence.unread, proposal)
        for request, proposal in zip(decoding, proposals, strict=True)
    ]
    reading = []
    for request in ready:
        if request.stats.rounds:
            continue
        unread, share = request.sequence.unread, min(chunk, budget)
        if unread <= share:
            rounds.append(PassPart(request, unread, empty))
        elif share > 0:
            reading.append(PassPart(request, share, None))
        budget -= min(unread, share)
    return rounds + reading


def previews(shown: Sequence[tuple[Request, Proposal]]) -> list[Preview | None]:
    """Return the texts of proposals, with the limits that `Preview` names; None for one without text.

    For a tree this is the text along the first child of each node. On a GPU the host waits until the
    drafts have finished, since their token ids are read, once for the whole batch.
    """
    if not shown:
        return []
    tokens = [proposal.tokens for _, proposal in shown]
    flat = iter((torch.cat(tokens) if len(tokens) > 1 else tokens[0]).tolist())
    return [
        preview(request, proposal, list(islice(flat, proposal.length))) for request, proposal in shown
    ]


def preview(request: Request, proposal: Proposal, ids: Sequence[int]) -> Preview | None:
    """As `previews` for one proposal, whose token ids are ``ids``."""
    sequence, output = request.sequence, request.output
    if not ids or (output.calls is not None and not output.calls.speaking):
        return None
    drafted = [ids[node] for node in _first_path(proposal)]
    fork, texts, ends, params = output.fork(), list[str](), list[int](), sequence.params
    for token in drafted:
        if token in sequence.eos_ids or token in params.stop_token_ids:
            break
        if output.calls is not None and token in output.calls.markers:
            break
        searching = sequence.generated + len(texts) + 1 >= params.min_tokens
        text = fork.add(token, searching=searching)
        if fork.stopped or (output.calls is not None and output.calls.opens(fork.decoded)):
            break
        texts.append(text)
        ends.append(len(output.replied) + len(fork.replied))
    kept = max((n for n, text in enumerate(texts, 1) if text), default=0)
    if not kept:
        return None
    at, chars = sequence.generated, len(output.text)
    return Preview(
        text="".join(texts[:kept]),
        token_ids=tuple(drafted[:kept]),
        tokens=Span(at, at + kept),
        chars=Span(chars, chars + sum(map(len, texts[:kept]))),
        ends=tuple(ends[:kept]),
        round=request.stats.rounds,
        t_ms=request.elapsed_ms(),
        reasoning_end=max(fork.aside_end, output.aside_end),
    )


def _first_path(proposal: Proposal) -> list[int]:
    """Return the nodes from the root along each node's first child; all nodes of a chain."""
    path: list[int] = []
    for node, parent in enumerate(proposal.links):
        if parent == (path[-1] if path else -1):
            path.append(node)
    return path


P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("specstream.engine")
_LONGEST_PAUSE = 255  # rounds without calling a proposer that keeps failing


class Proposing:
    """Calls a proposer, checks what it returns and catches what it raises.

    An error means an empty proposal. After an error of `propose` the proposer isn't called for a number
    of rounds, which doubles with each consecutive error. The first error of each type is logged at level
    ERROR, later ones at DEBUG.

    Attributes:
        proposer: The proposer.
        depths: Depths (numbers of target layers) whose hidden states the proposer reads; () for none.
        predictions: Whether the proposer wants `Verdict.predictions`.

    Raises:
        ModelUnsupported: the proposer makes trees that the target can't verify, or needs hidden states
            that the target can't give.
    """

    def __init__(self, proposer: Proposer, target: ModelRunner) -> None:
        offered = proposer.capabilities
        self.proposer = proposer
        self.predictions = offered.predictions
        self._adaptive = proposer if isinstance(proposer, AdaptiveProposer) else None
        self._reader = proposer if isinstance(proposer, StateReader) else None
        self.depths = offered.hidden_states if self._reader is not None else ()
        self._selective = proposer if isinstance(proposer, SelectiveReader) else None
        self._midway = proposer if isinstance(proposer, MidwayProposer) else None
        self._passenger = proposer if isinstance(proposer, Passenger) else None
        if offered.trees:
            check_trees(target)
        if offered.hidden_states:
            target.check_states(offered.hidden_states)
        if self._midway is not None:
            target.check_states((self._midway.midway_depth,))
        self._device, self._vocab_size = target.device, target.vocab_size
        self._longest = target.fixed_width - 1 if target.fixed_width else target.context_length
        self._logged: set[type[BaseException]] = set()
        self._pause = self._rounds_to_pause = 0

    def propose(self, sequences: list[TokenSequence]) -> list[Proposal]:
        """Return one checked proposal per sequence; empty if the sequence doesn't speculate."""
        proposals = [Proposal.empty(self._device) for _ in sequences]
        if self._rounds_to_pause:
            self._rounds_to_pause -= 1
            return proposals
        # The target adds a token of its own, so a proposal as long as the room can't be fully accepted.
        most = [s.most_drafted for s in sequences]
        room = [min(s.room - 1, self._longest) for s in sequences]
        budget = [r if m is None else min(r, m) for r, m in zip(room, most, strict=True)]
        wanted = [i for i, most in enumerate(budget) if most > 0]
        if not wanted:
            return proposals
        made = self._spared(self._ask, [sequences[i] for i in wanted], [budget[i] for i in wanted])
        if made is None:
            for i in wanted:  # the proposer's caches may be in any state
                self.release(sequences[i].slot)
            self._pause = self._rounds_to_pause = min(2 * self._pause + 1, _LONGEST_PAUSE)
            return proposals
        self._pause, trees = 0, self.proposer.capabilities.trees
        for i, given in zip(wanted, made, strict=True):
            sound = self._spared(self._checked, given, budget[i], trees)
            if sound is not None:
                proposals[i] = sound if sound.source else replace(sound, source=self.proposer.name)
        return marked(proposals, self._vocab_size)

    def _ask(self, sequences: list[TokenSequence], budget: list[int]) -> list[Proposal]:
        given = self.proposer.propose(sequences, budget)
        if not isinstance(given, Sequence):
            raise ProposalError(f"propose must return a list of proposals, not {given!r:.80}")
        made = list(given)  # reading what isn't a list may raise
        if len(made) != len(sequences):
            raise ProposalError(f"{len(made)} proposals were made for {len(sequences)} requests")
        return made

    def _checked(self, given: Proposal, most: int, trees: bool) -> Proposal | None:
        if isinstance(given, Proposal) and _is_nothing(given.tokens):
            return None
        return checked(given, most, self._vocab_size, self._device, trees=trees)

    def extras(self, parts: list[PassPart]) -> Extras:
        """Return what the pass over these parts must do for the proposer, beyond giving logits."""
        rounds = [part for part in parts if part.proposal is not None]
        midway = None
        if self._midway is not None and any(part.proposed for part in rounds):
            midway = Midway(self._midway.midway_depth, partial(self._tell_midway, parts))
        rider = None
        if self._passenger is not None and rounds:
            proposals = [part.proposal for part in rounds if part.proposal is not None]
            sequences = [part.sequence for part in rounds]
            rider = self._spared(self._passenger.ride, sequences, proposals)
        depths = self.depths if self._wanted(parts) else ()
        if midway is None and rider is None and not depths:
            return PLAIN
        return Extras(depths, midway=midway, rider=rider)

    def _wanted(self, parts: list[PassPart]) -> bool:
        """Whether the proposer wants the hidden states of at least one of these parts."""
        selective = self._selective
        if selective is None or not self.depths:
            return True
        wanted = self._spared(lambda: any(selective.wants_states(part.sequence) for part in parts))
        return wanted is not False

    def _tell_midway(self, parts: list[PassPart], states: Iterable[Tensor]) -> None:
        """Hand states of last committed and proposed tokens to the proposer during the pass."""
        told = [(part, rows) for part, rows in zip(parts, states, strict=True) if part.proposed]
        if self._midway is not None:
            last = [rows[-1 - part.proposed :] for part, rows in told]
            self._spared(self._midway.midway, [part.sequence for part, _ in told], last)

    def observe(self, done: TargetPass, verdicts: list[Verdict]) -> None:
        """Tell the proposer the verdicts and the hidden states of the tokens that stay in the cache.

        Called before the tokens are committed.
        """
        if any(verdict.malformed for verdict in verdicts):
            self.complain(ProposalError("token ids or probs are out of range"))
        self._spared(self.proposer.observe, list(done.sequences), list(verdicts))
        if self._reader is not None and done.states:
            sequences = [part.sequence for part in done.parts]
            self._spared(self._reader.read, sequences, _kept(done, verdicts))

    def clock(self, times: StepTimes) -> None:
        """Tell a proposer that decides by cost how long the step took."""
        if self._adaptive is not None:
            self._spared(self._adaptive.clock, times)

    def explain(self, request_id: int | None = None) -> Explanation | None:
        """Explain an adaptive proposer's choice for a request, or for all; None for other proposers."""
        if self._adaptive is None:
            return None
        return self._spared(self._adaptive.explain, request_id)

    def finish(self, request_id: int) -> None:
        """Tell an adaptive proposer that a request has ended; its slot may serve a further one."""
        if self._adaptive is not None:
            self._spared(self._adaptive.finish, request_id)

    def release(self, slot: int) -> None:
        """Tell the proposer that a slot's cache is gone, so that it drops its own caches for it."""
        self._spared(lambda: self.proposer.release(slot))

    def close(self) -> None:
        """End the proposer's own thread, if it has one. Idempotent."""
        if self._midway is not None:
            self._spared(self._midway.close)

    def _spared(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of ``call``; None if it raises, which is logged."""
        try:
            with own_device():
                return call(*args, **kwargs)
        except BaseException as error:  # a CancelledError, too, must not end the engine's thread
            self.complain(error)
            return None

    def complain(self, error: BaseException) -> None:
        """Log what the proposer did wrong."""
        log = _log.debug if type(error) in self._logged else _log.error
        self._logged.add(type(error))
        traceback = None if isinstance(error, ProposalError) else error
        log("the proposer broke (%s); decoding goes on without its help", error, exc_info=traceback)


def _is_nothing(tokens: object) -> bool:
    """Whether these are the tokens of an empty proposal, which needs no further check."""
    return isinstance(tokens, Tensor) and tokens.dtype == torch.int64 and tokens.shape == (0,)


def _kept(done: TargetPass, verdicts: list[Verdict]) -> list[States]:
    """Return the hidden states of all committed tokens read in the pass and of accepted ones."""
    kept = [States(start, rows) for start, rows in zip(done.starts, done.states, strict=True)]
    for index, (proposal, verdict) in enumerate(zip(done.proposals, verdicts, strict=True)):
        if proposal.length:
            start, rows = done.starts[index], done.states[index]
            first = rows.shape[0] - proposal.length
            if proposal.parents:
                path = [*range(first), *(first + n for n in verdict.path)]
                found = rows.index_select(0, to_device(path, rows.device))
            else:
                found = rows[: first + verdict.accepted]
            kept[index] = States(start, found)
    return kept
