"""The adaptive proposer carries out plans, and can change no token."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch

from specstream.drafting.candidate import TaskProposal
from specstream.drafting.optional import States
from specstream.drafting.policy.records import Candidate, Offer, RoundPlan
from specstream.drafting.proposal import Capabilities, Proposal
from specstream.drafting.proposers.auto import AutoProposer
from specstream.engine.core.step import EngineCore
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.support.choosers import (
    DRAFT,
    MODEL,
    PROMPTS,
    RUNNER,
    SAMPLED,
    TOKENIZER,
    Dice,
    Script,
    alone,
    core_under,
    diced,
    greedy,
    proposer_with,
    small_config,
)
from tests.support.drafts import Text
from tests.support.tiny import answered, ask, make_core, noisy_copy, run_until_idle, tiny_model


@pytest.mark.parametrize("seed", range(4))
def test_greedy_text_is_the_same_whatever_is_chosen(seed: int) -> None:
    core, dice = diced(seed, max_running=4)
    asked = [ask(core, text, greedy()) for text in PROMPTS]
    run_until_idle(core)
    sources: set[str] = set()
    for text, (request, inbox) in zip(PROMPTS, asked):
        assert inbox.token_ids == alone(text)
        sources |= {kind for kind, n in request.stats.proposer_rounds.items() if n}
    assert sources == {"draft", "suffix", "off"}
    assert sum(request.stats.accepted for request, _ in asked) > 20


def test_what_was_planned_is_proposed_all_kinds_in_one_step() -> None:
    script = Script()
    plans = [
        RoundPlan("draft", 3),
        RoundPlan("suffix", 2),
        RoundPlan("off", 0),
        RoundPlan("draft", 5),
        RoundPlan("suffix", 9),
    ]
    script.rounds = [plans]
    core = core_under(script, max_running=5)
    texts = ["abab", "the cat the cat", "zq", "aaaa", "xyzxyzxyz"]
    asked = [ask(core, text, greedy()) for text in texts]
    core.step()  # round 0 drafts nothing
    assert [inbox.chunks[-1].drafted for _, inbox in asked] == [0] * 5
    core.step()
    drafted = [inbox.chunks[-1].drafted for _, inbox in asked]
    offers = [outlook.offers["suffix"].tokens for outlook in script.outlooks]
    assert drafted == [3, min(2, offers[1]), 0, 5, min(9, offers[4])]
    _, outcomes = script.told[-1]
    assert [o.plan for o in outcomes] == plans
    assert [o.drafted for o in outcomes] == drafted
    assert [o.accepted for o in outcomes] == [inbox.chunks[-1].accepted for _, inbox in asked]


def test_a_round_without_a_proposal_is_nobodys() -> None:
    core = core_under(Script())
    request, _ = answered(core, "abab", greedy(10))
    assert request.report().proposer_rounds == {"off": 10}


def test_a_plan_beyond_the_budget_is_cut() -> None:
    script = Script(*[[RoundPlan("draft", 50)]] * 50)
    core = core_under(script)
    for text, room in (("abab", 9), ("a" * 505, 7)):  # the reply's room, and the context's
        script.rounds = [[RoundPlan("draft", 50)]] * 50
        request, inbox = answered(core, text, greedy(room))
        assert len(inbox.token_ids) == room
        assert inbox.token_ids == alone(text, room)
        assert max(chunk.drafted for chunk in inbox.chunks) <= room - 2


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_last_tokens_are_proposed_for_only_as_far_as_they_count(most: int) -> None:
    for seed in range(8):
        core, dice = diced(seed, eos_ids=frozenset())
        request, inbox = answered(core, "abab", greedy(most))
        assert inbox.token_ids == alone("abab", most)
        assert all(0 < outlook.budget < most for outlook in dice.outlooks)
        assert all(c.drafted < most - c.tokens.start for c in inbox.chunks)


def test_without_a_draft_a_plan_for_one_is_a_plain_round() -> None:
    script = Script(*[[RoundPlan("draft", 4)]] * 50)
    core = make_core(MODEL, TOKENIZER, proposer_with(script, None, target=RUNNER), eos_ids=())
    request, inbox = answered(core, "abab", greedy(9))
    assert inbox.token_ids == alone("abab", 9)
    assert request.stats.drafted == 0


def test_a_request_that_wants_no_drafts_is_never_asked_about() -> None:
    core, dice = diced(7, eos_ids=frozenset(), max_running=3)
    plain, plain_inbox = ask(core, "abab", greedy())
    plain.proposer = "off"
    drafted, inbox = answered(core, "aaaa", greedy())
    assert plain_inbox.token_ids == alone("abab", eos=False)
    assert inbox.token_ids == alone("aaaa", eos=False)
    assert plain.report().proposer_rounds == {"off": 40}
    assert plain.report().explanation == ""
    assert dice.forgotten == [drafted.id]
    assert all(o.id == drafted.id for _, outcomes in dice.told for o in outcomes)


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_the_reproducible_mode_gives_the_same_tokens_whatever_is_chosen(temperature: float) -> None:
    model = tiny_model(len(TOKENIZER), seed=2, context=160)
    draft = noisy_copy(model, 0.1)
    params = SamplingParams(temperature, top_p=0.95, seed=5, max_tokens=40)
    replies, accepted = [], 0
    for seed in (None, 0, 1, 2):
        dice = Dice(seed or 0, kinds=["off"] if seed is None else ("draft", "suffix", "off"))
        made = proposer_with(dice, ModelRunner(draft), most=7)
        config = small_config().model_copy(update={"mode": "reproducible"})
        target = ModelRunner(model, fixed_width=8)
        core = EngineCore(config, target, TOKENIZER, made, frozenset())
        request, inbox = ask(core, "one, two, one,", params)
        for number in range(seed or 0):
            ask(core, PROMPTS[number], SAMPLED)
        run_until_idle(core)
        replies.append(inbox.token_ids)
        accepted += request.stats.accepted
    assert len(replies[0]) == 40
    assert all(reply == replies[0] for reply in replies)
    assert accepted > 10


def test_a_fixed_width_bounds_the_proposals() -> None:
    script = Script(*[[RoundPlan("draft", 50)]] * 90)
    target = ModelRunner(tiny_model(len(TOKENIZER), seed=2, context=160), fixed_width=8)
    config = small_config().model_copy(update={"mode": "reproducible"})
    made = proposer_with(script, ModelRunner(DRAFT))
    core = EngineCore(config, target, TOKENIZER, made, frozenset())
    _, inbox = answered(core, "abab", greedy(30))
    assert not inbox.errors
    assert max(chunk.drafted for chunk in inbox.chunks) == 7


class Reading:
    """A candidate that wants hidden states, and notes what it is given."""

    name = "heads"
    candidate = Candidate("heads", "the heads", "one")

    def __init__(self, *layers: int) -> None:
        self.capabilities = Capabilities(hidden_states=layers, trees=True)
        self.seen: list[torch.Tensor] = []

    def read(self, requests: object, states: Sequence[States]) -> None:
        self.seen += [item.states for item in states]

    def propose(self, requests: object, budget: object) -> list[Proposal]:
        return []

    def offer(self, request: object, budget: int) -> Offer:
        return Offer(budget)

    def draft(self, tasks: object) -> list[TaskProposal]:
        return []

    def observe(self, requests: object, verdicts: object) -> None:
        pass

    def release(self, slot: int) -> None:
        pass


def test_each_candidate_reads_the_states_of_its_own_layers() -> None:
    first, second = Reading(1, 3), Reading(2)
    second.candidate = Candidate("more heads", "more heads", "one")
    made: Any = AutoProposer(cast(Any, Dice()), [cast(Any, first), cast(Any, second)])
    assert made.capabilities == Capabilities(hidden_states=(1, 2, 3), trees=True)
    states = torch.arange(6.0).view(2, 3, 1)  # two tokens, three layers
    made.read([Text([1, 2])], [States(0, states)])
    assert torch.equal(first.seen[0], states[:, [0, 2]])
    assert torch.equal(second.seen[0], states[:, [1]])
    made.read([], [])  # memory ran out, and nobody was left in the pass
    assert len(first.seen) == len(second.seen) == 1


def test_of_readers_that_hardly_propose_one_request_in_four_is_read() -> None:
    heads, dice = Reading(2), Dice(kinds=("off",))
    made = AutoProposer(cast(Any, dice), [cast(Any, heads)])

    def reads(number: int) -> bool:
        text, seen = Text([1, 2], number, number), len(heads.seen)
        wanted = made.wants_states(text)
        made.read([text], [States(0, torch.zeros(2, 1, 1))])
        assert (len(heads.seen) > seen) == wanted == made.wants_states(text)
        made.propose([text], [3])
        assert ("heads" in dice.outlooks[0].offers) == wanted
        return wanted

    assert all(reads(number) for number in range(8))
    dice.rare = {"heads"}
    assert sum(reads(number) for number in range(8, 24)) == 4
    dice.rare = {"heads", "others"}
    unread = next(number for number in range(24, 28) if not reads(number))
    dice.rare = set()
    assert all(reads(number) for number in range(28, 36))
    assert not reads(unread)  # as it began: the states of its first tokens are gone
    made.finish(unread)
    assert reads(unread)


def test_in_a_pass_of_several_only_what_is_wanted_is_read() -> None:
    heads, dice = Reading(2), Dice(kinds=("off",))
    dice.rare = {"heads"}
    made = AutoProposer(cast(Any, dice), [cast(Any, heads)])
    texts = [Text([1, 2], number, number) for number in range(4)]
    states = [States(0, torch.full((2, 1, 1), float(number))) for number in range(4)]
    made.read(texts, states)
    assert [float(one[0]) for one in heads.seen] == [3.0]
