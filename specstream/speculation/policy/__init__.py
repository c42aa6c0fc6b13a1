"""Who proposes, and how much: decided anew each round from measured costs and acceptance."""

from specstream.speculation.policy.controller import Controller
from specstream.speculation.policy.costs import Costs
from specstream.speculation.policy.records import (
    Explanation,
    Kind,
    Outcome,
    Outlook,
    Plan,
    RoundTimes,
)

__all__ = ["Controller", "Costs", "Explanation", "Kind", "Outcome", "Outlook", "Plan", "RoundTimes"]
