"""Drafting with a model whose tokenizer isn't the target's (Timor et al. 2025, arXiv 2502.05202)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import torch

from specstream.methods import DraftProposerConfig
from specstream.model.runner import ModelRunner
from specstream.model.transfer import to_device
from specstream.model.vocabulary import Translation
from specstream.speculation.policy.records import Candidate, Offer
from specstream.speculation.proposal import Capabilities, Proposal, SpecRequest
from specstream.speculation.proposers.candidate import Drafted, Task, TaskProposer
from specstream.speculation.proposers.draft_model import DraftModelProposer
from specstream.speculation.proposers.drafting import Drafting
from specstream.speculation.proposers.intersection import IntersectionRunner
from specstream.speculation.proposers.rendering import Rendering
from specstream.speculation.proposers.retokenised import retokenised
from specstream.speculation.proposers.view import Rendered
from specstream.types import SamplingParams

__all__ = ["ForeignDraftProposer"]

_log = logging.getLogger("specstream.speculation")

Way = Literal["retokenised", "intersection"]
# Least share of common tokens for drafting by intersection. Greedy: below that, the draft's likeliest
# token is too often none of them. Sampled: below that, most of q would be cut off.
_MIN_OVERLAP_GREEDY, _MIN_OVERLAP_SAMPLED = 0.98, 0.5
_GREEDY, _SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)
_WORDS = {"retokenised": "retokenised", "intersection": "from the common tokens"}


class ForeignDraftProposer(TaskProposer):
    """Drafts in another vocabulary than the target's, in one of two ways, chosen per request.

    Retokenised: the draft writes greedily in its own tokens, and its text is encoded in the target's
    tokens, without probabilities. Intersection: the draft draws among the tokens that both vocabularies
    have, with their probabilities.

    Args:
        config: Settings; ``vocabulary`` forces one way.
        runner: The draft model.
        target_eos: The target's token ids that end a turn.
        translation: Between the two vocabularies.
        device: The target's device.
        prefill_chunk: The most prompt tokens that one pass reads.
    """

    name = "draft"
    capabilities = Capabilities()

    def __init__(
        self,
        config: DraftProposerConfig,
        runner: ModelRunner,
        target_eos: frozenset[int],
        translation: Translation,
        device: torch.device,
        prefill_chunk: int = 512,
    ) -> None:
        self._config, self._translation, self._device = config, translation, device
        self.most = config.num_tokens
        self._common = IntersectionRunner(runner, translation)
        own_ends = frozenset(translation.draft_ends)
        self._writers: dict[Way, DraftModelProposer] = {
            "retokenised": DraftModelProposer(config, runner, own_ends, prefill_chunk),
            "intersection": DraftModelProposer(config, self._common, target_eos, prefill_chunk),
        }
        self._renderings: dict[int, Rendering] = {}
        title = (
            f"the draft (another tokenizer, {translation.overlap:.0%} of tokens in common; greedy "
            f"replies {_WORDS[self.way(_GREEDY)]}, sampled ones {_WORDS[self.way(_SAMPLED)]})"
        )
        _log.info("%s", title)
        self.candidate = Candidate(
            "draft", title, stops=self._writers["retokenised"].candidate.stops
        )

    def way(self, params: SamplingParams) -> Way:
        """The way in which a request with these parameters is drafted for."""
        if self._config.vocabulary != "auto":
            return self._config.vocabulary
        least = _MIN_OVERLAP_GREEDY if params.greedy else _MIN_OVERLAP_SAMPLED
        return "intersection" if self._translation.overlap >= least else "retokenised"

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Offer up to ``budget`` tokens, once the draft has read the tokens that it lags behind.

        Nothing is offered after an incomplete character that the draft can't spell.
        """
        way = self.way(request.params)
        view = self._view(request, way)
        return Offer(0) if view is None else self._writers[way].offer(view, budget)

    def draft(self, tasks: Sequence[Task]) -> list[Drafted]:
        """Draft the tasks' chains; those drafted in the same way run in lockstep."""
        results: list[Drafted] = [Drafted(Proposal.empty(self._device)) for _ in tasks]
        chains: dict[Way, dict[int, Drafting]] = {way: {} for way in self._writers}
        for number, task in enumerate(tasks):
            way = self.way(task.request.params)
            if task.count > 0 and (view := self._view(task.request, way)) is not None:
                chains[way][number] = Drafting(view, task.count, task.go_on)
        passes = 0
        for way, each in chains.items():
            passes += self._writers[way].write(list(each.values()))
            for number, chain in each.items():
                proposal = self._proposal(tasks[number], chain, way)
                told = chain.confidences if way == "intersection" else ()
                results[number] = Drafted(proposal, told, passes, chain.read)
        return results

    def _proposal(self, task: Task, chain: Drafting, way: Way) -> Proposal:
        drafted = torch.cat(chain.tokens).tolist() if chain.tokens else []
        if chain.state is not None and drafted:
            # Their rows are in the cache; the next round compares them with the committed tokens.
            if way == "intersection":  # as `IntersectionRunner` names the draft's own tokens
                own = self._translation.to_draft
                read = [self._common.shift + own.get(token, 0) for token in drafted]
            else:
                read = drafted
            chain.state.rows.extend(read)
        if way == "intersection":
            return chain.proposal(self._device)
        request = task.request
        half = self._renderings[request.slot].half
        ids = retokenised(self._translation, request.token_ids, half, drafted)[: task.count]
        return Proposal(to_device(ids, self._device), source="draft")

    def _view(self, request: SpecRequest, way: Way) -> Rendered | None:
        """The request in the draft's tokens; None if its text is empty or can't be spelled."""
        kept = self._renderings.get(request.slot)
        if kept is None or kept.request_id != request.id:
            kept = self._renderings[request.slot] = Rendering(self._translation, request.id)
        kept.read(request.token_ids)
        ids = kept.context
        if not ids:
            return None
        if way == "retokenised":
            return Rendered(request, ids, _GREEDY)
        return Rendered(request, [self._common.shift + i for i in ids], request.params)

    def release(self, slot: int) -> None:
        """Drop the slot's rendered text and draft caches."""
        self._renderings.pop(slot, None)
        for writer in self._writers.values():
            writer.release(slot)
