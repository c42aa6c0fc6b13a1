"""Adapters on sockets that lie, hang or flood: the reply fails with a typed error, its text is whole."""

import json
import math
import pickle
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from websockets.asyncio.server import ServerConnection

from specstream.errors import AdapterFailed, ProtocolError
from specstream.listening.resampler import Resampler
from specstream.remote.frames import AudioFrame, CueFrame, PromptFrame, encode
from specstream.server.sessions import audio
from specstream.server.sessions.audio import AudioPacer
from specstream.stages.limits import MAX_MARKS
from specstream.stages.pipeline import Pipeline, StageFailed
from specstream.stages.stages import PromptStage, VoiceStage
from specstream.testing import ScriptedEngine
from specstream.types import AvatarCue, ScenePrompt, Span, Speech
from tests.server.doubles import FreeClock, Stand
from tests.server.frames import CUE, SHOT
from tests.server.remotes import PHRASES, impostor, spoken
from tests.support.standins import Board, Relay, ToneVoice, events_by_source, stream

Answer = Callable[[ServerConnection, dict[str, Any]], Awaitable[None]]
TEXT = "one two three four."


def head(rate: int, samples: tuple[int, int] = (0, 0), marks: int = 0) -> dict[str, Any]:
    mark = {"kind": "word", "text": "x", "samples": [0, 0], "chars": [0, 1]}
    return {"sample_rate": rate, "samples": list(samples), "marks": [mark] * marks, "last": False}


def marked(samples: tuple[int, int], chars: tuple[int, int] = (0, 1)) -> dict[str, Any]:
    return {"marks": [{"kind": "word", "text": "x", "samples": samples, "chars": chars}]}


def says(*heads: dict[str, Any]) -> Answer:
    """An adapter that answers its first phrase with these messages."""

    async def answer(socket: ServerConnection, frame: dict[str, Any]) -> None:
        if frame["type"] != "chunk":
            return
        for number, speech in enumerate(heads):
            where = {"phrase": frame["phrase"]["index"]}
            where |= {name: frame["phrase"][name] for name in ("chars", "tokens")}
            speech = where | speech
            start, end = speech["samples"]
            audio = number if end > start else None
            await socket.send(json.dumps({"type": "speech", "speech": speech, "audio": audio}))
            if audio is not None:
                pcm = b"\0\0" * (end - start)
                await socket.send(encode(AudioFrame(number, speech["sample_rate"], start, pcm)))

    return answer


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (says(head(1, (0, 1))), "protocol_error", "4000"),
        (says(head(1_048_573, (0, 100))), "protocol_error", "192000"),
        (says(head(24_000, (0, 10), marks=MAX_MARKS + 1)), "protocol_error", "1024"),
        (says(head(24_000, (0, 10), marks=12_000)), "protocol_error", ""),
        (says(head(191_999, (0, 100))), "adapter_failed", "191999 Hz can't be converted"),
        (says(head(4000, (0, 500_000))), "adapter_failed", "samples in one piece"),
        (says(head(8000, (0, 80)), head(16_000, (80, 90))), "protocol_error", "was due"),
        (says(head(8000, (800, 880))), "protocol_error", "where 0 of 8000 Hz was due"),
        (says(head(8000, (0, 80)), head(8000, (79, 99))), "protocol_error", "where 80 of 8000"),
        (says(head(8000) | {"phrase": 7}), "protocol_error", "for phrase 7"),
        (says(head(8000) | {"chars": [0, 5]}), "protocol_error", "(characters 0 to 5), which was"),
        (says(head(8000) | {"last": True}, head(8000)), "protocol_error", "is over"),
        (says(head(8000, (0, 80)) | marked((0, 10**8))), "protocol_error", "a wrong mark"),
        (says(head(8000, (0, 80)) | marked((0, 80), (0, 500))), "protocol_error", "a wrong mark"),
    ],
    ids=lambda value: None if callable(value) else str(value),
)
async def test_what_a_voice_claims_is_bounded(
    answer: Answer, code: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with impostor(answer) as stage:
        stand = Stand(ScriptedEngine([TEXT]), voice=lambda: stage)
        async with stand.running(), stand.client() as wire:
            done = await wire.reply("Hi")
            assert done["status"] == "failed"
            error = done["status_details"]["error"]
            assert error["code"] == code
            assert said in error["message"]
            if code == "protocol_error":
                assert "the voice adapter at a server behind this one: " in error["message"]
                assert f"the voice adapter at {stage.url}: " in caplog.text, "for the operator"
            assert done["output"][0]["content"][0]["transcript"] == TEXT
            assert (await wire.reply("Hi", output_modalities=["text"]))["status"] == "completed"


ITEMS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "avatar": [
        ({"samples": [80_000, 80_100]}, "lies behind its speech"),
        ({"samples": [0, 10**8]}, "lies behind its speech"),
        ({"chars": [0, 1000]}, "covers characters 0 to 1000"),
        ({"t_ms": -1.0}, "is at -1.0 ms"),
        ({"t_ms": math.nan}, ""),
    ],
    "prompt": [
        ({"span": [0, 1000]}, "shows characters 0 to 1000"),
        ({"rev": 1, "supersedes": "s@0"}, "no earlier version"),
        ({"t_start_ms": -1.0}, "starts at -1.0 ms"),
    ],
}


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("kind", "fields", "said"), [(kind, *case) for kind, cases in ITEMS.items() for case in cases]
)
async def test_items_that_do_not_fit_the_turn(kind: Any, fields: dict[str, Any], said: str) -> None:
    cue = encode(CueFrame(cue=replace(CUE, chars=Span(0, 1), tokens=Span(0, 1), samples=Span(0, 1))))
    shot = encode(PromptFrame(prompt=replace(SHOT, rev=0, supersedes=None, span=Span(0, 1)), read=9))

    async def answer(socket: ServerConnection, frame: dict[str, Any]) -> None:
        if frame["type"] == "chunk":
            made = json.loads(cue if kind == "avatar" else shot)
            await socket.send(json.dumps(made))
            made["cue" if kind == "avatar" else "prompt"] |= fields
            if kind == "prompt":
                made["prompt"]["shot_id"] = "t"
            await socket.send(json.dumps(made))

    async with impostor(answer, kind) as stage:
        branches: list[list[Any]] = [[VoiceStage(ToneVoice())], [PromptStage(Board())]]
        if kind == "avatar":
            branches[0].append(stage)
        else:
            branches[1] = [stage]
        async with Pipeline(branches, head=Relay()).run(stream(PHRASES)) as run:
            found = await events_by_source(run)
    good, failed = found[kind]
    assert isinstance(good, AvatarCue if kind == "avatar" else ScenePrompt)
    assert isinstance(failed, StageFailed)
    assert isinstance(failed.error, ProtocolError)
    assert f"the {kind} adapter at {stage.url}: " in str(failed.error)
    assert said in str(failed.error)
    assert found["text"] == PHRASES
    assert found["voice"] == await spoken(PHRASES)


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", ["voice", "prompt", "avatar"])
async def test_a_remote_adapter_that_hangs_is_stopped(kind: Any) -> None:
    async def answer(socket: ServerConnection, frame: dict[str, Any]) -> None:
        return None

    class Echo(Relay):
        name = "echo"

    class Talk(Relay):
        name = "talk"

        async def run(self, items: Any) -> Any:
            async for phrase in items:
                where = (phrase.chars, phrase.tokens, phrase.index)
                yield Speech(b"", 8000, Span(0, 0), (), *where)

    async with impostor(answer, kind) as stage:
        start = anyio.current_time()
        branch: list[Any] = [Talk(), stage] if kind == "avatar" else [stage]
        line = Pipeline([branch, [Echo()]], head=Relay())
        async with line.run(stream(PHRASES)) as run:
            found = await events_by_source(run)
        assert 60 <= anyio.current_time() - start < 90
    (failed,) = found[kind]
    assert isinstance(failed, StageFailed)
    assert isinstance(failed.error, AdapterFailed)
    assert "60 s" in str(failed.error)
    assert found["echo"] == PHRASES


@pytest.mark.parametrize("rate", [22_051, 22_254, 191_999, 4001])
def test_a_rate_that_takes_too_long_a_kernel_is_refused(rate: int) -> None:
    with pytest.raises(AdapterFailed, match=f"{rate} Hz can't be converted"):
        Resampler(rate, 24_000)


@pytest.mark.parametrize(
    "rate", [8000, 11_025, 12_000, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000, 176_400, 192_000]
)
def test_usual_rates_have_small_kernels(rate: int) -> None:
    assert len(pickle.dumps(Resampler(rate, 24_000))) <= 1 << 17  # 32,768 taps of four bytes


async def test_a_long_piece_is_converted_in_parts() -> None:
    pacer = AudioPacer(FreeClock(), lead_s=2.0, buffer_s=60.0)
    turns, ended = 0, False

    async def other() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            await anyio.lowlevel.checkpoint()

    seconds = 10
    piece = Speech(
        b"\x01\0" * 16_000 * seconds, 16_000, Span(0, 16_000 * seconds), (), Span(0, 1), Span(0, 1), 0
    )
    async with anyio.create_task_group() as group:
        group.start_soon(other)
        pacer.put(piece)
        pacer.finish()
        length = 0
        while (part := await pacer.take()) is not None:
            length += part.samples.length
        ended = True
    assert turns >= 2 * 16_000 * seconds // audio.SLICE
    assert length == 24_000 * seconds
