"""One request: its tokens, the delivery of its chunks, and its results and statistics."""

from __future__ import annotations

import itertools
import threading
import time
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specstream.drafting.checking import Explanation
from specstream.drafting.noise import Noise
from specstream.drafting.proposal import Proposal
from specstream.engine.core.output import ReplyOutput
from specstream.engine.core.prompt import EncodedPrompt
from specstream.engine.core.slots import Slot
from specstream.errors import SpecstreamError
from specstream.metrics import Report, SpecStats
from specstream.model.kv import KVCache
from specstream.model.tokens.processors import LogitsPipeline, Processed
from specstream.types import (
    Chunk,
    FinishReason,
    Message,
    Preview,
    SamplingParams,
    TokenLogprob,
    Tools,
    Truncation,
)

__all__ = ["Delivery", "Request", "TokenSequence"]


@dataclass(slots=True, eq=False)
class TokenSequence:
    """Prompt and reply of one request as the models see them; to a proposer it is a `SpecRequest`."""

    id: int
    held: Slot | None  # the target's cache; None once the request has ended
    token_ids: list[int]
    params: SamplingParams
    limit: int  # maximum length in tokens, prompt included
    noise: Noise
    eos_ids: frozenset[int] = frozenset()
    reference_ids: list[int] = field(default_factory=list)
    processors: LogitsPipeline | None = None  # None if no logits processor is needed
    most_drafted: int | None = None  # depth of a proposal at most; 0 turns drafting off
    prompt_length: int = field(init=False)
    slot: int = field(init=False)  # the slot's id, which stays valid after the slot was given back

    def __post_init__(self) -> None:
        assert self.held is not None
        self.slot, self.prompt_length = self.held.id, len(self.token_ids)

    @property
    def cache(self) -> KVCache:
        """The target's cache."""
        assert self.held is not None
        return self.held.cache

    @property
    def unread(self) -> int:
        """Tokens that the target has not read yet; the last one is always among them."""
        return len(self.token_ids) - self.cache.length

    @property
    def generated(self) -> int:
        """Committed tokens of the reply."""
        return len(self.token_ids) - self.prompt_length

    @property
    def room(self) -> int:
        """How many more tokens the reply may have."""
        return self.limit - len(self.token_ids)

    def draw(self, probs: Tensor, position: int, ids: Tensor | None = None) -> Tensor:
        """Draw an index ``[1]`` from ``probs [1, n]`` for the draft (see `SpecRequest.draw`)."""
        return self.noise.draw(probs, position, ids)

    def process(self, logits: Tensor, drafted: abc.Sequence[int] | Tensor) -> Tensor:
        """Process logits ``[V]`` after ``token_ids`` and ``drafted``; unchanged if that fails."""
        if self.processors is None:
            return logits
        return self.processors.apply(logits, self.token_ids, drafted)

    def process_rows(self, logits: Tensor, proposal: Proposal) -> Processed:
        """Process logits ``[K + 1, V]``, each row in the context of the proposed tokens before it."""
        if self.processors is None:
            return Processed(logits)
        return self.processors.apply_rows(logits, self.token_ids, proposal.tokens, proposal.paths)


_ids = itertools.count()


@dataclass(slots=True)
class Delivery:
    """The channel to the consumer, with the state that engine thread and consumer thread share.

    Each field is written by one thread only, ``sent`` by the engine's, all others by the consumer's:
    ``read``, ``cancelled``, ``previews`` (whether the consumer wants previews), ``needed_by`` (when its
    listener has nothing left to hear, by `time.monotonic`; None: nobody listens) and ``heard`` (whether
    there was any sound). ``sent`` and ``read`` count chunks; ``limit`` is how many may be unread.
    Between two chunks there is at most one preview. ``put`` is called on the engine thread and must not
    block.
    """

    put: Callable[[Chunk | Preview | SpecstreamError], object]
    limit: int = 16
    previews: bool = False
    sent: int = 0
    read: int = 0
    cancelled: bool = False
    needed_by: float | None = None
    heard: bool = False

    @property
    def parked(self) -> bool:
        """Whether the consumer is too far behind for another round."""
        return self.sent - self.read >= self.limit


@dataclass(slots=True, eq=False)
class Request:
    """The inputs of a request and, from admission on, its sequence and output.

    Belongs to the engine thread once it is submitted; `report` and ``text`` may be read from any thread.
    ``noise`` seeds the generators of a request without a seed in its parameters; its draws are not
    keyed by position (see `Noise`). ``learn``: whether a draft that learns in service may learn from
    the reply. ``most_drafted``: positions that a round may draft; None: as many as the proposer likes.
    """

    messages: list[Message]
    params: SamplingParams
    delivery: Delivery
    session: str | None = None
    reference: str = ""
    proposer: str = ""
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    noise: int | None = None
    tools: Tools | None = None
    learn: bool = True
    truncation: Truncation | None = None
    most_drafted: int | None = None
    id: int = field(default_factory=lambda: next(_ids))
    arrived: float = field(default_factory=time.perf_counter)
    # Set at admission or before.
    encoding: bool = False  # the prompt is being encoded on another thread; not ready for admission
    prompt: EncodedPrompt | None = None
    truncated: int = 0  # messages that were left out of the prompt
    reference_ids: list[int] = field(default_factory=list)
    admitted: tuple[TokenSequence, ReplyOutput] | None = None
    reused: int = 0  # tokens of the prompt whose keys and values were still cached
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # as far as it has been read
    # Set while it runs.
    stats: SpecStats = field(default_factory=SpecStats)
    ttft_ms: float = 0.0
    ended_ms: float = 0.0
    finish_reason: FinishReason | None = None
    error: SpecstreamError | None = None
    explanation: Explanation | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)  # held by commits and reports

    @property
    def over(self) -> bool:
        """Whether the request has ended: with a last chunk or an error."""
        return self.ended_ms > 0.0

    @property
    def sequence(self) -> TokenSequence:
        """The sequence of tokens; only of an admitted request."""
        assert self.admitted is not None
        return self.admitted[0]

    @property
    def output(self) -> ReplyOutput:
        """The decoded output; only of an admitted request."""
        assert self.admitted is not None
        return self.admitted[1]

    @property
    def text(self) -> str:
        """The reply so far."""
        return self.output.text if self.admitted is not None else ""

    @property
    def token_ids(self) -> list[int]:
        """Prompt and committed tokens; empty before admission."""
        return self.sequence.token_ids if self.admitted is not None else []

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt; 0 before admission."""
        return self.sequence.prompt_length if self.admitted is not None else 0

    def elapsed_ms(self) -> float:
        """Milliseconds since the request arrived."""
        return (time.perf_counter() - self.arrived) * 1e3

    def report(self) -> Report:
        """The report; final once ``finish_reason`` is set. May be called from any thread."""
        with self.lock:
            stats, why = self.stats, self.explanation
            output = self.output if self.admitted is not None else None
            calls = output.calls if output is not None else None
            # Report a cancellation at once, although the engine notes it at its next step only.
            left = self.delivery.cancelled and self.error is None
            kept = zip(stats.accepted_at, stats.drafted_at, strict=True)
            return Report(
                text=self.text,
                token_ids=tuple(self.token_ids[self.prompt_length :]),
                finish_reason=self.finish_reason or ("cancelled" if left else None),
                prompt_tokens=self.prompt_length,
                reused_tokens=self.reused,
                truncated_messages=self.truncated,
                looping=output.looping if output is not None else "",
                rounds=stats.rounds,
                target_forwards=stats.rounds + stats.prefill_forwards,
                drafted=stats.drafted,
                accepted=stats.accepted,
                acceptance_by_position=tuple(accepted / drafted for accepted, drafted in kept),
                ttft_ms=self.ttft_ms,
                total_ms=self.ended_ms or self.elapsed_ms(),
                draft_ms=stats.draft_ms,
                verify_ms=stats.verify_ms,
                sample_ms=stats.sample_ms,
                rollback_ms=stats.rollback_ms,
                emit_ms=stats.emit_ms,
                proposer=self.proposer,
                proposer_rounds=dict(stats.proposer_rounds),
                predicted_speedup=why.predicted_speedup if why is not None else None,
                explanation=why.words if why is not None else "",
                reasoning=output.reasoning.text if output is not None else "",
                reasoning_tokens=output.reasoning.tokens if output is not None else 0,
                tool_calls=calls.log.calls if calls is not None else (),
                prompt=self.prompt.text if self.prompt is not None else "",
                prompt_logprobs=tuple(self.prompt_logprobs),
            )
