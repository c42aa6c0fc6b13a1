"""Engines around a tiny target that writes letters, each with a new proposer that is watched."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specstream.bench.exactness.harness import AT_ONCE, Row, exact_joint
from specstream.config import EngineConfig
from specstream.drafting.candidate import EngineParts
from specstream.drafting.proposal import Proposal, Proposer, Verdict
from specstream.drafting.proposers import build_proposer
from specstream.engine.core import request as sequence
from specstream.engine.core.proposing import Proposing, TargetPass
from specstream.engine.core.request import Delivery, Request
from specstream.engine.core.step import EngineCore
from specstream.methods import OffProposerConfig, ProposerConfig
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams

__all__ = ["END", "Ask", "Letters", "ProposedText", "Watched", "finish", "watched"]

_LETTERS = "abcde"
END = frozenset({0})
"""The letter a, where a reply is to end."""
_CONTEXT = 128


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt of letters, and how the reply is sampled."""

    prompt: str
    params: SamplingParams

    def __str__(self) -> str:
        how = "greedy" if self.params.greedy else f"temperature 1, seed {self.params.seed}"
        return f"{self.prompt!r}, {how}"


@dataclass(frozen=True, slots=True)
class ProposedText:
    """One proposal: the text that it follows, and whether tokens were rejected right before."""

    text: tuple[int, ...]
    proposal: Proposal
    after_rejection: bool

    @property
    def tokens(self) -> tuple[int, ...]:
        """The proposed tokens."""
        return tuple(self.proposal.tokens.tolist())

    def like(self, other: ProposedText) -> bool:
        """Whether both follow the same text and propose the same, probabilities up to rounding."""
        mine, theirs = self.proposal.probs, other.proposal.probs
        alike = (self.text, self.tokens, self.proposal.parents)
        if alike != (other.text, other.tokens, other.proposal.parents):
            return False
        if mine is None or theirs is None:
            return mine is theirs
        return torch.allclose(mine, theirs, atol=1e-3)


class Watched(Proposing):
    """Notes what a proposer drafts and does wrong.

    Attributes:
        faults: What it raised, and why proposals were refused.
        drafted: Its proposals by request.
        slots: All slots that it was asked about.
        tokens: How many tokens it has drafted.
        accepted: How many of these were accepted.
    """

    def __init__(self, proposer: Proposer, target: ModelRunner) -> None:
        super().__init__(proposer, target)
        self.faults: list[BaseException] = []
        self.drafted: dict[int, list[ProposedText]] = {}
        self.slots: set[int] = set()
        self.tokens = self.accepted = 0
        self._rejected: set[int] = set()

    def propose(self, sequences: list[sequence.TokenSequence]) -> list[Proposal]:
        """As `Proposing.propose`."""
        texts = [tuple(one.token_ids) for one in sequences]
        references = [list(one.reference_ids) for one in sequences]
        made = super().propose(sequences)
        for one, text, reference in zip(sequences, texts, references, strict=True):
            if (tuple(one.token_ids), list(one.reference_ids)) != (text, reference):
                self.complain(RuntimeError("it changed the token_ids or reference_ids of a request"))
                one.token_ids[:], one.reference_ids[:] = text, reference
        for one, text, proposal in zip(sequences, texts, made, strict=True):
            found = ProposedText(text, proposal, one.id in self._rejected)
            self.drafted.setdefault(one.id, []).append(found)
            self.slots.add(one.slot)
            self.tokens += proposal.length
        return made

    def observe(self, done: TargetPass, verdicts: list[Verdict]) -> None:
        """As `Proposing.observe`."""
        each = zip(done.sequences, done.proposals, verdicts, strict=False)
        for one, proposal, verdict in each:
            rejected = verdict.accepted < proposal.length
            self.accepted += verdict.accepted
            (self._rejected.add if rejected else self._rejected.discard)(one.id)
        super().observe(done, verdicts)

    def complain(self, error: BaseException) -> None:
        """Note it; nothing is logged."""
        self.faults.append(error)


class Letters:
    """A random transformer of two layers over five letters, and engines that run it.

    Args:
        settings: The proposer that every engine gets, made anew for each.
    """

    def __init__(self, settings: ProposerConfig) -> None:
        self._settings = settings
        self._target = ModelRunner(_tiny_llama())
        self._tokenizer = _tokenizer()

    def engine(
        self, *, plain: bool = False, ends: frozenset[int] = frozenset(), **options: object
    ) -> EngineCore:
        """An engine with a new proposer; ``plain``: without one. ``options`` are of `EngineConfig`.

        Raises:
            ConfigError: the proposer can't be made, or needs weights.
            ModelUnsupported: the target can't serve it.
        """
        given = {"max_waiting": AT_ONCE, "max_running": 16, **options}
        settings = OffProposerConfig() if plain else self._settings
        proposer = build_proposer(settings, EngineParts(self._target, ends, self._tokenizer))
        config = EngineConfig.model_validate(given)
        core = EngineCore(config, self._target, self._tokenizer, proposer, ends)
        core.proposing = Watched(proposer, self._target)
        return core

    def ids(self, prompt: str) -> list[int]:
        """The token ids of letters."""
        return list(map(_LETTERS.index, prompt))

    def written(self, ids: Sequence[int]) -> str:
        """The letters of token ids."""
        return "".join(_LETTERS[token] for token in ids)

    def joint(self, prompt: str, params: SamplingParams, length: int) -> Mapping[tuple[int, ...], float]:
        """The exact distribution of the first letters of a reply that the letter a ends."""
        return exact_joint(self._logits_after, params, self.ids(prompt), length, END)

    @torch.inference_mode()
    def _logits_after(self, ids: Sequence[int]) -> Row:
        logits: Tensor = self._target.model(input_ids=torch.tensor([list(ids)])).logits[0, -1]
        return np.asarray(logits.double().numpy(), dtype=np.float64)

    @staticmethod
    def start(core: EngineCore, ask: Ask, session: str | None = None) -> Request:
        """Submit one request, whose consumer reads everything."""
        delivery = Delivery(lambda item: None, limit=2**62)
        message = {"role": "user", "content": ask.prompt}
        request = Request([message], ask.params, delivery, session, proposer="checked")  # type: ignore[list-item]
        core.submit(request)
        return request

    def answers(self, core: EngineCore, asks: Sequence[Ask]) -> list[Request]:
        """Serve all of them, as many at once as the engine takes.

        Raises:
            SpecstreamError: the first error that a request ended with.
        """
        requests = [self.start(core, ask) for ask in asks]
        finish(core, requests)
        return requests


def finish(core: EngineCore, requests: Sequence[Request]) -> None:
    """Run the engine until nothing is left to do.

    Raises:
        SpecstreamError: the first error that a request ended with.
    """
    while core.step():
        pass
    for request in requests:
        if request.error is not None:
            raise request.error


def watched(core: EngineCore) -> Watched:
    """The watch over an engine's proposer."""
    assert isinstance(core.proposing, Watched)
    return core.proposing


@functools.cache
def _weights() -> dict[str, Tensor]:
    """By search: greedy texts repeat themselves in part, and sampled ones are spread widely."""
    generator, found = torch.Generator().manual_seed(25), {}
    for name, weight in _untrained().state_dict().items():
        found[name] = torch.ones_like(weight)
        if weight.dim() > 1:
            found[name] = torch.randn(weight.shape, generator=generator) * 0.2
    return found


def _untrained() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(_LETTERS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=_CONTEXT,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        return LlamaForCausalLM(config)


def _tiny_llama() -> LlamaForCausalLM:
    model = _untrained()
    model.load_state_dict(_weights())
    model.train(False)
    return model


def _tokenizer() -> PreTrainedTokenizerFast:
    """A letter a token, no control tokens; a prompt is the contents of its messages."""
    vocabulary = {letter: number for number, letter in enumerate(_LETTERS)}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.decoder = decoders.Fuse()
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(tokenizer_object=inner)  # type: ignore[no-untyped-call]
    made.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return made
