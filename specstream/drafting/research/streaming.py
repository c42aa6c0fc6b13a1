"""Speculative Streaming (arXiv 2402.11131): the pass that verifies a draft writes the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from specstream.drafting.candidate import EngineParts, Task, TaskProposal, TaskProposer
from specstream.drafting.proposal import Capabilities, Proposal, SpecRequest, Verdict
from specstream.drafting.rows import draft_ready, take_chain
from specstream.methods import StreamingProposerConfig
from specstream.model.heads.research.streaming import StreamingHead, Streams

__all__ = ["StreamingProposer", "build"]


class _Next(NamedTuple):
    """The streams of a request's last accepted token, from which the next proposal is drafted.

    Attributes:
        request_id: The request.
        length: The request's number of tokens for which the streams are valid.
        states: ``[streams, hidden]``.
    """

    request_id: int
    length: int
    states: Tensor


class StreamingProposer(TaskProposer):
    """Drafts from the streams of the last accepted token, which the verifying pass has computed.

    A stream predicts its token without knowing the drafted tokens between, so a token's q is the
    stream's own distribution. If the last accepted token got no streams (see ``prune_below``), the next
    round has no draft.

    Attributes:
        kept: By slot, the streams that its next proposal is drafted from.
    """

    name = "streaming"
    capabilities = Capabilities()

    def __init__(self, config: StreamingProposerConfig, head: StreamingHead) -> None:
        self._config, self._head = config, head
        self.most = min(config.num_tokens, head.shape.streams)
        self.least = config.min_confidence
        self._looks = head.device.type == "cpu"
        self.kept: dict[int, _Next] = {}
        self._pass: Streams | None = None
        self._on_board: list[int] = []  # slots of the requests that have streams in that pass

    def draft(self, tasks: Sequence[Task]) -> list[TaskProposal]:
        """Draft for each task at most as many tokens as there are streams."""
        return draft_ready(tasks, self._streams, self._chains, self._head.device)

    def _streams(self, request: SpecRequest) -> Tensor | None:
        """The streams behind the request's tokens, ``[streams, hidden]``; None: there are none."""
        found = self.kept.get(request.slot)
        if found is None or found[:2] != (request.id, len(request.token_ids)):
            return None
        return found.states

    def _chains(self, known: Sequence[tuple[Task, Tensor]]) -> list[TaskProposal]:
        rows = self._head.logits(torch.cat([states[: task.count] for task, states in known]))
        each = rows.split_with_sizes([task.count for task, _ in known])
        return [
            take_chain(task, logits, looks=self._looks, source=self.name)
            for (task, _), logits in zip(known, each, strict=True)
        ]

    def ride(self, requests: Sequence[SpecRequest], proposals: Sequence[Proposal]) -> Streams | None:
        """Streams for the proposed tokens and for the last committed token before them."""
        self._on_board = [request.slot for request in requests]
        proposed = [proposal.tokens for proposal in proposals]
        self._pass = Streams(self._head, proposed, self._config.prune_below)
        return self._pass

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Keep the streams of each request's last accepted token."""
        states = self._pass.states if self._pass is not None else []
        found, self._pass = dict(zip(self._on_board, states, strict=False)), None
        for request, verdict in zip(requests, verdicts, strict=True):
            self.kept.pop(request.slot, None)
            nodes = found.get(request.slot)
            if nodes is not None and verdict.accepted < nodes.shape[0]:
                length = len(request.token_ids) + len(verdict.tokens)
                # A copy, since a view would keep the states of all nodes alive.
                self.kept[request.slot] = _Next(request.id, length, nodes[verdict.accepted].clone())

    def release(self, slot: int) -> None:
        """Drop the slot's streams."""
        self.kept.pop(slot, None)


def build(config: StreamingProposerConfig, parts: EngineParts) -> StreamingProposer:
    """Build the proposer of the streaming head that was loaded.

    Raises:
        ConfigError: none was loaded.
    """
    return StreamingProposer(config, cast(StreamingHead, parts.head("streaming")))
