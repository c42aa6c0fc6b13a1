"""Counters of one request, and the report made from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from specstream.types import FinishReason

__all__ = ["Report", "SpecStats"]


@dataclass(slots=True)
class SpecStats:
    """What the engine counts while a request runs; written by the engine thread only.

    ``rounds`` are the target's passes that ended in a judgement; ``prefill_forwards`` those that
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
        while len(self.drafted_at) < drafted:
            self.drafted_at.append(0)
            self.accepted_at.append(0)
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
    included).
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
        return len(self.token_ids) / self.total_ms * 1e3 if self.total_ms > 0 else 0.0

    def to_dict(self) -> dict[str, object]:
        """Plain data under the names that the command line and the wire use."""
        return {
            "text": self.text,
            "reasoning": self.reasoning,
            "reasoning_tokens": self.reasoning_tokens,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "completion_tokens": len(self.token_ids),
            "rounds": self.rounds,
            "target_forwards": self.target_forwards,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": round(self.acceptance_rate, 4),
            "mean_acceptance_length": round(self.mean_acceptance_length, 4),
            "acceptance_by_position": [round(a, 4) for a in self.acceptance_by_position],
            "tokens_per_second": round(self.tokens_per_second, 2),
            "ttft_ms": round(self.ttft_ms, 3),
            "total_ms": round(self.total_ms, 3),
            "draft_ms": round(self.draft_ms, 3),
            "verify_ms": round(self.verify_ms, 3),
            "sample_ms": round(self.sample_ms, 3),
            "rollback_ms": round(self.rollback_ms, 3),
            "emit_ms": round(self.emit_ms, 3),
            "proposer": self.proposer,
            "proposer_rounds": dict(self.proposer_rounds),
            "predicted_speedup": (
                None if self.predicted_speedup is None else round(self.predicted_speedup, 3)
            ),
            "explanation": self.explanation,
        }
