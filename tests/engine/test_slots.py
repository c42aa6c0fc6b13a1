"""Caches are handed out with the rows that another sequence has in common with the prompt."""

import random

import pytest
import torch

from specstream.drafting.proposers.off import OffProposer
from specstream.engine.core.slots import Slot, Slots
from specstream.model.kv import common_prefix
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, TOKENIZER, plain_greedy
from tests.support.tables import ScriptedRunner, TableCache
from tests.support.tiny import answered, ask, make_core, run_until_idle

SYSTEM = list(range(100, 140))


class Caches:
    """Slots of a model whose rows are tokens, so that a wrong row can be seen."""

    def __init__(self, max_kept: int = 2, shares: bool = True) -> None:
        self.dropped: list[int] = []
        runner = ScriptedRunner(vocab_size=200)
        self.slots = Slots(runner, max_kept, self.dropped.append, shares=shares)

    def read(self, prompt: list[int], session: str | None = None) -> tuple[Slot, int]:
        slot, same = self.slots.take(session, prompt)
        assert isinstance(slot.cache, TableCache)
        assert slot.cache.tokens == prompt[:same]
        slot.cache.tokens += prompt[same:]
        return slot, same


@pytest.mark.parametrize("end", ["running", "idle", "dropped", "forgotten"])
def test_a_sequence_takes_over_the_beginning_that_it_shares(end: str) -> None:
    caches = Caches()
    first, same = caches.read([*SYSTEM, 1, 2, 3], None if end == "dropped" else "a")
    assert same == 0
    if end != "running":
        caches.slots.give_back(first, [*SYSTEM, 1, 2, 3])
    if end == "forgotten":
        caches.slots.forget("a")
    second, same = caches.read([*SYSTEM, 1, 9, 9], "b")
    assert same == len(SYSTEM) + 1 and second is not first
    assert caches.dropped == ([first.id] if end in ("dropped", "forgotten") else [])


def test_a_short_beginning_is_read_again_and_the_last_token_always() -> None:
    caches = Caches()
    caches.read(SYSTEM)
    assert caches.read([*SYSTEM[:15], 1])[1] == 0
    assert caches.read(SYSTEM)[1] == len(SYSTEM) - 1


def test_a_conversation_keeps_its_own_rows_where_they_are_as_many() -> None:
    caches = Caches()
    slot, _ = caches.read([*SYSTEM, 1], "a")
    caches.slots.give_back(slot, [*SYSTEM, 1])
    again, same = caches.read([*SYSTEM, 1, 2], "a")
    assert again is slot and same == len(SYSTEM) + 1


def test_rows_that_are_not_read_yet_are_not_shared() -> None:
    caches = Caches()
    slot, _ = caches.slots.take(None, SYSTEM)
    assert caches.read([*SYSTEM, 1])[1] == 0
    assert slot.cache.length == 0


def test_nothing_is_shared_where_that_is_off() -> None:
    caches = Caches(shares=False)
    slot, _ = caches.read(SYSTEM, "a")
    assert caches.read([*SYSTEM, 1])[1] == 0
    caches.slots.give_back(slot, SYSTEM)
    caches.slots.forget("a")
    assert caches.read([*SYSTEM, 1])[1] == 0


def test_few_beginnings_of_dropped_sequences_are_kept_each_once() -> None:
    caches = Caches(max_kept=0)
    prompts = [[first, *SYSTEM] for first in range(6)]
    for prompt in [*prompts, prompts[-1]]:
        slot, _ = caches.read(prompt)
        caches.slots.give_back(slot, prompt)
    assert [caches.read([*prompt, 7])[1] > 0 for prompt in prompts] == [False] * 2 + [True] * 4


def test_memory_that_runs_short_takes_dropped_beginnings_first() -> None:
    caches, free = Caches(), [0]
    caches.slots = Slots(ScriptedRunner(vocab_size=200), 2, caches.dropped.append, lambda: free[0])
    slot, _ = caches.read([*SYSTEM, 1])
    caches.slots.give_back(slot, [*SYSTEM, 1])
    free[0] = -1  # less than the nothing that a new one takes
    assert not caches.slots.has_room(None, 10)
    free[0] = 0
    assert caches.read([*SYSTEM, 2])[1] == 0


@pytest.mark.parametrize("lean", [True, False])
@torch.inference_mode()
def test_a_copied_cache_is_that_of_a_fresh_read(lean: bool) -> None:
    made = make_core(ModelRunner(MODEL, lean=lean), TOKENIZER, OffProposer(), eos_ids=())
    text = "a system message of more than sixteen tokens: "
    _, running = ask(made, text + "what is it", SamplingParams(max_tokens=40))
    for _ in range(3):
        made.step()
    request, inbox = ask(made, text + "who are you", SamplingParams(max_tokens=20))
    run_until_idle(made)
    assert request.reused >= len(text)
    assert inbox.token_ids == plain_greedy(text + "who are you", 20, eos=None)
    assert running.token_ids == plain_greedy(text + "what is it", 40, eos=None)


def test_a_request_without_a_session_finds_what_the_last_one_read() -> None:
    made = make_core(MODEL, TOKENIZER, OffProposer(), eos_ids=())
    text = "a story that is sent again as a whole, with "
    answered(made, text, SamplingParams(max_tokens=5))
    request, inbox = answered(made, text + "more", SamplingParams(max_tokens=5))
    assert request.reused >= len(text)
    assert inbox.token_ids == plain_greedy(text + "more", 5, eos=None)


def test_common_prefixes() -> None:
    rng = random.Random(0)
    for _ in range(300):
        a = [rng.randrange(2) for _ in range(rng.randrange(12))]
        b = [*a[: rng.randrange(12)], *(rng.randrange(2) for _ in range(rng.randrange(5)))]
        expected = 0
        while expected < min(len(a), len(b)) and a[expected] == b[expected]:
            expected += 1
        assert common_prefix(a, b) == common_prefix(tuple(a), b) == expected


@pytest.mark.parametrize("shares", [True, False])
def test_the_config_says_whether_conversations_share(shares: bool) -> None:
    made = make_core(MODEL, TOKENIZER, OffProposer(), eos_ids=(), share_prefixes=shares)
    text = "a system message of more than sixteen tokens: "
    answered(made, text + "one", SamplingParams(max_tokens=2), session="a")
    request, _ = answered(made, text + "two", SamplingParams(max_tokens=2), session="b")
    assert (request.reused >= len(text)) is shares
