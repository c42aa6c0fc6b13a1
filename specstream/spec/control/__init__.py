"""Who proposes, and how much: decided anew each round from measured costs and acceptance."""

from specstream.spec.control.controller import Controller
from specstream.spec.control.costs import Costs
from specstream.spec.control.records import Explanation, Kind, Outcome, Outlook, Plan, RoundTimes

__all__ = ["Controller", "Costs", "Explanation", "Kind", "Outcome", "Outlook", "Plan", "RoundTimes"]
