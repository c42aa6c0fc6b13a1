"""A draft with another tokenizer: replies keep the target's distribution, and its greedy text."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specstream.bench.exactness.enumeration import g_test
from specstream.bench.exactness.harness import sample
from specstream.drafting.policy.costs import Costs, DraftCosts
from specstream.drafting.policy.policy import Policy
from specstream.drafting.proposers.auto import AutoProposer
from specstream.drafting.proposers.foreign import ForeignDraftProposer
from specstream.drafting.proposers.suffix import SuffixProposer
from specstream.engine.core.step import EngineCore
from specstream.errors import VocabularyMismatch
from specstream.methods import DraftProposerConfig, SuffixProposerConfig
from specstream.model.forward import ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from specstream.model.tokens.spelling import Spelling
from specstream.model.tokens.vocabulary import Translation
from specstream.types import SamplingParams
from tests.exactness import toy
from tests.support.tiny import EOS, answered, ask, make_core, run_until_idle, tiny_model
from tests.support.vocabularies import tokenizer_of

pytestmark = pytest.mark.slow

PROMPTS = ["the cat sat", "Über déjà 🙂", "1, 22, 333", "日本 日本"]
WAYS = ("retokenised", "intersection")
CPU = torch.device("cpu")


def foreign(
    target: str, draft: str, way: str = "auto", *, seed: int = 5, num_tokens: int = 6
) -> ForeignDraftProposer:
    ours, theirs = tokenizer_of(target), tokenizer_of(draft)
    translation = Translation(
        Spelling(target, ours),
        Spelling(draft, theirs),
        target_ends={EOS},
        draft_ends={EOS},
        target_rows=len(ours),
        draft_rows=len(theirs),
    )
    runner = ModelRunner(tiny_model(len(theirs), seed=seed))
    config = DraftProposerConfig.model_validate({"num_tokens": num_tokens, "vocabulary": way})
    return ForeignDraftProposer(config, runner, frozenset({EOS}), translation, CPU)


def plain(kind: str, text: str, params: SamplingParams) -> list[int]:
    from specstream.drafting.proposers.off import OffProposer

    core = make_core(target_of(kind), tokenizer_of(kind), OffProposer())
    _, inbox = answered(core, text, params)
    return inbox.token_ids


def target_of(kind: str) -> Any:
    return tiny_model(len(tokenizer_of(kind)), seed=2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("merged", "bytes"),
        ("bytes", "unsplit"),
        ("metaspace", "merged"),
        ("unsplit", "metaspace"),
        ("merged", "pieces"),
        ("pieces", "merged"),
    ],
)
def test_greedy_text_is_the_plain_loops(target: str, draft: str, way: str) -> None:
    """Four at once, one of them with a penalty, over two turns' worth of slots."""
    params = [SamplingParams(max_tokens=24), SamplingParams(max_tokens=24, repetition_penalty=1.2)]
    # of random drafts, one that writes hundreds of tokens: others soon write half characters
    made = foreign(target, draft, way, seed=7)
    core = make_core(target_of(target), tokenizer_of(target), made, max_running=4)
    drafted = 0
    for _ in range(2):
        asked = [(text, p, *ask(core, text, p)) for text, p in zip(PROMPTS, params * 2, strict=True)]
        run_until_idle(core)
        for text, p, request, inbox in asked:
            assert not inbox.errors
            assert inbox.token_ids == plain(target, text, p)
            drafted += request.stats.drafted
    assert drafted > 0


@pytest.mark.parametrize("way", WAYS)
def test_one_greedy_request_alone_is_drafted_for(way: str) -> None:
    """Greedy steps of one sequence are one call where native code makes them."""
    core = make_core(target_of("bytes"), tokenizer_of("bytes"), foreign("bytes", "bytes", way))
    request, inbox = answered(core, PROMPTS[0], SamplingParams(max_tokens=24))
    assert inbox.token_ids == plain("bytes", PROMPTS[0], SamplingParams(max_tokens=24))
    assert request.stats.drafted > 0


class _Letters(Spelling):
    """A vocabulary that is told, letters and pairs of letters; id 0 ends a turn."""

    def __init__(self, *tokens: str) -> None:
        self.name = "letters"
        self.tokens = tokens
        self.controls = {0: "</s>"}
        self.pieces = [None, *(token.encode() for token in tokens)]
        self.byte_ids, self.faithful = self._single_bytes(), True

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        ids, starts, at = list[int](), list[int](), 0
        while at < len(text):
            fits = [token for token in self.tokens if text.startswith(token, at)]
            token = max(fits, key=len, default="")
            if token:
                ids.append(1 + self.tokens.index(token))
                starts.append(at)
            at += max(1, len(token))
        return ids, starts


def letters_cell(way: str, *, honest: bool = True) -> tuple[EngineCore, toy.PairRunner]:
    """Target: end, b, c, d, e. Draft: end, e, d, bc, c, f, b (another order; some are its own)."""
    target = toy.PairRunner(toy.random_logits(5, 3))
    draft = toy.PairRunner(toy.random_logits(7, 4))
    draft.table[..., 0] -= 3.0
    translation = Translation(
        _Letters("b", "c", "d", "e"),
        _Letters("e", "d", "bc", "c", "f", "b"),
        target_ends={0},
        draft_ends={0},
        target_rows=5,
        draft_rows=7,
    )
    config = DraftProposerConfig.model_validate({"num_tokens": 3, "vocabulary": way})
    made = ForeignDraftProposer(config, draft, frozenset({0}), translation, CPU)
    if not honest:
        write = made.draft

        def untrue(tasks: Any) -> Any:
            each = write(tasks)
            return [one._replace(proposal=_sharper(one.proposal)) for one in each]

        made.draft = untrue  # type: ignore[method-assign]
    return toy.make_core(target, toy.Letters(), made, frozenset({0})), target


def _sharper(proposal: Any) -> Any:
    from dataclasses import replace

    if proposal.probs is None:
        return proposal
    probs = proposal.probs**3
    return replace(proposal, probs=probs / probs.sum(-1, keepdim=True))


@pytest.mark.parametrize("way", WAYS)
def test_sampled_replies_have_the_targets_distribution(way: str) -> None:
    """N = 1,500 replies of three tokens."""
    core, target = letters_cell(way)
    params = SamplingParams(1.0)
    prompt = "bcdbc"
    exact = toy.exact_joint(target.logits_after, params, toy.Letters().encode(prompt), 3, frozenset({0}))
    seen = sample(core, prompt, params, 1_500, length=3, first_seed=11)
    found = g_test(seen, exact)
    assert found.p_value > 1e-3
    assert found.detectable < 0.15  # total variation


def test_that_test_rejects_probabilities_that_are_not_those_drawn_from() -> None:
    core, target = letters_cell("intersection", honest=False)
    params = SamplingParams(1.0)
    exact = toy.exact_joint(
        target.logits_after, params, toy.Letters().encode("bcdbc"), 3, frozenset({0})
    )
    seen = sample(core, "bcdbc", params, 500, length=3, first_seed=11)
    assert g_test(seen, exact).p_value < 1e-6


def test_a_seed_gives_one_reply_whatever_drafts() -> None:
    params = SamplingParams(1.0, seed=7, max_tokens=20)
    wanted = plain("merged", "the cat", params)
    for way in WAYS:
        core = make_core(target_of("merged"), tokenizer_of("merged"), foreign("merged", "unsplit", way))
        _, inbox = answered(core, "the cat", params)
        assert inbox.token_ids == wanted


@pytest.mark.parametrize("way", WAYS)
def test_the_same_model_under_another_numbering_is_accepted(way: str) -> None:
    """The draft is the target, its rows of tokens in another order: all that it says is right."""
    target = toy.PairRunner(toy.random_logits(5, 3))
    order = [0, 3, 1, 4, 2]  # the draft's id i is the target's order[i]
    draft = toy.PairRunner(target.table[order][:, order][:, :, order].contiguous())
    names = "bcde"
    translation = Translation(
        _Letters(*names),
        _Letters(*(names[i - 1] for i in order[1:])),
        target_ends={0},
        draft_ends={0},
        target_rows=5,
        draft_rows=5,
    )
    assert translation.to_draft == {i: order.index(i) for i in range(5)}
    config = DraftProposerConfig.model_validate({"num_tokens": 3, "vocabulary": way})
    made = ForeignDraftProposer(config, draft, frozenset({0}), translation, CPU)
    core = toy.make_core(target, toy.Letters(), made, frozenset({0}))
    request, _ = answered(core, "bcdbc", SamplingParams(max_tokens=12, min_tokens=12))
    assert request.stats.drafted > 0
    if way == "intersection":  # the ban on the end reaches the draft, too
        assert request.stats.accepted == request.stats.drafted


def test_the_draft_reads_each_token_once() -> None:
    """The rows of accepted drafted tokens stay in the draft's cache and aren't computed again."""
    made = foreign("merged", "bytes", "retokenised")
    read: list[int] = []
    runner: Any = made.writers["retokenised"].runner
    forward, chain = runner.forward, runner.chain

    def count(inputs: Any) -> Any:
        read.extend(item.token_ids.shape[0] for item in inputs)
        return forward(inputs)

    def count_chain(token_ids: Any, *more: Any) -> Any:
        read.append(token_ids.shape[0])
        return chain(token_ids, *more)

    runner.forward, runner.chain = count, count_chain
    core = make_core(target_of("merged"), tokenizer_of("merged"), made, eos_ids=())
    answered(core, "the cat and the dog", SamplingParams(max_tokens=40))
    assert max(read[1:]) <= 16  # the first reads the prompt


def test_how_is_chosen_by_overlap_and_by_greed() -> None:
    greedy, sampled = SamplingParams(), SamplingParams(1.0)
    alike = foreign("merged", "merged")
    assert alike.translation.overlap == 1.0
    assert (alike.way(greedy), alike.way(sampled)) == ("intersection", "intersection")
    apart = foreign("merged", "bytes")
    assert 0.5 < apart.translation.overlap < 0.98
    assert (apart.way(greedy), apart.way(sampled)) == ("retokenised", "intersection")
    apart.translation.overlap = 0.4
    assert (apart.way(greedy), apart.way(sampled)) == ("retokenised", "retokenised")
    forced = foreign("merged", "bytes", "intersection")
    assert forced.way(greedy) == "intersection"


def test_auto_takes_it_and_its_explanation_names_the_way() -> None:
    made = foreign("merged", "unsplit")
    lookup = SuffixProposer(SuffixProposerConfig(), CPU)
    costs = Costs({1: 1.0, 2: 1.01, 5: 1.05, 9: 1.1})
    costs.drafts["draft"] = DraftCosts(0.02)
    candidates: Any = [lookup, made]
    policy = Policy([one.candidate for one in candidates], costs, max_tokens=6)
    core = make_core(
        target_of("merged"), tokenizer_of("merged"), AutoProposer(policy, candidates), eos_ids=()
    )
    request, inbox = answered(core, "the cat", SamplingParams(max_tokens=30), proposer="auto")
    assert inbox.token_ids == plain_without_end("the cat", 30)
    assert request.stats.proposer_rounds["draft"] > 0
    assert "tokens in common" in made.candidate.title and "retokenised" in made.candidate.title


def plain_without_end(text: str, count: int) -> list[int]:
    from specstream.drafting.proposers.off import OffProposer

    core = make_core(target_of("merged"), tokenizer_of("merged"), OffProposer(), eos_ids=())
    _, inbox = answered(core, text, SamplingParams(max_tokens=count))
    return inbox.token_ids


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("single_steps")
def test_a_draft_of_nan_costs_speed_only(way: str) -> None:
    made = foreign("merged", "unsplit", way)
    runner: Any = made.writers["retokenised"].runner
    forward = runner.forward

    def nan(inputs: Sequence[ForwardInput]) -> ForwardOutput:
        return ForwardOutput([row * torch.nan for row in forward(inputs).logits])

    runner.forward = nan
    core = make_core(target_of("merged"), tokenizer_of("merged"), made)
    for params in (SamplingParams(max_tokens=10), SamplingParams(1.0, seed=1, max_tokens=10)):
        _, inbox = answered(core, "the cat", params)
        assert not inbox.errors and inbox.token_ids == plain("merged", "the cat", params)


def test_nothing_is_kept_of_a_slot_that_is_gone() -> None:
    made = foreign("merged", "unsplit")
    core = make_core(target_of("merged"), tokenizer_of("merged"), made)
    for session in ("one", "two", None):
        ask(core, "the cat", SamplingParams(max_tokens=8), session=session)
    run_until_idle(core)
    for slot in list(made.renderings):
        made.release(slot)
        made.release(slot)
    assert not made.renderings
    assert not any(writer.sequences for writer in made.writers.values())


def test_vocabularies_without_a_common_token_are_refused_by_name() -> None:
    with pytest.raises(VocabularyMismatch, match="no token in common"):
        Translation(
            _Letters("b", "c"),
            _Letters("x", "yz"),
            target_ends={0},
            draft_ends={0},
            target_rows=3,
            draft_rows=3,
        )
