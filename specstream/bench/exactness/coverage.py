"""Which sampling parameters hold exactly under speculation, and which a model asks for in vain."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from specstream.bench.exactness.pair import Finding
from specstream.errors import SamplingError
from specstream.model.defaults import HONOURED
from specstream.model.grammar import GrammarState
from specstream.types import Grammar, SamplingParams

__all__ = ["NOT_OFFERED", "SAME", "check_parameters"]

# transformers' name → ours.
SAME = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repetition_penalty",
    "bad_words_ids": "bad_words",
    "sequence_bias": "logit_bias",
    "min_new_tokens": "min_tokens",
    "max_new_tokens": "max_tokens",
    "stop_strings": "stop",
}
# transformers' name → the value that means "off". A request that asks for them is refused: there is no
# such field. Of those, `ModelDefaults` applies what a model's own config asks for.
NOT_OFFERED = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
    "guidance_scale": None,
    "renormalize_logits": False,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "watermarking_config": None,
    "penalty_alpha": None,
    "dola_layers": None,
    "token_healing": False,
}


def check_parameters(
    generation_config: Any, tokenizer: Any, vocab_size: int, end_ids: frozenset[int]
) -> Finding:
    """What is supported, what is refused, and what of it this model's own defaults ask for.

    Holds unless a parameter that isn't offered is taken without a word.
    """
    supported = [field.name for field in fields(SamplingParams)]
    refused = sorted(NOT_OFFERED)
    grammar = "supported"
    try:
        GrammarState(Grammar("regex", "[a-z]+"), tokenizer, vocab_size, end_ids)
    except SamplingError as error:
        supported.remove("grammar")
        refused.append("grammar")
        grammar = str(error)
    silent = [name for name in NOT_OFFERED if _is_taken(name)]
    asked = generation_config.to_diff_dict() if generation_config is not None else {}
    missed = {
        name: asked[name]
        for name, off in NOT_OFFERED.items()
        if asked.get(name) not in (None, off, []) and name not in HONOURED
    }
    recommends = {ours: asked[theirs] for theirs, ours in SAME.items() if theirs in asked}
    says = f"{len(supported)} parameters supported, {len(refused)} refused by name"
    if missed:
        says += f"; this model's own defaults ask for {', '.join(missed)}, which are not offered"
    return Finding(
        "every sampling parameter is honoured or refused",
        not silent,
        says,
        {
            "supported": supported,
            "refused": refused,
            "grammar": grammar,
            "model_recommends": recommends,
            "model_asks_in_vain": missed,
        },
    )


def _is_taken(name: str) -> bool:
    try:
        cast(Any, SamplingParams)(**{name: 1})
    except TypeError:
        return False
    return True
