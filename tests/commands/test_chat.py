"""``specstream chat`` with piped lines, and with a person at a terminal."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from specstream.commands import chat
from specstream.commands.chat import _forget_half
from specstream.commands.main import main
from specstream.config import DEFAULT_TARGET
from specstream.errors import PromptError
from specstream.testing import ScriptedEngine, ScriptedGeneration, chunks_of
from specstream.types import Message, RawPrompt
from tests.commands.doubles import piped, scripted

pytestmark = pytest.mark.slow


def test_lines_are_turns_of_one_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = scripted(monkeypatch, "chat", "one.", "two.", "three.")
    piped(monkeypatch, "Hello\n\n  \nWie geht’s?\r\nBye".encode())
    assert main(["chat", "--system", "Be brief."]) == 0
    captured = capsys.readouterr()
    assert captured.out == "one.\ntwo.\nthree.\n"
    assert captured.err == ""
    assert [m["content"] for m in engine.requests[2][0]] == [
        "Be brief.",
        "Hello",
        "one.",
        "Wie geht’s?",
        "two.",
        "Bye",
    ]


def test_commands_are_obeyed_in_a_pipe_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = scripted(monkeypatch, "chat", "one.", "two.", "three.")
    piped(monkeypatch, b"/help\nHello\n/new\n//etc is a folder?\n/quit\nBye\n")
    assert main(["chat"]) == 0
    assert capsys.readouterr().out == "one.\ntwo.\n"
    assert [[m["content"] for m in asked] for asked, _ in engine.requests] == [
        ["Hello"],
        ["/etc is a folder?"],
    ]
    piped(monkeypatch, b"Hello\n/halp\nBye\n")
    assert main(["chat"]) == 2
    assert "there is no command /halp; there are:\n/new " in capsys.readouterr().err


def test_each_reply_has_its_figures_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, "chat", "one.", chunks_of("two", finish_reason="length"))
    piped(monkeypatch, b"a\nb\n")
    assert main(["chat", "--json", "--max-tokens", "1"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert [lines[0], lines[2]] == ["one.", "two"]
    assert [json.loads(line)["finish_reason"] for line in (lines[1], lines[3])] == ["stop", "length"]
    assert captured.err == "cut at 1 token; --max-tokens raises that\n"


def test_a_line_that_is_no_text_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, "chat", "one.")
    piped(monkeypatch, b"Hello\n\xff\xfe\nBye\n")
    assert main(["chat"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "one.\n"
    assert captured.err == "specstream: line 2 of stdin is binary data; it must be text in UTF-8\n"


@pytest.mark.parametrize(
    ("turns", "left"),
    [
        ("suauaua", "sua"),
        ("uaua", "ua"),
        ("ua", ""),
        ("suaua", "sua"),
        ("suuaua", "sua"),
        ("uauauaua", "uaua"),
    ],
)
def test_half_of_a_conversation_is_forgotten_at_a_users_turn(turns: str, left: str) -> None:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    messages: list[Message] = [
        {"role": roles[turn], "content": str(number)}  # type: ignore[typeddict-item]
        for number, turn in enumerate(turns)
    ]
    last = messages[-1]
    assert _forget_half(messages)
    assert "".join(m["role"][0] for m in messages) == left
    assert not left or messages[-1] is last


def test_there_is_nothing_to_forget_before_the_first_turn() -> None:
    assert not _forget_half([])
    assert not _forget_half([{"role": "system", "content": "x" * 999}])


class SmallEngine(ScriptedEngine):
    """A context of forty characters."""

    @asynccontextmanager
    async def generate(
        self, messages: Sequence[Message] | RawPrompt | str, *args: Any, **options: Any
    ) -> AsyncGenerator[ScriptedGeneration, None]:
        assert not isinstance(messages, RawPrompt | str)
        if sum(len(message["content"]) for message in messages) > 40:
            raise PromptError("too long; shorten it")
        async with super().generate(messages, *args, **options) as generation:
            yield generation


def test_a_conversation_that_outgrows_the_context_goes_on_without_its_older_half(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = SmallEngine(["yes, of course."])
    monkeypatch.setattr("specstream.commands.chat.text_engine_of", lambda args: engine)
    piped(monkeypatch, b"one, please\ntwo, please\nthree\n" + b"x" * 50 + b"\nnever read\n")
    assert main(["chat", "--system", "Yes."]) == 2
    captured = capsys.readouterr()
    assert captured.out == "yes, of course.\n" * 3
    note, error = captured.err.splitlines()
    assert "older half of the conversation is forgotten" in note
    assert error == "specstream: too long; shorten it"
    asked = [[m["content"] for m in messages] for messages, _ in engine.requests]
    assert asked == [
        ["Yes.", "one, please"],
        ["Yes.", "two, please"],
        ["Yes.", "two, please", "yes, of course.", "three"],
    ]


SCRIPTED = """
import sys
import anyio
from specstream.commands.main import main
from specstream.commands import chat
from specstream.config import EngineConfig
from specstream.errors import PromptError
from specstream.testing import ScriptedEngine

free = 3  # chunks of all replies; then the model says nothing until it is stopped

def gate():
    global free
    free -= 1
    return anyio.Event() if free < 0 else None

engine = ScriptedEngine(["one two three four", "five"], gate=gate)
engine.config = EngineConfig()
ask = engine.generate

def generate(messages, *args, **options):
    global free
    if messages[-1]["content"] == "go on":
        free = 99
    if messages[-1]["content"] == "long":
        raise PromptError("the prompt has 9 tokens; shorten it")
    return ask(messages, *args, **options)

engine.generate = generate
chat.text_engine_of = lambda args: engine
code = main(["chat"])
print("HISTORY", [m["content"] for m in engine.requests[-1][0]] if engine.requests else [])
sys.exit(code)
"""


def interrupt(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    stat = Path(f"/proc/{process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "S":
        os.sched_yield()
    process.send_signal(number)


class Terminal:
    """A person's end of a pseudo-terminal."""

    def __init__(self) -> None:
        self._end, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPTED],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(other)
        self._seen = ""

    def until(self, text: str) -> str:
        """Read on until ``text`` was shown; returns what was shown up to there."""
        while text not in self._seen:
            ready, _, _ = select.select([self._end], [], [], 60)
            assert ready, f"{text!r} was not shown, but {self._seen!r}"
            try:
                data = os.read(self._end, 4096)
            except OSError:  # the other end is closed
                data = b""
            assert data, f"{text!r} was not shown, but {self._seen!r}"
            self._seen += data.decode()
        before, _, self._seen = self._seen.partition(text)
        return before

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Send a signal once the process waits: `input` misses one sent right after its prompt."""
        interrupt(self.process, number)

    def say(self, text: str) -> None:
        os.write(self._end, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def test_a_person_talks_stops_a_reply_and_leaves(terminal: Terminal) -> None:
    assert "\033" not in terminal.until("Ctrl-C stops a reply")  # TERM=dumb draws codes as text
    assert "\033" not in terminal.until("> ")
    terminal.say("hello\n")
    terminal.until("one two three")
    terminal.interrupt()
    terminal.until("stopped after 3 tokens")
    terminal.until("> ")
    terminal.say("again\n")  # this reply never begins
    terminal.until("again\r\n")
    terminal.interrupt()
    terminal.until("stopped after 0 tokens")
    terminal.until("> ")
    terminal.say("long\n")
    terminal.until("specstream: the prompt has 9 tokens; shorten it")
    terminal.until("> ")
    terminal.say("go on\n")
    terminal.until("five")
    terminal.until("1 token, ")
    terminal.until("> ")
    terminal.say("\x04")
    terminal.until("HISTORY ['hello', 'one two three', 'again', 'go on']")
    assert terminal.process.wait() == 0


def test_the_bundled_pair_says_what_it_can_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A first question that it can't answer looks like a broken program."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    hint = "try: Tell me a story about a brave little fox. (--target smollm2 answers questions)"
    for target, shown in ((DEFAULT_TARGET, True), ("smollm2", False)):
        chat.greet(target)
        assert (hint in capsys.readouterr().out) == shown


def test_what_begins_with_a_slash_is_for_the_command(terminal: Terminal) -> None:
    terminal.until("/help lists what else there is")
    for said, shown in (
        ("go on", "four"),
        ("/help", "/new   forget"),
        ("/halp", "there is no command /halp"),
        ("/new", "a new conversation"),
        ("//etc is what?", "five"),
    ):
        terminal.until("> ")
        terminal.say(said + "\n")
        terminal.until("\r\n")  # what was said
        terminal.until(shown)
    terminal.until("> ")
    terminal.say("/quit\n")
    terminal.until("HISTORY ['/etc is what?']")
    assert terminal.process.wait() == 0


def test_an_interrupt_at_the_prompt_says_how_to_leave_and_a_second_one_leaves(
    terminal: Terminal,
) -> None:
    how = "Ctrl-D, or Ctrl-C again, ends the conversation"
    terminal.until("> ")
    terminal.interrupt()
    terminal.until(how)
    terminal.until("> ")
    terminal.say("go on\n")
    terminal.until("four")
    terminal.until("> ")
    terminal.interrupt()  # the first one after a reply
    terminal.until(how)
    terminal.until("> ")
    terminal.interrupt()
    shown = terminal.until("HISTORY ['go on']")
    assert not shown.strip()
    assert terminal.process.wait() == 0


def test_an_interrupt_drops_a_line_that_is_half_typed(terminal: Terminal) -> None:
    """It counts as no wish to leave."""
    terminal.until("> ")
    for _ in range(3):
        terminal.say("never mi")
        terminal.until("never mi")
        terminal.interrupt()
        assert "Ctrl-D" not in terminal.until("> ")
    terminal.say("go on\n")
    terminal.until("four")
    terminal.until("> ")
    terminal.say("\x04")
    terminal.until("HISTORY ['go on']")


def test_a_stop_at_the_prompt_ends_it_quietly(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.interrupt(signal.SIGTERM)
    shown = terminal.until("HISTORY []")
    assert not shown.strip()
    assert terminal.process.wait() == 0


def test_a_stop_ends_it_in_the_middle_of_a_reply(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.say("hello\n")
    terminal.until("one two three")
    terminal.interrupt(signal.SIGTERM)
    shown = terminal.until("HISTORY ['hello']")
    assert "Traceback" not in shown
    assert terminal.process.wait() == 130


def test_an_interrupt_ends_the_wait_for_a_line_that_is_piped_in() -> None:
    argv = [sys.executable, "-c", SCRIPTED]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"one two three four\n"
        interrupt(process, signal.SIGINT)
        assert process.stderr is not None
        try:
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()
        assert b"Traceback" not in process.stderr.read()
