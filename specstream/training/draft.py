"""``train draft``: trains a small Llama on the target's replies (distillation).

Of the target's hidden states only the final ones are needed, which give the target's distribution
(Zhou et al. 2023, DistillSpec).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from specstream.config import EngineConfig
from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.heads.base import read_head_config
from specstream.model.heads.recognise import kind_of
from specstream.model.load import load_model, load_tokenizer, quietly
from specstream.model.runner import ModelRunner
from specstream.training.files import write_card
from specstream.training.loss import distance
from specstream.training.options import TrainOptions, check_settings, size_of
from specstream.training.trainee import Losses, TrainingBatch

__all__ = ["DraftTrainee", "draft_config", "trainee"]

_POSITIONS = 8  # draft positions whose acceptance is measured
_CHUNK = 1 << 26  # logits (elements) that are in memory at once


def trainee(
    target: ModelRunner, tokenizer: PreTrainedTokenizerBase, options: TrainOptions
) -> DraftTrainee:
    """Make a new draft of ``options.size``, or load the one of ``options.init``.

    Raises:
        ConfigError: an invalid size, or any setting (drafts have none).
        ModelUnsupported: ``options.init`` is no Llama, or has another vocabulary.
        ModelError: ``options.init`` can't be read.
    """
    check_settings(options)
    if options.init is None:
        model = LlamaForCausalLM(draft_config(target, options.size))
        _begin_like(model, target)
    else:
        model = _read(options.init, target, tokenizer)
    nn.Module.to(model, target.device)
    return DraftTrainee(model, target, tokenizer)


def draft_config(target: ModelRunner, size: str = "") -> LlamaConfig:
    """Return a draft's config: of ``size`` (layers x width, "2x192") if it is given.

    Otherwise it has two layers and about a tenth of the target's parameters.

    Raises:
        ConfigError: ``size`` is malformed, has no layer, or a width that isn't a multiple of 8.
    """
    model = target.model
    theirs: Any = model.config
    layers = 2
    if size:
        layers, width = size_of(size)
        head = next(dim for dim in (64, 32, 16, 8) if width % dim == 0)
    else:
        budget = sum(p.numel() for p in model.parameters()) / 10
        head = min(64, max(8, int(theirs.hidden_size) // 8 * 2))  # even, for rotary positions
        width = head
        while _weights(target.model_vocab_size, layers, width + head) <= 1.2 * budget:
            width += head
    heads = width // head
    return LlamaConfig(
        vocab_size=target.model_vocab_size,
        hidden_size=width,
        intermediate_size=-(-width * 8 // 3 // 64) * 64,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=next(n for n in (heads // 3, heads // 2, heads) if n and heads % n == 0),
        head_dim=head,
        max_position_embeddings=int(theirs.max_position_embeddings),
        rms_norm_eps=1e-6,
        rope_parameters=theirs.rope_parameters,
        tie_word_embeddings=True,
        bos_token_id=theirs.bos_token_id,
        eos_token_id=theirs.eos_token_id,
        pad_token_id=theirs.pad_token_id,
    )


def _weights(vocabulary: int, layers: int, width: int) -> int:
    return vocabulary * width + layers * 11 * width * width


@torch.no_grad()
def _begin_like(model: LlamaForCausalLM, target: ModelRunner) -> None:
    """Initialise the embedding with principal components of the target's, which keeps similarities."""
    theirs: Any = target.model.get_input_embeddings()
    table, own = theirs.weight.detach().float().cpu(), model.model.embed_tokens.weight
    table = table - table.mean(0)
    _, vectors = torch.linalg.eigh(table.T @ table)
    kept = min(own.shape[1], table.shape[1])
    projected = table @ vectors.flip(1)[:, :kept]
    own[:, :kept] = projected * (model.config.initializer_range / projected.std())


def _read(folder: Path, target: ModelRunner, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    name = str(folder)
    if not folder.is_dir():
        raise ConfigError(f"--init {name}: there is no such folder")
    config = read_head_config(folder)
    if kind_of(config) or config.get("model_type", "llama") != "llama":
        raise ModelUnsupported(f"--init {name} is no draft that this trainer makes (a Llama)")
    if load_tokenizer(name).get_vocab() != tokenizer.get_vocab():
        raise ModelUnsupported(f"--init {name} was made for another target: its tokens differ")
    model: Any = load_model(name, EngineConfig(device="cpu", dtype="float32"))
    rows = int(model.config.vocab_size)
    if rows != target.model_vocab_size:
        raise ModelUnsupported(
            f"--init {name} was made for another target: it has {rows} output rows, the target "
            f"{target.model_vocab_size}"
        )
    found: LlamaForCausalLM = model.requires_grad_(True)
    return found


class DraftTrainee:
    """A draft model in training; see `specstream.training.trainee.Trainee`."""

    depths: tuple[int, ...] = ()

    def __init__(
        self, model: LlamaForCausalLM, target: ModelRunner, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self.module: nn.Module = model
        self._model, self._tokenizer = model, tokenizer
        head: Any = target.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._head: Tensor = head.weight.detach()
        # On a CPU, casting costs a model of this size more time than products in bfloat16 save.
        self._bf16 = target.device.type == "cuda"
        self._end = target.model.generation_config.eos_token_id

    def losses(self, batch: TrainingBatch, *, acceptance: float) -> Losses:
        """See `Trainee.losses`. Position k is the k-th token of a drafted chain.

        The tokens before it in an accepted chain are distributed as the target's own tokens, each
        weighted by the probability min(1, q / p) that it would have been drafted and accepted.
        """
        wanted = batch.replies[:, 1:]
        with torch.autocast(batch.token_ids.device.type, torch.bfloat16, enabled=self._bf16):
            states = self._model.model(input_ids=batch.token_ids, use_cache=False).last_hidden_state
        ours, theirs = states[:, :-1][wanted], batch.final[:, :-1][wanted]
        tokens = batch.token_ids[:, 1:][wanted]
        size = max(1, _CHUNK // self._head.shape[0])
        # With a large vocabulary, recompute the logits in the backward pass instead of storing them.
        apart = ours.shape[0] > size and torch.is_grad_enabled()
        split = (torch.split(each, size) for each in (ours, theirs, tokens))
        parts = [
            checkpoint(self._distance, a, b, c, acceptance, use_reentrant=False)
            if apart
            else self._distance(a, b, c, acceptance)
            for a, b, c in zip(*split, strict=True)
        ]
        loss, overlap, kept = (torch.cat(each) for each in zip(*parts, strict=True))
        return Losses(loss.mean(), *_by_position(wanted, overlap, kept))

    def _distance(
        self, ours: Tensor, theirs: Tensor, tokens: Tensor, acceptance: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss, acceptance probability, and min(1, q / p) of the reply's token: ``[n]`` each."""
        device = ours.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._bf16):
            logits = F.linear(ours, self._model.lm_head.weight)
            with torch.no_grad():
                wanted = F.linear(theirs, self._head.to(theirs.dtype))
        log_p = wanted.float().log_softmax(-1)
        loss, overlap = distance(logits, log_p, acceptance)
        with torch.no_grad():
            at = tokens.unsqueeze(1)
            log_q = logits.float().gather(1, at) - logits.float().logsumexp(-1, keepdim=True)
            kept = (log_q - log_p.gather(1, at)).clamp_max(0.0).exp().squeeze(1)
        return loss, overlap, kept

    def save(self, folder: Path, card: Mapping[str, str]) -> None:
        """See `Trainee.save`: a plain transformers folder in bfloat16."""
        model = LlamaForCausalLM(self._model.config)
        model.load_state_dict(self._model.state_dict())
        model.generation_config.eos_token_id = self._end
        nn.Module.to(model, torch.bfloat16)
        with quietly():
            model.save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)
        write_card(folder, card)


def _by_position(wanted: Tensor, overlap: Tensor, kept: Tensor) -> tuple[list[float], list[float]]:
    """Return the sums of acceptance and the sums of weights, by draft position.

    Args:
        wanted: ``[B, T]`` bool: the n tokens that count.
        overlap: ``[n]``: for each of them, the probability that a token drafted there is accepted.
        kept: ``[n]``: the probability that this very token would have been drafted and accepted.
    """
    a, w = (torch.zeros(wanted.shape, dtype=torch.float64) for _ in range(2))
    here = wanted.cpu()
    a[here], w[here] = overlap.double().cpu(), kept.double().cpu()
    weight, accepted, counted = here.double(), [], []
    for k in range(min(_POSITIONS, wanted.shape[1])):
        width = wanted.shape[1] - k
        weight = weight[:, :width] * here[:, k:]
        accepted.append(float((weight * a[:, k:]).sum()))
        counted.append(float(weight.sum()))
        weight = weight * w[:, k:]
    return accepted, counted
