"""Logits processors: a registry of the sampling parameters of stage ``"logits"``.

A row follows the committed tokens *and the proposed tokens before it*: exactly these are the context
that a processor must see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specstream.errors import ModelBroken, RequestError, SamplingError, SpecstreamError
from specstream.model.numerics import own_device, to_device
from specstream.model.tokens.grammar import GrammarState
from specstream.model.tokens.sampling import free_to_look
from specstream.params import SamplingParams

__all__ = ["PROCESSORS", "LogitsPipeline", "ModelFacts", "Processed", "Processor", "ProcessorContext"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Tokenizer, prompt, width of the logits, end-of-sequence ids and device of a request's target."""

    tokenizer: Any
    prompt_ids: Sequence[int]
    vocab_size: int
    end_ids: frozenset[int]
    device: torch.device


@dataclass
class ProcessorContext:
    """The tokens before each of n rows: row j follows ``token_ids`` and ``tokens[i] for i in paths[j]``.

    Attributes:
        token_ids: The prompt and the committed tokens.
        committed: ``token_ids`` on the logits' device, ``[m]``.
        tokens: The proposed tokens, ``[K]`` int64 on the logits' device, maybe not computed yet.
        paths: For each row the indices of the proposed tokens before it.
        may_wait: Whether the host may read values from the device: on a CPU, or to explain an error.
        faults: Errors by row. A row with an error becomes NaN; the error is raised only if the reply
            reaches that row.
    """

    token_ids: list[int]
    committed: Tensor
    tokens: Tensor
    paths: Sequence[Sequence[int]]
    may_wait: bool
    faults: dict[int, SpecstreamError] = field(default_factory=dict)

    @cached_property
    def host_tokens(self) -> list[int]:
        """The proposed tokens on the host. Reading this waits for the device."""
        ids: list[int] = self.tokens.tolist()
        return ids

    def ids(self, start: int = 0) -> Tensor:
        """Return the tokens before each row from position ``start`` on: ``[n, m]``, padded with -1."""
        count = len(self.tokens)
        width = max(map(len, self.paths))
        index = [[*path, *[count] * (width - len(path))] for path in self.paths]
        near = self.committed[start:].expand(len(self.paths), -1)
        return torch.cat([near, self._gather(self.tokens, index)], 1)

    def last(self, count: int) -> Tensor:
        """Return the last ``count`` tokens before each row: ``[n, count]``, padded in front with -1."""
        near = self.committed[max(0, len(self.committed) - count) :]
        known = torch.cat([near, self.tokens])
        rows = [[*range(len(near)), *(len(near) + i for i in path)] for path in self.paths]
        padded = [[*[len(known)] * count, *row] for row in rows]
        return self._gather(known, [row[len(row) - count :] for row in padded])

    def _gather(self, known: Tensor, index: list[list[int]]) -> Tensor:
        """Entries of ``known``; -1 for the index one past its end."""
        padded = torch.cat([known, known.new_full((1,), -1)])
        return padded[to_device(index, known.device)]


@dataclass(frozen=True, slots=True)
class Processor:
    """One change of the model's logits before they are sampled from.

    Attributes:
        name: The processor's name in error messages.
        apply: Changes ``rows [n, V]`` float32 in place. A row must not depend on the other rows, to the
            last bit. Should stay on the device: `ProcessorContext.host_tokens` costs a
            synchronisation per round.
    """

    name: str
    apply: Callable[[Tensor, ProcessorContext], None]


def _repetition(params: SamplingParams, model: ModelFacts) -> list[Processor]:
    factor = params.repetition_penalty

    def apply(rows: Tensor, context: ProcessorContext) -> None:
        index = context.ids()
        index = index.where(index >= 0, context.token_ids[-1])  # padding: any id of the context
        scores = rows.gather(1, index)
        rows.scatter_(1, index, torch.where(scores < 0, scores * factor, scores / factor))

    return [Processor("repetition_penalty", apply)]


def _frequency(params: SamplingParams, model: ModelFacts) -> list[Processor]:
    def apply(rows: Tensor, context: ProcessorContext) -> None:
        ids = context.ids(len(model.prompt_ids))
        index = ids.where(ids >= 0, context.token_ids[-1])
        counts = torch.zeros_like(rows).scatter_add_(1, index, (ids >= 0).float()).gather(1, index)
        charge = counts * params.frequency_penalty + counts.clamp(max=1) * params.presence_penalty
        rows.scatter_(1, index, rows.gather(1, index) - charge)

    return [Processor("frequency_penalty or presence_penalty", apply)]


def _bias(params: SamplingParams, model: ModelFacts) -> list[Processor]:
    bias, size = params.logit_bias, model.vocab_size
    wrong = [i for i in bias if not 0 <= i < size]
    if wrong:
        raise SamplingError(f"logit_bias names token {wrong[0]}; there are {size}")
    values = to_device(list(bias.values()), model.device, torch.float32)
    row = torch.zeros(size, device=model.device, dtype=torch.float32).index_add_(
        0, to_device(list(bias), model.device), values
    )

    def apply(rows: Tensor, context: ProcessorContext) -> None:
        rows += row

    return [Processor("logit_bias", apply)]


def _bad_words(params: SamplingParams, model: ModelFacts) -> list[Processor]:
    """Forbid the last token of each text where the text's other tokens precede, as transformers does."""
    texts = [text for word in params.bad_words for text in (word, " " + word.lstrip())]
    found = [ids for text in texts if (ids := _tokenised(text, model))]
    if not found:
        return []
    count = max(map(len, found)) - 1
    before = [[*[-1] * (count + 1 - len(ids)), *ids[:-1]] for ids in found]
    wanted = to_device(before, model.device)
    last = to_device([ids[-1] for ids in found], model.device)

    def apply(rows: Tensor, context: ProcessorContext) -> None:
        near = context.last(count).unsqueeze(1)
        complete = ((near == wanted) | (wanted < 0)).all(-1)
        rows.index_add_(1, last, torch.where(complete, -torch.inf, 0.0).to(rows.dtype))

    return [Processor("bad_words", apply)]


def _tokenised(text: str, model: ModelFacts) -> list[int]:
    """The tokens of a text; empty if tokenizer or model lack one: the text then can't be generated."""
    ids = [int(i) for i in model.tokenizer.encode(text, add_special_tokens=False)]
    if model.end_ids.intersection(ids):
        raise SamplingError(
            f"bad_words can't name an end of sequence ({text!r}); min_tokens keeps a reply open"
        )
    unknown = model.tokenizer.unk_token_id in ids or max(ids, default=0) >= model.vocab_size
    return [] if unknown else ids


def _min_tokens(params: SamplingParams, model: ModelFacts) -> list[Processor]:
    least = len(model.prompt_ids) + params.min_tokens
    ends = to_device(sorted(model.end_ids | set(params.stop_token_ids)), model.device)

    def apply(rows: Tensor, context: ProcessorContext) -> None:
        for row, path in zip(rows, context.paths, strict=True):
            if len(context.token_ids) + len(path) < least:
                row.index_fill_(0, ends, -torch.inf)

    return [Processor("min_tokens", apply)]


def _grammar(params: SamplingParams, model: ModelFacts) -> list[Processor]:
    """Forbid tokens by grammar. The masks are computed on the host and uploaded without waiting.

    Where the grammar has come to its end before ``min_tokens``, the end may be drawn.
    """
    assert params.grammar is not None
    state = GrammarState(params.grammar, model.tokenizer, model.vocab_size, model.end_ids)
    least = params.min_tokens
    if least and not state.can_last(least):
        raise SamplingError(f"no reply of this grammar has min_tokens={least} tokens; lower min_tokens")
    prompt = len(model.prompt_ids)
    read = prompt  # tokens of the context that the grammar has seen or skips
    ends = sorted(model.end_ids | set(params.stop_token_ids))

    def apply(rows: Tensor, context: ProcessorContext) -> None:
        nonlocal read
        forbidden = np.zeros(rows.shape, dtype=np.bool_)
        over = np.zeros(rows.shape, dtype=np.bool_)  # ends of a grammar that has nothing else left
        for row, path in enumerate(context.paths):
            try:
                for token in context.token_ids[read:]:
                    state.commit(token)
                    read += 1
                allowed = state.allowed([context.host_tokens[i] for i in path])
            except SamplingError as error:
                context.faults[row] = error
            else:
                if allowed is not None:
                    forbidden[row] = ~allowed
                    early = len(context.token_ids) + len(path) - prompt < least
                    if early and np.delete(allowed, ends).sum() == 0:
                        over[row] = allowed
        for mask, score in ((forbidden, -torch.inf), (over, 0.0)):
            if mask.any():
                wanted = torch.from_numpy(mask).to(rows.device, non_blocking=True)
                rows.masked_fill_(wanted, score)

    return [Processor("grammar", apply)]


def _custom(params: SamplingParams, model: ModelFacts) -> list[Processor]:
    return [_called(f"processor {function!r}", function) for function in params.processors]


def _called(name: str, function: Callable[..., Any]) -> Processor:
    """Make a processor of a function that the request brings; it is called row by row."""

    def apply(rows: Tensor, context: ProcessorContext) -> None:
        ids = context.ids()
        for row, path in enumerate(context.paths):
            if row not in context.faults:
                length = len(context.token_ids) + len(path)
                try:
                    rescore(ids[row : row + 1, :length], rows[row], context.may_wait)
                except SpecstreamError as error:
                    context.faults[row] = error

    def rescore(ids: Tensor, row: Tensor, may_wait: bool) -> None:
        """Set ``row [V]`` to the function's scores; to NaN if they are invalid but can't be read yet."""
        try:
            with own_device():
                out = function(ids, row.clone().unsqueeze(0))
            check(out, (1, *row.shape))
            scores = out[0].to(row)
            usable = (scores < torch.inf).all()  # also false for NaN
            row.copy_(scores.where(usable, torch.nan))
        except SpecstreamError:
            raise
        except BaseException as error:  # a CancelledError of the function must not end our thread
            raise RequestError(f"logits {name} broke: {error!r}") from error
        if may_wait and not usable:
            raise RequestError(
                f"logits {name} returned NaN or +inf; to force a token, set the others to -inf"
            )

    def check(out: object, shape: tuple[int, ...]) -> None:
        if not isinstance(out, Tensor):
            what = type(out).__name__
        elif out.is_nested or out.layout != torch.strided or out.is_meta or out.is_quantized:
            what = "a tensor that is sparse, nested, quantised or has no values"
        elif out.is_complex() or out.shape != shape:
            what = f"{out.dtype} of {tuple(out.shape)}"
        else:
            return
        raise RequestError(f"logits {name} must return real scores of shape {shape}, not {what}")

    return Processor(name, apply)


PROCESSORS: Mapping[str, Callable[[SamplingParams, ModelFacts], list[Processor]]] = {
    "repetition_penalty": _repetition,
    "frequency_penalty": _frequency,
    "presence_penalty": _frequency,
    "logit_bias": _bias,
    "bad_words": _bad_words,
    "min_tokens": _min_tokens,
    "grammar": _grammar,
    "processors": _custom,
}
"""Makers of the processors, by parameter of stage ``"logits"``, in the order of application.

A maker raises `SamplingError` if the model can't honour the parameter.
"""


def _not_finite(row: int) -> SpecstreamError:
    return ModelBroken("the target's logits are not numbers: damaged weights, or overflow in its dtype")


@dataclass(frozen=True, slots=True)
class Processed:
    """Processed logits, ready for verification.

    Attributes:
        rows: ``[n, V]``. A row that could not be processed holds NaN, or nothing but -inf.
        fault: Returns the error of such a row. Call it for rows that the reply reaches, and before the
            target's next pass: it may process the row again.
    """

    rows: Tensor
    fault: Callable[[int], SpecstreamError] = _not_finite


class LogitsPipeline:
    """The processors of one request. A row's result doesn't depend on other rows, to the last bit."""

    def __init__(self, params: SamplingParams, model: ModelFacts) -> None:
        """Make the processors of the parameters that are set.

        Raises:
            SamplingError: this model can't honour a parameter.
        """
        wanted = {PROCESSORS[name] for name in params.processing}
        makers = [make for make in dict.fromkeys(PROCESSORS.values()) if make in wanted]
        self._processors = [made for make in makers for made in make(params, model)]
        self._committed = to_device([], model.device)

    def apply(self, logits: Tensor, token_ids: list[int], proposed: Sequence[int] | Tensor) -> Tensor:
        """Process a row ``[V]`` after ``token_ids`` and ``proposed``; unchanged if that fails."""
        if not isinstance(proposed, Tensor):
            proposed = to_device(proposed, logits.device)
        row = self.apply_rows(logits[None], token_ids, proposed, [range(len(proposed))]).rows[0]
        return row.where(row.amax().isfinite(), logits)

    def apply_rows(
        self, logits: Tensor, token_ids: list[int], proposed: Tensor, paths: Sequence[Sequence[int]]
    ) -> Processed:
        """Return ``logits [n, V]``, processed. Errors of single rows are not raised: see `Processed`.

        Args:
            logits: The target's logits, of any float dtype.
            token_ids: The prompt and the committed tokens: those of the last call and maybe more.
            proposed: ``[K]`` int64 on the logits' device. The host reads it for a grammar only.
            paths: Row j follows ``token_ids`` and ``proposed[i] for i in paths[j]``.
        """
        if new := token_ids[len(self._committed) :]:
            self._committed = torch.cat([self._committed, to_device(new, logits.device)])
        rows = logits.to(torch.float32, copy=True)
        context = ProcessorContext(token_ids, self._committed, proposed, paths, free_to_look(logits))
        for processor in self._processors:
            processor.apply(rows, context)
        for row in context.faults:
            rows[row] = torch.nan
        return Processed(rows, partial(self._fault, logits, context))

    def _fault(self, logits: Tensor, context: ProcessorContext, row: int) -> SpecstreamError:
        """Find why a row has no token to choose, by applying the processors again one by one."""
        if row in context.faults:
            return context.faults[row]
        rows = logits[row : row + 1].to(torch.float32, copy=True)
        if not rows.amax().isfinite():
            return _not_finite(row)
        again = replace(context, paths=[context.paths[row]], may_wait=True, faults={})
        names = list[str]()
        for processor in self._processors:
            names.append(processor.name)
            processor.apply(rows, again)
            if again.faults:
                return again.faults[0]
            if not (rows > -torch.inf).any():
                break
        before = f", after {', '.join(names[:-1])}" if len(names) > 1 else ""
        return SamplingError(
            f"no token is left to choose from: {names[-1]} ruled out the last ones{before}; "
            "loosen one of them"
        )
