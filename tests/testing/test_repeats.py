"""Ten thousand turns are cheap and repeat: work is counted here, `scripts/latency-figures` times it."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from specstream.testing import run_scenario, run_virtual
from tests.testing.counted import counting, short_turns

RUN = """
import hashlib, json
from specstream.testing import run_scenario, run_virtual
from tests.testing.counted import short_turns
report = run_virtual(run_scenario(short_turns(80)))
print(hashlib.sha256(json.dumps([report.to_dict(), report.lines()]).encode()).hexdigest())
"""


@pytest.mark.slow
def test_a_turn_takes_as_much_work_however_many_there_are() -> None:
    """About 230 callbacks of the event loop; 10,000 turns in a minute leave 6 ms for each."""
    each = []
    for turns in (40, 200):
        with counting() as count:
            report = run_virtual(run_scenario(short_turns(turns)))
        assert len(report.turns) == turns
        each.append(count.callbacks / turns)
    assert each[1] < 280
    assert each[1] < 1.1 * each[0]


def test_the_turns_of_all_repetitions_are_counted() -> None:
    told: list[tuple[int, int]] = []
    run_virtual(run_scenario(short_turns(8), progress=lambda *counts: told.append(counts)))
    assert told == [(done, 8) for done in range(1, 9)]


@pytest.mark.slow
def test_three_processes_give_the_same_report() -> None:
    report = run_virtual(run_scenario(short_turns(80)))
    told = json.dumps([report.to_dict(), report.lines()])
    digests = {hashlib.sha256(told.encode()).hexdigest()}
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", RUN],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


@pytest.mark.slow
def test_the_parts_of_every_wait_are_measured_and_sum_to_it() -> None:
    """Each step lies where it was seen; none had to be moved so that the sum comes out."""
    report = run_virtual(run_scenario(short_turns(200)))
    for turn in report.turns:
        assert abs(turn.residual_ms) < 1e-6
        assert all(ms >= 0 for ms in turn.parts.values())
        wanted = ["turn_end", "transcript"] * (not turn.typed)
        steps = ["asked", "first_token", "first_phrase", "first_speech", "arrived", "first_audio"]
        assert list(turn.parts) == [*wanted, *steps]
        # What the script says lies in the part that it belongs to.
        assert turn.parts["first_token"] >= 200 - 1e-6
        assert turn.parts["first_speech"] >= 80 - 1e-6
        assert turn.parts["arrived"] >= 20 - 1e-6
        if not turn.typed:
            assert turn.parts["turn_end"] >= 300
