"""The contract test of a proposer: what the engine relies on, put to the test on a tiny target."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from specstream.checks import meant
from specstream.config import parse_config
from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers.own import ProposerContext
from specstream.errors import ConfigError, SpecstreamError
from specstream.methods import OwnProposerConfig
from specstream.testing.letters import Letters
from specstream.testing.proposer_checks import CHECKS, Evidence

__all__ = ["PROPOSER_CHECKS", "ProposerReport", "check_proposer"]

PROPOSER_CHECKS = {name: (check.__doc__ or "").strip() for name, check in CHECKS.items()}
"""The checks of `check_proposer` by name, in order, and what each demands."""
_LEAST = 100


@dataclass(frozen=True, slots=True)
class ProposerReport:
    """What `check_proposer` saw of a proposer that passed.

    Attributes:
        passed: Names of the checks that were made.
        skipped: Names of those that were left out.
        drafted: Tokens that it drafted, in all checks.
        accepted: Those that the target accepted.
        replies: Replies whose distribution was compared with the exact one; 0 without ``law``.
        p_values: Of the comparisons, two for each rule of verification.
        detectable: The total variation that such a comparison finds with probability 0.99 at p < 1e-3;
            1 without ``law``.
    """

    passed: tuple[str, ...]
    skipped: tuple[str, ...]
    drafted: int
    accepted: int
    replies: int
    p_values: tuple[float, ...]
    detectable: float


def check_proposer(
    proposer: str | dict[str, Any] | Callable[[ProposerContext], Proposer],
    *,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    n: int = 4000,
) -> ProposerReport:
    """Check that a proposer keeps its contract (`specstream.drafting.proposal`).

    The engine is the real one, the target a random transformer over five letters, whose distribution is
    computed exactly. It takes some seconds and no weights; the first time, native code may be compiled.

    Args:
        proposer: A function or class that makes one, as `Engine.load` takes it, or the name or settings
            of a method without weights or of an installed package's proposer. Each check makes new ones.
        only: Names of the checks to make (see `PROPOSER_CHECKS`); by default all.
        skip: Names of checks to leave out. ``leaks`` and ``concurrency`` are not for a proposer that
            means to learn from all requests, nor ``memory`` while its store fills up; ``noise`` is not
            for one that decides by the clock; ``rollback`` is not for one whose drafts depend on more
            than the text, as on what the target predicted before; ``drafts`` is not for one that finds
            nothing to draft in letters.
        n: Replies sampled under each of the two rules of verification, at temperature 1 and again at 0.6
            with ``top_p``. With 4,000 a total variation of
            0.09 from the target's distribution is found with probability 0.99; the report says
            which exactly. An honest proposer fails once in a thousand times; a second run has the same
            seeds and ends alike.

    Raises:
        AssertionError: a line for each check that failed, which begins with its name.
        ConfigError: the proposer can't be made, an unknown check, or too small an ``n``.
        ModelUnsupported: the target can't serve it (as with hidden states of deeper layers than two).
    """
    __tracebackhide__ = True
    names = _chosen(only, skip)
    if n < _LEAST:
        raise ConfigError(f"n must be at least {_LEAST}, not {n}")
    settings = parse_config({"proposer": proposer}).proposer
    if isinstance(settings, OwnProposerConfig) and not settings.makes:
        raise ConfigError("each check needs a new proposer: give a function that makes a proposer")
    letters, evidence, wrong = Letters(settings), Evidence(n), list[str]()
    letters.engine()  # what can't be built at all is no matter of a single check
    for name in names:
        try:
            said = CHECKS[name](letters, evidence)
        except SpecstreamError as error:
            said = f"a request ended with {type(error).__name__}: {error}"
        wrong += [f"{name}: {said}"] if said else []
    if "sound" in names and evidence.fault and not any(line.startswith("sound") for line in wrong):
        wrong.insert(0, f"sound: {evidence.fault}")
    if wrong:
        raise AssertionError("\n".join(wrong))
    tests = evidence.tests
    return ProposerReport(
        passed=names,
        skipped=tuple(name for name in CHECKS if name not in names),
        drafted=evidence.drafted,
        accepted=evidence.accepted,
        replies=sum(test.n for test in tests),
        p_values=tuple(test.p_value for test in tests),
        detectable=max((test.detectable for test in tests), default=1.0),
    )


def _chosen(only: Collection[str], skip: Collection[str]) -> tuple[str, ...]:
    for name in (*only, *skip):
        if name not in CHECKS:
            known = ", ".join(CHECKS)
            raise ConfigError(f"unknown check {name!r}{meant(name, CHECKS) or f'; there are: {known}'}")
    return tuple(name for name in CHECKS if name in (only or CHECKS) and name not in skip)
