"""A conversation that outgrows the model's context goes on: its oldest turns leave the prompt."""

from random import Random

import pytest

from specstream.engine.core.admission import fitting
from specstream.engine.engine import Engine
from specstream.errors import PromptError, PromptTooLong
from specstream.types import Message, SamplingParams, Truncation

pytestmark = pytest.mark.slow

SYSTEM: Message = {"role": "system", "content": "s" * 42}
ROOM = 1000


def said(role: str, length: int) -> Message:
    return {"role": role, "content": "x" * length}  # type: ignore[typeddict-item]


def size(messages: list[Message]) -> int:
    return sum(8 + len(message["content"]) for message in messages)


def history(turns: int, seed: int = 0) -> list[Message]:
    random = Random(seed)
    messages = [SYSTEM]
    for _ in range(turns):
        messages.append(said("user", random.randrange(1, 60)))
        messages.append(said("assistant", random.randrange(1, 60)))
    return messages


def fit(messages: list[Message], how: Truncation | None = None) -> list[Message]:
    return fitting(messages, len, ROOM, how or Truncation())


@pytest.mark.parametrize("seed", range(20))
def test_every_prompt_fits_and_most_begin_like_the_one_before(seed: int) -> None:
    whole = history(200, seed)
    before: list[Message] = []
    cuts = 0
    for end in range(2, len(whole), 2):
        asked = whole[:end]
        kept = fit(asked)
        assert size(kept) <= ROOM
        assert kept[0] == SYSTEM
        assert kept[1]["role"] == "user"
        assert kept[1:] == asked[len(asked) - len(kept) + 1 :], "the newest stay, in order"
        if kept[: len(before)] != before:
            cuts += 1
            # It would have been too long, and is cut to four fifths at the most, by whole turns.
            assert size([*before, *asked[len(asked) - 2 :]]) > ROOM
            assert size(kept[1:]) <= 0.8 * (ROOM - 50) + 8
        before = kept
    assert 0 < cuts < 199 / 2, "a cut lasts for several turns"


def test_what_fits_stays_whole() -> None:
    assert fit(history(2)) == history(2)


def test_a_ratio_of_one_removes_no_more_than_it_must() -> None:
    whole = history(30)[:-1]
    tight, loose = fit(whole, Truncation(1.0)), fit(whole, Truncation(0.5))
    assert size(loose) <= size(tight) <= ROOM
    lengths = [len(fit(whole[:end], Truncation(0.0))) for end in range(30, 60, 2)]
    assert min(lengths) == 2, "nothing but the last turn"


def test_the_part_behind_the_instructions_may_be_limited() -> None:
    whole = history(30)[:-1]
    assert size(fit(whole, Truncation(post_instructions=120))) - 50 <= 120


def test_the_last_turn_stays_however_long_it_is() -> None:
    turn = [said("user", 2000), said("assistant", 1), said("tool", 2000)]
    assert fit([*history(3), *turn]) == [SYSTEM, *turn]


def test_calls_stay_with_their_results() -> None:
    messages = [SYSTEM]
    for _ in range(40):
        messages += [said(role, 20) for role in ("user", "assistant", "tool", "assistant")]
    for end in range(2, len(messages)):
        kept = fit(messages[:end])
        assert len(kept) < 2 or kept[1]["role"] == "user"


@pytest.mark.parametrize("wrong", [{"retention_ratio": 1.5}, {"post_instructions": 0}])
def test_wrong_values_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PromptError, match=next(iter(wrong))):
        Truncation(**wrong)  # type: ignore[arg-type]


async def test_a_conversation_of_two_hundred_turns_goes_on() -> None:
    params = SamplingParams(max_tokens=8)
    async with Engine.load() as engine:
        talk = engine.session("You are a kind robot who likes the sea.")
        left_out, reused = [], 0
        for number in range(200):
            text = f"Turn {number}: tell me more about the sea, the sand and the old boat, please."
            async with talk.generate(text, params) as reply:
                async for _ in reply:
                    pass
                left_out.append(reply.report.truncated_messages)
                reused += reply.report.reused_tokens > reply.report.prompt_tokens / 2
        assert len(talk.messages) == 401
        assert left_out[0] == 0
        assert left_out == sorted(left_out)
        assert left_out[-1] > 200
        assert reused > 150, "most turns find their prompt in the cache"
        with pytest.raises(PromptTooLong, match="context"):
            async with engine.generate(talk.messages, params) as reply:
                await anext(reply)
        with pytest.raises(PromptTooLong, match="characters"):
            async with talk.generate("x " * 200_000, params) as reply:
                await anext(reply)
