"""The demo page in a real browser."""

from __future__ import annotations

from pathlib import Path

from specstream.testing import ScriptedEngine
from tests.ws.browser import needs_chromium, tab
from tests.ws.doubles import Stand, WordVoice

pytestmark = needs_chromium
READY = "document.querySelector('#status span').textContent === 'ready'"


def stand() -> Stand:
    return Stand(ScriptedEngine(["One two three four five six."]), voice=WordVoice)


async def test_what_is_heard_is_underlined(tmp_path: Path) -> None:
    server = stand()
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js("$('prompt').value = 'Count.'; ready(); $('ask').requestSubmit()")
        await page.until("document.querySelectorAll('.reply .said').length >= 6")
        heard = await page.js(
            "[...document.querySelectorAll('.reply .said')].map((s) => s.textContent)"
        )
        assert "".join(heard) == "One two three four five six."
        assert page.errors == []


async def test_the_race_shows_both_replies(tmp_path: Path) -> None:
    server = stand()
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js(
            "$('prompt').value = 'Count.'; $('aloud').checked = false; ready(); $('race').click()"
        )
        await page.until("document.querySelector('.lane.won') && $('race-says').textContent")
        for lane in ("on", "off"):
            text = await page.js(f"$('lane-{lane}').querySelector('.text').textContent")
            assert text == "One two three four five six."
        assert await page.js("document.querySelectorAll('.you, .reply').length") == 0
        assert server.engine.speculated == [True, True, False], "warm-up, with and without"
        assert not await page.js("$('race').disabled")
        assert page.errors == []
