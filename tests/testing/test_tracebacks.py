"""Where pytest's traceback of a failed assertion of `specstream.testing` ends."""

import pytest

import specstream.testing.proposer  # noqa: F401 (torch can't be imported again and again)

pytest_plugins = ["pytester"]
_QUIET = ("-o", "asyncio_default_fixture_loop_scope=function")


def test_a_failing_assertion_s_traceback_ends_in_the_user_s_file(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(
        """
        import pytest

        from specstream.testing import LatencyReport, TurnLatency, assert_latency, check_proposer

        TURN = TurnLatency("Hello", True, {"first_audio": 900.0}, {"first_audio": 900.0}, 900.0)
        REPORT = LatencyReport("talk", "virtual", (TURN,))


        def test_latency():
            assert_latency(REPORT, stage="first_audio", p95_ms=100)


        @pytest.mark.specstream_virtual_time
        async def test_virtual():
            assert_latency(REPORT, stage="first_audio", p95_ms=100)


        def test_proposer():
            check_proposer("off", only={"drafts"})
        """
    )
    done = pytester.runpytest_inprocess("-p", "specstream.testing.plugin", "--tb=short", *_QUIET)
    done.assert_outcomes(failed=3)
    lines = done.stdout.lines
    places = [line for line in lines if ": in " in line or line.startswith(("/", "<"))]
    assert [place.split(": in ")[0] for place in places] == [
        f"{path.name}:{number}" for number in (10, 15, 19)
    ]
