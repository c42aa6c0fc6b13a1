"""Cues and audio on the wire are one clock, for ten minutes; an avatar elsewhere may be waited for."""

import base64
from collections.abc import AsyncGenerator

import numpy as np
import pytest

from specstream.playback.cue_order import cues_first
from specstream.remote.server import adapter_server
from specstream.remote.stage import RemoteStage
from specstream.stages.interfaces import VoiceCapabilities
from specstream.stages.pipeline import Pipeline
from specstream.stages.stages import SegmentStage, VoiceStage
from specstream.testing import ScriptedEngine, chunks_of
from specstream.types import AvatarCue, Chunk, Mark, Phrase, Span, Speech, SpeechBuffer
from specstream_adapters.avatar import VisemeScripter
from specstream_adapters.voice import ReferenceVoice
from tests.playback.test_cue_order import TEXT, late
from tests.server.doubles import ALL_OWN, Stand

LONG = "la " * 48  # one phrase


class Beats:
    """Every other quarter of a second is loud, and an "a"; the others are silent, and an "i"."""

    def __init__(self, rate: int, seconds: int) -> None:
        self.capabilities = VoiceCapabilities("beats", rate, True, True, False, True)
        self._rate, self._seconds = rate, seconds

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        edges = [at * self._rate // 4 for at in range(4 * self._seconds + 1)]
        for second in range(self._seconds):
            pcm, marks = b"", list[Mark]()
            for beat in range(4 * second, 4 * second + 4):
                loud, samples = beat % 2, Span(edges[beat], edges[beat + 1])
                pcm += (b"\x40\x1f" if loud else b"\0\0") * samples.length
                marks.append(Mark("phoneme", "ɑː" if loud else "iː", samples, phrase.chars))
            yield SpeechBuffer(pcm, tuple(marks))

    async def aclose(self) -> None:
        return None


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [(24_000, 600), (22_050, 20), pytest.param(22_050, 600, marks=pytest.mark.nightly)],
)
async def test_a_cue_lies_where_its_sound_is_on_the_wire(rate: int, seconds: int) -> None:
    engine = ScriptedEngine([LONG])
    stand = Stand(engine, voice=lambda: Beats(rate, seconds), avatar=VisemeScripter)
    pcm, cues, order = bytearray(), list[tuple[str, int]](), list[tuple[str, Span]]()
    async with stand.running(), stand.client() as wire:
        await wire.configure(**ALL_OWN)
        await wire.ask("Hi")
        while (event := await wire.next())["type"] != "response.done":
            wire.seen.clear()
            assert event["type"] != "error", event
            if event["type"] == "specstream.avatar.delta":
                cue = event["cue"]
                samples = Span(*cue["samples"])
                order.append((cue["kind"], samples))
                assert abs(cue["t_ms"] - samples.start / 24) <= 0.05
                if samples.length and cue["name"] in ("aa", "I"):
                    cues.append((cue["name"], samples.start))
            elif event["type"] == "response.output_audio.delta":
                samples = Span(*event["specstream"]["samples"])
                order.append(("speech", samples))
                assert 2 * samples.start == len(pcm)
                pcm += base64.b64decode(event["delta"])
                assert 2 * samples.end == len(pcm)
    assert len(pcm) == 2 * 24_000 * seconds
    assert late(order) == []
    starts = [start for n, (name, start) in enumerate(cues) if not n or cues[n - 1][0] != name]
    assert len(starts) == 4 * seconds
    heard = np.abs(np.frombuffer(pcm, "<i2").astype(np.int32)) > 4000
    turns = np.flatnonzero(np.diff(heard.astype(np.int8))) + 1
    skew_ms = np.abs(turns - np.asarray(starts[1:])) / 24
    assert skew_ms.max() <= 0.1


@pytest.mark.parametrize("punctual", [True, False])
async def test_an_avatar_elsewhere_may_be_waited_for(punctual: bool) -> None:
    async def chunks() -> AsyncGenerator[Chunk, None]:
        for chunk in chunks_of(TEXT):
            yield chunk

    order: list[tuple[str, Span]] = []
    async with adapter_server("avatar", VisemeScripter) as port:
        async with RemoteStage(f"ws://127.0.0.1:{port}", "avatar", punctual=punctual) as avatar:
            line = Pipeline([[VoiceStage(ReferenceVoice()), avatar]], head=SegmentStage())
            async with line.run(chunks()) as run:
                async for event in cues_first(line, run):
                    if isinstance(event.item, Speech):
                        order.append(("speech", event.item.samples))
                    elif isinstance(event.item, AvatarCue):
                        order.append((event.item.kind, event.item.samples))
    assert len(order) > 100
    assert (late(order) == []) == punctual
