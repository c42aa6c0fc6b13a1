"""The demo page's microphone in a real browser, with ears behind the server."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

import pytest

from specstream.listening.ears import Ears
from specstream.listening.interfaces import TurnTrack, VoiceActivity
from specstream.testing import ScriptedEngine
from specstream.testing.doubles import ScriptedRecognizer, ScriptedTurnDetector
from tests.server.browser import needs_chromium, tab
from tests.server.doubles import Stand, WordVoice
from tests.server.test_page_browser import READY

pytestmark = [needs_chromium, pytest.mark.slow]
RATE = 24_000
LABEL = "[...$('mic').children].map((part) => part.textContent).concat($('mic').ariaPressed)"
LINES = "[...document.querySelectorAll('.you, .reply')].map((line) => line.textContent).join('|')"


def recording(path: Path, *pieces: tuple[int, float]) -> Path:
    """Seconds of a square wave (amplitude, seconds); amplitude 0 is silence."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        for level, seconds in pieces:
            high, low = level.to_bytes(2, "little"), (-level).to_bytes(2, "little", signed=True)
            file.writeframes((high * 40 + low * 40) * int(RATE * seconds / 80))
    return path


class Loud:
    """A turn detector that hears what is loud: a browser's silence is not all zeros."""

    capabilities = ScriptedTurnDetector.capabilities

    def open(self, sample_rate: int, *, threshold: float = 0.5) -> LoudTrack:
        return LoudTrack(ScriptedTurnDetector().open(sample_rate, threshold=threshold))


class LoudTrack:
    def __init__(self, track: TurnTrack) -> None:
        self._track = track

    def add(self, pcm: bytes) -> Sequence[VoiceActivity]:
        loud = max(map(abs, memoryview(pcm).cast("h")), default=0) > 1000
        return self._track.add(pcm if loud else bytes(len(pcm)))


async def test_a_question_is_heard_and_answered(tmp_path: Path) -> None:
    ears = Ears(ScriptedRecognizer(["Hello there?"], word_ms=100), Loud())
    sound = recording(tmp_path / "sound.wav", (0, 0.5), (9000, 0.8), (0, 2.0))
    server = Stand(ScriptedEngine(["One two three."]), voice=WordVoice, ears=lambda: ears)
    async with server.running():
        url = f"http://127.0.0.1:{server.port}/"
        async with tab(url, tmp_path / "profile", microphone=sound) as page:
            await page.until(READY)
            assert not await page.js("$('mic').hidden")
            assert await page.js(LABEL) == ["Microphone off", "click to talk", "false"]
            assert not await page.js("$('level').checkVisibility()")
            await page.js("$('mic').click()")
            await page.until("microphone.on && $('mic').ariaPressed === 'true'")
            assert await page.js(LABEL) == ["Microphone on", "click to mute", "true"]
            bar = "new DOMMatrix($('level').firstElementChild.style.transform).a"
            await page.until(f"{bar} > 0.5")
            await page.until(f"({LINES}) === 'Hello there?|One two three.'")
            assert server.engine.requests[0][0][-1]["content"] == "Hello there?"
            assert await page.js("turns.last.heard >= turns.last.start")
            steps = "[...document.querySelectorAll('#steps li span:first-child')]"
            shown = await page.js(steps + ".map((s) => s.textContent)")
            assert shown == ["transcript", "first token", "first phrase", "voice", "first sound"]
            await page.js("$('mic').click()")
            assert await page.js(LABEL) == ["Microphone off", "click to talk", "false"]
            assert page.errors == []


async def test_mm_hm_lets_a_reply_go_on(tmp_path: Path) -> None:
    ears = Ears(ScriptedRecognizer(["Hello there?", "Mm-hmm."], word_ms=100), Loud())
    sound = recording(tmp_path / "sound.wav", (0, 0.3), (9000, 0.6), (0, 3.0), (9000, 0.6), (0, 30.0))
    text = " ".join(f"word{n}." for n in range(40))  # eight seconds
    server = Stand(ScriptedEngine([text]), voice=WordVoice, ears=lambda: ears)
    async with server.running():
        url = f"http://127.0.0.1:{server.port}/"
        async with tab(url, tmp_path / "profile", microphone=sound) as page:
            await page.until(READY)
            await page.js(
                "handlers['conversation.item.deleted'] = () => (window.gone = true); $('mic').click()"
            )
            await page.until(f"({LINES}) === 'Hello there?|{text}'")
            await page.until("window.gone")
            assert await page.js("!turn.stopped && !player.paused && player.ahead > 0.05")
            await page.until("player.ahead <= 0.05 && !turn.id")
            assert len(server.engine.requests) == 1
            assert page.errors == []


async def test_who_mutes_the_microphone_has_said_what_was_said(tmp_path: Path) -> None:
    ears = Ears(ScriptedRecognizer(["Hello there?"], word_ms=100), Loud())
    sound = recording(tmp_path / "sound.wav", (0, 0.3), (9000, 20.0))
    server = Stand(ScriptedEngine(["One two three."]), voice=WordVoice, ears=lambda: ears)
    async with server.running():
        url = f"http://127.0.0.1:{server.port}/"
        async with tab(url, tmp_path / "profile", microphone=sound) as page:
            await page.until(READY)
            await page.js("$('mic').click()")
            await page.until("$('status').textContent.trim() === 'hearing you'")
            await page.js("new Promise((done) => setTimeout(done, 300))")
            await page.js("$('mic').click()")
            await page.until(f"({LINES}) === 'Hello there?|One two three.'")
            assert page.errors == []


async def test_without_ears_there_is_no_button(tmp_path: Path) -> None:
    server = Stand(ScriptedEngine(["fine."]))
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        assert await page.js("$('mic').hidden")
