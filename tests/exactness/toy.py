"""A target whose next token depends on the last two only: an engine run costs well under 1 ms a token.

The engine around it is the real one: admission, scheduler, processors, judge, commit, proposers. Only
the forward pass is a table look-up.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specstream.bench.exactness.enumeration import GTest, g_test
from specstream.bench.exactness.harness import AT_ONCE, Row, exact_joint, sample
from specstream.config import EngineConfig
from specstream.drafting.proposal import Proposer
from specstream.engine.core.step import EngineCore
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.support.tables import TableRunner

__all__ = [
    "EOS",
    "Letters",
    "Numbers",
    "PairRunner",
    "TinyRunner",
    "exact_joint",
    "make_core",
    "noisy_copy",
    "random_logits",
    "tiny_llama",
]

EOS = 0


class Letters:
    """A tokenizer of the letters a, b, c …: token i is the i-th."""

    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of the letters; anything else is left out."""
        return [ord(char) - ord("a") for char in text if "a" <= char <= "z"]

    def decode(self, token_ids: Any, skip_special_tokens: bool = True) -> str:
        """Letters of the ids."""
        return "".join(chr(ord("a") + int(i)) for i in token_ids)

    def get_vocab(self) -> dict[str, int]:
        """Every letter with its id."""
        return {chr(ord("a") + number): number for number in range(26)}


class Numbers:
    """A tokenizer of numbers: token 17 is the word "17", so that a prompt can name any tokens."""

    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of the numbers, divided by spaces."""
        return [int(word) for word in text.split()]

    def decode(self, token_ids: Any, skip_special_tokens: bool = True) -> str:
        """The numbers of the ids."""
        return "".join(f"{int(i)} " for i in token_ids)

    def get_vocab(self) -> dict[str, int]:
        """As many numbers as any toy has tokens."""
        return {str(number): number for number in range(1000)}


def random_logits(vocab_size: int, seed: int, *, spread: float = 1.5) -> Tensor:
    """``[V, V, V]`` float32: logits after every pair of tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(vocab_size, vocab_size, vocab_size, generator=generator) * spread


class PairRunner(TableRunner):
    """Runs a table ``[V, V, V]`` of logits, by the last two tokens, as if it were a model."""

    def __init__(self, table: Tensor, *, context_length: int = 64) -> None:
        super().__init__(table.shape[-1], context_length)
        self.table, self.device, self.dtype = table, table.device, table.dtype

    def forward(self, inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        """As `ModelRunner.forward`."""
        befores, lasts, counts = [], [], []
        for item in inputs:
            ids = self.read(item)
            before = [ids[0], *ids[:-1]]
            if item.tree is not None:
                first = len(ids) - len(item.tree.parents)
                before[first:] = [ids[first + parent] for parent in item.tree.parents]
            befores += before[-item.keep :]
            lasts += ids[-item.keep :]
            counts.append(item.keep)
        return ForwardOutput(list(torch.split(self.table[befores, lasts], counts)))

    def logits_after(self, ids: Sequence[int]) -> Row:
        """The row after some tokens, for the exact distribution."""
        before = ids[-2] if len(ids) > 1 else ids[-1]
        row: Row = self.table[before, ids[-1]].double().cpu().numpy()
        return row


def tiny_llama(
    vocab_size: int,
    seed: int,
    *,
    layers: int = 1,
    hidden: int = 16,
    spread: float = 6.0,
    dtype: torch.dtype = torch.float32,
) -> LlamaForCausalLM:
    """A random Llama; ``spread`` sharpens its opinions, so that contexts matter."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(spread)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    made: LlamaForCausalLM = model
    return made


def noisy_copy(model: LlamaForCausalLM, noise: float, seed: int) -> LlamaForCausalLM:
    """The same model with its weights a little off: a draft that is right now and then."""
    generator = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.dim() > 1:
                off = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.add_(off * noise * parameter.std())
    return other


class TinyRunner(ModelRunner):
    """A real transformer of one layer, small enough for its exact distribution to be computed."""

    def __init__(self, vocab_size: int, seed: int, device: str = "cpu") -> None:
        super().__init__(tiny_llama(vocab_size, seed).to(device))  # type: ignore[arg-type]

    @torch.inference_mode()
    def logits_after(self, ids: Sequence[int]) -> Row:
        """The row after some tokens, for the exact distribution: one plain pass, no cache."""
        logits = self.model(input_ids=torch.tensor([list(ids)], device=self.device)).logits[0, -1]
        return np.asarray(logits.double().cpu().numpy(), dtype=np.float64)


def make_core(
    target: ModelRunner,
    tokenizer: Any,
    proposer: Proposer,
    end_ids: frozenset[int] = frozenset(),
    **options: Any,
) -> EngineCore:
    """An engine around a runner; ``options`` are keys of `EngineConfig`."""
    config = EngineConfig.model_validate({"max_waiting": AT_ONCE, **options})
    return EngineCore(config, target, tokenizer, proposer, end_ids)


def sampled_text(build: Callable[[ModelRunner], Proposer], params: SamplingParams, batch: int) -> GTest:
    """A G-test of 600 replies; a total variation of 0.17 is found with probability 0.99."""
    runner = TinyRunner(5, 0)
    ModelRunner.__init__(runner, tiny_llama(5, 0, layers=2))
    params, ends = replace(params, max_tokens=5), frozenset({EOS})
    core = make_core(runner, Letters(), build(runner), ends, max_running=batch)
    seen = sample(core, "bcdbc", params, 600, length=4)
    prompt = Letters().encode("bcdbc")
    return g_test(seen, exact_joint(runner.logits_after, params, prompt, 4, ends))
