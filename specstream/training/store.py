"""Stores replies with the target's hidden states, in a folder of shards.

A folder holds ``replies.json`` and any number of shards ``*.pt``. A shard is a list, written with
``torch.save``, of a dict for each sequence:

- ``ids``: ``[T + 1]`` int32, the tokens of the prompt and of the reply, the last token included;
- ``prompt``: how many of ``ids`` belong to the prompt;
- ``states``: ``[T, depths, hidden]`` bfloat16 (or any float): the target's hidden states of all
  tokens but the last, which the target never read. States of depth d are those after d layers, before
  any norm; the target's number of layers (the input of the final norm) must be one of the depths;
- ``source``: optional, the number of the prompt; further keys are ignored.

``replies.json`` is an object with ``depths`` (in the order of the second axis) and, if the trainer wrote
it, ``hidden``, ``seconds`` and the list ``shards``. Without the list all ``*.pt`` are read, in the order
of their names. A folder that was written elsewhere needs ``{"depths": [2, 15, 27, 30]}`` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specstream.errors import ConfigError
from specstream.training.files import read_json, read_tensors, write_json, write_tensors

__all__ = ["ReplyFolder", "StoredReply"]

_INDEX = "replies.json"


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A prompt, the target's reply to it, and the hidden states; see the module's docstring.

    Attributes:
        ids: ``[T + 1]`` int32.
        prompt: How many of ``ids`` belong to the prompt.
        states: ``[T, depths, hidden]``.
        source: Number of the prompt; -1 if unknown.
    """

    ids: Tensor
    prompt: int
    states: Tensor
    source: int = -1

    def window(self, start: int, end: int) -> StoredReply:
        """Return the part from token ``start`` to ``end`` as a reply of its own."""
        prompt = min(max(self.prompt - start, 0), end - start)
        states = self.states[start : min(end, self.states.shape[0])]
        return replace(self, ids=self.ids[start:end], prompt=prompt, states=states)


@dataclass
class ReplyFolder:
    """A folder of replies. Use `create` or `open`.

    Attributes:
        folder: The folder.
        depths: The depths of the states, in the order of their second axis.
        hidden: Size of a state.
        shards: For each shard its name and, if the trainer wrote it, tokens and sources.
        seconds: How long writing the replies took.
    """

    folder: Path
    depths: tuple[int, ...]
    hidden: int
    shards: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def create(cls, folder: Path, depths: Sequence[int], hidden: int) -> ReplyFolder:
        """Make an empty folder to write to, or open the one of an earlier run of the trainer.

        Raises:
            ConfigError: the earlier run's replies have states of other depths or of another size.
            OutputError: the index can't be written.
        """
        if (found := read_json(folder / _INDEX)) is None:
            folder.mkdir(parents=True, exist_ok=True)
            made = cls(folder, tuple(depths), hidden)
            made._write_index()
            return made
        if list(found["depths"]) != list(depths) or found["hidden"] != hidden:
            raise ConfigError(f"{folder} holds replies with other states; --force starts anew")
        return cls(folder, tuple(depths), hidden, found["shards"], float(found["seconds"]))

    @classmethod
    def open(cls, folder: Path, depths: Sequence[int], hidden: int) -> ReplyFolder:
        """Open a folder that was written before, which must have states of these depths and size.

        Raises:
            ConfigError: there is no index, or states or shards are missing or of another shape.
            OutputError: the index or the first shard is damaged.
        """
        found = read_json(folder / _INDEX)
        if found is None:
            raise ConfigError(
                f"{folder / _INDEX} is missing: it must say which layers' states the shards hold, such "
                f'as {{"depths": {sorted(depths)}}}'
            )
        have = found.get("depths")
        if not isinstance(have, list) or not all(isinstance(depth, int) for depth in have):
            raise ConfigError(f"{folder / _INDEX}: depths must be a list of numbers of layers")
        if missing := sorted(set(depths) - set(have)):
            raise ConfigError(
                f"{folder} has no states after layer {missing[0]}, which are needed here; it has {have}"
            )
        if not isinstance(shards := found.get("shards"), list):
            shards = [{"name": path.name} for path in sorted(folder.glob("*.pt"))]
        made = cls(folder, tuple(have), hidden, shards)
        if not shards:
            raise ConfigError(f"{folder} holds no shards (*.pt)")
        made.read(made.names[0])
        return made

    @property
    def names(self) -> list[str]:
        """File names of the shards, in order."""
        return [str(one["name"]) for one in self.shards]

    @property
    def sources(self) -> set[int]:
        """Numbers of the prompts whose replies are in the folder."""
        return {number for one in self.shards for number in one["sources"]}

    @property
    def tokens(self) -> int:
        """Tokens of all listed replies, prompts not counted; 0 for a folder written elsewhere."""
        return sum(int(one.get("tokens", 0)) for one in self.shards)

    def size(self, name: str) -> int:
        """Return the size of a shard in bytes."""
        return (self.folder / name).stat().st_size

    def append(self, replies: Sequence[StoredReply], seconds: float) -> None:
        """Write one more shard atomically; ``seconds`` is how long writing its replies took.

        Raises:
            OutputError: the shard or the index can't be written.
        """
        name = f"{len(self.shards):05}.pt"
        values = [
            {"ids": r.ids, "prompt": r.prompt, "states": r.states, "source": r.source} for r in replies
        ]
        write_tensors(self.folder / name, values)
        tokens = sum(r.ids.shape[0] - r.prompt for r in replies)
        entry = {"name": name, "tokens": tokens, "sources": [r.source for r in replies]}
        self.shards.append(entry)
        self.seconds += seconds
        self._write_index()

    def read(self, name: str) -> list[StoredReply]:
        """Read the replies of a shard, whose tensors are mapped from the file.

        Raises:
            ConfigError: the shard doesn't have the format of the module's docstring.
            OutputError: the shard is damaged.
        """
        found = read_tensors(self.folder / name, lazily=True)
        if not isinstance(found, list):
            raise ConfigError(f"{self.folder / name} is no list of replies")
        return list(self._checked(name, found))

    def count(self, vocabulary: int, skip: int = 0) -> Tensor:
        """Count how often each token occurs in the replies, without prompts: ``[vocabulary]`` int64.

        Args:
            vocabulary: Number of tokens.
            skip: How many sequences at the end of the last shard are left out.

        Raises:
            ConfigError: a token is beyond the vocabulary, or see `read`.
            OutputError: a shard is damaged.
        """
        counts = torch.zeros(vocabulary, dtype=torch.int64)
        for name in self.names:
            replies = self.read(name)
            for reply in replies[: len(replies) - (skip if name == self.names[-1] else 0)]:
                ids = reply.ids[reply.prompt :].long()
                if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
                    raise ConfigError(
                        f"{self.folder / name} holds token {int(ids.max())}; the target has {vocabulary}"
                    )
                counts += torch.bincount(ids, minlength=vocabulary)
        return counts

    def _checked(self, name: str, values: Sequence[Any]) -> Iterator[StoredReply]:
        for number, value in enumerate(values):
            try:
                ids, prompt, states = value["ids"], int(value["prompt"]), value["states"]
                meant = (ids.shape[0] - 1, len(self.depths), self.hidden)
                right = tuple(states.shape) == meant and 0 < prompt < ids.shape[0]
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise ConfigError(
                    f"{self.folder / name}, sequence {number}: {error} is wrong"
                ) from error
            if not right:
                raise ConfigError(
                    f"{self.folder / name}, sequence {number}: {ids.shape[0]} ids, {prompt} of a "
                    f"prompt, states {list(states.shape)}; states must be {list(meant)}"
                )
            yield StoredReply(ids.to(torch.int32), prompt, states, int(value.get("source", -1)))

    def _write_index(self) -> None:
        values = {"depths": list(self.depths), "hidden": self.hidden, "shards": self.shards}
        write_json(self.folder / _INDEX, values | {"seconds": self.seconds})
