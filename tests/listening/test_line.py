"""Who is recognised next: short turns first, and nobody for ever last."""

from collections.abc import Sequence

import anyio
import pytest

from specstream.listening.ears import WaitingLine

pytestmark = pytest.mark.virtual_time


async def served(
    line: WaitingLine, came: Sequence[tuple[str, float, float]], takes_s: float
) -> list[str]:
    """The order in which turns (name, moment, seconds of audio) had their place."""
    order: list[str] = []

    async def turn(name: str, moment: float, seconds: float) -> None:
        await anyio.sleep(moment)
        async with line.place(seconds):
            order.append(name)
            await anyio.sleep(takes_s)

    async with anyio.create_task_group() as group:
        for one in came:
            group.start_soon(turn, *one)
    assert line.free
    return order


async def test_a_short_turn_goes_before_a_long_one_that_has_not_begun() -> None:
    came = [("first", 0, 120), ("long", 1, 120), ("short", 2, 2)]
    assert await served(WaitingLine(), came, 4) == ["first", "short", "long"]


async def test_a_long_turn_is_not_passed_for_ever() -> None:
    came = [("first", 0.0, 2.0), ("long", 0.5, 20.0), *((str(n), n + 0.9, 2.0) for n in range(40))]
    order = await served(WaitingLine(), came, 1)
    assert 15 < order.index("long") < 25


async def test_as_many_run_as_there_are_workers() -> None:
    line = WaitingLine(2)
    async with line.place(1):
        assert line.free
        async with line.place(1):
            assert not line.free
    assert line.free


async def test_who_gives_up_leaves_the_line() -> None:
    line = WaitingLine()
    async with anyio.create_task_group() as group:
        async with line.place(1):
            with anyio.move_on_after(1) as scope:
                async with line.place(1):
                    raise AssertionError
            assert scope.cancelled_caught

            async def cancelled() -> None:
                with anyio.CancelScope() as late:
                    scopes.append(late)
                    async with line.place(1):
                        await anyio.sleep_forever()

            scopes: list[anyio.CancelScope] = []
            group.start_soon(cancelled)
            await anyio.sleep(1)
        scopes[0].cancel()  # in the moment in which the place was given
        await anyio.sleep(1)
        assert line.free
