"""Reads training data, prompts as JSON lines or plain text, as token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from specstream.engine.prompt import PromptEncoder
from specstream.errors import ConfigError, PromptError
from specstream.train.inputs import LEAST_PROMPTS, TEXT_TOKENS, Line, check_count, read_file

__all__ = ["Prompts", "hold_out", "read_data"]


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
    read = read_file(path, least)
    if not isinstance(read, str):
        return _lines(path, read, tokenizer, longest)
    found = Prompts(_pieces(read, tokenizer), list, longest)
    check_count(path, len(found), least)
    return found


def hold_out(prompts: Prompts, most: int) -> tuple[Prompts, Prompts]:
    """Split prompts into training ones and a held-out tenth (1 to ``most``), spread over the file."""
    count = max(1, min(most, len(prompts) // 10))
    chosen = {i * len(prompts) // count for i in range(count)}
    rest = [i for i in range(len(prompts)) if i not in chosen]
    return prompts.chosen(rest), prompts.chosen(sorted(chosen))


def _lines(
    path: Path, found: Sequence[Line], tokenizer: PreTrainedTokenizerBase, longest: int
) -> Prompts:
    encoder = PromptEncoder(tokenizer, warns=False)

    def encode(item: Line) -> list[int]:
        number, messages = item
        try:
            return encoder.encode(messages, 1 << 30).ids
        except PromptError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None

    encode(found[0])
    return Prompts(found, encode, longest)


def _pieces(text: str, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Cut a text into pieces of token ids, each after the tokenizer's own prefix (such as BOS)."""
    lead = [i for i in tokenizer.encode("") if i != tokenizer.eos_token_id]
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    whole = range(0, len(ids) - TEXT_TOKENS + 1, TEXT_TOKENS)
    return [[*lead, *ids[start : start + TEXT_TOKENS]] for start in whole]
