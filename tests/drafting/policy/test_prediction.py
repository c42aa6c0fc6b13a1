"""The speedup that a reply's report predicts, on machines that are not what their calibration said."""

from dataclasses import replace

import pytest

from specstream.drafting.policy.costs import Costs, DraftCosts
from specstream.drafting.policy.policy import Policy
from tests.drafting.policy.simulator import Machine, serve
from tests.drafting.policy.test_controller import WORKLOADS, candidates

# Weight-bound, with little around; and compiled, with a pass that is not much more than the rest.
MACHINES: dict[str, Machine] = {
    "plain passes": Machine(
        target=lambda n: 1.8 + 0.15 * (n > 1) + 0.07 * (n - 1), other=0.25, other_plain=0.2
    ),
    "compiled passes": Machine(
        target=lambda n: 0.75 + 0.1 * (n - 1), step=0.1, other=0.32, other_plain=0.25
    ),
}


class Telling(Policy):
    """Notes what it predicted for each request when that is over."""

    def __init__(self, costs: Costs) -> None:
        super().__init__(candidates("draft", "suffix"), costs, max_tokens=12)
        self.predicted: list[float] = []

    def forget(self, request_id: int) -> None:
        self.predicted.append(self.explain(request_id).predicted_speedup)
        super().forget(request_id)


def calibrated(machine: Machine) -> Costs:
    """As an engine measures: passes alone and hot, the wider ones more so; and nothing of the rest."""
    width_ms = {n: machine.target(n) * (0.94 if n == 1 else 0.88) for n in (1, 2, 5, 9)}
    costs = Costs(width_ms, row_ms=0.0)
    costs.drafts["draft"] = DraftCosts(0.85 * machine.step, read_ms=machine.read)
    return costs


def errors(machine: Machine, workload: str) -> list[float]:
    """Predicted by true speedup, less 1, of each reply but the first."""
    chooser = Telling(calibrated(machine))
    true = [serve(chooser, [text], machine).speedup for text in WORKLOADS[workload]()]
    return [p / t - 1.0 for p, t in zip(chooser.predicted, true, strict=True)][1:]


@pytest.mark.parametrize("planning", [0.05, 0.15])
@pytest.mark.parametrize("workload", ["dialogue", "code", "rewriting"])
@pytest.mark.parametrize("machine", MACHINES)
def test_each_reply_within_10_percent(machine: str, workload: str, planning: float) -> None:
    """What choosing costs is the policy's own: plain decoding doesn't have it."""
    made = errors(replace(MACHINES[machine], planning=planning), workload)
    assert abs(sum(made)) <= 0.08 * len(made)
    assert sum(map(abs, made)) <= 0.1 * len(made)


def test_what_is_taken_for_plain_decoding_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the choice's own cost is thought to be plain decoding's, too."""
    plain = Costs.plain
    monkeypatch.setattr(Costs, "plain", lambda self, rows=1: plain(self, rows) + 0.3)
    made = errors(replace(MACHINES["compiled passes"], planning=0.15), "code")
    assert sum(made) > 0.1 * len(made)


@pytest.mark.slow
def test_of_requests_that_share_passes_the_batch_is_predicted() -> None:
    """A pass with any draft is slower by a part that the cost model has no term for."""

    batch = 8

    def target(tokens: int) -> float:
        return 20.0 + 0.4 * tokens + (25.0 if tokens > batch else 0.0)

    machine = Machine(target=target, step=1.0)
    chooser = Telling(calibrated(Machine(target=lambda n: 20.0 + 0.4 * n, step=1.0)))
    result = serve(chooser, WORKLOADS["code"]() * 12, machine, batch=batch)
    settled = chooser.predicted[3 * batch :]
    assert sum(settled) / len(settled) == pytest.approx(result.speedup, rel=0.2)
