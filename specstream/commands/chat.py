"""``specstream chat``: a conversation in the terminal, or with lines that are piped in."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from specstream.checks import counted
from specstream.commands.shared.common import params_of, speed_line, text_engine_of
from specstream.commands.shared.output import note, print_json, print_reply, shades, tell_cut
from specstream.commands.shared.progress import loaded
from specstream.commands.shared.terminal import handling, read_lines
from specstream.config import DEFAULT_TARGET
from specstream.engine.engine import Engine
from specstream.engine.openai.engine import OpenAIEngine
from specstream.engine.protocol import TextGeneration
from specstream.engine.session import BaseSession
from specstream.errors import EngineBusy, EngineFailed, PromptError, RequestError
from specstream.metrics import Report
from specstream.types import Message, SamplingParams

__all__ = ["greet", "run"]

_QUIT = "/quit"
_HELP = """/new   forget the conversation and begin another
/quit  end it, as Ctrl-D does
//…    say a line that begins with /"""


async def run(args: argparse.Namespace) -> None:
    """Answer line after line until the end of input.

    On a terminal an interrupt stops the reply under way; at the prompt the second one in a row ends the
    conversation, as does the end of input. After an error the conversation goes on on a terminal, while
    piped input ends with the error.
    """
    engine = text_engine_of(args)
    params_of(args)  # so that a wrong value is reported before the model is loaded
    async with loaded(engine):
        if engine.slowed is not None or (sys.stdin is not None and sys.stdin.isatty()):
            note(speed_line(engine))
        params = params_of(args, engine.manner.params)
        system = engine.manner.system if args.system is None else args.system
        await _talk(engine, system, params, args)


async def _talk(
    engine: Engine | OpenAIEngine, system: str | None, params: SamplingParams, args: argparse.Namespace
) -> None:
    async with engine.session(system or None) as talk:
        if sys.stdin is not None and sys.stdin.isatty():
            greet("" if isinstance(engine, OpenAIEngine) else engine.config.target)
            await _converse(talk, params, as_json=args.json)
            return
        first = list(talk.messages)
        for text in read_lines():
            if text == _QUIT:
                return
            if _obeyed(text, talk, first):
                continue
            text = text.removeprefix("/")
            report = await _turn(talk, text, params)
            if (cut := tell_cut(report, params.max_tokens)) is not None:
                note(cut)
            if args.json:
                print_json(report.to_dict())


def greet(target: str) -> None:
    """Tell a person at a terminal what can be done here, and what the bundled target can."""
    _tell("Ctrl-C stops a reply, Ctrl-D ends the conversation, /help lists what else there is")
    if target == DEFAULT_TARGET:
        _tell(
            "the bundled test pair tells short stories and asks about bookings; "
            "try: Tell me a story about a brave little fox. (--target smollm2 answers questions)"
        )


async def _converse(talk: BaseSession[Any], params: SamplingParams, *, as_json: bool) -> None:
    first = list(talk.messages)  # the system message, if there is one
    with suppress(ImportError):
        import readline  # noqa: F401  # lines can be edited and called back
    interrupts = _Interrupts()
    with interrupts.handled():
        while (text := _ask(interrupts)) is not None and text != _QUIT:
            try:
                if _obeyed(text, talk, first):
                    continue
                report = await _turn(talk, text.removeprefix("/"), params, interrupts)
            except (RequestError, EngineBusy, EngineFailed) as error:
                note(f"specstream: {error}")
                continue
            _tell(_figures(report, params.max_tokens))
            if as_json:
                print_json(report.to_dict())


def _obeyed(text: str, talk: BaseSession[Any], first: list[Message]) -> bool:
    """Carry out a line that is a command, other than the last one; returns whether it was one.

    Raises:
        RequestError: there is no such command.
    """
    if not text.startswith("/") or text.startswith("//"):
        return False
    if text == "/new":
        talk.messages[:] = first
        _tell("a new conversation")
    elif text == "/help":
        note(_HELP)
    else:
        raise RequestError(f"there is no command {text:.40}; there are:\n{_HELP}")
    return True


def _ask(interrupts: _Interrupts) -> str | None:
    """The person's next line; None at the end of input. Blocks the event loop.

    An interrupt drops what is typed; of two in a row at an empty prompt the second ends the input.
    """
    leaving = False
    while True:
        try:
            with interrupts.asking():
                if not sys.stdout.isatty():
                    print("> ", end="", file=sys.stderr, flush=True)
                text = input("> " if sys.stdout.isatty() else "").strip()
        except _AtPrompt as interrupt:
            note()
            if interrupt.typed:
                leaving = False
            elif leaving:
                return None
            else:
                leaving = True
                note("(Ctrl-D, or Ctrl-C again, ends the conversation)")
            continue
        except (EOFError, KeyboardInterrupt):
            note()
            return None
        except UnicodeDecodeError:
            note("specstream: that line is no text in UTF-8")
            continue
        if text:
            return text
        leaving = False


async def _turn(
    talk: BaseSession[Any], text: str, params: SamplingParams, interrupts: _Interrupts | None = None
) -> Report:
    """Print one reply as it is generated; drop the older half of the turns if the context is full."""
    before, forgotten = list(talk.messages), False
    while True:
        try:
            async with talk.generate(text, params) as chunks:
                if interrupts is not None:
                    interrupts.begin(chunks)
                await print_reply(chunks, show_runs=False, directions=False)
        except PromptError:
            forgotten = _forget_half(talk.messages)
            if forgotten:
                continue
            talk.messages[:] = before  # this turn alone is too long
            raise
        if forgotten:
            note("(the older half of the conversation is forgotten: the model's context is full)")
        report: Report = chunks.report
        return report


def _forget_half(messages: list[Message]) -> bool:
    """Drop the older half of the turns; False if there are none."""
    begin = 1 if messages and messages[0]["role"] == "system" else 0
    turns = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not turns:
        return False
    turns.append(len(messages))
    del messages[begin : turns[len(turns) // 2]]
    return True


class _AtPrompt(KeyboardInterrupt):
    """Ctrl-C while a line is asked for; ``typed``: a part of it was typed already."""

    def __init__(self) -> None:
        lines = sys.modules.get("readline")
        self.typed = bool(lines is not None and lines.get_line_buffer())


class _Interrupts:
    """Ctrl-C in a conversation: stops a reply; at the prompt, raises `_AtPrompt`.

    Replaces the event loop's handling, which would end the command after the next line is read. A
    service manager's stop always raises.
    """

    def __init__(self) -> None:
        self._asking = self._stopped = False
        self._reply: TextGeneration | None = None
        self._loop = asyncio.get_running_loop()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """In this block the person is asked for the next line."""
        self._asking = True
        try:
            yield
        finally:
            self._asking = self._stopped = False

    def begin(self, reply: TextGeneration) -> None:
        """Make interrupts stop ``reply``; if there was one since the last line, stop it now."""
        self._reply = reply
        if self._stopped:
            self._stop()

    def _act(self, *_: object) -> None:
        if self._asking:
            raise _AtPrompt
        self._stopped = True
        self._loop.call_soon_threadsafe(self._stop)  # unlike `call_soon`, this wakes the loop

    def _stop(self) -> None:
        if self._reply is not None:
            self._reply.cancel()

    def handled(self) -> AbstractContextManager[None]:
        """Returns a block in which interrupts have this meaning."""
        stop = signal.default_int_handler
        return handling({signal.SIGINT: self._act, signal.SIGTERM: stop})


def _figures(report: Report, max_tokens: int) -> str:
    tokens = counted(len(report.token_ids), "token")
    if report.finish_reason == "cancelled":
        return f"stopped after {tokens}"
    cut = tell_cut(report, max_tokens)
    return (
        f"{tokens}, {report.tokens_per_second:.0f} a second, "
        f"{report.mean_acceptance_length:.1f} a target pass, {report.reused_tokens} of "
        f"{report.prompt_tokens} prompt tokens from the cache{f'; {cut}' if cut is not None else ''}"
    )


def _tell(line: str) -> None:
    """Print a line, dim where possible, if stdout is a terminal."""
    if sys.stdout.isatty():
        print(f"\033[2m{line}\033[0m" if shades(sys.stdout) else line, flush=True)
