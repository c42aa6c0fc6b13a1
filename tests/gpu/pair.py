"""The bundled pair as engines: runners made once, a proposer and an engine for each method."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from specstream.bench.load.concurrency import mix_domains
from specstream.bench.prompts import read_prompts
from specstream.config import DEFAULT_TARGET, parse_config
from specstream.drafting.candidate import EngineParts
from specstream.drafting.proposers import build_proposer
from specstream.engine.build import end_ids
from specstream.engine.core.request import Delivery, Request
from specstream.engine.core.step import EngineCore
from specstream.model.graphs import DRAFT, CapturePlan
from specstream.model.heads.base import Head
from specstream.model.heads.recognise import load_head, told_acceptance
from specstream.model.load import load_tokenizer
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import warm_up
from specstream.models.kept import located
from specstream.types import Message, SamplingParams
from tests.gpu.context import Context
from tests.gpu.models import bundled, capture, runner

__all__ = ["METHODS", "Pair", "make_pair", "prompts", "replies", "requests"]

METHODS: dict[str, Any] = {
    "off": "off",
    "draft-4": {"kind": "draft", "num_tokens": 4},
    "suffix": "suffix",
    "auto": "auto",
    "eagle": {"kind": "eagle", "depth": 4, "top_k": 3, "nodes": 12},
    "medusa": "medusa",
}


@dataclass
class Pair:
    """A target and what drafts for it."""

    context: Context
    target: ModelRunner
    draft: ModelRunner
    tokenizer: PreTrainedTokenizerBase
    heads: dict[str, Head] = field(default_factory=dict)
    ends: bool = True

    def capture(self, plan: CapturePlan, batches: Sequence[int]) -> None:
        """Capture the passes of both models."""
        depths = sorted({depth for head in self.heads.values() for depth in head.depths})
        self.target.compiled = capture(self.context, self.target, plan, batches, depths)
        self.draft.compiled = capture(self.context, self.draft, DRAFT, batches)
        began = time.monotonic()
        for each in (self.target, self.draft):
            warm_up(each, max(batches))
        took = time.monotonic() - began
        self.context.row("all shapes run eagerly once", f"{took:.1f} s")
        for which, made in (("target", self.target), ("draft", self.draft)):
            graphs = made.compiled
            if graphs is not None and "eagerly" in graphs.summary:
                self.context.row(f"captures of the {which}", graphs.summary)

    @contextmanager
    def eager(self) -> Iterator[None]:
        """A block in which no captured pass is used."""
        kept = self.target.compiled, self.draft.compiled
        self.target.compiled = self.draft.compiled = None
        try:
            yield
        finally:
            self.target.compiled, self.draft.compiled = kept

    def core(self, method: str, at_once: int = 1, **options: Any) -> EngineCore:
        """An engine with a method of `METHODS`; without ``ends`` nothing ends a reply but its length."""
        config = parse_config(
            {
                "proposer": METHODS[method],
                "target": DEFAULT_TARGET,
                "max_running": at_once,
                "max_waiting": 512,
                **options,
            }
        )
        eos = end_ids(self.target.model, self.tokenizer) if self.ends else frozenset[int]()
        told = {"draft": told_acceptance(vars(self.draft.model.config))}
        heads = self.heads if method in self.heads else {}
        parts = EngineParts(self.target, eos, self.tokenizer, self.draft, None, heads, acceptance=told)
        proposer = build_proposer(config.proposer, parts)
        return EngineCore(config, self.target, self.tokenizer, proposer, eos)


def make_pair(
    context: Context,
    dtype: str,
    *,
    target: Any = None,
    draft: Any = None,
    heads: Sequence[str] = (),
    ends: bool = True,
    **options: Any,
) -> Pair:
    """The bundled target and draft, or the given models; ``options`` are the target runner's."""
    target = bundled(context, dtype) if target is None else target
    draft = bundled(context, dtype, "draft") if draft is None else draft
    first = runner(context, target, **options)
    second = runner(context, draft, vocab_size=first.vocab_size)
    pair = Pair(context, first, second, load_tokenizer(DEFAULT_TARGET), ends=ends)
    for name in heads:
        head = load_head(located(name), first)
        pair.heads[head.kind] = head
    return pair


def prompts(count: int) -> list[list[Message]]:
    """So many of the bundled prompts, from all domains in turn."""
    mixed = mix_domains(read_prompts().prompts)
    return [list(mixed[i % len(mixed)].messages) for i in range(count)]


def requests(
    core: EngineCore, asked: Sequence[list[Message]], params: Sequence[SamplingParams]
) -> list[Request]:
    """Submit requests whose consumers always read."""
    made = []
    for number, (messages, one) in enumerate(zip(asked, params, strict=True)):
        delivery = Delivery(lambda item: None, limit=2**62)
        request = Request(messages, one, delivery, proposer="figures", noise=number, learn=False)
        core.submit(request)
        made.append(request)
    return made


def replies(
    core: EngineCore, asked: Sequence[list[Message]], params: SamplingParams | Sequence[Any]
) -> list[list[int]]:
    """Serve requests to their end: the tokens of each reply.

    Raises:
        SpecstreamError: the first error that any of them ended with.
    """
    each = [params] * len(asked) if isinstance(params, SamplingParams) else list(params)
    made = requests(core, asked, each)
    with torch.inference_mode():
        while core.step():
            pass
    for request in made:
        if request.error is not None:
            raise request.error.__cause__ or request.error
    return [request.token_ids[request.prompt_length :] for request in made]
