"""Reads training data, prompts as JSON lines or plain text, as token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from specstream.bench.prompts import json_lines, text_of
from specstream.engine.prompt import PromptEncoder, check_messages
from specstream.errors import ConfigError, PromptError
from specstream.types import Message

__all__ = ["LEAST_PROMPTS", "Prompts", "digest", "hold_out", "read_data"]

LEAST_PROMPTS = 8
"""Fewer prompts than this are refused: none would be left to measure with."""
_EMPTY = "{} is empty: it must hold prompts (JSON lines) or text"
_MOST_BYTES = 1 << 30
_TEXT_TOKENS = 48  # tokens of a piece of plain text, which is a prompt for the target to continue


class Prompts:
    """Prompts as token ids, encoded on access; a prompt that is too long is None.

    Args:
        items: Conversations, or token ids.
        encode: Encodes an item as token ids.
        longest: Maximum tokens of a prompt.

    Attributes:
        left_out: Indices of the prompts that were encoded and found too long.
    """

    def __init__(
        self, items: Sequence[Any], encode: Callable[[Any], list[int]], longest: int
    ) -> None:
        self._items, self._encode, self.longest = items, encode, longest
        self.left_out = set[int]()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[list[int] | None]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> list[int] | None:
        ids = self._encode(self._items[index])
        if len(ids) <= self.longest:
            return ids
        self.left_out.add(index)
        return None

    def chosen(self, indices: Sequence[int]) -> Prompts:
        """Return the prompts of these indices, in this order."""
        return Prompts([self._items[i] for i in indices], self._encode, self.longest)


def read_data(
    path: Path, tokenizer: PreTrainedTokenizerBase, longest: int, *, least: int = LEAST_PROMPTS
) -> Prompts:
    """Read the prompts of a file; those of more than ``longest`` tokens become None when encoded.

    A file whose first line that isn't empty begins with ``{`` is read as JSON lines: each an object with
    ``messages`` (a conversation that ends with the user's turn) or ``prompt`` (a text). With a chat
    template, a text is the user's turn; without one, messages are read line by line. Other keys are
    ignored. Any other file is plain text: it is cut into pieces, which the target continues.

    Raises:
        ConfigError: the file can't be read, a line isn't such an object (the message has its number),
            the file is one JSON array of objects, the chat template refuses the first prompt, or there
            are fewer than ``least`` prompts.
    """
    text = _text_of(path)
    first = next((line for line in text.split("\n") if line.strip()), "")
    if not first:
        raise ConfigError(_EMPTY.format(path))
    if first.lstrip().startswith("{"):
        found = _lines(path, text, tokenizer, longest)
    else:
        if first.lstrip().startswith("["):
            _refuse_array(path, text)
        found = Prompts(_pieces(text, tokenizer), list, longest)
    if len(found) < least:
        raise ConfigError(
            f"{path} gives too few prompts ({len(found)}; at least {least} are needed; plain text gives "
            f"one for each {_TEXT_TOKENS} tokens): add some"
        )
    return found


def digest(path: Path) -> str:
    """Return the SHA-256 of a non-empty file, in hexadecimal.

    Raises:
        ConfigError: the file can't be read, or is empty.
    """
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if file.tell() == 0:
                raise ConfigError(_EMPTY.format(path))
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}") from None
    return found


def hold_out(prompts: Prompts, most: int) -> tuple[Prompts, Prompts]:
    """Split prompts into training ones and a held-out tenth (1 to ``most``), spread over the file."""
    count = max(1, min(most, len(prompts) // 10))
    chosen = {i * len(prompts) // count for i in range(count)}
    rest = [i for i in range(len(prompts)) if i not in chosen]
    return prompts.chosen(rest), prompts.chosen(sorted(chosen))


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path} is larger than {_MOST_BYTES >> 20} MiB: give a part of it")
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}") from None
    return text_of(path, raw)


def _lines(path: Path, text: str, tokenizer: PreTrainedTokenizerBase, longest: int) -> Prompts:
    encoder = PromptEncoder(tokenizer, warns=False)

    def encode(item: tuple[int, list[Message]]) -> list[int]:
        number, messages = item
        try:
            return encoder.encode(messages, 1 << 30).ids
        except PromptError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None

    found = list(json_lines(path, text, _messages))
    encode(found[0])
    return Prompts(found, encode, longest)


def _refuse_array(path: Path, text: str) -> None:
    """Refuse a JSON array of objects, which would be taken for plain text and its syntax be learnt."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(found, list) and any(isinstance(one, dict) for one in found):
        raise ConfigError(
            f"{path} is one JSON array: write its objects one a line, without [ and ]"
        )


def _messages(value: Any, _: int) -> list[Message]:
    if not isinstance(value, dict):
        raise ConfigError('a line is an object with "messages" or "prompt"')
    if isinstance(messages := value.get("messages"), list):
        return check_messages(messages)
    if isinstance(prompt := value.get("prompt"), str):
        return check_messages(prompt)
    raise ConfigError('a line needs "messages" (a list) or "prompt" (a text)')


def _pieces(text: str, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Cut a text into pieces of token ids, each after the tokenizer's own prefix (such as BOS)."""
    lead = [i for i in tokenizer.encode("") if i != tokenizer.eos_token_id]
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    whole = range(0, len(ids) - _TEXT_TOKENS + 1, _TEXT_TOKENS)
    return [[*lead, *ids[start : start + _TEXT_TOKENS]] for start in whole]
