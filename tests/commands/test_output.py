from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest

from specstream.commands.output import RunPrinter, tell_report
from specstream.testing import ScriptedGeneration, chunks_of


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "shaded"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_a_terminal_without_shades_is_sent_none(
    environment: dict[str, str], shaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    printer = RunPrinter(screen, show_runs=True)
    for chunk in chunks_of("One two three"):
        printer.add(chunk)
    assert ("\033[" in screen.getvalue()) is shaded
    assert ("│" in screen.getvalue()) is not shaded


async def test_reasoning_is_counted_and_a_reply_that_never_came_is_explained() -> None:
    report = ScriptedGeneration(chunks_of("Yes."), lambda: None).report
    assert "reasoning" not in " ".join(tell_report(report, 9))
    thinking = replace(report, text="", reasoning="Hm", reasoning_tokens=3, finish_reason="length")
    lines = tell_report(thinking, 9)
    assert "of these 3 tokens of reasoning, not shown" in lines
    assert "the reply ended inside its reasoning: raise --max-tokens" in lines
    assert len(tell_report(replace(thinking, text="Yes."), 9)) == len(lines) - 1


async def test_one_token_is_no_plural() -> None:
    report = ScriptedGeneration(chunks_of("Yes."), lambda: None).report
    one = replace(
        report,
        token_ids=(1,),
        finish_reason="length",
        text="Yes.",
        rounds=1,
        drafted=1,
        accepted=1,
        reasoning_tokens=1,
    )
    lines = tell_report(one, 1)
    assert lines[0] == "cut at 1 token; --max-tokens raises that"
    assert lines[1].startswith("1 token in ")
    assert lines[2] == "of these 1 token of reasoning, not shown"
    assert "acceptance: 1 of 1 drafted token (" in lines[3]
    assert lines[3].endswith("for each of the target's 1 pass")
