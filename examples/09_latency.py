"""A test of an agent's latency, in virtual time: run it with pytest, or as a script.

The model, the user and the network follow a script; the agent and its voice are what is tested.
"""

from pathlib import Path

import pytest

from specstream import Agent
from specstream.testing import (
    LatencyReport,
    Parts,
    assert_latency,
    read_scenario,
    run_scenario,
    run_virtual,
)


def my_agent(parts: Parts) -> Agent:
    """Put your own voice, listening or play-out in the place of the scripted parts."""
    return Agent(
        engine=parts.model,
        voice=parts.voice,
        ears=parts.ears,
        listening=parts.listening,
        sample_rate=parts.sample_rate,
        play=parts.playout,
        system="Be brief.",
    )


async def measure() -> LatencyReport:
    scenario = read_scenario(Path(__file__).with_suffix(".toml"))
    return await run_scenario(scenario, my_agent)


@pytest.mark.specstream_virtual_time
async def test_nobody_waits_long() -> None:
    report = await measure()
    assert_latency(report, stage="first_audio", p50_ms=1000, p95_ms=1300)
    assert_latency(report, stage="interruption_silence", p95_ms=500)


if __name__ == "__main__":
    print("\n".join(run_virtual(measure()).lines()))
