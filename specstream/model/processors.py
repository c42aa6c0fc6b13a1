"""Logits processors with the right context for every drafted position.

Row j of a judgement follows the committed tokens *and the drafted ones before it*; whatever looks at
the context (penalties, bans, minimum length, grammar, anyone's own processor) must see exactly that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specstream.errors import ModelBroken, RequestError, SamplingError, SpecstreamError
from specstream.model.grammar import GrammarState
from specstream.model.transfer import to_device
from specstream.types import SamplingParams

__all__ = ["LogitsPipeline", "Processed"]


@dataclass(slots=True)
class Processed:
    """What the processors made of some rows.

    Attributes:
        rows: ``[n, V]`` float32. A row that could not be processed is the model's own.
        faults: For each such row, why. It concerns the reply only if the reply comes that far: the
            row may follow a drafted token that is rejected.
    """

    rows: Tensor
    faults: dict[int, SpecstreamError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where some rows stand: row j follows ``token_ids`` (prompt and reply) and ``drafted[j]``."""

    token_ids: list[int]
    drafted: Sequence[list[int]]

    def context(self, row: int) -> list[int]:
        return self.token_ids + self.drafted[row]


_Step = Callable[[Processed, _Places], None]


class LogitsPipeline:
    """The processors of one request. `commit` must be told every committed token, in order.

    Rows don't depend on which others are processed along with them, to the last bit.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Any,
        prompt_ids: Sequence[int],
        vocab_size: int,
        end_ids: frozenset[int],
        device: torch.device,
    ) -> None:
        """Prepare what doesn't change.

        Raises:
            SamplingError: a parameter can't be honoured with this model.
        """
        self._params = params
        self._prompt_length = len(prompt_ids)
        self._end_ids = sorted(end_ids | set(params.stop_token_ids))
        self._device = device
        self._seen = set(prompt_ids)
        self._counts: Counter[int] = Counter()  # of each token in the reply
        self._bias = _bias_row(params, vocab_size, device)
        self._bans = _ban_sequences(params.bad_words, tokenizer, end_ids, vocab_size)
        self._grammar = (
            GrammarState(params.grammar, tokenizer, vocab_size, end_ids)
            if params.grammar is not None
            else None
        )
        least = params.min_tokens
        if self._grammar is not None and least and not self._grammar.can_last(least):
            raise SamplingError(
                f"no reply of this grammar has min_tokens={least} tokens; lower min_tokens"
            )
        self._steps = self._wanted()

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """Whether any processor is on."""
        return not params.plain_logits

    def commit(self, token: int) -> None:
        """A token of the reply is final."""
        self._seen.add(token)
        self._counts[token] += 1
        if self._grammar is not None:
            self._grammar.commit(token)

    def apply(self, logits: Tensor, token_ids: list[int], drafted: list[int]) -> Tensor:
        """Process one row ``[V]``; where that fails, it comes back as it was."""
        return self.apply_rows(logits.unsqueeze(0), token_ids, [drafted]).rows[0]

    def apply_rows(
        self, logits: Tensor, token_ids: list[int], drafted: Sequence[list[int]]
    ) -> Processed:
        """Process ``logits [n, V]``, row j in the context of ``token_ids`` and ``drafted[j]``.

        Never raises: what goes wrong with a row is told by its fault.
        """
        places = _Places(token_ids, drafted)
        done = Processed(logits.to(torch.float32, copy=True))
        for _, step in self._steps:
            step(done, places)
        alive = (done.rows > -torch.inf).any(-1)  # also false for a row of NaN
        for row, lives in enumerate(alive.tolist()):
            if not lives and row not in done.faults:
                done.faults[row] = self._why_dead(logits[row : row + 1], token_ids, drafted[row])
        for row in done.faults:
            done.rows[row] = logits[row]
        return done

    def _wanted(self) -> list[tuple[str, _Step]]:
        """The steps that are on, in the order that `SamplingParams` promises, by name."""
        params = self._params
        steps: list[tuple[bool, str, _Step]] = [
            (params.repetition_penalty != 1.0, "repetition_penalty", self._repetition),
            (
                params.frequency_penalty != 0.0 or params.presence_penalty != 0.0,
                "frequency_penalty or presence_penalty",
                self._frequency,
            ),
            (bool(params.logit_bias), "logit_bias", self._add_bias),
            (bool(self._bans), "bad_words", self._ban),
            (params.min_tokens > 0, "min_tokens", self._keep_open),
            (self._grammar is not None, "grammar", self._constrain),
        ]
        own = [(f"processor {p!r}", self._own(p)) for p in params.processors]
        return [(name, step) for on, name, step in steps if on] + own

    def _why_dead(
        self, logits: Tensor, token_ids: list[int], drafted: list[int]
    ) -> SpecstreamError:
        """Which step took the last token of a row; only asked when one did."""
        places, done = _Places(token_ids, [drafted]), Processed(logits.float().clone())
        if not bool((done.rows > -torch.inf).any()):
            return ModelBroken("the target's logits are not numbers: damaged weights or overflow")
        names = []
        for name, step in self._steps:
            names.append(name)
            step(done, places)
            if not bool((done.rows > -torch.inf).any()):
                break
        before = f", after {', '.join(names[:-1])}" if len(names) > 1 else ""
        return SamplingError(
            f"no token is left to choose from: {names[-1]} ruled out the last ones{before}; "
            "loosen one of them"
        )

    def _repetition(self, done: Processed, places: _Places) -> None:
        factor, rows = self._params.repetition_penalty, done.rows

        def scaled(scores: Tensor) -> Tensor:
            return torch.where(scores < 0, scores * factor, scores / factor)

        seen = self._index(list(self._seen))
        rows[:, seen] = scaled(rows[:, seen])
        new = [(r, t) for r, tokens in enumerate(places.drafted) for t in set(tokens) - self._seen]
        if new:
            at = self._index(new).unbind(-1)
            rows[at] = scaled(rows[at])

    def _frequency(self, done: Processed, places: _Places) -> None:
        rows, counts = done.rows, self._counts
        counted = self._index(list(counts))
        more = [
            (row, token, counts[token] + count)
            for row, tokens in enumerate(places.drafted)
            for token, count in Counter(tokens).items()
        ]
        at = self._index([(row, token) for row, token, _ in more]).reshape(-1, 2).unbind(-1)
        # From the scores as they were, in one subtraction: a token that was drafted and one that was
        # committed must come out the same to the last bit.
        final = rows[at] - self._charges([count for _, _, count in more])
        rows[:, counted] -= self._charges(list(counts.values()))
        rows[at] = final

    def _charges(self, counts: list[int]) -> Tensor:
        frequency, presence = self._params.frequency_penalty, self._params.presence_penalty
        charges = [frequency * n + presence for n in counts]
        return to_device(charges, self._device, torch.float32)

    def _index(self, values: Sequence[int] | Sequence[tuple[int, int]]) -> Tensor:
        return to_device(values, self._device)

    def _add_bias(self, done: Processed, places: _Places) -> None:
        done.rows += self._bias

    def _ban(self, done: Processed, places: _Places) -> None:
        longest = max(map(len, self._bans)) - 1
        for row, drafted in enumerate(places.drafted):
            near = (places.token_ids[-longest:] if longest else []) + drafted
            banned = [
                last for *first, last in self._bans if near[len(near) - len(first) :] == first
            ]
            done.rows[row, banned] = -torch.inf

    def _keep_open(self, done: Processed, places: _Places) -> None:
        generated = len(places.token_ids) - self._prompt_length
        for row, drafted in enumerate(places.drafted):
            if generated + len(drafted) < self._params.min_tokens:
                done.rows[row, self._end_ids] = -torch.inf

    def _constrain(self, done: Processed, places: _Places) -> None:
        assert self._grammar is not None
        forbidden = np.zeros(done.rows.shape, dtype=np.bool_)
        for row, drafted in enumerate(places.drafted):
            try:
                allowed = self._grammar.allowed(drafted)
            except SamplingError as error:
                done.faults[row] = error
            else:
                if allowed is not None:
                    forbidden[row] = ~allowed
        done.rows.masked_fill_(torch.from_numpy(forbidden).to(done.rows.device), -torch.inf)

    def _own(self, processor: Callable[..., Any]) -> _Step:
        """A processor of the caller's, row by row, as transformers calls it."""

        def step(done: Processed, places: _Places) -> None:
            for row in range(done.rows.shape[0]):
                if row not in done.faults:
                    try:
                        done.rows[row] = _call(processor, places.context(row), done.rows[row])
                    except SpecstreamError as error:
                        done.faults[row] = error

        return step


def _call(processor: Callable[..., Any], context: list[int], logits: Tensor) -> Tensor:
    """``[V]`` scores.

    Raises:
        RequestError: the processor broke, or returned what can't be used.
    """
    scores = logits.clone().unsqueeze(0)
    try:
        out = processor(torch.tensor([context], device=logits.device), scores)
    except SpecstreamError:
        raise
    except BaseException as error:  # a CancelledError of theirs must not end our thread
        raise RequestError(f"logits processor {processor!r} broke: {error!r}") from error
    if not isinstance(out, Tensor) or out.shape != scores.shape:
        what = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise RequestError(
            f"logits processor {processor!r} must return scores of shape {tuple(scores.shape)}, "
            f"not {what}"
        )
    if not bool((out < torch.inf).all()):  # also false for NaN
        raise RequestError(
            f"logits processor {processor!r} returned NaN or +inf; to force a token, set the others "
            "to -inf"
        )
    return out[0]


def _bias_row(params: SamplingParams, vocab_size: int, device: torch.device) -> Tensor:
    bias = params.logit_bias
    wrong = [i for i in bias if not 0 <= i < vocab_size]
    if wrong:
        raise SamplingError(f"logit_bias names token {wrong[0]}; there are {vocab_size}")
    row = torch.zeros(vocab_size, device=device)
    if bias:
        row[list(bias)] = torch.tensor(list(bias.values()), dtype=row.dtype, device=device)
    return row


def _ban_sequences(
    words: Sequence[str], tokenizer: Any, end_ids: frozenset[int], vocab_size: int
) -> list[list[int]]:
    """Each word as it is tokenised at the start of a text and after a space, as transformers does."""
    found: list[list[int]] = []
    for word in words:
        for text in (word, " " + word.lstrip()):
            ids = [int(i) for i in tokenizer.encode(text, add_special_tokens=False)]
            if end_ids.intersection(ids):
                raise SamplingError(
                    f"bad_words can't name an end of sequence ({word!r}); min_tokens keeps a reply open"
                )
            # A text that the tokenizer or the model has no tokens for can't be written anyway.
            unknown = tokenizer.unk_token_id in ids or max(ids, default=0) >= vocab_size
            if ids and ids not in found and not unknown:
                found.append(ids)
    return found
