"""Self-speculation: the target's first layers draft, the rest verify (LayerSkip, arXiv 2404.16710)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from specstream.drafting.calibration import CONTEXT
from specstream.drafting.candidate import EngineParts, Task, TaskProposal, TaskProposer
from specstream.drafting.chain import Drafting
from specstream.drafting.optional import CachedRequest
from specstream.drafting.policy.records import Candidate
from specstream.drafting.proposal import Capabilities, Proposal
from specstream.errors import ConfigError
from specstream.methods import EarlyExitProposerConfig
from specstream.model.forward import Entered, Extras, ForwardInput
from specstream.model.heads.research.early_exit import EarlyExit
from specstream.model.kv import RowCache
from specstream.model.numerics import to_device
from specstream.model.runner import ModelRunner

__all__ = ["EarlyExitProposer", "build", "exit_of"]


@dataclass(slots=True)
class _Chain(Drafting):
    """A chain drafted by the target's first layers.

    Attributes:
        states: The states ``[n, hidden]`` that each draft pass left after these layers, in order.
    """

    states: list[Tensor] = field(default_factory=list)

    @property
    def cache(self) -> RowCache:
        """The target's cache of the request."""
        return cast(RowCache, cast(CachedRequest, self.request).cache)


class EarlyExitProposer(TaskProposer):
    """Drafts with the target's first layers, whose keys, values and states the target's pass reuses.

    The drafted tokens' rows of these layers are in the target's own cache, and the verifying pass begins
    behind these layers; only for the last drafted token, which no draft pass read, it computes them all.
    Nothing is kept between rounds. A bad exit lowers acceptance but can't change the output, because the
    reused states are the target's own.

    Attributes:
        exit: The early exit: the layers before it draft.
    """

    name = "early-exit"
    capabilities = Capabilities()

    def __init__(
        self,
        config: EarlyExitProposerConfig,
        target: ModelRunner,
        leave: EarlyExit,
        eos_ids: frozenset[int],
    ) -> None:
        self._target, self.exit, self._eos_ids = target, leave, eos_ids
        self.most = config.num_tokens
        self._first = Extras((leave.layers,), logits=False)
        self._looks = target.device.type == "cpu"
        self.candidate = Candidate(
            self.name, f"the target's first {leave.layers} layers", stops=self._looks
        )

    def draft(self, tasks: Sequence[Task]) -> list[TaskProposal]:
        """Draft the tasks' chains in lockstep."""
        chains = [_Chain(one.request, one.count, one.go_on, self._eos_ids) for one in tasks]
        passes = self._write(chains)
        return [TaskProposal(self._proposal(c), c.confidences, passes) for c in chains]

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Draft one token behind `CONTEXT` rows, and wait for the device."""
        cache = cast(RowCache, self._target.new_cache())
        rows = min(CONTEXT, self._target.context_length - 1)
        cache.reserve(rows + 1)
        cache.append_to(rows)
        token = torch.zeros(1, dtype=torch.int64, device=self._target.device)
        (states,) = self._target.forward([ForwardInput(token, cache)], self._first).states
        self.exit.logits(states[:, 0])[0, 0].item()  # wait for the device

    def _write(self, chains: Sequence[_Chain]) -> int:
        """Write the chains in lockstep; return the number of passes through the first layers."""
        active, passes = [chain for chain in chains if chain.count > 0], 0
        starts = [(chain.cache, chain.cache.length) for chain in active]
        try:
            for chain in active:
                ids = chain.request.token_ids[chain.cache.length :]
                chain.unread = to_device(ids, self._target.device)
            while inputs := [
                (chain, ForwardInput(chain.unread, chain.cache))
                for chain in active
                if chain.unread is not None
            ]:
                passes += 1
                made = self._target.forward([item for _, item in inputs], self._first)
                states = [each[:, 0] for each in made.states]
                rows = self.exit.logits(torch.cat([each[-1:] for each in states]))
                for (chain, _), each, row in zip(
                    inputs, states, rows.unsqueeze(1).unbind(), strict=True
                ):
                    chain.states.append(each)
                    chain.choose(row, looks=self._looks)
        finally:
            for cache, start in starts:
                cache.rollback_to(start)
        return passes

    def _proposal(self, chain: _Chain) -> Proposal:
        """The chain as a proposal, with the states from which the verifying pass goes on."""
        made = chain.proposal(self._target.device, self.name)
        if not chain.tokens:
            return made
        states = torch.cat(chain.states)
        return replace(made, entered=Entered(chain.cache.length, self.exit.layers, states))

    def release(self, slot: int) -> None:
        """Do nothing: nothing is kept between rounds."""


def exit_of(parts: EngineParts, layers: int | None, *, share: float) -> EarlyExit:
    """The trained exit that was loaded, or an untrained one: the target's own norm and output head.

    Args:
        parts: The engine's models.
        layers: The number of layers before the exit; None: the trained exit's, or without a trained exit
            ``share`` of the target's layers.
        share: See ``layers``.

    Raises:
        ConfigError: the trained exit is behind another number of layers.
        ModelUnsupported: the target can't be left there.
    """
    trained = cast("EarlyExit | None", parts.heads.get(EarlyExit.kind))
    if trained is not None:
        if layers not in (None, trained.layers):
            raise ConfigError(
                f"the early exit that --draft names is behind {trained.layers} layers, not {layers}; "
                "leave layers out"
            )
        return trained
    if layers is None:
        layers = max(1, round(share * len(parts.target.decoder.weights.layers)))
    return EarlyExit(parts.target, layers)


def build(config: EarlyExitProposerConfig, parts: EngineParts) -> EarlyExitProposer:
    """Build the proposer that drafts with the target's first layers.

    Raises:
        ConfigError: see `exit_of`.
        ModelUnsupported: the target runs through its own forward, or in reproducible mode.
    """
    leave = exit_of(parts, config.layers, share=0.25)
    return EarlyExitProposer(config, parts.target, leave, parts.eos_ids)
