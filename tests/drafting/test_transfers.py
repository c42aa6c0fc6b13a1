"""As on a GPU: a round waits for the device once, whatever is sampled, processed and proposed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.drafting.proposal import Proposal
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.verify import Case, verify_batch
from specstream.methods import DraftProposerConfig
from specstream.model.runner import ModelRunner
from specstream.model.tokens import processors
from specstream.model.tokens.sampling import Uniforms
from specstream.types import Grammar, SamplingParams
from tests.support.drafts import no_looking
from tests.support.tiny import (
    EOS,
    ask,
    byte_tokenizer,
    make_core,
    noisy_copy,
    run_until_idle,
    tiny_model,
)
from tests.support.transfers import transfers

TOKENIZER = byte_tokenizer()
V = len(TOKENIZER)
MODEL = tiny_model(V, seed=2)
A, B, C = (int(i) for i in TOKENIZER.encode("abc"))


class Shifting:
    """A custom processor that uses the context without reading it on the host."""

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return scores + torch.nn.functional.one_hot(ids[:, -1], V) * 0.5


PROCESSED: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "frequency_penalty": {"frequency_penalty": 0.8},
    "presence_penalty": {"presence_penalty": -0.4},
    "logit_bias": {"logit_bias": {A: 6.0, B: -3.0}},
    "bad_words": {"bad_words": ("ab", "c", "P]P]")},
    "min_tokens": {"min_tokens": 9},
    "grammar": {"grammar": Grammar("regex", "([a-e]{3}[0-9] ?){8,12}")},
    "processors": {"processors": (Shifting(),)},
}
ON_DEVICE = {name: values for name, values in PROCESSED.items() if name != "grammar"}
EVERYTHING: dict[str, Any] = {key: v for values in ON_DEVICE.values() for key, v in values.items()}


def test_every_parameter_is_here() -> None:
    assert PROCESSED.keys() == processors.PROCESSORS.keys()


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    no_looking(monkeypatch)


def steps(values: dict[str, Any], **options: Any) -> list[list[str]]:
    """Transfers of each step of an engine with a draft model, four tokens a round."""
    proposer = DraftModelProposer(
        DraftProposerConfig(num_tokens=4), ModelRunner(noisy_copy(MODEL, 0.1)), frozenset()
    )
    proposer.looks = False
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=(EOS,), **options)
    params = SamplingParams(max_tokens=24, **values)
    asked = [ask(core, "abab" * n, params, noise=4) for n in (1, 2)]
    asked.append(ask(core, "abc", SamplingParams(0.8, seed=5, max_tokens=24)))
    core.step()
    found = []
    for _ in range(4):
        with transfers() as counter:
            core.step()
        found.append(counter.where)
    assert all(request.stats.drafted > 8 for request, _ in asked)
    run_until_idle(core)
    assert not any(inbox.errors for _, inbox in asked)
    return found


@pytest.mark.usefixtures("no_reading")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("values", [*ON_DEVICE.values(), EVERYTHING], ids=[*ON_DEVICE, "everything"])
def test_a_round_with_processors_waits_once(values: dict[str, Any], temperature: float) -> None:
    assert steps(values | {"temperature": temperature}) == [["tolist"]] * 4


@pytest.mark.usefixtures("no_reading")
def test_a_grammar_waits_for_the_tokens_that_it_reads() -> None:
    """Per request: one wait for every drafted token but the first, one for the whole proposal."""
    pytest.importorskip("llguidance")
    for where in steps(PROCESSED["grammar"]):
        assert where == ["tolist"] * (2 * (3 + 1) + 1)


def uniform(count: int) -> Tensor:
    return torch.full((count, 9), 1 / 9)


def case(proposal: Proposal, values: dict[str, Any]) -> Case:
    logits = torch.randn(proposal.length + 1, 9, generator=torch.Generator().manual_seed(3))
    key = values.get("key")
    params = SamplingParams(**{name: v for name, v in values.items() if name != "key"})
    return Case(proposal, logits, params, Uniforms(1), key)


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "top_p": 0.9, "typical_p": 0.9, "top_k": 5, "min_p": 0.01},
    "exact match": {"temperature": 1.0, "key": (7, 30)},
}
SHAPES: list[tuple[int, tuple[int, ...] | None]] = [
    (0, None),
    (3, None),
    (5, (-1, -1, 0, 0, 2)),
    (3, (-1, 0, -1)),
]


def cases() -> list[Case]:
    """Chains and trees of every kind, with and without probabilities."""
    return [
        case(Proposal(torch.arange(count) + 1, uniform(count) if drawn else None, parents), values)
        for values in WAYS.values()
        for drawn in (False, True)
        for count, parents in SHAPES
    ]


@pytest.mark.usefixtures("no_reading")
def test_a_batch_of_chains_and_trees_of_every_kind_is_one_transfer() -> None:
    made = cases()
    with transfers() as counter:
        together = verify_batch(made)
    assert counter.where == ["tolist"]
    assert together == [verify_batch([one])[0] for one in cases()]
    assert any(verdict.path not in ((), tuple(range(verdict.accepted))) for verdict in together)


@pytest.mark.usefixtures("no_reading")
def test_a_tree_that_turns_out_malformed_is_told_and_its_bad_nodes_are_never_accepted() -> None:
    """Node 1's row is no distribution, node 2's id no token: they and their descendants are left out."""
    probs = uniform(4)
    probs[1] = torch.nan
    sound = torch.tensor([True, True, False, True])
    proposal = Proposal(torch.tensor([1, 2, 0, 4]), probs, (-1, -1, -1, 1), sound=sound)
    for seed in range(60):
        logits, generator = torch.zeros(5, 9), torch.Generator().manual_seed(seed)
        logits[0, 3:] = -20.0
        (verdict,) = verify_batch([Case(proposal, logits, SamplingParams(1.0), generator)])
        assert verdict.malformed and verdict.path in ((), (0,))
