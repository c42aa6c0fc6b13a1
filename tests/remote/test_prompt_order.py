"""Prompts of a remote rewriter that don't fit the text of its turn, or each other."""

from typing import Any

import pytest

from specstream.remote.frames import Violation
from specstream.remote.guards import PromptOrder
from specstream.types import Phrase, Revoke, ScenePrompt, Span


def phrase(start: int, end: int) -> Phrase:
    return Phrase("x" * (end - start), Span(start, end), Span(start // 2, end // 2), start)


ONE, TWO = phrase(0, 10), phrase(10, 20)


def prompt(
    shot: str = "a", rev: int = 0, old: str | None = None, span: tuple[int, int] = (0, 10), **fields: Any
) -> ScenePrompt:
    names = ("subject", "action", "setting", "camera", "style", "prompt", "negative")
    words = dict.fromkeys(names, "")
    tokens = fields.pop("tokens", Span(span[0] // 2, span[1] // 2))
    start_ms = fields.pop("t_start_ms", 0.0)
    return ScenePrompt(shot, rev, start_ms, Span(*span), tokens, **words, supersedes=old)


def order_of(*sent: Any) -> PromptOrder:
    made = PromptOrder()
    for item in sent:
        made.send(item)
    return made


def test_shots_and_their_revisions_pass() -> None:
    order = order_of(ONE, TWO)
    order.check(prompt(), 10)
    order.check(prompt("b", span=(10, 20)), 20)
    order.check(prompt("a", 1, "a@0"), 20)
    order.check(prompt("a", 5, "a@1"))
    order.check(prompt("@", 3))
    order.check(prompt("@", 4, "@@3"))
    order.finish()


WRONG: list[tuple[ScenePrompt, int | None, str]] = [
    (prompt("c", span=(10, 21)), None, "shows characters 10 to 21"),
    (prompt("c", tokens=Span(0, 11)), None, "tokens 0 to 11"),
    (prompt("c"), 9, "'read' 9"),
    (prompt("c"), 21, "'read' 21"),
    (prompt("c", t_start_ms=-0.1), None, "starts at -0.1 ms"),
    (prompt("c", -1), None, "version -1 of shot 'c'"),
    (prompt("a", 1), None, "came after version 1"),
    (prompt("a", 0), None, "came after version 1"),
    (prompt("a", 2), None, "must supersede 'a@1', not None"),
    (prompt("a", 2, "a@0"), None, "must supersede 'a@1', not 'a@0'"),
    (prompt("a", 2, "b@0"), None, "must supersede 'a@1', not 'b@0'"),
    (prompt("c", 1, "c@0"), None, "supersedes 'c@0', which is no earlier version"),
    (prompt("c", 1, "a@1"), None, "supersedes 'a@1', which is no earlier version"),
    (prompt("c", 0, "@" * 9000), None, "which is no earlier version"),
    (prompt("c", 1, "c@" + "9" * 9000), None, "which is no earlier version"),
]


@pytest.mark.parametrize(("wrong", "read", "why"), WRONG)
def test_prompts_that_do_not_fit_are_violations(wrong: ScenePrompt, read: int | None, why: str) -> None:
    order = order_of(ONE, TWO)
    for good in (prompt("b"), prompt("a"), prompt("a", 1, "a@0")):
        order.check(good, 20)
    with pytest.raises(Violation, match=why) as caught:
        order.check(wrong, read)
    assert len(str(caught.value)) < 400


def test_text_behind_an_unanswered_revoke_and_withdrawn_text_can_not_be_shown() -> None:
    order = order_of(ONE, TWO, Revoke(5), phrase(5, 30))
    order.check(prompt(span=(0, 20)), 20)
    with pytest.raises(Violation, match="characters 0 to 30"):
        order.check(prompt("b", span=(0, 30)), 30)
    order.revoke(Revoke(5))
    order.check(prompt("b", span=(0, 30)), 30)
    order.send(Revoke(12, drafted=True))
    order.revoke(Revoke(12, drafted=True))
    with pytest.raises(Violation, match="ends at character 12"):
        order.check(prompt("c", span=(0, 13)), 13)
    with pytest.raises(Violation, match="'read' 13"):
        order.check(prompt("c", span=(0, 12)), 13)


@pytest.mark.parametrize("control", ["flush", "revoke", "draft"])
def test_after_a_control_shots_begin_anew_or_go_on(control: str) -> None:
    """A new board numbers its shots anew; a copy of a board goes on with what it knew."""
    order = order_of(ONE, TWO)
    for rev in range(3):
        order.check(prompt("a", rev, f"a@{rev - 1}" if rev else None), 20)
        order.check(prompt("b", rev, f"b@{rev - 1}" if rev else None), 20)
    if control == "flush":
        order.flush()
    else:
        order.send(Revoke(10, drafted=control == "draft"))
        order.revoke(Revoke(10, drafted=control == "draft"))
    order.check(prompt("a", 0), 10)
    order.check(prompt("b", 2, "b@1"), 10)
    for wrong in (prompt("c", 1, "b@2"), prompt("c", 1, "c@0"), prompt("a", 0), prompt("b", 3)):
        with pytest.raises(Violation):
            order.check(wrong, 10)


@pytest.mark.parametrize("old", ["b@1", "a@2", "a@3", "c@0"])
def test_after_a_control_a_shot_supersedes_only_an_earlier_version_of_itself(old: str) -> None:
    order = order_of(ONE, TWO)
    for rev in range(4):
        order.check(prompt("a", rev, f"a@{rev - 1}" if rev else None), 20)
        order.check(prompt("b", rev, f"b@{rev - 1}" if rev else None), 20)
    order.flush()
    with pytest.raises(Violation, match="no earlier version"):
        order.check(prompt("a", 2, old), 10)
    order.check(prompt("a", 2, "a@1"), 10)
