import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specstream.config import parse_config
from specstream.drafting.candidate import EngineParts
from specstream.drafting.proposal import MAX_NODES, Proposal, Verdict
from specstream.drafting.proposers.auto import build as build_auto
from specstream.drafting.research.lookahead import LookaheadProposer, NgramPool
from specstream.errors import ConfigError
from specstream.methods import AutoProposerConfig, LookaheadProposerConfig
from specstream.model.runner import ModelRunner
from specstream.model.tree import Tree
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, PROMPTS, TOKENIZER, check_greedy, plain_greedy
from tests.support.drafts import Text
from tests.support.tiny import EOS, answered, ask, make_core, run_until_idle

CPU = torch.device("cpu")


def make(**options: int) -> LookaheadProposer:
    return LookaheadProposer(LookaheadProposerConfig.model_validate(options), CPU)


class Counter:
    """A target that counts to 12 over and over, whatever the context."""

    @staticmethod
    def after(token: int) -> int:
        return token % 12 + 1

    def verdict(self, text: Text, proposal: Proposal) -> Verdict:
        tokens = proposal.tokens.tolist()
        predictions = tuple(map(self.after, (text.token_ids[-1], *tokens)))
        row, path = 0, list[int]()
        for node, (token, parent) in enumerate(zip(tokens, proposal.links, strict=True)):
            if parent == row - 1 and token == predictions[row]:
                row = node + 1
                path.append(node)
        emitted = (*(tokens[node] for node in path), predictions[row])
        return Verdict(len(path), emitted[-1], tuple(path), emitted, predictions=predictions)

    def round(self, proposer: LookaheadProposer, text: Text, budget: int = 40) -> int:
        (proposal,) = proposer.propose([text], [budget])
        verdict = self.verdict(text, proposal)
        proposer.observe([text], [verdict])
        text.token_ids += verdict.tokens
        return verdict.accepted


def siblings_differ(proposal: Proposal) -> bool:
    pairs = list(zip(proposal.links, proposal.tokens.tolist(), strict=True))
    return len(set(pairs)) == len(pairs)


def test_the_window_is_the_tree_of_the_method() -> None:
    """Row 0 is a chain; token i of row r follows row 0 up to i, then its own column."""
    proposer, text = make(window=3, ngram=4), Text([10, 20, 30])
    proposer.propose([text], [40])
    window = proposer.windows[0]
    window.rows = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    (proposal,) = proposer.propose([text], [40])
    tree = Tree(tuple(proposal.links))
    tokens = proposal.tokens.tolist()
    paths = {tuple(tokens[node] for node in path) for path in tree.paths}
    assert {(1,), (1, 2), (1, 2, 3), (1, 4), (1, 4, 7), (1, 2, 5, 8), (1, 2, 3, 6, 9)} <= paths
    assert len(paths) == proposal.length == 9


def test_ngrams_are_the_columns() -> None:
    proposer, text, target = make(window=3, ngram=3), Text([10, 20, 30]), Counter()
    for _ in range(40):
        target.round(proposer, text)
    pool = proposer.windows[0].pool
    assert len(pool) > 3
    for first in range(31):
        second = target.after(first)
        assert pool.after(first) in ([], [(second, target.after(second))])


def test_ngrams_are_accepted_where_the_text_comes_by_again() -> None:
    proposer, text, target = make(window=5, ngram=4), Text([1]), Counter()
    accepted = [target.round(proposer, text) for _ in range(40)]
    assert text.token_ids == [n % 12 + 1 for n in range(len(text.token_ids))]
    assert sum(accepted[:12]) < sum(accepted[-12:]) == 36


def test_rounds_that_others_drafted_are_followed() -> None:
    proposer, text = make(window=5, ngram=4), Text([1])
    target = Counter()
    for _ in range(6):
        target.round(proposer, text)
    text.token_ids += [7, 8]
    window = proposer.windows[0]
    before = [list(row) for row in window.rows]
    gap = len(text.token_ids) - window.at
    proposer.propose([text], [40])
    assert window.at == len(text.token_ids)
    assert all(row[: 5 - gap] == old[gap:] for row, old in zip(window.rows, before, strict=True))


def test_trees_are_sound_whatever_the_room() -> None:
    rng = random.Random(4)
    proposer, text = make(window=8, ngram=4, branches=13), Text([1, 2, 3])
    for number in range(200):
        budget = rng.randint(1, 14)
        (proposal,) = proposer.propose([text], [budget])
        assert proposal.length <= MAX_NODES and siblings_differ(proposal)
        if proposal.length:
            assert 1 + max(Tree(tuple(proposal.links)).depths) <= budget
        predictions = tuple(rng.randrange(6) for _ in range(proposal.length + 1))
        proposer.observe([text], [Verdict(0, 5, (), (5,), predictions=predictions)])
        text.token_ids.append(rng.randrange(6))
        assert number < 20 or len(proposer.windows[0].pool) > 0


@pytest.mark.parametrize("wrong", [(), (1, 2), tuple(range(90))])
def test_predictions_of_another_proposal_are_not_taken_up(wrong: Sequence[int]) -> None:
    proposer, text = make(), Text([1, 2, 3])
    proposer.propose([text], [40])
    rows = [list(row) for row in proposer.windows[0].rows]
    proposer.observe([text], [Verdict(0, 5, (), (5,), predictions=tuple(wrong))])
    assert proposer.windows[0].rows == rows
    proposer.observe([Text([1], slot=9)], [Verdict(0, 5, (), (5,))])  # nothing was proposed


def test_the_pool_is_bounded_and_keeps_the_latest() -> None:
    pool = NgramPool(3)
    for number in range(9):
        pool.add(7, (number, number))
    pool.add(7, (6, 6))
    assert pool.after(7) == [(6, 6), (8, 8), (7, 7)]
    for number in range(5000):
        pool.add(number, (1,))
    assert len(pool) == 2048 and pool.after(7) == [] and pool.after(4999) == [(1,)]


def test_a_slot_starts_afresh_and_is_released() -> None:
    proposer = make()
    proposer.propose([Text([1, 2, 3])], [40])
    first = proposer.windows[0]
    proposer.propose([Text([1, 2, 3], id=1)], [40])
    assert proposer.windows[0] is not first
    proposer.release(0)
    proposer.release(0)
    assert not proposer.windows


@pytest.mark.parametrize(("window", "ngram", "branches"), [(1, 3, 1), (3, 3, 2), (5, 4, 5), (7, 5, 7)])
def test_greedy_text_is_the_plain_loops(window: int, ngram: int, branches: int) -> None:
    accepted = 0
    for text in PROMPTS:
        proposer = make(window=window, ngram=ngram, branches=branches)
        core = make_core(MODEL, TOKENIZER, proposer, prefill_chunk=7)
        (request,) = check_greedy(core, 60, prompts=[text])
        accepted += request.stats.accepted
    assert accepted > 0


def test_four_at_once_and_their_conversations() -> None:
    core = make_core(MODEL, TOKENIZER, make(), max_running=4, max_sessions=4)
    for _ in range(2):
        asked = [
            ask(core, text, SamplingParams(max_tokens=30), session=str(n))
            for n, text in enumerate(PROMPTS[:4])
        ]
        run_until_idle(core)
        for (_, inbox), text in zip(asked, PROMPTS, strict=False):
            assert inbox.token_ids == plain_greedy(text, 30)


def test_a_seed_decides_the_text_whatever_is_drafted() -> None:
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=40)
    texts = set()
    for proposer in (make(), make(window=2, ngram=3, branches=1)):
        core = make_core(MODEL, TOKENIZER, proposer)
        _, inbox = answered(core, PROMPTS[1], params)
        texts.add(tuple(inbox.token_ids))
    assert len(texts) == 1


def test_sampled_rounds_are_told_the_predictions() -> None:
    """Of a sampled request they are the target's likeliest tokens, row by row."""
    seen: list[Verdict] = []

    class Watched(LookaheadProposer):
        def observe(self, requests: Sequence[Any], verdicts: Sequence[Verdict]) -> None:
            seen.extend(verdicts)
            super().observe(requests, verdicts)

    proposer = Watched(LookaheadProposerConfig(), CPU)
    core = make_core(MODEL, TOKENIZER, proposer)
    request, _ = answered(core, PROMPTS[1], SamplingParams(temperature=1.0, max_tokens=40), noise=3)
    ids = list(request.token_ids[: request.prompt_length])
    for verdict in seen:
        with torch.inference_mode():
            wanted = int(MODEL(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        assert verdict.predictions[0] == wanted
        ids += verdict.tokens
    assert len(seen) > 10


def test_a_window_that_no_pass_can_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="64 at most"):
        parse_config({"proposer": {"kind": "lookahead", "window": 15, "ngram": 5}})


def test_auto_takes_it_only_if_it_is_named() -> None:
    parts = EngineParts(ModelRunner(MODEL), frozenset({EOS}), TOKENIZER)
    assert not build_auto(AutoProposerConfig(), parts).capabilities.predictions
    proposer = build_auto(AutoProposerConfig(methods=("lookahead",)), parts)
    assert proposer.capabilities.predictions and proposer.capabilities.trees
    core = make_core(MODEL, TOKENIZER, proposer)
    check_greedy(core, 60)
