"""The greedy comparison: identical where it should be, and every divergence with its figures."""

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import PreTrainedModel

from specstream.bench.exactness.checks import Divergence, GreedyReport, compare_greedy, width_noise
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.methods import DraftProposerConfig
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from specstream.types import Message
from tests.exactness.toy import Numbers, make_core, noisy_copy, tiny_llama

pytestmark = pytest.mark.slow

NONE: frozenset[int] = frozenset()


def report_of(
    dtype: torch.dtype, runner_class: Callable[[PreTrainedModel], ModelRunner] = ModelRunner
) -> GreedyReport:
    target = tiny_llama(64, 0, layers=2, hidden=32, spread=4.0, dtype=dtype)
    draft = DraftModelProposer(
        DraftProposerConfig(num_tokens=4), ModelRunner(noisy_copy(target, 0.1, 1)), NONE
    )
    core = make_core(runner_class(target), Numbers(), draft, NONE)
    prompts: list[tuple[str, list[Message], str]] = [
        (str(i), [{"role": "user", "content": f"{i} {i + 1} 7"}], "") for i in range(2, 10)
    ]
    return compare_greedy(core, prompts, max_tokens=40)


class Torchs(ModelRunner):
    """Passes by torch's operations, whose sums depend on a pass's width."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model, native=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_native_passes_of_any_width_round_alike(dtype: torch.dtype) -> None:
    report = report_of(dtype)
    assert report.tokens == 8 * 40
    assert report.divergences == () and report.noise == 0.0


def test_in_float32_nothing_differs() -> None:
    report = report_of(torch.float32, Torchs)
    assert report.tokens == 8 * 40
    assert report.divergences == ()
    assert 0 < report.noise < 1e-4


def test_in_bfloat16_every_divergence_is_a_near_tie() -> None:
    report = report_of(torch.bfloat16, Torchs)
    assert report.holds
    assert report.noise > 1e-3
    assert report.to_dict()["tokens"] == report.tokens


class Wrong(ModelRunner):
    """Passes of several tokens look one row too far back."""

    def _pass(self, inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        (rows,) = super()._pass(inputs, extras).logits
        return ForwardOutput([rows.roll(1, 0) if 1 < rows.shape[0] < 5 else rows])


def test_a_bug_is_not_called_rounding() -> None:
    """The noise is measured with passes of 5, which this bug leaves alone; drafts are 4 or fewer."""
    report = report_of(torch.float32, Wrong)
    assert not report.holds
    assert all(d.margin > 100 * d.noise for d in report.divergences if not d.explained)


def test_a_divergence_is_explained_by_twice_the_noise() -> None:
    assert Divergence("a", 3, margin=0.02, noise=0.01).explained
    assert not Divergence("a", 3, margin=0.021, noise=0.01).explained


def test_the_noise_of_one_token_passes_is_none() -> None:
    runner = ModelRunner(tiny_llama(64, 0))
    noise, rows = width_noise(runner, [1, 2, 3, 4, 5, 6], 2, 1)
    assert noise == 0
    assert rows.shape == (4, 64)
