"""A tiny model, proposers for it, and the plain loop that the engine is compared with."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from specstream.config import DraftProposerConfig, NgramProposerConfig
from specstream.model.runner import ModelRunner
from specstream.speculation.proposal import Proposer
from specstream.speculation.proposers.draft_model import DraftModelProposer
from specstream.speculation.proposers.ngram import NgramProposer
from specstream.speculation.proposers.off import OffProposer
from tests.blocks import block_proposer
from tests.streams import streaming_proposer
from tests.tiny import (
    EOS,
    auto_proposer,
    byte_tokenizer,
    noisy_copy,
    tiny_model,
)

TOKENIZER = byte_tokenizer()
MODEL = tiny_model(len(TOKENIZER), seed=2)


def proposer(kind: str, model: PreTrainedModel = MODEL, noise: float = 0.15) -> Proposer:
    if kind == "draft":
        runner = ModelRunner(noisy_copy(model, noise))
        return DraftModelProposer(DraftProposerConfig(num_tokens=5), runner, frozenset({EOS}))
    if kind == "ngram":
        return NgramProposer(NgramProposerConfig(min_ngram=1), torch.device("cpu"))
    if kind == "block":
        return block_proposer(model)
    if kind == "streaming":
        return streaming_proposer(ModelRunner(model), 0.02)
    if kind == "auto":
        return auto_proposer(ModelRunner(noisy_copy(model, noise)))
    return OffProposer()


@torch.inference_mode()
def plain_greedy(text: str, count: int, eos: int | None = EOS) -> list[int]:
    """The simplest loop there is: no cache, one token at a time."""
    ids: list[int] = TOKENIZER.encode(text)
    out: list[int] = []
    while len(out) < count:
        token = int(MODEL(input_ids=torch.tensor([ids + out])).logits[0, -1].argmax())
        out.append(token)
        if token == eos:
            break
    return out


PROMPTS = ["abab", "the cat sat on the mat, the cat", "zq", "日本 日本", "1, 2, 3, 4, 1, 2, 3,"]
