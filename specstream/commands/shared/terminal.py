"""The terminal: parsing of the command line, text from stdin, and what Ctrl-C does."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, BinaryIO, NoReturn

from specstream.checks import meant
from specstream.errors import PromptError

__all__ = [
    "Parser",
    "adding_to",
    "ends_at_once",
    "handling",
    "parse",
    "read_lines",
    "read_prompt",
    "tell_interrupted",
]

Handler = Callable[[int, Any], Any]

_HOW = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


@contextmanager
def ends_at_once() -> Iterator[None]:
    """In this block SIGINT and SIGTERM end the process immediately.

    For imports and the reading of models: their threads can't be cancelled, and neither the event loop
    nor the interpreter ends before its threads do. Nothing is unwound, so no file may be half-written
    in the block. The process prints one line and exits with 128 plus the signal's number. An ignored
    signal stays ignored. Outside the main thread, where signals can't be handled, the block changes
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handling(dict.fromkeys(_HOW, _end)):
        yield


@contextmanager
def handling(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """In this block signals have these handlers; an ignored signal stays ignored."""
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        if before[number] != signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier if earlier is not None else signal.SIG_DFL)


def tell_interrupted(number: signal.Signals, *, last: bool) -> int:
    """Report that the command was ended by a signal; returns the exit code.

    ``last`` ends the process here: the interpreter's own exit takes seconds once torch is loaded, and
    answers a second Ctrl-C with a traceback.
    """
    _tell(number)
    if last:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(128 + number)
    return 128 + number


def _end(number: int, frame: object) -> None:
    _tell(number)
    os._exit(128 + number)


def _tell(number: int) -> None:
    """Print one line to the file descriptor: the signal may have interrupted a write to `sys.stderr`."""
    with suppress(OSError):
        rewritten = os.isatty(2) and os.environ.get("TERM") != "dumb"
        clear = b"\r\033[K" if rewritten else b""  # removes the progress line
        os.write(2, clear + f"specstream: {_HOW[signal.Signals(number)]}\n".encode())


MAX_BYTES = 1 << 20
"""The longest prompt and the longest line that are read."""


def read_prompt() -> str:
    """Everything up to the end of stdin, without the newlines at its end.

    Raises:
        PromptError: it is empty, too long, or not text in UTF-8.
    """
    text = _text(_read(lambda stdin: stdin.read(MAX_BYTES + 1)), "the prompt on stdin")
    if not text.strip():
        raise PromptError("the prompt on stdin is empty: pipe some text in")
    return text


def read_lines() -> Iterator[str]:
    """The lines of stdin that are not blank, one by one as they come.

    Raises:
        PromptError: a line is too long, or not text in UTF-8.
    """
    number = 0
    while line := _read(lambda stdin: stdin.readline(MAX_BYTES + 1)):
        number += 1
        if text := _text(line, f"line {number} of stdin").strip():
            yield text


def _read(read: Callable[[BinaryIO], bytes]) -> bytes:
    if sys.stdin is None:
        raise PromptError("stdin is closed, so nothing can be read from there")
    try:
        # An event loop would only note an interrupt, and the read would go on.
        with handling({signal.SIGINT: signal.default_int_handler}):
            return read(sys.stdin.buffer)
    except OSError as error:
        raise PromptError(f"stdin can't be read: {error.strerror or error}") from error


def _text(data: bytes, what: str) -> str:
    if len(data) > MAX_BYTES:
        raise PromptError(f"{what} is longer than {MAX_BYTES >> 20} MiB; shorten it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise PromptError(f"{what} is binary data; it must be text in UTF-8")
    return text.rstrip("\r\n")


_NO_VALUE = re.compile(r"(--[a-z-]+): expected one argument$")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line: no usage text before them."""

    def error(self, message: str) -> NoReturn:
        """Print the error and how to get help; exit with code 2."""
        if found := _NO_VALUE.search(message):
            message += f": a value that begins with - is written {found[1]}=VALUE"
        more = "" if message.endswith("?") else f"; see `{self.prog} --help`"
        self.exit(2, f"specstream: {message}{more}\n")

    def check_options(self, words: Sequence[str]) -> None:
        """Refuse an unknown long option, before argparse takes its value for an argument."""
        known = {"--help", *re.findall(r"--[a-z][a-z-]*", self.format_usage())}
        for word in takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if not name.startswith("--") or " " in word:
                continue
            if not any(option.startswith(name) for option in known):
                self.error(f"unknown option {name!r}{meant(name, known)}")


def adding_to(parser: argparse.ArgumentParser, group: str = "") -> Callable[..., None]:
    """Return a function that adds options to ``parser``, or to a ``group`` of its help.

    It takes an option as the help shows it (``"--out DIR"``), its help and keywords of ``add_argument``.
    """
    target = parser.add_argument_group(group) if group else parser

    def add(form: str, help: str | None = None, **more: Any) -> None:
        name, _, metavar = form.partition(" ")
        if metavar:
            more["metavar"] = metavar
        target.add_argument(name, help=help, **more)

    return add


def parse(parser: Parser, commands: Mapping[str, Parser], words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line's ``words``; print the help if there are none.

    Raises:
        SystemExit: 0 after help was printed, 2 after an error.
    """
    if not words:
        parser.print_help()
        parser.exit()
    name = words[0]
    if name in commands:
        commands[name].check_options(words[1:])
    elif name.startswith("-"):
        parser.check_options(words)
    else:
        known = meant(name, commands) or f"; there are: {', '.join(commands)}"
        parser.error(f"unknown command {name!r}{known}")
    args, extra = parser.parse_known_args(words)
    if extra:
        why = "no such option" if extra[0].startswith("-") else "a text of several words needs quotes"
        commands[args.command].error(f"unexpected {' '.join(extra)!r}: {why}")
    return args
