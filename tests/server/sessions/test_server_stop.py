"""A server that stops: nothing new begins, what runs comes to an end that its client hears of."""

import json

import anyio
import pytest

from specstream.testing import ScriptedEngine
from tests.server.doubles import WORDS, Gate, HandClock, Stand, settle, wait_for
from tests.server.test_http import get, status


async def test_what_runs_is_finished_and_nothing_new_begins() -> None:
    gate = Gate()
    stand = Stand(ScriptedEngine(["fine."], gate=gate))
    async with stand.running(), stand.client() as busy, stand.client() as quiet:
        await busy.ask("Hi", output_modalities=["text"])
        await busy.until("response.created")
        async with anyio.create_task_group() as group:
            group.start_soon(stand.server.drain, 600)
            assert await quiet.closed() == (1001, "the server is stopping")
            assert await status(stand) == 503
            code, _, body = await get(stand.port, "/ready")
            assert (code, json.loads(body)["status"]) == (503, "stopping")
            error = await busy.refused("response.create", response={"conversation": "none"})
            assert (error["code"], error["type"]) == ("server_stopping", "server_error")
            gate.open()
            done = await busy.done()
            assert done["status"] == "completed"
            assert await busy.closed() == (1001, "the server is stopping")
        assert stand.server.counters.sessions == 0


async def test_a_server_that_has_stopped_can_start_again() -> None:
    stand = Stand(ScriptedEngine(["fine."]))
    for _ in range(2):
        async with stand.running():
            async with stand.client() as wire:
                assert (await wire.reply("Hi", output_modalities=["text"]))["status"] == "completed"
            await stand.server.drain(0)


@pytest.mark.parametrize("modality", ["text", "audio"])
async def test_what_takes_too_long_ends_with_a_reason(modality: str) -> None:
    gate, clock = Gate(shut=modality == "text"), HandClock()
    stand = Stand(ScriptedEngine([WORDS], gate=gate), clock=clock)
    async with stand.running(), stand.client() as wire:
        await wire.ask("Hi", output_modalities=[modality])
        await wire.until("response.created" if modality == "text" else "response.output_audio.delta")
        async with anyio.create_task_group() as group:
            group.start_soon(stand.server.drain, 0)
            done = await wire.done()
            assert done["status"] == "cancelled"
            details = done["status_details"]
            assert "reason" not in details, "the client didn't cancel it"
            assert details["error"]["code"] == "server_stopping"
            assert await wire.closed() == (1001, "the server is stopping")
        assert stand.server.counters.responses == {"cancelled": 1}


async def test_stopping_for_good_waits_for_nobody() -> None:
    """A drain that is cancelled, as by a second signal, leaves the rest to the end of the block."""
    gate = Gate()
    stand = Stand(ScriptedEngine(["fine."], gate=gate))
    async with stand.running():
        async with stand.client() as wire:
            await wire.ask("Hi", output_modalities=["text"])
            await wire.until("response.created")
            async with anyio.create_task_group() as group:
                group.start_soon(stand.server.drain, 600)
                await settle()
                group.cancel_scope.cancel()
            assert stand.server.counters.sessions == 1
        await wait_for(lambda: stand.server.counters.sessions == 0)
