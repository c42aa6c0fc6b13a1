"""Tiny multi-token prediction modules: transformers' own, at random or trained for a moment."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from specstream.drafting.candidate import EngineParts
from specstream.drafting.proposers.eagle import EagleProposer
from specstream.drafting.proposers.mtp import build
from specstream.methods import MtpProposerConfig
from specstream.model.heads.mtp import MtpHead, MtpTensors
from specstream.model.heads.tensors import Tensors
from specstream.model.runner import ModelRunner
from tests.support.heads import batch_of, greedy_replies
from tests.support.tiny import byte_tokenizer

_TRAINED: dict[int, Any] = {}  # by model; each test module has a model or two
_NAMES = {"post_norm.": "norm.", "mtp_block.": ""}


def random_module(model: PreTrainedModel, scale: float = 1.0, seed: int = 7) -> Any:
    """transformers' module for ``model``, which knows nothing."""
    other = copy.deepcopy(model)
    other.config.num_mtp_layers = 1
    if getattr(other.config, "layer_types", None):
        other.config.mtp_layer_types = ["full_attention"]
    made, noise = MtpModel(other, 1), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in made.layers.parameters():
            weight.copy_(torch.randn(weight.shape, generator=noise) * 0.2 * scale)
            if weight.dim() == 1:
                weight.add_(1.0)
    return made.train(False)


def _layer(module: Any, states: Tensor, positions: Tensor, tokens: Tensor) -> Any:
    """What ``forward_layer`` does for the first layer; transformers 5.17 doesn't have it."""
    if hasattr(module, "forward_layer"):
        return module.forward_layer(0, states, positions, None, tokens)
    embedded = module.embed_tokens(tokens)
    return module.layers[0](
        embedded,
        states,
        position_embeddings=module.rotary_emb(embedded, position_ids=positions),
        position_ids=positions,
        past_key_values=None,
        **module.create_masks_for_mtp_layer(0, embedded, None, positions),
    )


def reference(module: Any, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and states of transformers' module; ``tokens [n]`` follow ``states [n, hidden]``."""
    positions = torch.arange(tokens.shape[0]).unsqueeze(0)
    found = _layer(module, states.unsqueeze(0), positions, tokens.unsqueeze(0))
    return module.shared_head(found)[0], found[0]


def trained_module(model: PreTrainedModel, steps: int = 40) -> Any:
    """A module that has seen a few of the model's replies."""
    if id(model) not in _TRAINED:
        module, runner = random_module(model), ModelRunner(model)
        noise, size = torch.Generator().manual_seed(5), int(model.config.vocab_size)
        prompts = torch.randint(2, size, (24, 6), generator=noise).tolist()
        ids = greedy_replies(runner, prompts, 40)
        states, after = batch_of(runner, ids, 6, ()).final, ids[:, 1:].clone()
        optimizer = torch.optim.AdamW(module.layers.parameters(), lr=1e-2)
        positions = torch.arange(ids.shape[1] - 1).unsqueeze(0)
        with torch.no_grad():
            wanted = module.shared_head(states[:, 1:])[:, 5:].softmax(-1)
        for _ in range(steps):
            entering, loss = states[:, :-1], torch.zeros(())
            for _depth in range(2):  # as it drafts: then from its own states
                found = _layer(module, entering, positions, after)
                chances = module.shared_head(found)[:, 5:].log_softmax(-1)
                loss = loss - (wanted * chances).sum(-1).mean()
                entering = torch.cat([states[:, :1], found[:, :-1]], 1)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        _TRAINED[id(model)] = module
    return _TRAINED[id(model)]


def tensors_of(module: Any) -> dict[str, Tensor]:
    """The module's tensors by our names."""
    found = dict[str, Tensor]()
    for name, weight in module.layers[0].state_dict().items():
        for old, new in _NAMES.items():
            name = new + name.removeprefix(old) if name.startswith(old) else name
        found[name] = weight.detach().clone()
    return found


def mtp_head(module: Any, runner: ModelRunner) -> MtpHead:
    """The module in service, without files."""
    tensors = Tensors(Path(), tensors_of(module))
    return MtpHead(MtpTensors(tensors, 1, state_first=False, before_norm=False), runner)


def mtp_proposer(model: PreTrainedModel, head: MtpHead | None = None, **more: Any) -> EagleProposer:
    """A proposer over a trained module."""
    runner = ModelRunner(model)
    head = head or mtp_head(trained_module(model), runner)
    parts = EngineParts(runner, frozenset({1}), byte_tokenizer(), heads={"mtp": head}, prefill_chunk=7)
    return build(MtpProposerConfig.model_validate({"num_tokens": 3} | more), parts)
