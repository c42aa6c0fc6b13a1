"""Self-speculation: the target's first layers draft, its others verify (LayerSkip, arXiv 2404.16710)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from specstream.errors import ConfigError
from specstream.methods import EarlyExitProposerConfig
from specstream.model.entry import Entered
from specstream.model.forward import Extras, ForwardInput
from specstream.model.heads.early_exit import EarlyExit
from specstream.model.kv.base import RowCache
from specstream.model.runner import ModelRunner
from specstream.model.transfer import to_device
from specstream.speculation.optional import CachedRequest
from specstream.speculation.policy.records import Candidate, Offer
from specstream.speculation.proposal import Capabilities, Proposal, SpecRequest
from specstream.speculation.proposers.candidate import Drafted, Task, TaskProposer
from specstream.speculation.proposers.drafting import Drafting
from specstream.speculation.proposers.parts import Parts

__all__ = ["EarlyExitProposer", "build", "exit_of"]

_CONTEXT = 128  # rows before a pass that is timed


@dataclass(slots=True)
class _Chain(Drafting):
    """A chain that the target's first layers write."""

    states: list[Tensor] = field(default_factory=list)  # ``[n, hidden]`` each, in order

    @property
    def cache(self) -> RowCache:
        """The target's."""
        return cast(RowCache, cast(CachedRequest, self.request).cache)


class EarlyExitProposer(TaskProposer):
    """Lets the first layers of the target write ahead; their keys, values and states are kept.

    The drafted tokens' rows of these layers are in the target's own cache, and the target's pass over
    them begins behind these layers: verification costs the other layers only, and the last token whole.
    Nothing is kept between rounds. What the exit says can only cost acceptance, as the kept states are
    the target's own.
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
        self._target, self._exit, self._eos_ids = target, leave, eos_ids
        self.most = config.num_tokens
        self._first = Extras((leave.layers,), logits=False)
        self._looks = target.device.type == "cpu"
        self.candidate = Candidate(
            self.name, f"the target's first {leave.layers} layers", stops=self._looks
        )

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Any number of tokens."""
        return Offer(budget)

    def draft(self, tasks: Sequence[Task]) -> list[Drafted]:
        """Write the tasks' chains in lockstep."""
        chains = [_Chain(task.request, task.count, task.go_on) for task in tasks]
        passes = self._write(chains)
        return [Drafted(self._proposal(c), c.confidences, passes) for c in chains]

    @torch.inference_mode()
    def rehearse(self) -> None:
        """One draft pass of one token."""
        cache = cast(RowCache, self._target.new_cache())
        rows = min(_CONTEXT, self._target.context_length - 1)
        cache.reserve(rows + 1)
        cache.append_to(rows)
        token = torch.zeros(1, dtype=torch.int64, device=self._target.device)
        (states,) = self._target.forward([ForwardInput(token, cache)], self._first).states
        self._exit.logits(states[:, 0])[0, 0].item()  # wait for the device

    def _write(self, chains: Sequence[_Chain]) -> int:
        """Write the chains, in step; the number of passes of the first layers."""
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
                rows = self._exit.logits(torch.cat([each[-1:] for each in states]))
                for (chain, _), each, row in zip(
                    inputs, states, rows.unsqueeze(1).unbind(), strict=True
                ):
                    chain.states.append(each)
                    chain.choose(row, looks=self._looks, ends=self._eos_ids)
        finally:
            for cache, start in starts:
                cache.rollback_to(start)
        return passes

    def _proposal(self, chain: _Chain) -> Proposal:
        """What was written, with the states that verification goes on from."""
        made = chain.proposal(self._target.device, self.name)
        if not chain.tokens:
            return made
        states = torch.cat(chain.states)
        return replace(made, entered=Entered(chain.cache.length, self._exit.layers, states))

    def release(self, slot: int) -> None:
        """Nothing is kept."""


def exit_of(parts: Parts, layers: int | None, *, share: float) -> EarlyExit:
    """The trained exit that was loaded, else the target's own norm and head behind ``layers`` layers.

    Args:
        parts: The engine's models.
        layers: None: where the trained exit is, else behind this ``share`` of the target's layers.
        share: See ``layers``.

    Raises:
        ConfigError: a trained exit is behind another number of layers.
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


def build(config: EarlyExitProposerConfig, parts: Parts) -> EarlyExitProposer:
    """The target's first layers as a proposer.

    Raises:
        ConfigError: see `exit_of`.
        ModelUnsupported: the target runs through its own forward, or in reproducible mode.
    """
    leave = exit_of(parts, config.layers, share=0.25)
    return EarlyExitProposer(config, parts.target, leave, parts.eos_ids)
