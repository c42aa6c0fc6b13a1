"""Tiny models and tokenizers made in memory: the tests need no weights and no network."""

import copy
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from specstream.config import EngineConfig
from specstream.drafting.candidate import CandidateProposer
from specstream.drafting.policy.costs import Costs, DraftCosts
from specstream.drafting.policy.policy import Policy
from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers.auto import AutoProposer
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.suffix import SuffixProposer
from specstream.engine.core.request import Delivery, Request
from specstream.engine.core.step import EngineCore
from specstream.errors import SpecstreamError
from specstream.methods import DraftProposerConfig, SuffixProposerConfig
from specstream.model.runner import ModelRunner
from specstream.types import Chunk, Message, Preview, SamplingParams

BOS, EOS = 0, 1


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte (plus <s> and </s>): text of any language, split in mid-character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": BOS, "</s>": EOS} | {char: 2 + i for i, char in enumerate(alphabet)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>"
    )
    return made


def tiny_model(
    vocab_size: int, *, seed: int = 0, layers: int = 2, scale: float = 4.0, context: int = 512
) -> LlamaForCausalLM:
    """A random Llama; ``scale`` sharpens its opinions so that greedy choices are clear."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model


def noisy_copy(model: PreTrainedModel, noise: float, seed: int = 1) -> PreTrainedModel:
    """The same model with its weights a little off: a draft that is right now and then."""
    torch.manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn_like(parameter) * noise * parameter.std())
    return other


def save_pair(
    root: Path,
    *,
    seed: int = 3,
    scale: float = 2.5,
    noise: float = 0.15,
    eos: bool = True,
    context: int = 512,
) -> tuple[Path, Path]:
    """A target and a noisy copy of it, as folders of ``root``; without ``eos`` nothing ends a reply."""
    tokenizer = byte_tokenizer()
    model = tiny_model(len(tokenizer), seed=seed, scale=scale, context=context)
    if not eos:
        model.generation_config.eos_token_id = None
        tokenizer.eos_token = None
    for name, weights in (("target", model), ("draft", noisy_copy(model, noise))):
        weights.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root / "target", root / "draft"


class Inbox:
    """A consumer that reads everything, or only when told to."""

    def __init__(self, *, reading: bool = True, limit: int = 16) -> None:
        self.items: list[Chunk | Preview | SpecstreamError] = []
        self.delivery = Delivery(self._put, limit)
        self._reading = reading

    def _put(self, item: Chunk | Preview | SpecstreamError) -> None:
        self.items.append(item)
        if self._reading and not isinstance(item, Preview):
            self.delivery.read += 1

    def read_all(self) -> None:
        self.delivery.read = self.delivery.sent

    @property
    def chunks(self) -> list[Chunk]:
        return [item for item in self.items if isinstance(item, Chunk)]

    @property
    def errors(self) -> list[SpecstreamError]:
        return [item for item in self.items if isinstance(item, SpecstreamError)]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def token_ids(self) -> list[int]:
        return [i for chunk in self.chunks for i in chunk.token_ids]


def auto_proposer(draft: ModelRunner, max_tokens: int = 6) -> AutoProposer:
    """An adaptive proposer with invented costs: a draft step is a tenth of a target pass."""
    costs = Costs({1: 1.0, 2: 1.01, 5: 1.05, 9: 1.1})
    costs.drafts["draft"] = DraftCosts(0.1)
    candidates: list[CandidateProposer] = [
        SuffixProposer(SuffixProposerConfig(num_tokens=max_tokens), draft.device),
        DraftModelProposer(DraftProposerConfig(), draft, frozenset({EOS})),
    ]
    policy = Policy([made.candidate for made in candidates], costs, max_tokens=max_tokens)
    return AutoProposer(policy, candidates)


def make_core(
    model: PreTrainedModel | ModelRunner,
    tokenizer: PreTrainedTokenizerFast,
    proposer: Proposer,
    *,
    eos_ids: Sequence[int] = (EOS,),
    now: Callable[[], float] = time.monotonic,
    **options: object,
) -> EngineCore:
    config = EngineConfig.model_validate(options)
    runner = model if isinstance(model, ModelRunner) else ModelRunner(model)
    return EngineCore(config, runner, tokenizer, proposer, frozenset(eos_ids), now)


def ask(
    core: EngineCore,
    text: str,
    params: SamplingParams,
    *,
    inbox: Inbox | None = None,
    session: str | None = None,
    reference: str = "",
    proposer: str = "test",
    noise: int | None = None,
) -> tuple[Request, Inbox]:
    inbox = inbox or Inbox()
    messages: list[Message] = [{"role": "user", "content": text}]
    request = Request(
        messages,
        params,
        inbox.delivery,
        session=session,
        reference=reference,
        proposer=proposer,
        noise=noise,
    )
    core.submit(request)
    return request, inbox


def run_until_idle(core: EngineCore, limit: int = 10_000) -> int:
    """Step until nothing can progress; returns the number of steps."""
    for count in itertools.count():
        assert count < limit, "the engine never comes to rest"
        if not core.step():
            return count
    raise AssertionError


def answered(
    core: EngineCore, text: str, params: SamplingParams, **options: Any
) -> tuple[Request, Inbox]:
    """As `ask`, and run until the reply is there."""
    made = ask(core, text, params, **options)
    run_until_idle(core)
    return made
