"""Whatever breaks in one request's row ends that request; the others of the very same pass go on."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.engine.core.request import Request
from specstream.engine.core.step import EngineCore
from specstream.errors import EngineFailed, ModelBroken, RequestError, SamplingError
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.types import SamplingParams
from tests.support.batches import KINDS, TEXTS, TOKENIZER, alone, greedy, make, spied_on
from tests.support.tiny import Inbox, ask, run_until_idle


def spoil(core: EngineCore, victim: Request, row: int | None) -> None:
    """Put NaN into a row of the victim's logits in every pass (None: the last one)."""

    def spoiled(inputs: Sequence[ForwardInput], made: list[Tensor]) -> list[Tensor]:
        for index, item in enumerate(inputs):
            held = victim.sequence.held
            if held is not None and item.cache is held.cache:
                made[index] = made[index].clone()
                made[index][-1 if row is None else row, 3] = torch.nan
        return made

    spied_on(core.target, spoiled)


class Bad:
    """A processor or criterion that breaks once the reply has so many tokens."""

    def __init__(self, after: int, prompt: int, error: type[BaseException] = ValueError) -> None:
        self.after, self.prompt, self.error = after, prompt, error

    def process(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] - self.prompt >= self.after:
            raise self.error("bad")
        return scores

    def ban_all(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] - self.prompt >= self.after:
            return torch.full_like(scores, -torch.inf)
        return scores

    def criterion(self, ids: list[int], text: str) -> bool:
        if len(ids) > self.after:
            raise self.error("bad")
        return False


_PROMPT = len(TOKENIZER.encode(TEXTS[1]))
_AFTER = 9
FAULTS: dict[str, tuple[Callable[[], dict[str, Any]], type[Exception]]] = {
    "processor": (lambda: {"processors": (Bad(_AFTER, _PROMPT).process,)}, RequestError),
    "processor, interrupted": (
        lambda: {"processors": (Bad(_AFTER, _PROMPT, KeyboardInterrupt).process,)},
        RequestError,
    ),
    "nothing left": (lambda: {"processors": (Bad(_AFTER, _PROMPT).ban_all,)}, SamplingError),
    "criterion": (lambda: {"stop_when": (Bad(_AFTER, _PROMPT).criterion,)}, RequestError),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_row_is_its_own(fault: str, kind: str, temperature: float) -> None:
    """What stands before it is given out; the others of the very same pass don't notice."""
    options, error = FAULTS[fault]
    core = make(kind, max_running=4)
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=30, **options())
    others = [TEXTS[0], TEXTS[2], TEXTS[5]]
    before = ask(core, others[0], greedy())
    _, victim = ask(core, TEXTS[1], params)
    after = [ask(core, text, greedy()) for text in others[1:]]
    run_until_idle(core)
    assert [type(e) for e in victim.errors] == [error]
    assert len(victim.token_ids) == _AFTER
    if temperature == 0.0:
        assert victim.token_ids == alone(TEXTS[1])[:_AFTER]
    for text, (request, inbox) in zip(others, [before, *after]):
        assert inbox.token_ids == alone(text)
        assert request.finish_reason == "length" and not inbox.errors
    assert core.slots.in_use == 0


# The last row of a tree need not be on the accepted path.
_ROWS = [(kind, 0) for kind in KINDS] + [(k, None) for k in KINDS if k not in ("eagle", "lookahead")]


@pytest.mark.parametrize(("kind", "row"), _ROWS)
def test_numbers_lost_in_one_row_end_that_request_only(kind: str, row: int | None) -> None:
    core = make(kind, max_running=4)
    asked = [ask(core, text, greedy()) for text in TEXTS[:4]]
    for _ in range(3):
        core.step()
    victim, inbox = asked[2]
    had = len(inbox.token_ids)
    spoil(core, victim, row)
    run_until_idle(core)
    assert [type(e) for e in inbox.errors] == [ModelBroken]
    assert len(inbox.token_ids) >= had
    assert inbox.token_ids == alone(TEXTS[2])[: len(inbox.token_ids)]
    if row == 0:
        assert len(inbox.token_ids) == had
    for number in (0, 1, 3):
        assert asked[number][1].token_ids == alone(TEXTS[number])
        assert not asked[number][1].errors


def test_a_row_of_no_numbers_behind_a_rejected_token_is_nobodys_fault() -> None:
    """The last row of a block counts only if the reply comes that far."""
    core = make("draft", max_running=2)
    request, inbox = ask(core, TEXTS[0], greedy())
    ask(core, TEXTS[1], greedy())
    core.step()
    core.step()
    spoil(core, request, None)
    while core.step() and not inbox.errors:
        last = inbox.chunks[-1]
        assert last.accepted < last.drafted or request.finish_reason
    assert inbox.token_ids == alone(TEXTS[0])[: len(inbox.token_ids)]


def test_a_pass_that_breaks_ends_those_in_it_and_no_others() -> None:
    """A parked request and one in line go on as if nothing had been."""
    core = make("auto", max_running=2, max_parked=2)
    slow = Inbox(reading=False, limit=2)
    parked, _ = ask(core, TEXTS[0], greedy(), inbox=slow)
    while not parked.delivery.parked:
        core.step()
    hit = [ask(core, text, greedy()) for text in TEXTS[1:3]]
    _, waiting = ask(core, TEXTS[3], greedy())
    core.step()
    core.step()
    forward = core.target.forward

    def broken(inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        core.target.forward = forward  # type: ignore[method-assign]
        forward(inputs, extras)
        raise RuntimeError("boom")

    core.target.forward = broken  # type: ignore[method-assign]
    core.step()
    assert [[type(e) for e in inbox.errors] for _, inbox in hit] == [[EngineFailed]] * 2
    run_until_idle(core)
    assert waiting.token_ids == alone(TEXTS[3])
    while parked.finish_reason is None:
        slow.read_all()
        run_until_idle(core)
    assert slow.token_ids == alone(TEXTS[0])
