"""Drafting with Medusa heads: the trees and chains that are proposed, and that nothing is biased."""

import itertools
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from specstream.drafting.candidate import EngineParts
from specstream.drafting.proposal import Capabilities, Proposal
from specstream.drafting.proposers import build_proposer
from specstream.drafting.proposers.auto import build as build_auto
from specstream.drafting.research.medusa import MedusaProposer, TreeShape, grow_all
from specstream.errors import ConfigError
from specstream.methods import AutoProposerConfig, MedusaProposerConfig
from specstream.model.heads.research.medusa import MedusaHead
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, PROMPTS, TOKENIZER, check_greedy
from tests.exactness.toy import EOS, sampled_text
from tests.support.medusas import medusa_head, medusa_proposer, random_medusa, trained_medusa
from tests.support.tiny import answered, ask, make_core, run_until_idle


class Asked:
    """The part of a request that `grow` uses."""

    def __init__(self, banned: tuple[int, int] | None = None) -> None:
        self.params = SamplingParams(repetition_penalty=1.0 if banned is None else 1.1)
        self.banned = banned

    def process(self, logits: Tensor, drafted: list[int]) -> Tensor:
        if self.banned is not None and drafted and drafted[-1] == self.banned[0]:
            logits = logits.clone()
            logits[self.banned[1]] = -torch.inf
        return logits


def head(seed: int = 0) -> tuple[MedusaHead, Tensor]:
    runner = ModelRunner(MODEL)
    noise = torch.Generator().manual_seed(seed)
    return medusa_head(random_medusa(runner), runner), torch.randn(
        3, len(TOKENIZER), generator=noise
    ) * 3


def grown(rows: Tensor, made: MedusaHead, asked: Asked, ends: frozenset[int] = frozenset()) -> Proposal:
    request: Any = asked
    (found,) = grow_all([(request, rows)], made, TreeShape(3, lambda levels: 9, ends))
    return found


def chosen(proposal: Proposal) -> list[tuple[int, ...]]:
    """Each node's path of tokens."""
    tokens = proposal.tokens.tolist()
    return [tuple(tokens[node] for node in path) for path in proposal.paths[1:]]


def test_a_tree_is_the_likeliest_paths() -> None:
    made, rows = head()
    log_p = rows.log_softmax(-1)
    best = [row.topk(3).indices.tolist() for row in log_p]
    every = [path for n in (1, 2, 3) for path in itertools.product(*best[:n])]
    every.sort(key=lambda path: -sum(float(log_p[i, token]) for i, token in enumerate(path)))
    found = grown(rows, made, Asked())
    assert chosen(found) == every[:9]
    assert found.probs is None and found.tree is not None


def test_each_path_is_processed_on_its_own() -> None:
    made, rows = head(1)
    first, second = int(rows[0].argmax()), int(rows[1].argmax())
    paths = chosen(grown(rows, made, Asked((first, second))))
    assert (first,) in paths and all(path[:2] != (first, second) for path in paths)
    assert any(path[1:2] == (second,) for path in paths)


def test_nothing_follows_the_end_of_a_turn() -> None:
    made, rows = head()
    end = int(rows[0].argmax())
    paths = chosen(grown(rows, made, Asked(), frozenset({end})))
    assert (end,) in paths and all(end not in path[:-1] for path in paths)


def test_damaged_logits_give_no_nodes() -> None:
    made, rows = head()
    assert grown(rows * torch.nan, made, Asked()).length == 0
    rows[1] = torch.nan
    assert {len(path) for path in chosen(grown(rows, made, Asked()))} == {1}


@pytest.mark.parametrize("kind", ["random", "NaN", "huge", "pruned"])
@pytest.mark.parametrize("top_k", [1, 3])
def test_heads_that_lie_cost_speed_only(kind: str, top_k: int) -> None:
    runner = ModelRunner(MODEL)
    scale = {"NaN": torch.nan, "huge": 1e20}.get(kind, 1.0)
    vocabulary = torch.tensor([5, 7, 99]) if kind == "pruned" else None
    lying = medusa_head(random_medusa(runner, scale, vocabulary=vocabulary), runner)
    proposer = MedusaProposer(MedusaProposerConfig(top_k=top_k), lying)
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=(), prefill_chunk=5)
    check_greedy(core, 25, None)


@pytest.mark.parametrize(
    ("params", "top_k", "batch"),
    [
        (SamplingParams(temperature=1.0), 3, 1),
        (SamplingParams(temperature=0.8, top_p=0.9), 1, 1),
        (SamplingParams(temperature=1.2, top_k=4), 2, 4),
    ],
)
def test_sampled_replies_have_the_exact_distribution(
    params: SamplingParams, top_k: int, batch: int
) -> None:
    config = MedusaProposerConfig(top_k=top_k, depth=3, nodes=6)

    def made(runner: ModelRunner) -> MedusaProposer:
        heads = medusa_head(random_medusa(runner, 0.3), runner)
        return MedusaProposer(config, heads, frozenset({EOS}))

    result = sampled_text(made, params, batch)
    assert result.p_value > 1e-3 / 3, result


def test_a_conversation_goes_on_and_a_slot_is_forgotten() -> None:
    proposer = medusa_proposer(MODEL)
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=(), prefill_chunk=7)
    plain = make_core(MODEL, TOKENIZER, medusa_proposer(MODEL, depth=1, top_k=1), eos_ids=())
    for text in ("abab", "and now"):
        replies = []
        for one in (core, plain):
            _, inbox = answered(one, text, SamplingParams(max_tokens=20), session="a")
            replies.append(inbox.token_ids)
        assert replies[0] == replies[1] and len(replies[0]) == 20
    assert len(proposer.kept) == 1
    proposer.release(next(iter(proposer.kept)))
    assert not proposer.kept


def test_a_tree_accepts_more_than_a_chain() -> None:
    """Accepted tokens per round, on replies of the kind that the heads were trained on."""
    rates = []
    for top_k in (1, 4):
        core = make_core(MODEL, TOKENIZER, medusa_proposer(MODEL, top_k=top_k, nodes=12), eos_ids=())
        asked = [ask(core, prompt, SamplingParams(max_tokens=40)) for prompt in PROMPTS]
        run_until_idle(core)
        rates.append(sum(request.stats.accepted for request, _ in asked))
    assert rates[1] > rates[0] > 0


def test_it_is_built_from_heads_that_were_loaded_and_auto_takes_them() -> None:
    runner = ModelRunner(MODEL)
    made = medusa_head(trained_medusa(MODEL), runner)
    parts = EngineParts(runner, frozenset(), TOKENIZER, heads={"medusa": made})
    proposer = build_proposer(MedusaProposerConfig(), parts)
    assert proposer.capabilities == Capabilities(made.depths, trees=True)
    with pytest.raises(ConfigError, match="--draft"):
        build_proposer(MedusaProposerConfig(), EngineParts(runner, frozenset(), TOKENIZER))
    auto = build_auto(AutoProposerConfig(), parts)
    core = make_core(MODEL, TOKENIZER, auto, eos_ids=())
    check_greedy(core, 30, None)


@pytest.mark.parametrize("name", ["lossy", "typical_acceptance", "posterior_alpha"])
def test_typical_acceptance_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValidationError, match="changes the distribution"):
        MedusaProposerConfig.model_validate({name: True})
