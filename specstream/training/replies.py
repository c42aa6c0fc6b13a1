"""Reads a target's prompts, generates its replies in batches and stores them with hidden states."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specstream.engine.core.prompt import PromptEncoder
from specstream.errors import ConfigError, PromptError
from specstream.model.forward import Extras, ForwardInput
from specstream.model.kv import KVCache
from specstream.model.runner import ModelRunner
from specstream.training.inputs import LEAST_PROMPTS, TEXT_TOKENS, Line, check_count, read_file
from specstream.training.store import ReplyFolder, StoredReply

__all__ = ["ON_POLICY", "Prompts", "Writing", "hold_out", "read_data", "write_replies"]


class Prompts:
    """Prompts as token ids, encoded on access; a prompt that is too long is None.

    Args:
        items: Conversations, or token ids.
        encode: Encodes an item as token ids.
        longest: Maximum tokens of a prompt.

    Attributes:
        left_out: Indices of the prompts that were encoded and found too long.
    """

    def __init__(self, items: Sequence[Any], encode: Callable[[Any], list[int]], longest: int) -> None:
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


ON_POLICY = (1.0, 0.0, 0.7, 1.0)
"""Temperatures, by turns over the prompts; 0 is greedy."""
_AT_ONCE = 32  # replies in a batch
_SHARD_BYTES = 64 << 20  # a shard is written once it has so many bytes of states,
_SHARD_S = 30.0  # or is so many seconds old


@dataclass(frozen=True, slots=True)
class Writing:
    """What `write_replies` is to write.

    Attributes:
        prompts: Token ids of each prompt; prompts that are None are left out.
        end_ids: Ids of the tokens that end a reply.
        most: Maximum tokens of a reply.
        temperatures: Sampling temperatures, by turns over the prompts.
        tokens: No reply is begun once so many reply tokens were written; None: no limit.
        seconds: No reply is begun after so many seconds; None: no limit.
        seed: Seed of the sampling. A reply depends on the seed, on its prompt and, by rounding, on the
            replies in the same batch.
    """

    prompts: Prompts
    end_ids: frozenset[int]
    most: int
    temperatures: Sequence[float] = ON_POLICY
    tokens: int | None = None
    seconds: float | None = None
    seed: int = 0


@dataclass(slots=True)
class _Slot:
    source: int
    prompt: int
    ids: list[int]
    new: list[int]
    cache: KVCache
    temperature: float
    noise: torch.Generator
    states: list[Tensor] = field(default_factory=list)


@torch.inference_mode()
def write_replies(
    target: ModelRunner,
    replies: ReplyFolder,
    wanted: Writing,
    *,
    tell: Callable[[int, float], None],
    stop: Callable[[], bool],
) -> bool:
    """Write the replies that are not in ``replies`` yet; return False if ``stop`` ended that.

    Finished replies are written to a shard every 64 MiB or 30 seconds; unfinished ones are lost on a
    stop.

    Args:
        target: The model that replies; it must give hidden states at ``replies.depths``.
        replies: The folder to write to.
        wanted: Prompts, limits and sampling.
        tell: Called after each pass with the tokens and the seconds so far.
        stop: Called before each pass; True stops the writing.

    Raises:
        OutputError: a shard can't be written; the shards before it are kept.
    """
    before, began, last = replies.seconds, time.perf_counter(), time.perf_counter()
    waiting = _slots(target, wanted, replies.sources)
    running: list[_Slot] = []
    done: list[StoredReply] = []
    tokens, size = replies.tokens, 0
    while not stop():
        now = time.perf_counter()
        spent = before + now - began
        late = wanted.seconds is not None and spent >= wanted.seconds
        enough = wanted.tokens is not None and tokens >= wanted.tokens
        # At a limit, replies under way are still finished: dropping them would favour short replies.
        while not (late or enough) and len(running) < _AT_ONCE:
            slot = next(waiting, None)
            if slot is None:
                break
            running.append(slot)
        if not running:
            break
        for reply in _step(target, running, replies.depths, wanted):
            done.append(reply)
            tokens += reply.ids.shape[0] - reply.prompt
            size += reply.states.nbytes
        if size >= _SHARD_BYTES or (done and now - last >= _SHARD_S):
            replies.append(done, now - last)
            done, size, last = [], 0, now
        tell(tokens, spent)
    if done:
        replies.append(done, time.perf_counter() - last)
    return not stop()


def _slots(target: ModelRunner, wanted: Writing, written: set[int]) -> Iterator[_Slot]:
    for source in range(len(wanted.prompts)):
        if source in written or (prompt := wanted.prompts[source]) is None:
            continue
        ids, noise = list(prompt), torch.Generator().manual_seed(wanted.seed * 1_000_003 + source)
        heat = wanted.temperatures[source % len(wanted.temperatures)]
        yield _Slot(source, len(ids), ids, list(ids), target.new_cache(), heat, noise)


def _step(
    target: ModelRunner, running: list[_Slot], depths: Sequence[int], wanted: Writing
) -> list[StoredReply]:
    """Run one pass over all running replies; remove and return those that ended."""
    inputs = [ForwardInput(torch.tensor(slot.new, device=target.device), slot.cache) for slot in running]
    done: list[StoredReply] = []
    made = target.forward(inputs, Extras(depths))
    tokens = _drawn(running, torch.stack([logits[-1] for logits in made.logits]).float())
    for slot, token, states in zip(tuple(running), tokens, made.states, strict=True):
        slot.states.append(states.to("cpu", torch.bfloat16))
        slot.ids.append(token)
        slot.new = [token]
        full = len(slot.ids) >= target.context_length
        if token in wanted.end_ids or len(slot.ids) - slot.prompt >= wanted.most or full:
            running.remove(slot)
            ids = torch.tensor(slot.ids, dtype=torch.int32)
            done.append(StoredReply(ids, slot.prompt, torch.cat(slot.states), slot.source))
    return done


def _drawn(running: Sequence[_Slot], logits: Tensor) -> list[int]:
    """Draw a token for each row of ``logits [n, V]`` by inverting the cumulative distribution."""
    heat = torch.tensor([slot.temperature for slot in running], device=logits.device).unsqueeze(1)
    scaled = torch.where(heat > 0, logits / heat.clamp_min(1e-6), logits)
    below = scaled.softmax(-1, dtype=torch.float64).cumsum(-1)
    at = torch.stack([torch.rand(1, generator=slot.noise, dtype=torch.float64) for slot in running])
    sampled = torch.searchsorted(below, at.to(below.device) * below[:, -1:], right=True)
    sampled = sampled.clamp_max(logits.shape[1] - 1)
    return torch.where(heat > 0, sampled, logits.argmax(-1, keepdim=True)).squeeze(1).tolist()
