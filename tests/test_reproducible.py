"""The reproducible mode: a seed fixes the tokens, whatever drafts and whoever else is served."""

import itertools
import random

import pytest
import torch
from transformers import LlamaForCausalLM

from specstream.config import EngineConfig
from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.off import OffProposer
from specstream.drafting.proposers.suffix import SuffixProposer
from specstream.engine.core.step import EngineCore
from specstream.errors import ConfigError
from specstream.methods import DraftProposerConfig, SuffixProposerConfig
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import find_fixed_width
from specstream.types import SamplingParams
from tests.support.tiny import ask, byte_tokenizer, noisy_copy, run_until_idle, tiny_model

TOKENIZER = byte_tokenizer()
CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]


def target(dtype: torch.dtype) -> LlamaForCausalLM:
    model = tiny_model(len(TOKENIZER), seed=2, context=128)
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    return model


def make(model: LlamaForCausalLM, width: int, proposer: Proposer) -> EngineCore:
    config = EngineConfig(mode="reproducible")
    runner = ModelRunner(model, fixed_width=width)
    return EngineCore(config, runner, TOKENIZER, proposer, frozenset())


def drafting(model: LlamaForCausalLM, noise: float, k: int) -> DraftModelProposer:
    runner = ModelRunner(noisy_copy(model, noise))
    return DraftModelProposer(DraftProposerConfig(num_tokens=k), runner, frozenset())


@pytest.mark.parametrize(("dtype", "other"), [*zip(DTYPES, ("bfloat16", "float32"), strict=True)])
def test_a_refusal_names_a_dtype_that_was_not_tried(
    dtype: torch.dtype, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specstream.model.selfcheck.rows_alike", lambda *_, **__: (0, 1))
    with pytest.raises(ConfigError, match=f"the last bit; try dtype {other}"):
        find_fixed_width(target(dtype), EngineConfig())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
def test_a_seed_fixes_the_tokens(dtype: torch.dtype) -> None:
    """Off, two drafts, lookup, K from 1 to 7, neighbours, and resuming half-way."""
    model = target(dtype)
    width = find_fixed_width(model, EngineConfig())
    rng = random.Random(8)
    ways: list[Proposer] = [
        OffProposer(),
        *(drafting(model, noise, k) for noise, k in itertools.product((0.05, 0.3), (1, 4, 7))),
        SuffixProposer(SuffixProposerConfig(min_score=0), CPU),
    ]
    accepted = 0
    for number in range(4):
        params = SamplingParams(
            temperature=rng.choice([0.6, 1.0, 1.4]),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([0, 40]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            seed=number,
            max_tokens=24,
        )
        results = []
        for proposer in ways:
            core = make(model, width, proposer)
            request, inbox = ask(core, f"text {number}", params)
            for _ in range(rng.randrange(3)):
                ask(core, "neighbour", SamplingParams(temperature=1.0, max_tokens=9))
            run_until_idle(core)
            results.append(inbox.token_ids)
            accepted += request.stats.accepted
        assert all(result == results[0] for result in results)
        assert len(results[0]) == 24
    assert accepted > 50


def test_another_seed_gives_another_text_and_the_distribution_is_the_targets() -> None:
    model = target(torch.float32)
    width = find_fixed_width(model, EngineConfig())
    first = []
    for seed in range(12):
        core = make(model, width, OffProposer())
        _, inbox = ask(core, "abc", SamplingParams(temperature=1.5, seed=seed, max_tokens=6))
        run_until_idle(core)
        first.append(tuple(inbox.token_ids))
    assert len(set(first)) > 8


def test_width_noise_is_seen_where_it_exists() -> None:
    """The check has teeth: without a fixed capacity, or told a wrong junk row, rows differ."""
    model = target(torch.bfloat16)

    class Drifting(ModelRunner):
        def _fixed(self, item, width):  # type: ignore[no-untyped-def]
            return super()._fixed(item, width) + 1e-3 * item.token_ids.shape[0]

    from specstream.model.selfcheck import rows_alike

    same, total = rows_alike(Drifting(model, fixed_width=16), tokens=32)
    assert same < total
