"""What the controller knows: of all requests, and of each."""

from __future__ import annotations

from specstream.speculation.policy.draft_acceptance import DraftAcceptance, DraftHabits
from specstream.speculation.policy.estimates import Average
from specstream.speculation.policy.explain import Digest
from specstream.speculation.policy.lookup_acceptance import LookupAcceptance, LookupHabits
from specstream.speculation.policy.options import OFF, Prices
from specstream.speculation.policy.probing import Schedule
from specstream.speculation.policy.records import Outcome

__all__ = ["Common", "History"]

_WEIGHT, _MEMORY = 4.0, 16.0  # rounds that the common rate is worth, and rounds remembered
_SILENCE = 3  # rounds in a row without a word, after which a draft is not asked again
_SHORT = 64  # tokens to catch up that no draft needs several rounds for


class Common:
    """What is learned over all requests that decode the same way, greedily or sampled."""

    def __init__(self, *, greedy: bool) -> None:
        self.draft = DraftAcceptance(greedy)
        self.lookup = LookupAcceptance()


class History:
    """One request so far.

    Attributes:
        tokens: Tokens a round; while it is alone, of those that lookup did not propose for.
        cost: What such rounds cost, in plain ones.
        option: The latest choice.
        rest: Rounds to come in which the draft needn't be thought of, while the request is alone.
        prices: What lookup's offers cost, while it rests.
        given_up: Whether the draft doesn't pay at present.
        hopeless: Whether it is far from paying, as far as one knows.
        probing: Whether the latest choice is a try of a draft that was given up.
        able: Whether anything could be proposed in the latest round.
        behind: Tokens that the draft had to catch up on for it.
        drafted: Whether the draft ever proposed.
        compared: Whether an offer of lookup's could ever be compared with the text.
        mute: Whether the draft no longer answers (its context is full, its weights are damaged).
        debt: What the draft's reading of the prompt cost and rounds have yet to earn, in plain ones.
    """

    def __init__(self, common: Common, tokens: Average, cost: Average) -> None:
        self.draft = DraftHabits(common.draft)
        self.lookup = LookupHabits(common.lookup)
        self.tokens = tokens.heir(_WEIGHT, _MEMORY)
        self.cost = cost.heir(_WEIGHT, _MEMORY)
        self.digest = Digest(64.0)
        self.schedule = Schedule.beginning(common.draft.doubt.value)
        self.option = OFF
        self.rest = 0
        self.prices: Prices | None = None
        self.given_up = False
        self.hopeless = False
        self.probing = False
        self.able = False
        self.behind = 0
        self.mute = False
        self.committed = 0
        self.debt = 0.0
        self.drafted = False
        self.compared = False
        self._silent = 0

    def learn_rate(self, tokens: float, cost: float) -> None:
        """Count a round."""
        self.tokens.learn(tokens)
        self.cost.learn(cost)

    def observe(self, outcome: Outcome, longest: int) -> None:
        """Learn from a round. ``longest``: the longest proposal of a round without other limits."""
        self.committed += outcome.accepted + 1
        self.observe_lookup(outcome)
        if outcome.plan.proposer == "draft":
            self._observe_draft(outcome, longest)

    def close(self) -> None:
        """The request is over: leave to the next ones what it says about them."""
        if self.drafted:
            self.draft.close()
        if self.compared:
            self.lookup.close()

    def repay(self, earned: float, read: float) -> float:
        """The part of what the draft's catching up cost that this round can pay, in plain rounds.

        Args:
            earned: What the round gained on a plain one.
            read: What the draft caught up on in it cost.
        """
        self.debt += read
        paid = min(self.debt, max(earned, 0.0))
        self.debt -= paid
        return paid

    def observe_lookup(self, outcome: Outcome) -> None:
        """Learn from what lookup offered, whether or not it was proposed."""
        self.compared = self.compared or outcome.offered > 0
        if outcome.offered > 0:
            self.lookup.observe(outcome.match, outcome.support, outcome.offered, outcome.agreed)
        elif outcome.plan.proposer == "ngram" and outcome.drafted > 0:
            self.lookup.observe(outcome.match, outcome.support, outcome.drafted, outcome.accepted)

    def _observe_draft(self, outcome: Outcome, longest: int) -> None:
        if outcome.drafted < 1:
            self._silent += self.behind < _SHORT
            self.mute = self._silent >= _SILENCE
            return
        self._silent = 0
        self.drafted = True
        believed = self.draft.first()
        self.draft.observe(outcome.accepted, outcome.confidences, outcome.drafted)
        if self.probing:
            # Where it is not acceptance that is amiss, being right once more changes nothing.
            self.schedule.tried(outcome.accepted > 0 and believed < 0.5)
        else:
            self.schedule.used()
            if outcome.plan.go_on is not None and outcome.plan.num_tokens == longest:
                self.draft.observe_length(outcome.accepted, outcome.drafted)
