"""What a model's own generation_config asks of every reply, greedy ones included.

transformers' ``generate`` applies penalties and forbidden tokens that are written there unless told
otherwise; so do we, by its own processors. How to sample is the request's affair alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from specstream.params import SamplingParams

__all__ = ["HONOURED", "ModelDefaults"]

_log = logging.getLogger("specstream.model")


@dataclass(frozen=True, slots=True)
class _Reply:
    """What a processor may depend on besides its arguments."""

    prompt: Sequence[int]
    max_tokens: int
    ends: list[int]
    device: Any  # of torch; transformers' annotations say otherwise
    forced_bos: bool

    @property
    def read(self) -> Any:
        """``[1, n]``: the prompt."""
        return torch.tensor([list(self.prompt)], device=self.device)


def _begin(value: Any, reply: _Reply) -> Any:
    start = len(reply.prompt) + int(reply.forced_bos and len(reply.prompt) == 1)
    return SuppressTokensAtBeginLogitsProcessor(value, start, device=reply.device)


# In the order of `generate`; each makes the processor of one reply.
HONOURED: Mapping[str, Callable[[Any, _Reply], Any]] = {
    "sequence_bias": lambda v, r: SequenceBiasLogitsProcessor(v),
    "encoder_repetition_penalty": lambda v, r: EncoderRepetitionPenaltyLogitsProcessor(v, r.read),
    "repetition_penalty": lambda v, r: RepetitionPenaltyLogitsProcessor(v),
    "no_repeat_ngram_size": lambda v, r: NoRepeatNGramLogitsProcessor(v),
    "encoder_no_repeat_ngram_size": lambda v, r: EncoderNoRepeatNGramLogitsProcessor(v, r.read),
    "bad_words_ids": lambda v, r: NoBadWordsLogitsProcessor(v, r.ends),
    "min_length": lambda v, r: MinLengthLogitsProcessor(v, r.ends, device=r.device),
    "min_new_tokens": lambda v, r: MinNewTokensLengthLogitsProcessor(
        len(r.prompt), v, r.ends, device=r.device
    ),
    "forced_bos_token_id": lambda v, r: ForcedBOSTokenLogitsProcessor(v),
    "forced_eos_token_id": lambda v, r: ForcedEOSTokenLogitsProcessor(
        len(r.prompt) + r.max_tokens, v, device=r.device
    ),
    "exponential_decay_length_penalty": lambda v, r: ExponentialDecayLengthPenalty(
        v, r.ends, len(r.prompt)
    ),
    "suppress_tokens": lambda v, r: SuppressTokensLogitsProcessor(v, device=r.device),
    "begin_suppress_tokens": _begin,
}
_NEUTRAL: Mapping[str, Any] = {
    "encoder_repetition_penalty": 1.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "num_beams": 1,
    "guidance_scale": 1,
}
_NEEDS_END = {"min_length", "min_new_tokens", "exponential_decay_length_penalty"}
_BEFORE_REPETITION = {"sequence_bias", "encoder_repetition_penalty"}
_NOT_HONOURED = (
    "num_beams", "guidance_scale", "penalty_alpha", "dola_layers", "watermarking_config",
    "token_healing", "stop_strings", "remove_invalid_values",
)  # fmt: skip
_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "top_h", "epsilon_cutoff", "eta_cutoff",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Own:
    """One of the model's own processors, by name."""

    name: str
    processor: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return self.processor(ids, scores)

    def __repr__(self) -> str:
        return f"{self.name} of the model's generation_config"


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """What holds for every reply of a model, by transformers' names."""

    asked: Mapping[str, Any]

    @classmethod
    def of(cls, generation_config: Any) -> ModelDefaults:
        """Of transformers' object; None asks for nothing."""
        return cls(_given(generation_config, HONOURED))

    def applied(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        end_ids: frozenset[int],
        device: torch.device,
    ) -> SamplingParams:
        """The parameters of one reply. Its own repetition penalty takes the place of the model's."""
        asked = dict(self.asked)
        if not end_ids:
            asked = {name: value for name, value in asked.items() if name not in _NEEDS_END}
        if params.repetition_penalty != 1.0:
            asked.pop("repetition_penalty", None)
        elif not _BEFORE_REPETITION & asked.keys():  # ours is the same, and quicker
            penalty = asked.pop("repetition_penalty", 1.0)
            params = replace(params, repetition_penalty=penalty)
        if not asked:
            return params
        forced = "forced_bos_token_id" in asked
        reply = _Reply(prompt, params.max_tokens, sorted(end_ids), device, forced)
        own = [_Own(name, HONOURED[name](value, reply)) for name, value in asked.items()]
        return replace(params, processors=(*own, *params.processors))

    @staticmethod
    def tell(name: str, generation_config: Any) -> None:
        """Log, a line each, what a model asks for in vain, and how it would be sampled."""
        vain = _given(generation_config, _NOT_HONOURED)
        if vain:
            _log.warning(
                "%s: its generation_config asks for %s; not supported", name, _listed(vain)
            )
        sampling = _given(generation_config, _SAMPLING)
        if sampling and getattr(generation_config, "do_sample", False):
            _log.info(
                "%s: its generation_config recommends %s; replies are greedy unless a request asks",
                name,
                _listed(sampling),
            )


def _given(config: Any, names: Any) -> dict[str, Any]:
    values = {name: getattr(config, name, None) for name in names}
    return {
        name: value
        for name, value in values.items()
        if value is not None
        and value is not False
        and value not in ([], {}, ())
        and value != _NEUTRAL.get(name)
    }


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
