"""Previews: the text of a round's proposal before verification, for consumers that ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch

from specstream.engine.request import Request
from specstream.speculation.proposal import Proposal
from specstream.types import Preview, Span

__all__ = ["preview", "previews"]


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
