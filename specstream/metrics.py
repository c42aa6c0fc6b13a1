"""Counters of one request, and the report made from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from specstream.types import FinishReason, TokenLogprob, ToolCall

__all__ = ["Report", "SpecStats"]


@dataclass(slots=True)
class SpecStats:
    """What the engine counts while a request runs; written by the engine thread only.

    ``rounds`` counts the target's passes that verified a proposal; ``prefill_forwards`` those that
    only read a part of a long prompt. ``accepted_at[i]`` counts rounds whose proposal survived past
    position ``i``, ``drafted_at[i]`` rounds that proposed that far.
    """

    rounds: int = 0
    prefill_forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    sample_ms: float = 0.0
    rollback_ms: float = 0.0
    emit_ms: float = 0.0
    proposer_rounds: dict[str, int] = field(default_factory=dict)

    def count_round(self, drafted: int, accepted: int, source: str = "") -> None:
        """Enter one round: ``accepted`` of the ``drafted`` tokens of ``source`` were kept."""
        self.rounds += 1
        kind = source or "off"
        self.proposer_rounds[kind] = self.proposer_rounds.get(kind, 0) + 1
        self.drafted += drafted
        self.accepted += accepted
        new = [0] * (drafted - len(self.drafted_at))
        self.drafted_at += new
        self.accepted_at += new
        for position in range(drafted):
            self.drafted_at[position] += 1
        for position in range(accepted):
            self.accepted_at[position] += 1


@dataclass(frozen=True, slots=True)
class Report:
    """How a request went.

    ``finish_reason`` is None while the reply is under way, and if it failed (reading it then raises
    the error); leaving the reply makes it ``cancelled``. The figures are those up to now.
    ``acceptance_rate`` is accepted ÷ drafted. ``mean_acceptance_length`` is 1 + accepted ÷ rounds:
    tokens per target pass, bonus included. ``target_forwards`` counts every pass of the target.
    ``tokens_per_second`` is over the whole request, prompt included. ``ttft_ms`` runs from the
    request's arrival at the engine to its first committed token. ``reused_tokens`` of the prompt
    were still cached from an earlier turn. ``token_ids`` are all that were written; ``text`` is the
    reply, ``reasoning`` what the model wrote for itself before it, in ``reasoning_tokens`` (tags
    included), ``tool_calls`` the calls that have ended. ``truncated_messages`` of the conversation were
    left out of the prompt (see `Truncation`). ``looping``: the sentence that was written ``max_repeats``
    times and so ended the reply (as ``length``). ``counted_tokens``: what a server says that it wrote;
    it needn't give their ids. ``prompt``: the text of a prompt of tokens (``RawPrompt.tokens``).
    ``prompt_logprobs`` of the prompt's tokens, once it is read, if
    `SamplingParams.prompt_logprobs` asks.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    prompt_tokens: int
    reused_tokens: int
    rounds: int
    target_forwards: int
    drafted: int
    accepted: int
    acceptance_by_position: tuple[float, ...]
    ttft_ms: float
    total_ms: float
    draft_ms: float
    verify_ms: float
    proposer: str
    sample_ms: float = 0.0
    rollback_ms: float = 0.0
    emit_ms: float = 0.0
    proposer_rounds: dict[str, int] = field(default_factory=dict)
    predicted_speedup: float | None = None
    explanation: str = ""
    reasoning: str = ""
    reasoning_tokens: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    truncated_messages: int = 0
    looping: str = ""
    counted_tokens: int = 0
    prompt: str = ""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def acceptance_rate(self) -> float:
        """Accepted ÷ drafted; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted ÷ rounds."""
        return 1.0 + self.accepted / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of the whole request."""
        return self.completion_tokens / self.total_ms * 1e3 if self.total_ms > 0 else 0.0

    @property
    def completion_tokens(self) -> int:
        """How many tokens were generated."""
        return max(len(self.token_ids), self.counted_tokens)

    def to_dict(self) -> dict[str, object]:
        """Plain data under the names that the command line and the wire use."""
        return {name: _plain(getattr(self, name), digits) for name, digits in _DIGITS.items()}


def _plain(value: Any, digits: int) -> object:
    if isinstance(value, tuple):
        return [_plain(part, digits) for part in value]
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, ToolCall):
        return asdict(value)
    return round(value, digits) if isinstance(value, float) else value


# The keys of `Report.to_dict` in order, with the decimal places of those that are fractions.
_DIGITS = {
    "text": 0, "reasoning": 0, "reasoning_tokens": 0, "tool_calls": 0, "token_ids": 0,
    "finish_reason": 0, "prompt_tokens": 0, "reused_tokens": 0, "completion_tokens": 0, "rounds": 0,
    "truncated_messages": 0, "looping": 0,
    "target_forwards": 0, "drafted": 0, "accepted": 0, "acceptance_rate": 4,
    "mean_acceptance_length": 4, "acceptance_by_position": 4, "tokens_per_second": 2,
    "ttft_ms": 3, "total_ms": 3, "draft_ms": 3, "verify_ms": 3, "sample_ms": 3,
    "rollback_ms": 3, "emit_ms": 3, "proposer": 0, "proposer_rounds": 0,
    "predicted_speedup": 3, "explanation": 0,
}  # fmt: skip
