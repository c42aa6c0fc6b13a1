"""Checks of a model pair: verification rules on its own distributions, and samples of the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specstream.bench.exactness.enumeration import (
    Table,
    enumerate_rule,
    g_test,
    holm,
    joint,
    samples_needed,
)
from specstream.bench.exactness.harness import next_row, run_requests, sample
from specstream.checks import counted
from specstream.drafting.proposal import Proposer
from specstream.drafting.rules import block_rule, deterministic_rule, ratio_rule, tree_rule
from specstream.engine.core.step import EngineCore
from specstream.model.forward import ForwardInput
from specstream.model.runner import ModelRunner
from specstream.model.tokens.sampling import probabilities
from specstream.types import Message, SamplingParams

__all__ = ["Finding", "Probe", "check_rules", "check_samples", "end_ids_of"]

_OTHER = -1  # any token that is not among the most likely
_TREE = [-1, -1, 0]  # parents: two children of the root, and a child of the first
_DETECTED = 0.5  # a sample must be large enough to detect this total variation
_PARAMS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.8, top_p=0.95),
    SamplingParams(temperature=1.2, top_k=40, repetition_penalty=1.1, presence_penalty=0.3),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim and whether it holds here. ``details`` is JSON data.

    ``conclusive`` is False where the check could hardly have failed; ``holds`` then says only that
    nothing speaks against the claim.
    """

    claim: str
    holds: bool
    says: str
    details: Mapping[str, Any] = field(default_factory=dict)
    conclusive: bool = True


class Rows:
    """The target's logits after a prompt and a few tokens, cached by these tokens, one token a pass."""

    def __init__(self, runner: ModelRunner, prompt: Sequence[int]) -> None:
        self._runner = runner
        self._cache = runner.new_cache()
        self._length = len(prompt)
        self._known: dict[tuple[int, ...], Tensor] = {}
        self._known[()] = self._read(list(prompt))

    @torch.inference_mode()
    def _read(self, ids: list[int]) -> Tensor:
        device, width = self._runner.device, self._runner.fixed_width or 512
        for part in torch.split(torch.tensor(ids, device=device), width):
            logits = self._runner.forward([ForwardInput(part, self._cache)]).logits[0]
        return logits[-1].float().cpu()

    def after(self, reply: tuple[int, ...]) -> Tensor:
        """``[V]`` float32."""
        if reply not in self._known:
            self._cache.rollback_to(self._length)
            for token in reply:
                row = self._read([token])
            self._known[reply] = row
        return self._known[reply]


class Probe:
    """A stand-in for a request, to ask a proposer for its draft distribution in a context."""

    _numbers = itertools.count(-1, -1)  # never the number of a real request or slot

    def __init__(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self.prompt_length = len(prompt)
        self.params = params
        self.reference_ids: list[int] = []
        self.token_ids = list(prompt)
        self.slot = next(self._numbers)
        self.id = self.slot

    def process(self, logits: Tensor, drafted: Sequence[int] | Tensor) -> Tensor:
        """Return the logits unchanged."""
        return logits

    def draw(self, probs: Tensor, position: int, ids: Tensor | None = None) -> Tensor:
        """Return the most likely token; any would do, as only the distribution is read."""
        return probs.argmax(-1)

    def row(self, proposer: Proposer, reply: tuple[int, ...]) -> Tensor | None:
        """``[V]``: the draft distribution after ``reply``; None if the proposer has none."""
        self.token_ids = [*self.token_ids[: self.prompt_length], *reply]
        self.id = next(self._numbers)
        (proposal,) = proposer.propose([self], [1])
        if proposal.probs is None or not proposal.length:
            return None
        return proposal.probs[0].cpu()


def end_ids_of(core: EngineCore, messages: list[Message]) -> frozenset[int]:
    """The tokens that end a reply of this engine."""
    (request,) = run_requests(core, messages, [SamplingParams(max_tokens=1)], proposer="off")
    return request.sequence.eos_ids


def check_rules(core: EngineCore, prompts: Sequence[list[Message]]) -> Finding:
    """Enumerate every rule on the pair's own distributions, in float64.

    The vocabulary is the six tokens that are most likely after the prompt. The tables hold target and
    draft probabilities of these tokens, normalised, in all contexts of up to two of them.
    """
    errors: dict[str, float] = {}
    overlap, accepted = [], {"ratio": 0.0, "block": 0.0}
    with torch.inference_mode():
        for messages in prompts:
            ids = core.admission.encode(messages).ids
            target, draft = _tables(core, ids)
            wanted = joint(target)
            drawn = draft is not None
            q = draft or target
            for name, rule, parents in _rules(drawn):
                outcome = enumerate_rule(rule, target, q, parents)
                error = float((outcome.joint - wanted).abs().max())
                errors[name] = max(errors.get(name, 0.0), error)
                if name in accepted:
                    accepted[name] += float(outcome.accepted) / len(prompts)
            if draft is not None:
                overlap.append(float(torch.minimum(target[0], draft[0]).sum()))
    worst = max(errors.values())
    says = (
        f"{len(errors)} rules enumerated on the distributions of {counted(len(prompts), 'prompt')}, "
        f"largest error {worst:.0e}"
    )
    details: dict[str, Any] = {"max_error": errors, "prompts": len(prompts)}
    if overlap:
        details |= {"accepted_of_2": accepted, "overlap": sum(overlap) / len(overlap)}
    return Finding("exact by rule", worst < 1e-12, says, details)


def _rules(drawn: bool) -> Iterator[tuple[str, Callable[..., Any], list[int]]]:
    chain = [-1, 0]
    yield "deterministic", lambda tokens, q, p: deterministic_rule(tokens, p), chain
    yield "deterministic tree", lambda tokens, q, p: tree_rule(tokens, _TREE, p), _TREE
    if drawn:
        yield "ratio", ratio_rule, chain
        yield "block", block_rule, chain
        yield "sampled tree", lambda tokens, q, p: tree_rule(tokens, _TREE, p, q), _TREE


def _tables(core: EngineCore, ids: list[int]) -> tuple[Table, Table | None]:
    """Target and draft tables over six tokens, in contexts of 0, 1 and 2 tokens."""
    rows, probe = Rows(core.target, ids), Probe(ids, _PARAMS[0])
    first, guess = probabilities(rows.after(()), _PARAMS[0]), probe.row(core.proposer, ())
    few = (first + guess if guess is not None else first).topk(6).indices
    levels: list[list[Tensor]] = [[], [], []]
    drafts: list[list[Tensor]] = [[], [], []]
    for depth in range(3):
        for reply in itertools.product(few.tolist(), repeat=depth):
            levels[depth].append(_over(probabilities(rows.after(reply), _PARAMS[0]), few))
            q = probe.row(core.proposer, reply) if depth < 2 and guess is not None else None
            drafts[depth].append(_over(first, few) if q is None else _over(q, few))
    core.proposer.release(probe.slot)
    target = [torch.stack(level).unsqueeze(0) for level in levels]
    draft = [torch.stack(level).unsqueeze(0) for level in drafts]
    return target, draft if guess is not None else None


def _over(row: Tensor, few: Tensor) -> Tensor:
    part = row[few].double() + 1e-30  # a row without any of them becomes uniform
    return part / part.sum()


def check_samples(core: EngineCore, prompts: Sequence[list[Message]], n: int) -> Finding:
    """Run the engine ``n`` times a prompt; compare the first three tokens with their exact distribution.

    At each place the six most likely tokens are told apart and all others pooled; the distribution over
    the whole vocabulary is exact for these outcomes.
    """
    results, needed = [], 0
    for number, messages in enumerate(prompts):
        params = replace(_PARAMS[number % len(_PARAMS)], max_tokens=4)
        ids = core.admission.encode(messages).ids
        exact = _pooled_joint(Rows(core.target, ids), params, ids, end_ids_of(core, messages))
        known = {reply[:i] for reply in exact for i in range(1, len(reply) + 1)}

        def pooled(reply: tuple[int, ...], known: set[tuple[int, ...]] = known) -> tuple[int, ...]:
            for i in range(1, len(reply) + 1):
                if reply[:i] not in known:
                    return (*reply[: i - 1], _OTHER)
            return reply

        seen = sample(core, messages, params, n, length=3, session="verify", outcome=pooled)
        results.append(g_test(seen, exact))
        if results[-1].detectable > _DETECTED:
            needed = max(needed, samples_needed(exact, _DETECTED))
    core.slots.forget("verify")
    holds = not any(holm([result.p_value for result in results]))
    finest = max(result.detectable for result in results)
    lowest = min(result.p_value for result in results)
    said = f"{counted(n, 'reply', 'replies')} to each of {counted(len(results), 'prompt')}"
    if needed:
        says = (
            f"{said} are too few: they detect only a total variation of {finest:.2f} or more; {needed} "
            "replies to each are needed"
        )
    else:
        says = (
            f"{said}, first 3 tokens against the exact distribution: smallest p = {lowest:.3g}; a total "
            f"variation of {finest:.2f} would be detected"
        )
    details = [
        {"n": r.n, "df": r.df, "p": r.p_value, "tv": r.tv, "tv_of_chance": r.noise,
         "detectable_tv": r.detectable}
        for r in results
    ]  # fmt: skip
    # The claim is a key of the command's JSON.
    claim, certain = "samples have the target's law", not (holds and needed)
    return Finding(claim, holds, says, {"prompts": details}, certain)


def _pooled_joint(
    rows: Rows, params: SamplingParams, prompt: Sequence[int], end_ids: frozenset[int]
) -> dict[tuple[int, ...], float]:
    exact: dict[tuple[int, ...], float] = {}

    def descend(reply: tuple[int, ...], mass: float) -> None:
        if len(reply) == 3 or (reply and reply[-1] in end_ids):
            exact[reply] = mass
            return
        logits = rows.after(reply).double().numpy()
        row = next_row(logits, params, prompt, reply, end_ids)
        few = [int(i) for i in np.argsort(-row)[:6] if row[i] > 0]
        for token in few:
            descend((*reply, token), mass * float(row[token]))
        rest = max(0.0, 1.0 - float(row[few].sum()))
        if rest > 1e-12:
            exact[(*reply, _OTHER)] = mass * rest

    descend((), 1.0)
    total = sum(exact.values())
    return {reply: mass / total for reply, mass in exact.items()}
