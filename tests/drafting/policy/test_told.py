"""What a draft's trainer measured: a prior that spares tries, and that the truth soon outweighs."""

from dataclasses import replace
from typing import Any

import pytest

from specstream.drafting.policy.acceptance import CandidateAcceptance, RequestAcceptance
from specstream.drafting.policy.policy import Policy
from specstream.drafting.policy.records import Candidate, Offer, Outlook, RoundOutcome, RoundPlan
from specstream.model.heads.recognise import told_acceptance
from tests.drafting.policy.simulator import Machine, serve
from tests.drafting.policy.test_controller import candidates, costs, flat, texts

DRAFT = Candidate("draft", "the draft model", stops=True)


def told(*acceptance: float) -> Candidate:
    return replace(DRAFT, acceptance=acceptance)


def test_acceptance_begins_at_what_was_told() -> None:
    for given, first in (((0.3, 0.1), [0.3, 0.67]), ((0.8, 0.9, 0.6, 0.5), [0.8, 0.9])):
        common = CandidateAcceptance(told(*given))
        assert [chance.value for chance in common.chances] == pytest.approx(first)
    common = CandidateAcceptance(told(0.3))
    common.chances[0].learn(True)
    assert common.chances[0].value == pytest.approx((0.3 * 6 + 1) / 7)


def test_priors_by_class_are_kept_whatever_was_told() -> None:
    """A proposer of somebody's own may have evidence classes, or one rate, and a trainer's figures."""
    for priors, first in (((0.5,), [0.3]), ((0.5, 0.6, 0.7, 0.8), [0.3, 0.6, 0.7, 0.8])):
        common = CandidateAcceptance(replace(told(0.3, 0.1), priors=priors))
        assert [chance.value for chance in common.chances] == pytest.approx(first)
        assert RequestAcceptance(common).of_confidence()[2] == pytest.approx(max(first[:2]))


def test_what_is_known_is_tried_later() -> None:
    known, guessed = [RequestAcceptance(CandidateAcceptance(one)) for one in (told(0.5), DRAFT)]
    assert known.interval >= 8 > guessed.interval


def test_who_hardly_ever_proposes_is_told_once_there_were_rounds_enough() -> None:
    machine = Machine(target=flat)
    chooser = Policy([DRAFT, replace(DRAFT, name="heads")], costs(machine), max_tokens=4)
    for rounds in range(1, 70):
        chooser.plan([Outlook(1, True, 9, {"draft": Offer(9)})])
        chooser.observe(machine.round(2, 0, 1, 3, True), [RoundOutcome(1, RoundPlan("draft", 2), 2, 1)])
        assert chooser.rare == ({"heads"} if rounds >= 64 else set())


@pytest.mark.parametrize("truth", [0.2, 0.9])
@pytest.mark.parametrize("said", [0.1, 0.5, 0.95])
def test_what_was_told_wrongly_is_soon_outweighed(said: float, truth: float) -> None:
    made, took = texts(6, 120, truth, prompt=20), dict[bool, float]()
    for tells in (False, True):
        machine = Machine(target=flat)
        (draft,) = candidates("draft")
        chosen = replace(draft, acceptance=(said,)) if tells else draft
        took[tells] = serve(Policy([chosen], costs(machine), max_tokens=12), made, machine).ms
    assert took[True] < 1.1 * took[False]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([0.5, 0.25], (0.5, 0.25)),
        ([], ()),
        ([0.5, 1.0], ()),
        ([0.5, float("nan")], ()),
        ([0.5, "0.2"], ()),
        ([1, 0.2], ()),
        (0.5, ()),
        (None, ()),
    ],
)
def test_only_probabilities_are_believed(given: Any, found: tuple[float, ...]) -> None:
    assert told_acceptance({"acceptance": given}) == found
    assert told_acceptance({}) == ()
