"""Chooses who proposes, and how many tokens, from measured costs and acceptance."""

from specstream.speculation.explanation import Explanation
from specstream.speculation.policy.costs import Costs
from specstream.speculation.policy.policy import Policy
from specstream.speculation.policy.records import (
    Candidate,
    Offer,
    Outcome,
    Outlook,
    Plan,
    RoundTimes,
)

__all__ = [
    "Candidate",
    "Costs",
    "Explanation",
    "Offer",
    "Outcome",
    "Outlook",
    "Plan",
    "Policy",
    "RoundTimes",
]
