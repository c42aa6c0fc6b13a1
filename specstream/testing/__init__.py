"""Tools to test code that is built on specstream: scripted parts, virtual time, latencies.

No weights, no network, no torch. docs/testing.md begins with an example.
"""

from specstream.listening.doubles import ScriptedRecognizer, ScriptedTurnDetector
from specstream.testing.chunks import chunks_of
from specstream.testing.conversation import Parts, run_scenario
from specstream.testing.ear import Ear
from specstream.testing.engine import (
    ScriptedEngine,
    ScriptedGeneration,
    ScriptedSession,
)
from specstream.testing.latency import STAGES, LatencyReport, TurnLatency, assert_latency
from specstream.testing.loop import VirtualTimeLoop, run_virtual
from specstream.testing.model import ScriptedModel
from specstream.testing.network import ScriptedNetwork
from specstream.testing.scenario import Scenario, TurnScript, read_scenario
from specstream.testing.voice import ScriptedVoice

__all__ = [
    "STAGES",
    "Ear",
    "LatencyReport",
    "Parts",
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
    "chunks_of",
    "read_scenario",
    "run_scenario",
    "run_virtual",
]
