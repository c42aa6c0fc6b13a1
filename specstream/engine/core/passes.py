"""Plans the target's pass of a step, and previews its proposals for consumers that ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from specstream.drafting.proposal import Proposal
from specstream.engine.core.request import Request, TokenSequence
from specstream.types import Preview, Span

__all__ = ["PassPart", "TargetPass", "plan_step", "preview", "previews"]


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
        preview(request, proposal, list(islice(flat, proposal.length)))
        for request, proposal in shown
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
