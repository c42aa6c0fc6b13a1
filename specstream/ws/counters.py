"""What a server counts over its life, as Prometheus text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from specstream.types import Chunk
from specstream.ws.wire import SAMPLE_RATE

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Totals since the start; ``sessions`` is how many are open now."""

    sessions: int = 0
    sessions_total: int = 0
    refused_total: int = 0
    responses: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    audio_samples: int = 0

    def count_chunk(self, chunk: Chunk) -> None:
        """Enter what one round committed."""
        self.rounds += bool(chunk.token_ids)
        self.tokens += len(chunk.token_ids)
        self.drafted += chunk.drafted
        self.accepted += chunk.accepted

    def count_response(self, status: str) -> None:
        """Enter a response that has ended."""
        self.responses[status] += 1

    def prometheus(self) -> str:
        """The text exposition format, version 0.0.4."""
        lines: list[str] = []

        def metric(name: str, kind: str, help_: str, *samples: tuple[str, float]) -> None:
            lines.append(f"# HELP specstream_{name} {help_}")
            lines.append(f"# TYPE specstream_{name} {kind}")
            lines.extend(f"specstream_{name}{labels} {value}" for labels, value in samples)

        def total(name: str, help_: str, value: float) -> None:
            metric(f"{name}_total", "counter", help_, ("", value))

        metric("sessions", "gauge", "Open sessions.", ("", self.sessions))
        total("sessions", "Sessions opened.", self.sessions_total)
        total("refused", "Connections refused: key, origin or capacity.", self.refused_total)
        statuses = ("completed", "cancelled", "incomplete", "failed")
        by_status = [(f'{{status="{status}"}}', self.responses[status]) for status in statuses]
        metric("responses_total", "counter", "Responses ended, by status.", *by_status)
        total("tokens", "Tokens committed.", self.tokens)
        total("rounds", "Rounds of propose and verify.", self.rounds)
        total("drafted_tokens", "Tokens proposed.", self.drafted)
        total("accepted_tokens", "Proposed tokens that the target accepted.", self.accepted)
        total("audio_seconds", "Seconds of audio sent.", round(self.audio_samples / SAMPLE_RATE, 3))
        return "\n".join(lines) + "\n"
