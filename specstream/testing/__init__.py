"""Tools to test code that is built on specstream: scripted parts, virtual time, latencies, adapters.

No weights, no network; torch is loaded by the check of proposers only. docs/guides/testing.md begins
with an example.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from specstream.testing.conformance import (
    CheckResult,
    ConformanceCheck,
    ConformanceReport,
    check_adapter,
    check_avatar,
    check_engine,
    check_mark,
    check_prompt,
    check_recognizer,
    check_turns,
    check_voice,
    conformance_checks,
)
from specstream.testing.conversation import Parts, run_scenario
from specstream.testing.doubles import (
    ScriptedModel,
    ScriptedRecognizer,
    ScriptedTurnDetector,
    ScriptedVoice,
)
from specstream.testing.engine import ScriptedEngine, ScriptedGeneration, ScriptedSession, chunks_of
from specstream.testing.latency import STAGES, LatencyReport, TurnLatency, assert_latency
from specstream.testing.loop import VirtualTimeLoop, run_virtual
from specstream.testing.scenario import Scenario, ScriptedNetwork, TurnScript, read_scenario
from specstream.testing.talk import Ear

if TYPE_CHECKING:
    from specstream.testing.proposer import PROPOSER_CHECKS, ProposerReport, check_proposer

__all__ = [
    "PROPOSER_CHECKS",
    "STAGES",
    "CheckResult",
    "ConformanceCheck",
    "ConformanceReport",
    "Ear",
    "LatencyReport",
    "Parts",
    "ProposerReport",
    "Scenario",
    "ScriptedEngine",
    "ScriptedGeneration",
    "ScriptedModel",
    "ScriptedNetwork",
    "ScriptedRecognizer",
    "ScriptedSession",
    "ScriptedTurnDetector",
    "ScriptedVoice",
    "TurnLatency",
    "TurnScript",
    "VirtualTimeLoop",
    "assert_latency",
    "check_adapter",
    "check_avatar",
    "check_engine",
    "check_mark",
    "check_prompt",
    "check_proposer",
    "check_recognizer",
    "check_turns",
    "check_voice",
    "chunks_of",
    "conformance_checks",
    "read_scenario",
    "run_scenario",
    "run_virtual",
]


def __getattr__(name: str) -> object:
    if name not in ("PROPOSER_CHECKS", "ProposerReport", "check_proposer"):
        raise AttributeError(f"module 'specstream.testing' has no attribute {name!r}")
    return getattr(importlib.import_module("specstream.testing.proposer"), name)
