"""Streams through the whole engine: the exact distribution of the first four tokens.

As in `test_engine`: a G-test of N runs against the exact distribution, N = 500 a cell, which finds a
total variation of 0.18 with probability 0.99; a cell fails at p < 1e-3 / (number of cells). The target
is a real transformer of two layers, whose rows and streams share its passes.
"""

import pytest
import torch

from specstream.bench.exactness.enumeration import g_test
from specstream.bench.exactness.harness import sample
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.exactness.cells import PROMPT
from tests.exactness.toy import EOS, Letters, exact_joint, make_core, tiny_llama
from tests.support.streams import streaming_proposer

pytestmark = pytest.mark.slow

ALPHA, N, VOCAB, LENGTH = 1e-3, 500, 5, 4
MODEL = tiny_llama(VOCAB, 0, layers=2)
CELLS = [
    (SamplingParams(1.0, max_tokens=LENGTH + 1), 1, 0.0),
    (SamplingParams(1.2, top_p=0.8, frequency_penalty=0.6, max_tokens=LENGTH + 1), 4, 0.1),
]


@torch.inference_mode()
def logits_after(ids: object) -> object:
    return MODEL(input_ids=torch.tensor([list(ids)])).logits[0, -1].double().numpy()  # type: ignore[call-overload]


@pytest.mark.parametrize(("params", "batch", "prune_below"), CELLS)
def test_a_streaming_cell_has_the_exact_distribution(
    params: SamplingParams, batch: int, prune_below: float
) -> None:
    runner = ModelRunner(MODEL)
    proposer = streaming_proposer(runner, prune_below=prune_below, min_confidence=0.2)
    core = make_core(runner, Letters(), proposer, frozenset({EOS}), max_running=batch)
    seen = sample(core, PROMPT, params, N, length=LENGTH, first_seed=0)
    prompt = Letters().encode(PROMPT)
    exact = exact_joint(logits_after, params, prompt, LENGTH, frozenset({EOS}))  # type: ignore[arg-type]
    result = g_test(seen, exact)
    assert result.p_value > ALPHA / len(CELLS), result
