from __future__ import annotations

from collections import Counter

from specstream.bench.prompts import Prompt, PromptSet
from specstream.bench.schedule import Budget, cells, turned


def prompts(**counts: int) -> PromptSet:
    made = [Prompt(f"{d}-{i}", d, ()) for d, count in counts.items() for i in range(count)]
    return PromptSet(tuple(made), "test", "")


def test_domains_take_turns_and_every_prompt_comes_before_any_comes_again() -> None:
    order = [(c.prompt.id, c.repeat) for c in cells(prompts(chat=2, math=1), 2)]
    once = ["chat-0", "math-0", "chat-1"]
    assert order == [(i, 0) for i in once] + [(i, 1) for i in once]


def test_visits_count_the_cells_of_a_domain() -> None:
    visits = [(c.prompt.domain, c.visit) for c in cells(prompts(chat=2, math=1), 2)]
    assert [v for d, v in visits if d == "chat"] == [0, 1, 2, 3]
    assert [v for d, v in visits if d == "math"] == [0, 1]


def test_arms_go_there_and_back_and_then_from_the_next() -> None:
    assert [turned("abc", n) for n in range(4)] == [
        ["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"], ["a", "c", "b"],
    ]  # fmt: skip


def test_over_a_full_turn_each_arm_stands_in_each_place_equally_often() -> None:
    arms = "abcde"
    places = Counter(
        (arm, place) for n in range(2 * len(arms)) for place, arm in enumerate(turned(arms, n))
    )
    assert set(places.values()) == {2}


def test_a_budget_is_wall_time() -> None:
    now = [100.0]
    budget = Budget(10.0, lambda: now[0])
    assert budget.allows(10.0)
    now[0] = 107.0
    assert budget.used == 7.0
    assert budget.allows(3.0)
    assert not budget.allows(3.1)
    assert Budget(None, lambda: now[0]).allows(1e9)
