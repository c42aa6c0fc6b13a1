"""Applies a verdict: commits tokens, rolls the KV cache back, makes one text chunk and its logprobs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from specstream.drafting.proposal import Proposal, Verdict
from specstream.engine.core.request import Request
from specstream.errors import RequestError, SpecstreamError, VocabularyMismatch
from specstream.model.numerics import own_device
from specstream.model.tokens.spelling import Spelling
from specstream.types import Chunk, FinishReason, Span, TokenLogprob

__all__ = ["Logprobs", "closing_chunk", "commit"]


def commit(
    request: Request,
    proposal: Proposal,
    verdict: Verdict,
    faults: Mapping[int, SpecstreamError],
    spans_ms: list[float],
    logprobs: tuple[TokenLogprob, ...] = (),
) -> tuple[Chunk | None, Exception | None]:
    """Commit a round's tokens up to the first that ends the reply; roll the cache back to them.

    Args:
        request: A request that took a round.
        proposal: The proposal that was verified.
        verdict: How much of the proposal is accepted, and the token after it.
        faults: Errors by row of logits; an error is raised only if the accepted path reaches its row.
        spans_ms: Milliseconds of the step's drafting, target pass and verification.
        logprobs: Of the verdict's tokens, if the request asks for them.

    Returns:
        The chunk of the committed tokens, if any, and the error that ends the request after them.
    """
    began = time.perf_counter()
    sequence, output, stats = request.sequence, request.output, request.stats
    before, thought = len(sequence.token_ids), len(output.reasoning.text)
    draft_ms, verify_ms, sample_ms = spans_ms
    with request.lock:
        text, ends, error = _take(request, verdict, faults)
        del sequence.token_ids[before + len(ends) :]  # a token whose criterion raised isn't kept
        accepted = min(verdict.accepted, len(ends))
        sequence.cache.keep_path(before, verdict.path[:accepted])
        output.text += text
        proposer = proposal.source if proposal.length else ""
        stats.count_round(proposal.length, accepted, proposer)
        stats.draft_ms += draft_ms
        stats.verify_ms += verify_ms
        stats.sample_ms += sample_ms
        if ends and not request.ttft_ms:
            request.ttft_ms = request.elapsed_ms()
    stats.rollback_ms += (time.perf_counter() - began) * 1e3
    if not ends:
        return None, error
    chunk = _chunk(
        request,
        text,
        before,
        thought,
        ends=tuple(ends),
        round=stats.rounds - 1,
        drafted=proposal.length,
        accepted=accepted,
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        proposer=proposer,
        logprobs=logprobs[: len(ends)],
    )
    return chunk, error


def _chunk(request: Request, text: str, before: int, thought: int, **figures: Any) -> Chunk:
    """Make the chunk of all that is new: ``text``, and tokens and reasoning from an index on."""
    sequence, output = request.sequence, request.output
    first, chars = before - sequence.prompt_length, len(output.text)
    return Chunk(
        text=text,
        token_ids=tuple(sequence.token_ids[before:]),
        tokens=Span(first, sequence.generated),
        chars=Span(chars - len(text), chars),
        t_ms=request.elapsed_ms(),
        finish_reason=request.finish_reason,
        reasoning=output.reasoning.text[thought:],
        reasoning_end=output.aside_end,
        tool_calls=output.calls.log.take() if output.calls is not None else (),
        **figures,
    )


def _take(
    request: Request, verdict: Verdict, faults: Mapping[int, SpecstreamError]
) -> tuple[str, list[int], Exception | None]:
    """Commit a verdict's tokens one by one, so that a stop or a fault ends the round in between.

    Returns the text that became final, the reply's length in characters after each token, and the
    error, if one was met.
    """
    text, ends = "", list[int]()
    output = request.output
    rows = (0, *(node + 1 for node in verdict.path))
    try:
        for row, token in zip(rows, verdict.tokens, strict=True):
            if row in faults:
                raise faults[row]
            text += take_token(request, token)
            ends.append(len(output.replied))
            if request.finish_reason is not None:
                break
    except Exception as error:
        return text, ends, error
    return text, ends, None


def take_token(request: Request, token: int) -> str:
    """Commit one token; return the text that became final with it.

    Sets ``finish_reason`` if the token ends the reply: it is an end-of-sequence or stop id, completes a
    stop string, meets a ``stop_when`` criterion, completes the last call that the reply may have,
    completes a sentence that was written too often, or is the last token for which there is room.

    Raises:
        RequestError: a ``stop_when`` criterion raised.
    """
    sequence, output = request.sequence, request.output
    params = sequence.params
    sequence.token_ids.append(token)
    ended = token in sequence.eos_ids
    searching = sequence.generated >= params.min_tokens
    text = output.add(token, shown=not ended, searching=searching)
    wanted = bool(params.stop_when) and _criterion_met(request)
    if not output.stopped:
        reason: FinishReason | None = None
        if ended or wanted or token in params.stop_token_ids:
            reason = "stop"
        elif output.calls is not None and output.calls.log.full:
            reason = "tool_calls"
        elif sequence.room <= 0 or output.looping:
            reason = "length"
        if reason is None:
            return text
        request.finish_reason = reason
        text += output.finish(cut=not ended)
    if output.stopped:
        request.finish_reason = "stop"
    if request.finish_reason == "stop" and output.calls is not None and output.calls.log.calls:
        request.finish_reason = "tool_calls"
    return text


def _criterion_met(request: Request) -> bool:
    """Whether a ``stop_when`` criterion is met; all are called, even once one is met."""
    sequence, output = request.sequence, request.output
    ids = sequence.token_ids[sequence.prompt_length :]
    try:
        criteria = sequence.params.stop_when
        with own_device():
            answers = [bool(criterion(list(ids), output.decoded)) for criterion in criteria]
    except BaseException as error:  # even a CancelledError must not end the engine's thread
        raise RequestError(f"a stop_when criterion broke: {error!r}") from error
    return any(answers)


def closing_chunk(request: Request, reason: FinishReason) -> Chunk:
    """End a request between two rounds; return a chunk without tokens with the text still held back."""
    request.finish_reason = reason
    if request.admitted is None:
        nowhere = Span(0, 0)
        return Chunk("", (), nowhere, nowhere, t_ms=request.elapsed_ms(), finish_reason=reason)
    output, before = request.output, len(request.token_ids)
    thought = len(output.reasoning.text)
    text = output.finish(cut=True)
    output.text += text
    return _chunk(request, text, before, thought, round=request.stats.rounds)


class Logprobs:
    """Reads log probabilities off the logits of a pass, with the bytes of each token."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def of(self, logits: torch.Tensor, verdict: Verdict, top: int) -> tuple[TokenLogprob, ...]:
        """Return one entry for each token that a round emits.

        Args:
            logits: ``[K + 1, V]``, the target's, before anything was done to them.
            verdict: Which of the K proposed tokens are accepted, and the token after them.
            top: How many of the likeliest tokens to tell with each.
        """
        rows = torch.tensor([0, *(node + 1 for node in verdict.path)], device=logits.device)
        return self.of_tokens(logits[rows], verdict.tokens, top)

    def of_prompt(
        self, logits: torch.Tensor, token_ids: Sequence[int], start: int, top: int
    ) -> tuple[TokenLogprob, ...]:
        """Return one entry for each token of a prompt that a part of it foretells.

        Args:
            logits: ``[n, V]`` after each of the part's tokens.
            token_ids: All of the prompt.
            start: Where the part begins; the prompt's first token is added to the first part's.
            top: As in `of`.
        """
        told = token_ids[start + 1 : start + 1 + len(logits)]
        found = self.of_tokens(logits[: len(told)], told, top) if told else ()
        if not start:
            found = TokenLogprob(token_ids[0], self._piece(token_ids[0]), math.nan), *found
        return tuple(one if one.piece else replace(one, piece=self._name(one)) for one in found)

    def _name(self, control: TokenLogprob) -> bytes:
        """How a prompt spells a control token; the first of all may have been put before its text."""
        first = math.isnan(control.logprob) and control.token_id == self._tokenizer.bos_token_id
        name = self._tokenizer.convert_ids_to_tokens(control.token_id)
        return b"" if first or not isinstance(name, str) else name.encode()

    def of_tokens(
        self, logits: torch.Tensor, tokens: Sequence[int], top: int
    ) -> tuple[TokenLogprob, ...]:
        """Return one entry for each of n tokens, from the rows ``logits [n, V]`` that foretell them."""
        logprobs = logits.float().log_softmax(-1)
        written = torch.tensor(tokens, device=logits.device)[:, None]
        best = logprobs.topk(min(top, logprobs.shape[-1]))
        own: list[float] = logprobs.gather(-1, written)[:, 0].tolist()
        each = zip(tokens, own, best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple(
            TokenLogprob(token, self._piece(token), value, self._likeliest(ids, values))
            for token, value, ids, values in each
        )

    def _likeliest(self, ids: list[int], values: list[float]) -> tuple[TokenLogprob, ...]:
        pairs = zip(ids, values, strict=True)
        return tuple(TokenLogprob(token, self._piece(token), value) for token, value in pairs)

    def _piece(self, token: int) -> bytes:
        if self._spelling is not None:
            return self._spelling.piece(token) or b""
        return str(self._tokenizer.decode([token])).encode()

    @cached_property
    def _spelling(self) -> Spelling | None:
        """The bytes of all tokens; None where the tokenizer doesn't tell them, and text must do."""
        try:
            return Spelling("the target", self._tokenizer)
        except VocabularyMismatch:
            return None
