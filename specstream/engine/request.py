"""One generation: what was asked, how far it is, and how its chunks leave the engine."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specstream.engine.detokenizer import Decoder, Detokenizer
from specstream.engine.phrase import FirstPhrase
from specstream.engine.prompt import Prompt
from specstream.engine.reasoning import Reasoning
from specstream.engine.stops import StopMatcher
from specstream.errors import RequestError, SpecstreamError
from specstream.metrics import Report, SpecStats
from specstream.model.cache import KVCache
from specstream.model.noise import gumbel_max
from specstream.model.processors import LogitsPipeline
from specstream.model.sampling import draw
from specstream.speculation.explanation import Explanation
from specstream.speculation.proposal import Proposal
from specstream.types import Chunk, FinishReason, Message, SamplingParams

__all__ = ["Delivery", "Request", "Slot"]

_ids = itertools.count()


@dataclass(slots=True, eq=False)
class Slot:
    """A place in the target's memory: a cache, and the tokens whose rows it holds."""

    id: int
    cache: KVCache
    rows: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Delivery:
    """How a request reaches its consumer, and the few facts that both threads share.

    Each field is written by one thread only: ``read`` and ``cancelled`` by the consumer's,
    ``sent`` by the engine's. ``put`` is called on the engine thread and must not block.
    """

    put: Callable[[Chunk | SpecstreamError], None]
    limit: int = 16
    sent: int = 0
    read: int = 0
    cancelled: bool = False

    @property
    def parked(self) -> bool:
        """Whether the consumer is too far behind for another round."""
        return self.sent - self.read >= self.limit


@dataclass(slots=True, eq=False)
class Request:
    """The state of one generation; belongs to the engine thread once it is submitted."""

    messages: list[Message]
    params: SamplingParams
    delivery: Delivery
    session: str | None = None
    reference: str = ""
    proposer: str = ""
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    noise: int | None = None  # seeds the noise of a request whose parameters name no seed
    id: int = field(default_factory=lambda: next(_ids))
    arrived: float = field(default_factory=time.perf_counter)
    prompt: Prompt | None = None  # encoded, at admission or before
    # Set at admission.
    slot_state: Slot | None = None
    token_ids: list[int] = field(default_factory=list)
    prompt_length: int = 0
    reference_ids: list[int] = field(default_factory=list)
    context_length: int = 0
    eos_ids: frozenset[int] = frozenset()
    stats: SpecStats = field(default_factory=SpecStats)
    reused: int = 0
    # Set as it runs.
    text: str = ""
    decoded: str = ""  # all that was written, reasoning and its tags included
    replied: str = ""  # of that, the reply's; its end may be held back yet
    ttft_ms: float = 0.0
    ended_ms: float = 0.0
    finish_reason: FinishReason | None = None
    error: SpecstreamError | None = None
    explanation: Explanation | None = None
    first_phrase: FirstPhrase | None = None
    reasoning: Reasoning = field(default_factory=lambda: Reasoning(None))
    _detokenizer: Detokenizer | None = None
    _stops: StopMatcher | None = None
    seed: int = 0
    keyed: bool = False  # the noise belongs to the position: no draft can change the reply
    faults: dict[int, SpecstreamError] = field(default_factory=dict)
    _processors: LogitsPipeline | None = None
    _generators: tuple[torch.Generator, torch.Generator] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)  # report() comes from elsewhere

    def admit(
        self,
        slot: Slot,
        prompt_ids: list[int],
        decoder: Decoder,
        device: torch.device,
        processors: LogitsPipeline | None,
        *,
        coupled: bool,
    ) -> None:
        """Give the request its place, its processors and its noise."""
        self.slot_state = slot
        self.token_ids = list(prompt_ids)
        self.prompt_length = len(prompt_ids)
        self._detokenizer = Detokenizer(decoder)
        self._stops = StopMatcher(self.params.stop)
        self._processors = processors
        given = self.params.seed
        self.keyed = coupled or (given is not None and not self.params.greedy)
        seed = self.noise if given is None else given
        self.seed = secrets.randbits(63) if seed is None else seed
        judge = torch.Generator(device).manual_seed(self.seed)
        # Two streams from one seed: an odd multiplier keeps them apart for every seed.
        draft = torch.Generator(device).manual_seed((self.seed * 0x9E3779B97F4A7C15 + 1) % 2**63)
        self._generators = (judge, draft)

    @property
    def slot(self) -> int:
        """Names the sequence."""
        assert self.slot_state is not None
        return self.slot_state.id

    @property
    def generator(self) -> torch.Generator:
        """The verifier's noise."""
        assert self._generators is not None
        return self._generators[0]

    def draw(self, probs: Tensor, position: int) -> Tensor:
        """The draft's draw for an absolute position (see `SpecRequest`)."""
        assert self._generators is not None
        if self.keyed:
            return gumbel_max(probs, self.seed, position)
        return draw(probs, self._generators[1])

    def process(self, logits: Tensor, drafted: list[int]) -> Tensor:
        """Processed logits ``[V]`` of the position after ``token_ids`` and ``drafted``.

        Where processing fails they are the logits as they were; the verifier decides if that matters.
        """
        if self._processors is None:
            return logits
        return self._processors.apply(logits, self.token_ids, drafted)

    def process_rows(self, logits: Tensor, proposal: Proposal) -> Tensor:
        """Processed logits ``[K + 1, V]``, each row in the context of the proposed tokens before it.

        ``faults`` are then those of these rows.
        """
        self.faults = {}
        if self._processors is None:
            return logits
        done = self._processors.apply_rows(logits, self.token_ids, proposal.contexts())
        self.faults = done.faults
        return done.rows

    @property
    def phrase_left(self) -> int | None:
        """About how many tokens the first speakable phrase still lacks (see `FirstPhrase`)."""
        if self.first_phrase is None:
            return None
        return self.first_phrase.left(self.generated - self.reasoning.end)

    @property
    def unread(self) -> int:
        """Tokens that the target has not read yet; the last one is always among them."""
        assert self.slot_state is not None
        return len(self.token_ids) - self.slot_state.cache.length

    @property
    def generated(self) -> int:
        """Committed tokens of the reply."""
        return len(self.token_ids) - self.prompt_length

    @property
    def room(self) -> int:
        """How many more tokens the reply may have."""
        left = self.context_length - len(self.token_ids)
        return min(self.params.max_tokens - self.generated, left)

    def take(self, token: int) -> str:
        """Commit one token; return the text that it made certain.

        Sets ``finish_reason`` when the token ends the reply: an end-of-sequence or stop id, the
        completion of a stop string, a criterion, or the last token there is room for.

        Raises:
            RequestError: a ``stop_when`` criterion broke.
        """
        assert self._detokenizer is not None and self._stops is not None
        self.token_ids.append(token)
        if self._processors is not None:
            self._processors.commit(token)
        ended = token in self.eos_ids
        decoded = "" if ended else self._detokenizer.add(token)
        self.decoded += decoded
        reply = self.reasoning.add(decoded, token)
        self.replied += reply
        if self.first_phrase is not None:
            self.first_phrase.read(self.replied, self.generated - self.reasoning.end)
        text = self._stops.add(reply, searching=self.generated >= self.params.min_tokens)
        wanted = self._user_stop()
        if self._stops.stopped:
            self.finish_reason = "stop"
        elif ended or token in self.params.stop_token_ids or wanted:
            self.finish_reason = "stop"
            text += self.flush_text()
        elif self.room <= 0:
            self.finish_reason = "length"
            text += self.flush_text()
        return text

    def _user_stop(self) -> bool:
        """Whether a criterion wants to stop; each is asked, whatever the others say."""
        criteria = self.params.stop_when
        if not criteria:
            return False
        ids = self.token_ids[self.prompt_length :]
        try:
            answers = [bool(criterion(list(ids), self.decoded)) for criterion in criteria]
        except BaseException as error:  # a CancelledError of theirs must not end our thread
            raise RequestError(f"a stop_when criterion broke: {error!r}") from error
        return any(answers)

    def flush_text(self) -> str:
        """The reply ends here: what was held back as half a character or as half a stop string."""
        assert self._detokenizer is not None and self._stops is not None
        rest = self._detokenizer.finish()
        self.decoded += rest
        reply = self.reasoning.finish(rest)
        self.replied += reply
        text = self._stops.add(reply)
        if self._stops.stopped:
            self.finish_reason = "stop"
        return text + self._stops.finish()

    def elapsed_ms(self) -> float:
        """Milliseconds since the request arrived."""
        return (time.perf_counter() - self.arrived) * 1e3

    @property
    def _left(self) -> FinishReason | None:
        """Nobody reads on: the engine will say so after the round under way."""
        return "cancelled" if self.delivery.cancelled and self.error is None else None

    def report(self) -> Report:
        """The report; final once ``finish_reason`` is set. May be called from any thread."""
        with self.lock:
            return self._report()

    def _report(self) -> Report:
        stats, why = self.stats, self.explanation
        by_position = tuple(
            kept / tried for kept, tried in zip(stats.accepted_at, stats.drafted_at, strict=True)
        )
        return Report(
            text=self.text,
            token_ids=tuple(self.token_ids[self.prompt_length :]),
            finish_reason=self.finish_reason or self._left,
            prompt_tokens=self.prompt_length,
            reused_tokens=self.reused,
            rounds=stats.rounds,
            target_forwards=stats.rounds + stats.prefill_forwards,
            drafted=stats.drafted,
            accepted=stats.accepted,
            acceptance_by_position=by_position,
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
            reasoning=self.reasoning.text,
            reasoning_tokens=self.reasoning.tokens,
        )
