"""Which sampling parameters are supported, and which unsupported ones a model's defaults ask for."""

from __future__ import annotations

from typing import Any

import torch

from specstream.bench.exactness.pair import Finding
from specstream.engine.step import EngineCore
from specstream.errors import SamplingError
from specstream.model.defaults import HONOURED
from specstream.model.processors import LogitsPipeline, ModelFacts
from specstream.params import SamplingParams, parameters

__all__ = ["NOT_OFFERED", "check_parameters"]

# transformers' parameters without a field in `SamplingParams`, and the values that switch them off. A
# request that names one is refused; `ModelDefaults` applies those in `HONOURED` from a model's config.
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


def check_parameters(core: EngineCore, tokenizer: Any, end_ids: frozenset[int]) -> Finding:
    """Report supported and refused parameters, and unsupported ones that the model's defaults ask for.

    Every parameter is tried with its example value on this tokenizer and the target. The claim holds
    unless a parameter of `NOT_OFFERED` is accepted.
    """
    known, vocab_size = parameters(), core.target.vocab_size
    generation_config: Any = core.target.model.generation_config
    facts = ModelFacts(tokenizer, [0], vocab_size, end_ids, torch.device("cpu"))
    problems: dict[str, str] = {}
    for name, parameter in known.items():
        try:
            params = SamplingParams(**{name: parameter.example})
            LogitsPipeline(params, facts)
        except SamplingError as error:
            problems[name] = str(error)
    refused = [*sorted(NOT_OFFERED), *problems]
    accepted = [name for name in NOT_OFFERED if name in known]
    asked = generation_config.to_diff_dict() if generation_config is not None else {}
    missed = {
        name: asked[name]
        for name, off in NOT_OFFERED.items()
        if asked.get(name) not in (None, off, []) and name not in HONOURED
    }
    theirs = {parameter.theirs: name for name, parameter in known.items() if parameter.theirs}
    says = f"{len(known) - len(problems)} parameters supported, {len(refused)} refused by name"
    if missed:
        says += f"; this model's own defaults ask for {', '.join(missed)}, which are not offered"
    return Finding(
        "every sampling parameter is honoured or refused",
        not accepted,
        says,
        {
            "supported": [name for name in known if name not in problems],
            "refused": refused,
            "grammar": problems.get("grammar", "supported"),
            "model_recommends": {
                ours: asked[name] for name, ours in theirs.items() if name in asked
            },
            "model_asks_in_vain": missed,
        },
    )
