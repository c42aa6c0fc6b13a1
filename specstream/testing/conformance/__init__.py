"""A conformance kit: what adapters and engines of other packages promise, put to the test.

Each kind has a module with its checks. `conformance_checks` gives them one by one, for a test each;
`check_adapter` makes them all and returns a report.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

from specstream.checks import meant
from specstream.errors import ConfigError
from specstream.listening.interfaces import Recognizer, TurnDetector
from specstream.stages.interfaces import AudioMark, AvatarScripter, PromptRewriter, SpeechSynthesizer
from specstream.testing.conformance.avatar import AVATAR_CHECKS
from specstream.testing.conformance.checks import (
    CheckResult,
    ConformanceCheck,
    ConformanceReport,
    Make,
    chosen,
)
from specstream.testing.conformance.engine import ENGINE_CHECKS
from specstream.testing.conformance.mark import MARK_CHECKS
from specstream.testing.conformance.prompt import PROMPT_CHECKS
from specstream.testing.conformance.recognizer import RECOGNIZER_CHECKS
from specstream.testing.conformance.turns import TURN_CHECKS
from specstream.testing.conformance.voice import VOICE_CHECKS

__all__ = [
    "CheckResult",
    "ConformanceCheck",
    "ConformanceKind",
    "ConformanceReport",
    "check_adapter",
    "check_avatar",
    "check_engine",
    "check_mark",
    "check_prompt",
    "check_recognizer",
    "check_turns",
    "check_voice",
    "conformance_checks",
]

ConformanceKind: TypeAlias = Literal[
    "voice", "mark", "avatar", "prompt", "recognizer", "turns", "engine"
]

_CHECKS: dict[str, tuple[ConformanceCheck[Any], ...]] = {
    "voice": VOICE_CHECKS,
    "mark": MARK_CHECKS,
    "avatar": AVATAR_CHECKS,
    "prompt": PROMPT_CHECKS,
    "recognizer": RECOGNIZER_CHECKS,
    "turns": TURN_CHECKS,
    "engine": ENGINE_CHECKS,
}


def conformance_checks(
    kind: ConformanceKind, *, speech: bytes | None = None
) -> tuple[ConformanceCheck[Any], ...]:
    """Return the checks of a kind, each of which is a test: ``await check(make)``.

    Args:
        kind: What is tested. A voice, an avatar or a prompt adapter may also be a stage that stands for
            one behind a socket (`specstream.stages.RemoteStage`).
        speech: For a mark, a recogniser or a turn detector: a spoken sentence at 16 kHz, s16
            little-endian mono. Without it they are given a buzz, in which they need hear nothing.

    Raises:
        ConfigError: an unknown kind, or half a sample of speech.
    """
    if kind not in _CHECKS:
        known = meant(kind, _CHECKS) or f"; there are: {', '.join(get_args(ConformanceKind))}"
        raise ConfigError(f"unknown kind of adapter {kind!r}{known}")
    if speech is not None and (not speech or len(speech) % 2):
        raise ConfigError(f"speech must be whole samples of 16 bits, not {len(speech)} bytes")
    return tuple(replace(check, speech=speech) for check in _CHECKS[kind])


async def check_adapter(
    kind: ConformanceKind,
    make: Make[Any],
    *,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    speech: bytes | None = None,
) -> ConformanceReport:
    """Make all checks of a kind, one after the other, and return the result of each.

    `ConformanceReport.assert_passed` raises if one failed. Cancelling stops the check under way and
    closes what it made.

    Args:
        kind: As in `conformance_checks`.
        make: Makes the adapter; called at least once a check. A coroutine function does, too. Of an
            engine, it makes one that wasn't entered.
        only: Names of the checks to make; by default all.
        skip: Names of checks to leave out.
        speech: As in `conformance_checks`.

    Raises:
        ConfigError: an unknown kind or check, or half a sample of speech.
    """
    checks = conformance_checks(kind, speech=speech)
    names, results = chosen(checks, only, skip), list[CheckResult]()
    for check in checks:
        if check.name in names:
            results.append(await check.result(make))
        else:
            results.append(CheckResult(check.name, check.about, "skipped", "left out"))
    return ConformanceReport(kind, tuple(results))


async def check_voice(
    make: Make[SpeechSynthesizer], *, only: Collection[str] = (), skip: Collection[str] = ()
) -> ConformanceReport:
    """Make all checks of a voice; see `check_adapter`."""
    return await check_adapter("voice", make, only=only, skip=skip)


async def check_mark(
    make: Make[AudioMark],
    *,
    speech: bytes | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
) -> ConformanceReport:
    """Make all checks of a mark of speech; see `check_adapter`."""
    return await check_adapter("mark", make, only=only, skip=skip, speech=speech)


async def check_avatar(
    make: Make[AvatarScripter], *, only: Collection[str] = (), skip: Collection[str] = ()
) -> ConformanceReport:
    """Make all checks of an avatar; see `check_adapter`."""
    return await check_adapter("avatar", make, only=only, skip=skip)


async def check_prompt(
    make: Make[PromptRewriter], *, only: Collection[str] = (), skip: Collection[str] = ()
) -> ConformanceReport:
    """Make all checks of a prompt adapter; see `check_adapter`."""
    return await check_adapter("prompt", make, only=only, skip=skip)


async def check_recognizer(
    make: Make[Recognizer],
    *,
    speech: bytes | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
) -> ConformanceReport:
    """Make all checks of a recogniser; see `check_adapter`."""
    return await check_adapter("recognizer", make, only=only, skip=skip, speech=speech)


async def check_turns(
    make: Make[TurnDetector],
    *,
    speech: bytes | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
) -> ConformanceReport:
    """Make all checks of a turn detector; see `check_adapter`."""
    return await check_adapter("turns", make, only=only, skip=skip, speech=speech)


async def check_engine(
    make: Make[Any], *, only: Collection[str] = (), skip: Collection[str] = ()
) -> ConformanceReport:
    """Make all checks of a text engine; see `check_adapter`."""
    return await check_adapter("engine", make, only=only, skip=skip)
