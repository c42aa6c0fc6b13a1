"""Reading of stdin: a whole prompt, or line by line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

from specstream.commands.interrupts import handling
from specstream.errors import PromptError

__all__ = ["read_lines", "read_prompt"]

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
