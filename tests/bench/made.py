"""Runs and records with given tokens, drafts and milliseconds of each round."""

from collections.abc import Sequence

from specstream.bench.records import BenchRun, Emission, Record

Round = tuple[float, int, int]  # milliseconds, accepted, drafted


def made_run(
    rounds: Sequence[Round],
    *,
    ttft_ms: float = 10.0,
    draft_ms: float = 0.5,
    verify_ms: float = 3.0,
    tells: bool = True,
) -> BenchRun:
    """A run with a first token after ``ttft_ms``, then rounds; ``draft_ms`` is for a drafted token."""
    emissions = [Emission(ttft_ms, 1, verify_ms=ttft_ms)]
    for ms, accepted, drafted in rounds:
        emissions.append(
            Emission(
                emissions[-1].t_ms + ms,
                accepted + 1,
                drafted if tells else 0,
                accepted,
                draft_ms * drafted if tells else 0.0,
                verify_ms if tells else 0.0,
            )
        )
    count = sum(emission.tokens for emission in emissions)
    total = emissions[-1].t_ms + 1.0
    spent = {"prefill": ttft_ms, "verify": verify_ms * len(rounds)} if tells else {}
    return BenchRun(tuple(range(count)), tuple(emissions), total, "length", tells, spent)


def plain_run(tokens: int, ms: float) -> BenchRun:
    """A run with a first token, then one token every ``ms`` milliseconds."""
    return made_run([(ms, 0, 0)] * tokens)


def reply(*tokens: int) -> BenchRun:
    """A run of these tokens, one a millisecond."""
    emissions = tuple(Emission(1.0 + i, 1) for i in range(len(tokens)))
    return BenchRun(tokens, emissions, 2.0 + len(tokens), "stop", tells=True)


def peer_run(tokens: int, ms: float) -> BenchRun:
    """As `plain_run`, of an arm that doesn't report drafts."""
    return made_run([(ms, 0, 0)] * tokens, tells=False)


def made_record(
    arm: str,
    run: BenchRun,
    *,
    domain: str = "chat",
    prompt: str = "p1",
    setting: str = "",
    repeat: int = 0,
) -> Record:
    return Record(domain, prompt, arm, setting, repeat, 0, run)
