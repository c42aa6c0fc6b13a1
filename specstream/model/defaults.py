"""Applies the settings of a model's own ``generation_config`` to every reply, greedy ones included.

Penalties and forbidden tokens work as in transformers' ``generate``, mostly by its own processors. The
config's sampling settings (temperature, top-k, ...) are not applied: those come from the request only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from specstream.errors import ModelBroken, SamplingError
from specstream.params import Manner, SamplingParams

__all__ = ["HONOURED", "ModelDefaults", "manner_of"]

_log = logging.getLogger("specstream.model")


@dataclass(frozen=True, slots=True)
class _Reply:
    """The facts about one reply that its processors are made from."""

    prompt: Sequence[int]
    max_tokens: int
    ends: list[int]
    device: Any  # a torch.device; transformers is annotated with str
    forced_bos: bool

    @property
    def prompt_ids(self) -> Any:
        """The prompt, ``[1, n]`` on the device."""
        return torch.tensor([list(self.prompt)], device=self.device)


def _begin(value: Any, reply: _Reply) -> Any:
    start = len(reply.prompt) + int(reply.forced_bos and len(reply.prompt) == 1)
    return SuppressTokensAtBeginLogitsProcessor(value, start, device=reply.device)


class _NoRepeatNgrams:
    """Forbids every token that would complete an n-gram which has occurred already.

    Gives the same scores as transformers' processors, which copy the context to the host in every call.
    """

    def __init__(self, size: int, among: Tensor | None = None) -> None:
        if type(size) is not int or size < 1:
            raise ValueError(f"it must be a whole number above 0, not {size!r}")
        self._size = size
        self._among = among  # where n-grams are looked for; None: the row's own context

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        size, among = self._size, ids if self._among is None else self._among
        if among.shape[1] < size or ids.shape[1] + 1 < size:
            return scores
        ngrams = among[0].unfold(0, size, 1)
        repeated = (ngrams[:, :-1] == ids[0, ids.shape[1] + 1 - size :]).all(-1)
        ban = torch.where(repeated, -torch.inf, 0.0).to(scores.dtype).unsqueeze(0)
        return scores.index_add(1, ngrams[:, -1], ban)


# Makes the processor of one reply from a setting's value; in the order in which `generate` applies them.
HONOURED: Mapping[str, Callable[[Any, _Reply], Any]] = {
    "sequence_bias": lambda v, r: SequenceBiasLogitsProcessor(v),
    "encoder_repetition_penalty": lambda v, r: EncoderRepetitionPenaltyLogitsProcessor(v, r.prompt_ids),
    "repetition_penalty": lambda v, r: RepetitionPenaltyLogitsProcessor(v),
    "no_repeat_ngram_size": lambda v, r: _NoRepeatNgrams(v),
    "encoder_no_repeat_ngram_size": lambda v, r: _NoRepeatNgrams(v, r.prompt_ids),
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
# Values with no effect, which count as not set.
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
# Settings that are ignored for a model without an end-of-sequence token.
_NEEDS_END = {"min_length", "min_new_tokens", "exponential_decay_length_penalty"}
# Applied before the repetition penalty, which therefore can't be moved into the request's parameters.
_BEFORE_REPETITION = {"sequence_bias", "encoder_repetition_penalty"}
_NOT_HONOURED = (
    "num_beams", "guidance_scale", "penalty_alpha", "dola_layers", "watermarking_config",
    "token_healing", "stop_strings", "remove_invalid_values",
)  # fmt: skip
_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "top_h", "epsilon_cutoff", "eta_cutoff",
)  # fmt: skip


_MILD = SamplingParams(temperature=0.3, top_p=0.9, repetition_penalty=1.05, max_repeats=3)
_SPOKEN = (
    "You are a friendly voice assistant. Answer in one to three short sentences, in plain spoken words,"
    " without lists, headings or emojis."
)


@dataclass(frozen=True, slots=True)
class _Named:
    """A processor whose ``repr``, which error messages show, names its setting."""

    name: str
    processor: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return self.processor(ids, scores)

    def __repr__(self) -> str:
        return f"{self.name} of the model's generation_config"


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """The settings of a model's ``generation_config`` that apply to every reply.

    Attributes:
        asked: Value by transformers' name of the setting: those in `HONOURED` that have an effect.
    """

    asked: Mapping[str, Any]

    @classmethod
    def of(cls, generation_config: Any) -> ModelDefaults:
        """Read transformers' ``GenerationConfig``; None has no settings."""
        return cls(_given(generation_config, HONOURED))

    def applied(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        end_ids: frozenset[int],
        device: torch.device,
    ) -> SamplingParams:
        """Return a request's parameters with the model's settings added.

        A repetition penalty that the request sets replaces the model's.

        Raises:
            SamplingError: a setting has a value that it can't have.
        """
        if not self.asked:
            return params
        asked = dict(self.asked)
        if not end_ids:
            asked = {name: value for name, value in asked.items() if name not in _NEEDS_END}
        if params.repetition_penalty != 1.0:
            asked.pop("repetition_penalty", None)
        elif not _BEFORE_REPETITION & asked.keys():  # our own processor is the same, and faster
            penalty = asked.pop("repetition_penalty", 1.0)
            with _refusing("repetition_penalty"):
                params = replace(params, repetition_penalty=penalty)
        if not asked:
            return params
        forced = "forced_bos_token_id" in asked
        reply = _Reply(prompt, params.max_tokens, sorted(end_ids), device, forced)
        own = list[_Named]()
        for name, value in asked.items():
            with _refusing(name):
                own.append(_Named(name, HONOURED[name](value, reply)))
        return replace(params, processors=(*own, *params.processors))

    def check(self, name: str, vocab_size: int, device: torch.device) -> None:
        """Apply each setting to one row of logits, so that a wrong value is found before a request.

        Raises:
            ModelBroken: a setting has an impossible value; ``name``, the model's, is in the error.
        """
        try:
            with torch.inference_mode():
                # A prompt of one token, a reply of one token: settings for first and last tokens apply.
                params = self.applied(SamplingParams(max_tokens=1), [0], frozenset({0}), device)
                for setting in params.processors:
                    with _refusing(getattr(setting, "name", "")):
                        ids = torch.zeros(1, 1, dtype=torch.long, device=device)
                        setting(ids, torch.zeros(1, vocab_size, dtype=torch.float32, device=device))
        except SamplingError as error:
            raise ModelBroken(f"{name}: {error}") from error

    @staticmethod
    def tell(name: str, generation_config: Any) -> None:
        """Log the unsupported settings of a model, and the sampling parameters that it recommends."""
        missed = _given(generation_config, _NOT_HONOURED)
        if missed:
            _log.warning("%s: its generation_config asks for %s; not supported", name, _listed(missed))
        sampling = _given(generation_config, _SAMPLING)
        if sampling and getattr(generation_config, "do_sample", False):
            _log.info(
                "%s: its generation_config recommends %s; replies are greedy unless a request asks",
                name,
                _listed(sampling),
            )


def manner_of(generation_config: Any) -> Manner:
    """How a model replies in conversation: as its own config recommends, else mildly sampled.

    A config that says ``do_sample: false`` asks for greedy replies and no system message.
    """
    samples = getattr(generation_config, "do_sample", None)
    if samples is False:
        return Manner(SamplingParams(max_repeats=_MILD.max_repeats))
    if not samples:
        return Manner(_MILD, _SPOKEN)
    known = {"temperature", "top_k", "top_p", "min_p", "typical_p"}
    own = {name: v for name, v in _given(generation_config, _SAMPLING).items() if name in known}
    try:
        params = SamplingParams(**{"temperature": 1.0, **own}, max_repeats=_MILD.max_repeats)
    except SamplingError as error:
        _log.warning("the generation_config recommends what can't be: %s", error)
        params = _MILD
    return Manner(params, _SPOKEN)


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Raise errors within the block as a `SamplingError` that names the setting and the remedy."""
    try:
        yield
    except Exception as error:
        raise SamplingError(
            f"{name} of the model's generation_config can't be applied: {error}; correct it, or set "
            "model_defaults = false"
        ) from error


def _given(config: Any, names: Any) -> dict[str, Any]:
    """The settings among ``names`` that are set to something with an effect."""
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
