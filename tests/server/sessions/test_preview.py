"""Drafted text over the wire: only for who asks, in its place, and never part of anything."""

import json
from typing import Any

import anyio
import pytest

from specstream.client.client import RealtimeClient, TextPreview
from specstream.realtime import events as ev
from specstream.server.counters import Counters
from specstream.server.sessions.boxes import MAX_AUDIO, MAX_EVENTS, Outbox
from specstream.server.sessions.output import ItemWriter
from specstream.server.sessions.request import ResponseRequest
from specstream.server.sessions.timings import Timings
from specstream.testing import ScriptedEngine
from specstream.text.tags import SpokenText
from specstream.types import Chunk, Preview, SamplingParams, Span
from tests.server.doubles import FreeClock, Gate, Stand, Wire, drafting, end_of, read, text_of

TEXT = "One two three four [smile] five six. Seven eight nine."


def doubtful(chunk: Chunk) -> str:
    """Every second draft is wrong."""
    return chunk.text + " [x]" if chunk.round % 2 else " DRAFT"


def untimed(events: list[dict[str, Any]]) -> list[str]:
    """The events without numbers, times and ids."""
    kept = [event for event in events if event["type"] != "specstream.preview"]
    for event in kept:
        event["specstream"].pop("seq", None), event["specstream"].pop("t_ms", None)
    known: dict[str, str] = {}

    def name(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: name(v, k) for k, v in value.items() if not k.endswith("_ms")}
        if isinstance(value, list):
            return [name(v) for v in value]
        if isinstance(value, str) and (key == "id" or key.endswith("_id")):
            return known.setdefault(value, f"#{len(known)}")
        return value

    return [json.dumps(name(event)) for event in kept if event["type"] != "session.updated"]


async def reply(wire: Wire, events: list[str], mode: str) -> list[dict[str, Any]]:
    await wire.configure(specstream={"events": events})
    wire.seen.clear()
    await wire.reply("Count.", output_modalities=[mode])
    return wire.seen


@pytest.mark.parametrize("mode", ["text", "audio"])
async def test_previews_change_nothing_else(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    drafting(monkeypatch, doubtful)
    seen: list[list[dict[str, Any]]] = []
    for wanted in ([], ["preview"]):
        engine = ScriptedEngine([TEXT, "Right."])
        stand = Stand(engine)
        async with stand.running(), stand.client() as wire:
            seen.append(await reply(wire, wanted, mode))
            await wire.reply("And?", output_modalities=["text"])
        assert "DRAFT" not in str(engine.requests)
    plain, asked = seen
    assert not [event for event in plain if event["type"] == "specstream.preview"]
    previews = [event for event in asked if event["type"] == "specstream.preview"]
    assert previews, "the reply was drafted"
    deltas = [event for event in asked if event["type"].endswith(("text.delta", "transcript.delta"))]
    shown = "".join(event["delta"] for event in deltas)
    assert "DRAFT" not in shown and "[x]" not in shown
    if mode == "audio":
        assert not [event for event in previews if "[" in event["text"]]
    # Each stands behind exactly the text that was sent before it.
    at = 0
    for event in asked:
        if event in deltas:
            at = event["specstream"]["chars"][1]
        elif event in previews:
            assert event["specstream"]["chars"][0] == at
            assert event["item_id"] == deltas[0]["item_id"]
    if mode == "text":
        assert untimed(plain) == untimed(asked)


async def test_a_client_that_asks_reads_them_and_others_by_default_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafting(monkeypatch, lambda chunk: " maybe")
    stand = Stand(ScriptedEngine([TEXT]))
    async with stand.running():
        asked: list[dict[str, Any]] = [{}, {"events": ["preview"]}]
        for options in asked:
            async with RealtimeClient.connect(stand.url, **options) as client:
                events = await read(client.respond("Count.", audio=False))
            assert text_of(events) == end_of(events).text == TEXT
            found = {event.text for event in events if isinstance(event, TextPreview)}
            assert found == ({" maybe"} if options else set())


async def test_none_follows_a_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    drafting(monkeypatch, doubtful)
    gate = Gate(shut=False)
    gate.shut(after=2)
    async with Stand(ScriptedEngine([TEXT], gate=gate)).alone() as wire:
        await wire.configure(specstream={"events": ["preview"]})
        await wire.ask("Count.", output_modalities=["text"])
        await wire.until("specstream.preview")
        await wire.send("response.cancel")
        wire.seen.clear()
        (item,) = (await wire.done())["output"]
        assert "DRAFT" not in str(item) and "[x]" not in str(item)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_one_that_waits_for_its_chunk_is_dropped_by_a_cancel(cancelled: bool) -> None:
    outbox = Outbox(lambda: 0.0)
    request = ResponseRequest([], SamplingParams(), False, frozenset({"preview"}), None)
    item = ItemWriter("r", request, outbox, Timings(lambda: 0.0, Counters()))
    for _ in range(MAX_EVENTS):
        await outbox.put(ev.PreviewEvent(response_id="r", item_id="i", text="full"))
    span = Span(0, 4)
    async with anyio.create_task_group() as group:
        group.start_soon(item.chunk, Chunk("One.", (1, 2, 3, 4), span, span))
        await anyio.wait_all_tasks_blocked()
        item.preview(Preview("maybe", (), Span(4, 5), Span(4, 9), (), 1))
        if cancelled:
            item.preview(None)
        frames = [await outbox.take() for _ in range(MAX_EVENTS)]
    outbox.finish()
    while (frame := await outbox.take()) is not None:
        frames.append(frame)
    assert ("maybe" in str(frames)) is not cancelled


def test_a_preview_does_not_wait_for_a_slow_client() -> None:
    outbox = Outbox(FreeClock().now)
    event = ev.PreviewEvent(response_id="r", item_id="i", text="maybe")
    for _ in range(MAX_AUDIO + 3):
        outbox.offer(event)
    assert outbox.seq == MAX_AUDIO + 1, "the last two are dropped and take no number"


def test_a_peek_is_what_adding_would_release() -> None:
    text, drafted = SpokenText[int](), "five [six]"
    assert text.add("One. ", 0)
    assert text.peek(drafted) == "five "
    assert [piece for piece, _, _ in text.add(drafted, 1)] == ["five "]
    assert text.peek(" seven") == "", "a bracket waits"
