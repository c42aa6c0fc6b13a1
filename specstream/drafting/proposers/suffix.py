"""Suffix lookup (SuffixDecoding, Oliaro et al. 2024): drafts what followed the same tokens elsewhere.

Sources are the prompt (earlier turns included), the reply so far, the request's reference and past
replies. There is no model and no training; a look-up takes about 12 µs, 26 µs with past replies.

**Past replies** are kept in a `ReplyStore` of bounded size. Its text is only drafted from, and drafts
never change the reply. But the speed of a reply and its number of accepted tokens reveal whether similar
text was written before. So by default a store belongs to one conversation. With ``store="engine"`` all
requests share one store: for a single user, or for users who may learn that much about each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import torch

from specstream.drafting.candidate import EngineParts, Task, TaskProposal, TaskProposer
from specstream.drafting.policy.records import Candidate, Offer
from specstream.drafting.proposal import Capabilities, Proposal, SpecRequest
from specstream.drafting.proposers.suffix_index import FOLLOWED, Lookup, ReplyStore, RequestText
from specstream.methods import SuffixProposerConfig
from specstream.model.numerics import to_device

__all__ = ["SUFFIX_LOOKUP", "SuffixProposer", "build", "lookup_offer"]


# Evidence classes of a lookup, with prior acceptance. The class of the first token is given by
# `Lookup.support` and the length of the match, that of a later token by the length matched up to it and
# by whether another place agrees. Token i after a match of m tokens is as likely as the first one after
# a match of m + i: if it is reached, the match has grown by i. The values were measured by replaying
# two targets' replies to prompts of five domains.
_EDGES = (2, 3, 4, 5, 7, 10, 16, 24)
_BUCKET = [bisect_right(_EDGES, length) for length in range(_EDGES[-1] + 1)]
_FIRST = (
    (0.28, 0.54, 0.66, 0.74, 0.76, 0.85),  # own text: no other place,
    (0.17, 0.33, 0.43, 0.5, 0.57, 0.76),  # another one that went on otherwise,
    (0.54, 0.78, 0.85, 0.9, 0.92, 0.98),  # or alike
    (0.18, 0.34, 0.55, 0.55, 0.75, 0.9),  # past replies, likewise
    (0.11, 0.2, 0.25, 0.38, 0.44, 0.75),
    (0.37, 0.64, 0.82, 0.88, 0.9, 0.98),
    (0.8, 0.85, 0.88, 0.9, 0.9, 0.92),  # the reference, likewise
    (0.65, 0.8, 0.85, 0.86, 0.88, 0.9),
    (0.95, 0.97, 0.98, 0.98, 0.98, 0.98),
    (0.16,) * 6,  # the reference without a match
)
_ALONE, _ALIKE, _PARTS, _PARTED = range(4)  # no other place; agreed; the first that isn't; after it
_LATER = (
    (0.5, 0.56, 0.66, 0.74, 0.76, 0.81, 0.87, 0.91, 0.95),
    (0.7, 0.72, 0.79, 0.86, 0.89, 0.93, 0.96, 0.98, 0.98),
    (0.18, 0.18, 0.23, 0.34, 0.38, 0.42, 0.48, 0.56, 0.54),
    (0.5, 0.55, 0.58, 0.64, 0.74, 0.8, 0.88, 0.93, 0.95),
)
_LATER_FOLLOWED = (
    (0.8, 0.88, 0.9, 0.91, 0.92, 0.92, 0.93, 0.94, 0.95),
    (0.95, 0.97, 0.98, 0.98, 0.98, 0.98, 0.98, 0.98, 0.98),
    (0.8, 0.82, 0.84, 0.84, 0.84, 0.83, 0.82, 0.82, 0.8),
    (0.9, 0.92, 0.94, 0.95, 0.95, 0.95, 0.95, 0.96, 0.96),
)
_WIDTH, _LENGTHS = len(_FIRST[0]), len(_EDGES) + 1
_PRIORS = tuple(p for row in (*_FIRST, *_LATER, *_LATER_FOLLOWED) for p in row)
SUFFIX_LOOKUP = Candidate("suffix", "suffix lookup", "none", priors=_PRIORS)


def lookup_offer(tokens: Sequence[int], match: int, support: int = 0, agreed: int = -1) -> Offer:
    """An offer of ``tokens``; the rest as in `Lookup`."""
    if not tokens:
        return Offer(0)
    longest = _EDGES[-1]
    evidence = [support * _WIDTH + min(_BUCKET[min(match, longest)], _WIDTH - 1)]
    followed = FOLLOWED <= support
    base = len(_FIRST) * _WIDTH + followed * len(_LATER) * _LENGTHS
    for i in range(1, len(tokens)):
        state = _ALONE if agreed < 0 else min(_ALIKE + max(0, i + 1 - agreed), _PARTED)
        evidence.append(base + state * _LENGTHS + _BUCKET[min(match + i, longest)])
    return Offer(len(tokens), evidence, ids=tokens)


class SuffixProposer(TaskProposer):
    """Drafts the continuation that follows most of the places that match the end of the text.

    Drafts are deterministic, so the verifier needs no probabilities. Used alone, a draft ends where the
    probability that all its tokens are accepted, by the priors, falls below ``min_score``.

    Attributes:
        device: Of the proposals.
        texts: By slot, the text of its latest request.
        stores: By slot, the past replies of its conversation.
    """

    name = "suffix"
    candidate = SUFFIX_LOOKUP
    capabilities = Capabilities()

    def __init__(self, config: SuffixProposerConfig, device: torch.device) -> None:
        self._config = config
        self.most, self.least = config.num_tokens, config.min_score
        self.device = device
        self.texts: dict[int, RequestText] = {}
        self.stores: dict[int, ReplyStore] = {}
        shared = config.store == "engine" and config.store_tokens > 0
        self._shared = ReplyStore(config.store_tokens) if shared else None

    def look_up(self, request: SpecRequest, count: int) -> Lookup:
        """Return the offer for the next position, at most ``count`` and ``num_tokens`` tokens."""
        slot = request.slot
        text = self.texts.get(slot)
        if text is None or text.request_id != request.id:
            if text is not None:
                self._keep(slot, text)
            text = RequestText(
                request.id, request.token_ids, request.prompt_length, request.reference_ids
            )
            self.texts[slot] = text
        store = self._shared if self._shared is not None else self.stores.get(slot)
        return text.look_up(min(count, self.most), self._config.min_match, store)

    def _keep(self, slot: int, text: RequestText) -> None:
        """Store the reply of a request that has ended."""
        if self._shared is not None:
            self._shared.add(text.reply)
        elif self._config.store_tokens:
            store = self.stores.get(slot)
            if store is None:
                store = self.stores[slot] = ReplyStore(self._config.store_tokens)
            store.add(text.reply)

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Return what was found for the next position."""
        return lookup_offer(*self.look_up(request, budget))

    def draft(self, tasks: Sequence[Task]) -> list[TaskProposal]:
        """Propose the offered tokens, none where no ``min_match`` tokens match."""
        return [
            TaskProposal(Proposal(to_device(_likely(task), self.device), source="suffix"))
            for task in tasks
        ]

    def release(self, slot: int) -> None:
        """Drop the slot's text and store; a shared store keeps the reply."""
        text = self.texts.pop(slot, None)
        if text is not None and self._shared is not None:
            self._shared.add(text.reply)
        self.stores.pop(slot, None)


def _likely(task: Task) -> Sequence[int]:
    """The offered tokens, cut *before* the one at which ``go_on``, told the priors, ends the draft.

    Only tokens that were not drawn may be left out like that.
    """
    for count, evidence in enumerate(task.offer.evidence[: task.count]):
        if task.go_on is not None and not task.go_on(_PRIORS[evidence]):
            return task.offer.ids[:count]
    return task.offer.ids[: task.count]


def build(config: SuffixProposerConfig, parts: EngineParts) -> SuffixProposer:
    """Build a lookup whose proposals are on the target's device."""
    return SuffixProposer(config, parts.target.device)
