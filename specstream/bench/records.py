"""Measurements: one record for every reply that an arm wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

__all__ = ["Emission", "Record", "Run"]


@dataclass(frozen=True, slots=True)
class Emission:
    """Tokens that came out together. Drafting figures are 0 where the arm doesn't report them.

    Attributes:
        t_ms: Milliseconds since the request.
        tokens: Tokens in this emission.
        drafted: Tokens that were proposed in the round.
        accepted: Drafted tokens among ``tokens``.
        draft_ms: Time spent on drafting.
        verify_ms: Time spent on the target's pass and on verification.
    """

    t_ms: float
    tokens: int
    drafted: int = 0
    accepted: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """One reply.

    Attributes:
        token_ids: The reply, its end-of-sequence token included.
        emissions: In order; their tokens add up to ``token_ids``.
        total_ms: From the request (text in) to the end.
        finish: ``"stop"`` or ``"length"``.
        tells: Whether the arm reports drafts and where its time went.
        spent_ms: Milliseconds by part of the work.
        predicted_speedup: Speedup over plain decoding that the arm itself predicted.
        explanation: Why the arm drafted as it did.
        proposer_rounds: Number of rounds by proposer.
    """

    token_ids: tuple[int, ...]
    emissions: tuple[Emission, ...]
    total_ms: float
    finish: str
    tells: bool = False
    spent_ms: Mapping[str, float] = field(default_factory=dict)
    predicted_speedup: float | None = None
    explanation: str = ""
    proposer_rounds: Mapping[str, int] = field(default_factory=dict)

    @property
    def ttft_ms(self) -> float:
        """Time to the first token."""
        return self.emissions[0].t_ms if self.emissions else self.total_ms

    @property
    def decode_tokens(self) -> int:
        """Tokens after the first emission."""
        return sum(emission.tokens for emission in self.emissions[1:])

    @property
    def decode_ms(self) -> float:
        """From the first emission to the last."""
        return self.emissions[-1].t_ms - self.emissions[0].t_ms if self.emissions else 0.0

    @property
    def gaps_ms(self) -> list[float]:
        """Times between emissions."""
        return [b.t_ms - a.t_ms for a, b in pairwise(self.emissions)]

    @property
    def drafted(self) -> int:
        """Tokens proposed."""
        return sum(emission.drafted for emission in self.emissions)

    @property
    def accepted(self) -> int:
        """Drafted tokens that were kept."""
        return sum(emission.accepted for emission in self.emissions)


@dataclass(frozen=True, slots=True)
class Record:
    """One run; ``arm`` is the family (``"assisted"``), ``place`` the arm's place in its cell."""

    domain: str
    prompt: str
    arm: str
    setting: str
    repeat: int
    place: int
    run: Run

    def to_dict(self) -> dict[str, Any]:
        """As JSON data: one line of ``runs.jsonl``."""
        run = self.run
        return {
            "domain": self.domain,
            "prompt": self.prompt,
            "arm": self.arm,
            "setting": self.setting,
            "repeat": self.repeat,
            "place": self.place,
            "token_ids": list(run.token_ids),
            "finish": run.finish,
            "ttft_ms": round(run.ttft_ms, 3),
            "total_ms": round(run.total_ms, 3),
            "emissions": [
                [round(e.t_ms, 3), e.tokens, e.drafted, e.accepted, round(e.draft_ms, 3),
                 round(e.verify_ms, 3)]
                for e in run.emissions
            ],
            "spent_ms": {name: round(ms, 3) for name, ms in run.spent_ms.items()},
            "predicted_speedup": run.predicted_speedup,
            "proposer_rounds": dict(run.proposer_rounds),
        }  # fmt: skip
