"""Checks of a pair: equal bits, greedy text, and every sampling parameter.

A pass over K + 1 tokens sums in another order than a pass over one, so the last bits of the logits
differ. Where the two best tokens are closer than that, either may win. Every divergence is reported
with its margin and the measured noise; a margin far above the noise is a bug.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from specstream.bench.exactness.harness import Varying, run_requests
from specstream.bench.exactness.pair import Finding
from specstream.config import EngineConfig
from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers.suffix import SuffixProposer
from specstream.engine.build import build_engine
from specstream.engine.core.step import EngineCore
from specstream.errors import ConfigError, SamplingError
from specstream.methods import SuffixProposerConfig
from specstream.model.defaults import HONOURED
from specstream.model.forward import ForwardInput
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import rows_alike
from specstream.model.tokens.processors import LogitsPipeline, ModelFacts
from specstream.params import SamplingParams, parameters
from specstream.types import Message

__all__ = [
    "NOT_OFFERED",
    "Divergence",
    "GreedyReport",
    "check_bits",
    "check_parameters",
    "compare_greedy",
    "width_noise",
]

Build = Callable[[EngineConfig], EngineCore]
_NEIGHBOUR = SamplingParams(temperature=1.0, max_tokens=9)


def check_bits(
    config: EngineConfig,
    dtypes: Sequence[str],
    prompts: Sequence[list[Message]],
    *,
    seeds: int = 1,
    max_tokens: int = 32,
    build: Build = build_engine,
) -> Finding:
    """Sample each prompt with every proposer and compare the tokens with those of plain decoding.

    A dtype for which no pass width keeps all bits doesn't fail the check: the reproducible mode refuses
    to start there. Loads the models once for each dtype.
    """
    found: dict[str, Any] = {}
    holds, parts = True, []
    for dtype in dtypes:
        try:
            core = build(config.model_copy(update={"mode": "reproducible", "dtype": dtype}))
        except ConfigError as error:
            found[dtype] = {"available": False, "because": str(error)}
            parts.append(f"{dtype}: not available here")
            continue
        found[dtype] = _runs(core, prompts, seeds, max_tokens)
        same, runs, width = (found[dtype][key] for key in ("identical", "runs", "width"))
        holds &= same == runs
        parts.append(f"{dtype}: {same} of {runs} runs identical ({_width(width)})")
    return Finding("bit-identical in the reproducible mode", holds, "; ".join(parts), found)


def _width(width: int | None) -> str:
    return "any width" if width is None else f"width {width}"


def _runs(
    core: EngineCore, prompts: Sequence[list[Message]], seeds: int, max_tokens: int
) -> dict[str, Any]:
    width = core.target.fixed_width  # None: native passes, which keep all bits at any width
    same, total = rows_alike(core.target, tokens=min(8 * (width or 16), core.target.context_length))
    given, device = core.proposer, core.target.device
    lookup = SuffixProposer(SuffixProposerConfig(min_score=0), device)
    ways: list[tuple[str, Proposer, int]] = [  # name, proposer, number of concurrent requests
        ("off", given, 0),
        (given.name, given, 0),
        (f"{given.name}, K varying", Varying(given, 7), 0),
        ("suffix", lookup, 0),
        ("suffix, with neighbours", lookup, 2),
    ]
    identical = runs = accepted = 0
    for messages, seed in itertools.product(prompts, range(seeds)):
        params = SamplingParams(temperature=0.9, top_p=0.95, seed=seed, max_tokens=max_tokens)
        plain: list[int] | None = None
        for name, core.proposer, beside in ways:
            batch = [params, *[_NEIGHBOUR] * beside]
            request = run_requests(core, messages, batch, proposer=name)[0]
            if plain is None:
                plain = request.token_ids
                continue
            runs += 1
            identical += request.token_ids == plain
            accepted += request.stats.accepted
    core.proposer = given
    return {"available": True, "width": width, "rows_alike": same, "rows": total, "runs": runs,
            "identical": identical, "accepted_tokens": accepted}  # fmt: skip


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
            "model_recommends": {ours: asked[name] for name, ours in theirs.items() if name in asked},
            "model_asks_in_vain": missed,
        },
    )


@dataclass(frozen=True, slots=True)
class Divergence:
    """A place where the two texts diverge."""

    prompt: str
    position: int
    margin: float  # between the two best logits there, in the plain pass
    noise: float  # the largest difference that a pass's width made to any logit of this text

    @property
    def explained(self) -> bool:
        """Whether rounding can have decided: the margin is within the noise of both tokens."""
        return self.margin <= 2 * self.noise


@dataclass(frozen=True, slots=True)
class GreedyReport:
    """Tokens compared over ``prompts`` replies, each up to its first divergence."""

    prompts: int
    tokens: int
    divergences: tuple[Divergence, ...]
    noise: float

    @property
    def holds(self) -> bool:
        """No divergence that rounding doesn't explain."""
        return all(d.explained for d in self.divergences)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "prompts": self.prompts,
            "tokens": self.tokens,
            "width_noise": self.noise,
            "divergences": [asdict(d) | {"explained": d.explained} for d in self.divergences],
        }


def compare_greedy(
    core: EngineCore,
    prompts: Sequence[tuple[str, list[Message], str]],
    *,
    max_tokens: int,
    min_tokens: int = 0,
    width: int = 5,
) -> GreedyReport:
    """Write each reply twice with one engine, speculating and plainly, and compare token by token.

    ``prompts`` are (name, messages, reference); ``min_tokens`` keeps short replies going; ``width`` is
    the number of tokens of the passes that are compared with single-token passes to measure the noise.
    """
    params = [SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens)]
    divergences, tokens, noise = [], 0, 0.0
    for name, messages, reference in prompts:
        (plain,) = run_requests(core, messages, params, proposer="off")
        (drafted,) = run_requests(core, messages, params, reference=reference)
        at = plain.prompt_length
        pairs = zip(plain.token_ids[at:], drafted.token_ids[at:], strict=False)
        same = at + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        tokens += same - at
        here, rows = width_noise(core.target, plain.token_ids, at, width)
        noise = max(noise, here)
        if same < len(plain.token_ids) or same < len(drafted.token_ids):
            row = rows[same - at].clone()
            if same - at < min_tokens:
                row[sorted(plain.sequence.eos_ids)] = -torch.inf
            best = row.topk(2).values
            divergences.append(Divergence(name, same - at, float(best[0] - best[1]), here))
    return GreedyReport(len(prompts), tokens, tuple(divergences), noise)


@torch.inference_mode()
def width_noise(
    runner: ModelRunner, ids: Sequence[int], prompt_length: int, width: int
) -> tuple[float, Tensor]:
    """Largest logit difference between passes over 1 and over ``width`` tokens of a reply.

    Returns:
        The difference, and the single-token logits ``[n, V]`` float32: row j is for reply token j.
    """
    single = _read(runner, ids, prompt_length, 1)
    wide = _read(runner, ids, prompt_length, width)
    finite = single.isfinite() & wide.isfinite()
    return float((single - wide)[finite].abs().max()), single


def _read(runner: ModelRunner, ids: Sequence[int], prompt_length: int, width: int) -> Tensor:
    cache = runner.new_cache()
    text = torch.tensor(list(ids[:-1]), device=runner.device)
    prompt = text[: prompt_length - 1]
    for part in torch.split(prompt, runner.fixed_width or 512):
        runner.forward([ForwardInput(part, cache)])
    rows = [
        runner.forward([ForwardInput(part, cache, keep=part.shape[0])]).logits[0]
        for part in torch.split(text[prompt_length - 1 :], width)
    ]
    return torch.cat(rows).float()
