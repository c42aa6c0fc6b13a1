"""Prints the policy's time against the best fixed choice, over drawings of the workloads' texts.

The figures of the log: ``python -m tests.drafting.policy.drawings 10``.
"""

import sys
from collections.abc import Callable

from tests.drafting.policy.simulator import Fixed, Machine, Text, serve
from tests.drafting.policy.test_batch import CASES
from tests.drafting.policy.test_controller import FIXED, MACHINES, WORKLOADS, policy


def ratios(machine: Callable[[], Machine], texts: list[Text], batch: int) -> list[float]:
    """Times by those of the best fixed choice, for drafts that can be stopped and for others."""
    best = min(serve(Fixed(*choice), texts, machine(), batch=batch).ms for choice in FIXED)
    return [
        serve(policy(machine(), stops=stops), texts, machine(), batch=batch).ms / best
        for stops in (True, False)
    ]


def told(name: str, found: list[float]) -> str:
    """The mean and the worst of them."""
    above = sum(one > 1.05 for one in found)
    mean = sum(found) / len(found)
    return f"{name}: mean {mean:.3f}, worst {max(found):.3f}, above 1.05 {above} of {len(found)}"


def main(drawings: int) -> None:
    """Print a line for single requests and one for batches."""
    alone, batches = list[float](), list[float]()
    for drawing in range(drawings):
        for workload in WORKLOADS.values():
            for machine in MACHINES.values():
                alone += ratios(machine, workload(drawing), 1)
        for made, batch, texts in CASES.values():
            batches += ratios(made, texts(drawing), batch)
    sys.stdout.write(f"{told('alone', alone)}\n{told('batches', batches)}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
