"""One function per sampling parameter, which makes the processors of one request.

To add a parameter, declare its field in `specstream.params.SamplingParams` with stage ``"logits"``
(default, range, example), write its function here, and add it to `PROCESSORS` at the place in the order
where it should be applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specstream.errors import RequestError, SamplingError, SpecstreamError
from specstream.model.grammar import GrammarState
from specstream.model.processors.base import Context, ModelFacts, Processor
from specstream.model.transfer import to_device
from specstream.params import SamplingParams

__all__ = ["PROCESSORS"]


def _repetition(params: SamplingParams, model: ModelFacts) -> list[Processor]:
    factor = params.repetition_penalty

    def apply(rows: Tensor, context: Context) -> None:
        index = context.ids()
        index = index.where(index >= 0, context.token_ids[-1])  # padding: any id of the context
        scores = rows.gather(1, index)
        rows.scatter_(1, index, torch.where(scores < 0, scores * factor, scores / factor))

    return [Processor("repetition_penalty", apply)]


def _frequency(params: SamplingParams, model: ModelFacts) -> list[Processor]:
    def apply(rows: Tensor, context: Context) -> None:
        ids = context.ids(len(model.prompt_ids))
        index = ids.where(ids >= 0, context.token_ids[-1])
        counts = torch.zeros_like(rows).scatter_add_(1, index, (ids >= 0).float()).gather(1, index)
        charge = counts * params.frequency_penalty + (counts > 0) * params.presence_penalty
        rows.scatter_(1, index, rows.gather(1, index) - charge)

    return [Processor("frequency_penalty or presence_penalty", apply)]


def _bias(params: SamplingParams, model: ModelFacts) -> list[Processor]:
    bias, size = params.logit_bias, model.vocab_size
    wrong = [i for i in bias if not 0 <= i < size]
    if wrong:
        raise SamplingError(f"logit_bias names token {wrong[0]}; there are {size}")
    values = to_device(list(bias.values()), model.device, torch.float32)
    row = torch.zeros(size, device=model.device).index_add_(
        0, to_device(list(bias), model.device), values
    )

    def apply(rows: Tensor, context: Context) -> None:
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

    def apply(rows: Tensor, context: Context) -> None:
        near = context.last(count).unsqueeze(1)
        complete = ((near == wanted) | (wanted < 0)).all(-1)
        rows.index_add_(1, last, torch.where(complete, -torch.inf, 0.0))

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

    def apply(rows: Tensor, context: Context) -> None:
        for row, path in zip(rows, context.paths, strict=True):
            if len(context.token_ids) + len(path) < least:
                row.index_fill_(0, ends, -torch.inf)

    return [Processor("min_tokens", apply)]


def _grammar(params: SamplingParams, model: ModelFacts) -> list[Processor]:
    """Forbid tokens by grammar. The masks are computed on the host and uploaded without waiting."""
    assert params.grammar is not None
    state = GrammarState(params.grammar, model.tokenizer, model.vocab_size, model.end_ids)
    least = params.min_tokens
    if least and not state.can_last(least):
        raise SamplingError(
            f"no reply of this grammar has min_tokens={least} tokens; lower min_tokens"
        )
    read = len(model.prompt_ids)  # tokens of the context that the grammar has seen or skips

    def apply(rows: Tensor, context: Context) -> None:
        nonlocal read
        forbidden = np.zeros(rows.shape, dtype=np.bool_)
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
        mask = torch.from_numpy(forbidden).to(rows.device, non_blocking=True)
        rows.masked_fill_(mask, -torch.inf)

    return [Processor("grammar", apply)]


def _custom(params: SamplingParams, model: ModelFacts) -> list[Processor]:
    return [_called(f"processor {function!r}", function) for function in params.processors]


def _called(name: str, function: Callable[..., Any]) -> Processor:
    """Make a processor of a function that the request brings; it is called row by row."""

    def apply(rows: Tensor, context: Context) -> None:
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
