"""Checks that a proposal can be verified, and the explanation that an adaptive proposer gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specstream.drafting.proposal import MAX_NODES, Proposal
from specstream.errors import ProposalError
from specstream.model.forward import Entered
from specstream.model.native.sampling import native_distributions
from specstream.model.tokens.sampling import free_to_look
from specstream.model.tree import Tree

__all__ = ["Explanation", "checked", "distributions", "marked"]

_TOLERANCE = 1e-3  # of a row's sum: a hundred times float32's rounding over a large vocabulary


def checked(
    proposal: object, most: int, vocab_size: int, device: torch.device, *, trees: bool = False
) -> Proposal:
    """Check a proposal's types, shapes, device and depth; return it in normal form.

    On a CPU values are checked as well: ids must be in the vocabulary, and rows must be distributions.
    On other devices `marked` and the verifier handle wrong values.

    Args:
        proposal: The object that a proposer returned.
        most: Its budget: the greatest depth.
        vocab_size: Width of the target's logits.
        device: The target's device.
        trees: Whether the proposer may propose trees.

    Raises:
        ProposalError: the proposal is malformed; the message says how.
    """
    if not isinstance(proposal, Proposal):
        raise ProposalError(f"a proposer must return Proposal objects, not {proposal!r:.80}")
    tokens, probs = proposal.tokens, proposal.probs
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64 or tokens.dim() != 1:
        raise ProposalError(f"tokens must be an int64 tensor [K], not {_kind(tokens)}")
    count = tokens.shape[0]
    if count == 0:
        return Proposal.empty(device)
    tree = _shape(proposal, trees)
    depth = count if tree is None else 1 + max(tree.depths)
    if depth > most:
        raise ProposalError(f"{depth} tokens were proposed, {most} at most wanted")
    if probs is not None:
        if not isinstance(probs, Tensor) or probs.dtype != torch.float32:
            raise ProposalError(f"probs must be a float32 tensor, not {_kind(probs)}")
        if tuple(probs.shape) != (count, vocab_size):
            raise ProposalError(f"probs must be {(count, vocab_size)}, not {tuple(probs.shape)}")
        probs = probs.detach() if probs.requires_grad else probs
    for tensor in (tokens, probs):
        if tensor is not None and (tensor.device != device or tensor.layout != torch.strided):
            raise ProposalError(f"proposals must be dense and on {device}, not {_kind(tensor)}")
    if free_to_look(tokens):
        if not all(0 <= token < vocab_size for token in tokens.tolist()):
            raise ProposalError(f"token ids must be 0 to {vocab_size - 1}: {tokens.tolist()}")
        if probs is not None and not _all_distributions(probs):
            raise ProposalError("each row of probs must be a distribution: from 0, with sum 1")
    if proposal.sound is not None:
        raise ProposalError("sound is set by the engine: leave it None")
    if not isinstance(proposal.source, str):
        raise ProposalError(f"source must be a text, not {type(proposal.source).__name__}")
    entered = proposal.entered
    if entered is not None and (tree is not None or not isinstance(entered, Entered)):
        raise ProposalError("entered must be an Entered object (or None), and only a chain may have one")
    # A drawn tree that happens to be a chain keeps its parents and so the tree rule: whether a node got
    # a sibling may depend on its token, and which rule applies must not depend on drawn tokens.
    chain = tree is None and (probs is None or not trees)
    parents = None if chain else proposal.parents
    if probs is proposal.probs and parents is proposal.parents:
        return proposal
    return replace(proposal, probs=probs, parents=parents)


def _shape(proposal: Proposal, trees: bool) -> Tree | None:
    """The checked tree of a proposal; None for a chain."""
    parents = proposal.parents
    if parents is None:
        return None
    if not isinstance(parents, tuple) or not all(type(parent) is int for parent in parents):
        raise ProposalError(f"parents must be a tuple of whole numbers, not {parents!r:.80}")
    try:
        tree = proposal.tree
    except ValueError as error:
        raise ProposalError(str(error)) from None
    if tree is None:
        return None
    if not trees:
        raise ProposalError("a tree needs a proposer whose capabilities say trees=True")
    if len(parents) > MAX_NODES:
        raise ProposalError(f"a tree may have {MAX_NODES} nodes, not {len(parents)}")
    return tree


def marked(proposals: Sequence[Proposal], vocab_size: int) -> list[Proposal]:
    """Replace ids outside the vocabulary where `checked` couldn't read them, so that no pass fails.

    The replaced ids are False in `Proposal.sound`; the verifier accepts no drawn token there.
    """
    if not proposals or free_to_look(proposals[0].tokens):
        return list(proposals)
    ids = torch.cat([proposal.tokens for proposal in proposals])
    if not ids.shape[0]:
        return list(proposals)
    safe = ids.clamp(0, vocab_size - 1)
    lengths = [proposal.length for proposal in proposals]
    parts, sound = torch.split(safe, lengths), torch.split(ids == safe, lengths)
    each = zip(proposals, parts, sound, strict=True)
    return [replace(proposal, tokens=part, sound=mark) for proposal, part, mark in each]


def _all_distributions(rows: Tensor) -> bool:
    found = native_distributions(rows, _TOLERANCE)
    return bool(distributions(rows).all()) if found is None else found


def distributions(rows: Tensor) -> Tensor:
    """``[...]`` bool: which ``rows [..., V]`` are distributions, up to `_TOLERANCE`."""
    return ((rows.sum(-1) - 1.0).abs() < _TOLERANCE) & (rows.amin(-1) >= 0.0)


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    shape = "×".join(map(str, value.shape))
    return f"{value.dtype} {value.layout} [{shape}] on {value.device}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state of the policy in figures and words.

    Costs are relative to the time of a plain round, which decodes one token per request.

    Attributes:
        words: The figures as a sentence.
        kind: The candidate that proposes in most rounds at present; "off" where few rounds have a
            proposal.
        num_tokens: Mean tokens proposed per round.
        acceptance: Probability that the first proposed token is accepted.
        tau: Mean tokens per round, the target's own token included.
        draft_cost: Cost of one draft pass.
        verify_cost: Cost of the target pass over a proposal of ``num_tokens`` tokens.
        overhead: Cost of everything outside the passes, in a round with a proposal.
        predicted_speedup: Expected tokens per expected time, against plain decoding.
        ceiling: The speedup if every proposed token were accepted.
    """

    words: str
    kind: str
    num_tokens: float
    acceptance: float
    tau: float
    draft_cost: float
    verify_cost: float
    overhead: float
    predicted_speedup: float
    ceiling: float
