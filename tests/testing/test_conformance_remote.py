"""Adapters behind a socket keep the contract of the adapter that they stand for."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any, Literal

import pytest

from specstream.server import AdapterServer
from specstream.stages import RemoteStage
from specstream.testing import check_adapter
from specstream.types import Phrase, Span, SpeechBuffer
from specstream_adapters.avatar import VisemeScripter
from specstream_adapters.prompt.template import TemplateRewriter
from specstream_adapters.voice import ReferenceVoice


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "adapter", "skipped"),
    [
        ("voice", ReferenceVoice, set()),
        (
            "avatar",
            VisemeScripter,
            {"cues", "punctual", "closed_twice", "repeats", "replaced", "tracks_apart", "copies"},
        ),
        ("prompt", TemplateRewriter, {"revoke", "copies", "boards_apart", "cancel"}),
    ],
)
async def test_an_adapter_behind_a_socket_passes(
    kind: Literal["voice", "avatar", "prompt"], adapter: Callable[[], Any], skipped: set[str]
) -> None:
    async with AdapterServer(kind, adapter) as port:
        report = await check_adapter(kind, lambda: RemoteStage(f"ws://127.0.0.1:{port}", kind))
    report.assert_passed()
    assert set(report.skipped) == skipped


class Gaps(ReferenceVoice):
    """It leaves pauses out of the phonemes."""

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        async for buffer in super().synthesize(phrase):
            yield replace(buffer, marks=tuple(m for m in buffer.marks if m.text != "_"))


class Wrong(ReferenceVoice):
    """Its marks lie outside of the text, which the pipeline refuses."""

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        async for buffer in super().synthesize(phrase):
            moved = tuple(replace(mark, chars=Span(9000, 9001)) for mark in buffer.marks)
            yield replace(buffer, marks=moved)


@pytest.mark.slow
async def test_a_broken_voice_is_found_behind_a_socket_too() -> None:
    async with AdapterServer("voice", Gaps) as port:
        report = await check_adapter("voice", lambda: RemoteStage(f"ws://127.0.0.1:{port}", "voice"))
    assert report.failed == ("phonemes_tile",), report.lines()


async def test_what_the_pipeline_refuses_of_a_voice_is_said() -> None:
    async with AdapterServer("voice", Wrong) as port:
        report = await check_adapter(
            "voice", lambda: RemoteStage(f"ws://127.0.0.1:{port}", "voice"), only=["speaks"]
        )
    assert "covers characters 9000 to 9001" in report.results[1].detail
