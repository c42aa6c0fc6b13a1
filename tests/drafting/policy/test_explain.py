import pytest

from specstream.drafting.checking import Explanation
from tests.drafting.policy.simulator import Machine, serve
from tests.drafting.policy.test_controller import flat, policy, texts


def explained(
    machine: Machine, acceptance: float, name: str, repeats: float = 0.0, run: float = 12.0
) -> Explanation:
    chooser = policy(machine, name)
    made = texts(3, 100, acceptance, informative=acceptance > 0.0, repeats=repeats, run=run)
    serve(chooser, made, machine)
    return chooser.explain()


def test_before_the_first_round() -> None:
    found = policy(Machine(target=flat)).explain()
    assert "no round yet" in found.words
    assert found.predicted_speedup == 1.0


def test_a_good_pair() -> None:
    found = explained(Machine(target=flat), 0.8, "draft")
    assert found.words.startswith("speculating with the draft model (")
    assert f"predicted {found.predicted_speedup:.2f}x" in found.words
    assert found.kind == "draft"
    assert 0.7 < found.acceptance < 0.9
    assert 1.0 < found.predicted_speedup < found.ceiling
    assert found.tau == pytest.approx(found.predicted_speedup * found.tau / found.predicted_speedup)
    assert found.draft_cost == pytest.approx(0.29 / 3.1, rel=0.1)
    assert found.verify_cost == pytest.approx(flat(1 + round(found.num_tokens)) / 3.1, rel=0.1)
    assert found.overhead == pytest.approx(0.38 / 3.1, rel=0.1)


def test_prompt_lookup() -> None:
    found = explained(Machine(target=flat), 0.0, "suffix", repeats=0.7, run=20.0)
    assert "suffix lookup (" in found.words and found.kind == "suffix"


@pytest.mark.parametrize(
    ("step", "acceptance", "says"),
    [
        (0.29, 0.0, "acceptance is too low (0% of the draft's first tokens;"),
        (1.6, 0.2, "the draft is too slow (a draft pass costs 5"),
        (4.0, 0.9, "of a plain round)"),  # no acceptance would do
    ],
)
def test_why_not(step: float, acceptance: float, says: str) -> None:
    found = explained(Machine(target=flat, step=step, noise=0.0), acceptance, "draft")
    assert found.kind == "off"
    assert found.words.startswith("not speculating: ")
    assert says in found.words


def test_lookup_that_finds_nothing() -> None:
    found = explained(Machine(target=flat), 0.0, "suffix")
    assert found.words == "not speculating: suffix lookup finds too little"


def test_nobody_allowed() -> None:
    found = explained(Machine(target=flat), 0.9, "nobody")
    assert found.words == "not speculating: nobody may propose"


def test_a_try_is_called_one() -> None:
    machine = Machine(target=flat)
    chooser = policy(machine, "draft")
    words = set()
    observe = chooser.observe

    def listen(times: object, outcomes: object) -> None:
        observe(times, outcomes)  # type: ignore[arg-type]
        words.add(chooser.explain().words.rpartition("; ")[2])

    chooser.observe = listen  # type: ignore[method-assign]
    serve(chooser, texts(1, 120, 0.0, informative=False), machine)
    assert "probing" in words and len(words) > 1


def test_of_one_request() -> None:
    machine = Machine(target=flat)
    chooser = policy(machine)
    kept = chooser.forget
    chooser.forget = lambda request_id: None  # type: ignore[method-assign]
    serve(chooser, [*texts(1, 200, 0.0, informative=False), *texts(1, 200, 0.9)], machine)
    assert "not speculating" in chooser.explain(0).words
    assert "speculating with the draft" in chooser.explain(1).words
    kept(0)
    assert chooser.explain(0) == chooser.explain()  # gone: all of late stands in
