from dataclasses import replace
from io import StringIO

import pytest

from specstream.commands.shared.output import RunPrinter, tell_report
from specstream.testing import ScriptedGeneration, chunks_of
from specstream.types import Chunk, Span


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


def printed(*texts: str, show_runs: bool = True) -> str:
    """What a pipe is given of a reply whose passes wrote these texts."""
    printer, at = RunPrinter(out := StringIO(), show_runs=show_runs, directions=False), 0
    for text in texts:
        chars = Span(at, at + len(text))
        printer.add(Chunk(text=text, chars=chars, token_ids=(1,), tokens=Span(0, 0)))
        at = chars.end
    printer.end()
    return out.getvalue()


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["[wh", "isper] This is", " a fox."], "This is│ a fox."),
        (["to the stars. [s", "ad] But"], "to the stars. │But"),
        (["Yes", " [nod]", " indeed [no"], "Yes│ │indeed [no"),
        (["See [1] and [this](url)", " in a[i] `[x]`"], "See [1] and [this](url)│ in a[i] `[x]`"),
        (["So", ".", " [smile]"], "So│.│ "),
        (["[smile]"], ""),
    ],
)
def test_directions_are_not_shown(texts: list[str], shown: str) -> None:
    assert printed(*texts) == (shown + "\n" if shown else "")
    assert printed(*texts, show_runs=False) == printed("".join(texts))


def test_text_waits_for_a_bracket_only() -> None:
    printer = RunPrinter(out := StringIO(), show_runs=False, directions=False)
    parts, at = [], 0
    for text in ("One two", " [sm", "ile]", " three"):
        chars = Span(at, at + len(text))
        printer.add(Chunk(text=text, chars=chars, token_ids=(1,), tokens=Span(0, 0)))
        at += len(text)
        parts.append(out.getvalue())
    assert parts == ["One two", "One two ", "One two ", "One two three"]


def test_a_shaded_pass_sets_both_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a light terminal would show dark letters on dark grey."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    printer = RunPrinter(screen := Screen(), show_runs=True)
    for chunk in chunks_of("One two three"):
        printer.add(chunk)
    plain, shaded, _ = screen.getvalue().split("\033[0m\033[")[:3]
    assert "[38;5;252;48;5;236m" not in plain and shaded.startswith("38;5;252;48;5;236m")
