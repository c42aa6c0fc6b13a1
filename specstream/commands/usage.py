"""Parsing of the command line; an error prints one line, with a suggestion where there is one."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from specstream.checks import meant

__all__ = ["Parser", "adding_to", "read_arguments"]


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


def read_arguments(
    parser: Parser, commands: Mapping[str, Parser], argv: Sequence[str] | None
) -> argparse.Namespace:
    """Parse ``argv`` (default: the process's arguments); print the help if there are none.

    Raises:
        SystemExit: 0 after help was printed, 2 after an error.
    """
    words = sys.argv[1:] if argv is None else list(argv)
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
        why = (
            "no such option" if extra[0].startswith("-") else "a text of several words needs quotes"
        )
        commands[args.command].error(f"unexpected {' '.join(extra)!r}: {why}")
    return args
