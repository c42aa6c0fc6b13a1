"""What is kept of requests, and for how long; and the draft's caches, whatever happens."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from specstream.drafting.optional import StepTimes
from specstream.drafting.policy.records import RoundPlan
from specstream.engine.core.step import EngineCore
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.support.choosers import (
    DRAFT,
    MODEL,
    NOTHING,
    PROMPTS,
    RUNNER,
    SAMPLED,
    TOKENIZER,
    Dice,
    Script,
    diced,
    greedy,
    proposer_with,
    small_config,
)
from tests.support.tables import ScriptedRunner, TableCache
from tests.support.tiny import EOS, answered, ask, make_core, run_until_idle


def test_nothing_is_kept_of_requests_that_are_over() -> None:
    core, dice = diced(6, max_running=4, max_sessions=2)
    rng = random.Random(2)
    for number in range(60):
        session = rng.choice([None, None, "s", "t", "u", "v"])
        params = greedy(rng.randint(1, 20)) if rng.random() < 0.5 else SAMPLED
        _, inbox = ask(core, rng.choice(PROMPTS), params, session=session)
        if rng.random() < 0.3:
            core.step()
            inbox.delivery.cancelled = True
        if number % 7 == 0:
            run_until_idle(core)
    run_until_idle(core)
    made: Any = core.proposer
    assert not made.rounds and not dice.known
    assert len(core.slots.kept) == 2
    kept = {slot.id for slot in core.slots.kept.values()}
    assert set(made.candidates["draft"].sequences) <= kept
    assert set(made.candidates["suffix"].texts) <= kept
    for session in "stuv":
        core.slots.forget(session)
    assert not made.candidates["draft"].sequences and not made.candidates["suffix"].texts


def test_a_request_is_not_looked_up_after_it_is_over() -> None:
    made: Any = proposer_with(Dice(), None, target=RUNNER)
    made.finish(3)
    made.finish(3)
    made.release(3)
    made.release(3)
    made.observe([], [])
    made.clock(StepTimes(0.0, 0.0, 0.0, 0, 0))
    assert made.explain(3) is NOTHING


class Watched(ScriptedRunner):
    """A draft that checks, at each pass, that what its cache holds is what the request says."""

    def __init__(self, core: Callable[[], EngineCore]) -> None:
        super().__init__(len(TOKENIZER), seed=3, eager=0.0)
        self.core = core
        self.checked = 0

    def forward(self, inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        core = self.core()
        proposer: Any = core.proposer
        for item in inputs:
            (slot,) = (
                s for s, q in proposer.candidates["draft"].sequences.items() if q.cache is item.cache
            )
            state = proposer.candidates["draft"].sequences[slot]
            (request,) = (r for r in core.scheduler.running if r.admitted and r.sequence.slot == slot)
            cache: Any = item.cache
            assert isinstance(cache, TableCache)
            held = [*cache.tokens, *item.token_ids.tolist()]
            own = request.token_ids[state.start :]
            assert held[: len(own)] == own[: len(held)]
            self.checked += 1
        return super().forward(inputs, extras)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("window", "chunk", "context"), [(256, 512, 999), (8, 5, 999), (8, 512, 30)])
@pytest.mark.broken_proposer
def test_the_draft_never_goes_on_from_a_row_that_is_not_the_requests(
    seed: int, window: int, chunk: int, context: int
) -> None:
    """Stops inside a block, cancels, faults, edited histories, windows, two requests of a session."""
    rng = random.Random(seed)
    table: Any = ScriptedRunner(len(TOKENIZER), seed=3, eager=0.0)
    box: list[EngineCore] = []
    watched: Any = Watched(lambda: box[0])
    watched.context_length = context
    dice = Dice(seed)
    made: Any = proposer_with(dice, watched, window=window)
    made.candidates["draft"].prefill_chunk = chunk
    core = EngineCore(small_config(), table, TOKENIZER, made, frozenset({EOS}))
    box.append(core)
    history = dict.fromkeys("st", "abcabcabc")
    for _ in range(25):
        name = rng.choice("st")
        text = history[name]
        inboxes = []
        for _ in range(rng.choice([1, 1, 2])):
            params = SamplingParams(
                temperature=rng.choice([0.0, 1.0]),
                seed=rng.choice([None, rng.randrange(99)]),
                max_tokens=rng.randint(1, 25),
                stop=(rng.choice("abcdefgh"),) if rng.random() < 0.5 else (),
            )
            inboxes.append(ask(core, text, params, session=name)[1])
        ask(core, rng.choice(PROMPTS), greedy(9))
        for _ in range(rng.randrange(12)):
            core.step()
        trouble = rng.random()
        if trouble < 0.3:
            inboxes[0].delivery.cancelled = True
        elif trouble < 0.45:
            fail_once(table)
        elif trouble < 0.6:
            fail_once(watched)
        run_until_idle(core)
        grown = text + inboxes[0].text + rng.choice(["?", " and", "abc"])
        cut = rng.randrange(len(grown))
        edits = [grown, grown, grown[:cut] + "z" + grown[cut + 1 :], grown[cut:], grown[: cut + 1]]
        history[name] = (rng.choice(edits) or "a")[-120:]
    assert watched.checked > 60


def fail_once(runner: ScriptedRunner) -> None:
    forward = runner.forward

    def broken(inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        runner.forward = forward  # type: ignore[method-assign]
        forward(inputs, extras)  # the rows are in the cache, and nobody hears of them
        raise RuntimeError("boom")

    runner.forward = broken  # type: ignore[method-assign]


def test_a_history_that_lost_its_beginning_is_read_afresh_not_from_the_middle() -> None:
    """Else the draft would know a few tokens only, of a prompt that has many."""
    script = Script(*[[RoundPlan("draft", 3)]] * 200)
    made: Any = proposer_with(script, ModelRunner(DRAFT), window=32)
    core = make_core(MODEL, TOKENIZER, made, eos_ids=())
    answered(core, "abc" * 40, greedy(12), session="s")  # of 120 tokens the draft reads the last 32
    script.rounds = [[RoundPlan("draft", 3)]] * 20
    request, _ = ask(core, "xyz" * 33, greedy(12), session="s")  # 99 tokens
    core.step()
    core.step()
    state = made.candidates["draft"].sequences[request.sequence.slot]
    assert request.prompt_length - state.start >= 31
