"""A draft model with another tokenizer than the target's (Timor et al. 2025, arXiv 2502.05202)."""

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
from specstream.speculation.proposers.rendering import Rendered, Rendering
from specstream.speculation.proposers.retokenised import retokenised
from specstream.types import SamplingParams

__all__ = ["ForeignDraftProposer"]

_log = logging.getLogger("specstream.speculation")

Way = Literal["retokenised", "intersection"]
_ALIKE = 0.98  # overlap from which a greedy draft misses nothing among the common tokens
_ENOUGH = 0.5  # overlap below which most of q would be cut off
_GREEDY = SamplingParams()


class ForeignDraftProposer(TaskProposer):
    """Lets a draft write in its own tokens, in one of two ways that fit different requests.

    Retokenised: the draft's greedy text becomes the target's tokens, without probabilities.
    Intersection: the draft draws among common tokens, with their probabilities.

    Args:
        config: Settings; ``vocabulary`` forces one way.
        runner: The draft.
        target_eos: Ids that end a turn, the target's.
        translation: The two vocabularies.
        device: The target's.
        prefill_chunk: Tokens that one pass reads at most.
    """

    name = "draft"
    capabilities = Capabilities(own_cache=True)

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
        """How a request is drafted for."""
        if self._config.vocabulary != "auto":
            return self._config.vocabulary
        least = _ALIKE if params.greedy else _ENOUGH
        return "intersection" if self._translation.overlap >= least else "retokenised"

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Any number of tokens, once the draft has read what it is behind.

        None behind half a character that the draft has no tokens for.
        """
        way = self.way(request.params)
        view = self._view(request, way)
        return Offer(0) if view is None else Offer(budget, behind=self._writers[way].behind(view))

    def draft(self, tasks: Sequence[Task]) -> list[Drafted]:
        """Write the tasks' chains, those of one way in lockstep."""
        results: list[Drafted] = [Drafted(Proposal.empty(self._device)) for _ in tasks]
        passes = 0
        for way, writer in self._writers.items():
            chains: dict[int, Drafting] = {}
            for number, task in enumerate(tasks):
                if task.count < 1 or self.way(task.request.params) != way:
                    continue
                view = self._view(task.request, way)
                if view is not None:
                    chains[number] = Drafting(view, task.count, task.go_on)
            if not chains:
                continue
            passes += writer.write(list(chains.values()))
            for number, chain in chains.items():
                proposal = self._proposal(tasks[number], chain, way)
                told = chain.confidences if way == "intersection" else ()
                results[number] = Drafted(proposal, told, passes, chain.read)
        return results

    def _proposal(self, task: Task, chain: Drafting, way: Way) -> Proposal:
        drafted = torch.cat(chain.tokens).tolist() if chain.tokens else []
        if chain.state is not None and drafted:
            # The cache holds them; the next round compares them with what was committed.
            read = self._read_as(drafted) if way == "intersection" else drafted
            chain.state.rows.extend(read)
        if way == "intersection":
            return chain.proposal(self._device)
        request = task.request
        half = self._renderings[request.slot].half
        ids = retokenised(self._translation, request.token_ids, half, drafted)[: task.count]
        return Proposal(to_device(ids, self._device), source="draft")

    def _read_as(self, ids: Sequence[int]) -> list[int]:
        """Common tokens as the draft's own, in the ids of `IntersectionRunner`."""
        return [self._common.shift + self._translation.to_draft.get(i, 0) for i in ids]

    def _view(self, request: SpecRequest, way: Way) -> Rendered | None:
        """The request as the draft sees it; None if it can't be rendered."""
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
        """Drop the slot's text and caches."""
        self._renderings.pop(slot, None)
        for writer in self._writers.values():
            writer.release(slot)


_SAMPLED = SamplingParams(temperature=1.0)
_WORDS = {"retokenised": "retokenised", "intersection": "from the common tokens"}
