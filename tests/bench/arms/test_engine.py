from __future__ import annotations

import pytest

from specstream.bench.arms.open import run_of
from specstream.metrics import Report
from specstream.types import Chunk, Span


def chunk(t_ms: float, tokens: tuple[int, ...], **parts: float) -> Chunk:
    return Chunk("", tokens, Span(0, 0), Span(0, 0), t_ms=t_ms, **parts)  # type: ignore[arg-type]


CHUNKS = [
    chunk(20.0, (7,), verify_ms=15.0),
    chunk(30.0, (8, 9), drafted=4, accepted=1, draft_ms=2.0, verify_ms=6.0),
    chunk(31.0, ()),  # text that was held back
]
REPORT = Report(
    text="",
    token_ids=(7, 8, 9),
    finish_reason="stop",
    prompt_tokens=1,
    reused_tokens=0,
    rounds=1,
    target_forwards=2,
    drafted=4,
    accepted=1,
    acceptance_by_position=(1.0,),
    ttft_ms=20.0,
    total_ms=32.0,
    draft_ms=2.0,
    verify_ms=21.0,
    proposer="draft",
    sample_ms=0.5,
    proposer_rounds={"draft": 1},
    predicted_speedup=1.5,
    explanation="because",
)


def test_emissions_are_the_chunks_that_carry_tokens() -> None:
    run = run_of(CHUNKS, REPORT)
    assert run.token_ids == (7, 8, 9)
    assert [(e.t_ms, e.tokens, e.drafted, e.accepted) for e in run.emissions] == [
        (20.0, 1, 0, 0),
        (30.0, 2, 4, 1),
    ]
    assert (run.decode_tokens, run.decode_ms, run.total_ms) == (2, 10.0, 32.0)
    assert (run.predicted_speedup, run.explanation) == (1.5, "because")
    assert run.proposer_rounds == {"draft": 1}


def test_the_time_split_adds_up_to_the_whole() -> None:
    spent = run_of(CHUNKS, REPORT).spent_ms
    assert spent["prefill"] == 20.0
    assert spent["verify"] == pytest.approx(6.0)
    assert spent["draft"] == pytest.approx(2.0)
    assert sum(spent.values()) == pytest.approx(32.0)
