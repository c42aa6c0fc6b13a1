"""The demo page in a real browser."""

from pathlib import Path

import pytest

from specstream.listening.ears import Ears
from specstream.testing import ScriptedEngine
from specstream.testing.doubles import ScriptedRecognizer, ScriptedTurnDetector
from tests.server.browser import needs_chromium, tab
from tests.server.doubles import Gate, Stand, WordVoice, drafting

pytestmark = [needs_chromium, pytest.mark.slow]
READY = "document.querySelector('#status span').textContent === 'ready'"


def stand() -> Stand:
    return Stand(ScriptedEngine(["One two three four five six."]), voice=WordVoice)


async def test_what_is_heard_is_underlined(tmp_path: Path) -> None:
    server = stand()
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js("$('prompt').value = 'Count.'; ready(); $('ask').requestSubmit()")
        await page.until("document.querySelectorAll('.reply .said').length >= 6")
        heard = await page.js("[...document.querySelectorAll('.reply .said')].map((s) => s.textContent)")
        assert "".join(heard) == "One two three four five six."
        assert page.errors == []


async def test_a_reply_goes_on_when_the_connection_breaks(tmp_path: Path) -> None:
    gate = Gate()
    gate.shut(after=3)
    server = Stand(ScriptedEngine(["One two three four five six."], gate=gate), voice=None)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js("$('prompt').value = 'Count.'; ready(); $('ask').requestSubmit()")
        await page.until("document.querySelector('.reply')?.textContent.includes('two')")
        (connection,) = server.server.sessions.connections
        connection.socket.abort()
        await page.until("wayBack.since !== null")
        gate.open()
        await page.until("document.querySelector('.reply').textContent.includes('six.')")
        replies = await page.js("document.querySelectorAll('.reply').length")
        assert replies == 1 and page.errors == []
        text = await page.js("document.querySelector('.reply').textContent")
        assert text.count("two") == 1 and text.count("six.") == 1
    assert server.server.counters.sessions_total == 1


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
            assert not await page.js(f"$('lane-{lane}').querySelector('.first').checkVisibility()")
        assert await page.js("document.querySelectorAll('.you, .reply').length") == 0
        assert await page.js("turn.items.length") == 0, "the conversation isn't touched"
        assert server.engine.speculated == [True, True, False], "warm-up, with and without"
        assert not await page.js("$('race').disabled")
        assert page.errors == []


async def test_a_race_draws_nothing_while_it_times(tmp_path: Path) -> None:
    """What is drawn costs time, and would be taken for the decoding's."""
    server = stand()
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js(
            "const drawn = []; let timing = true;"
            "const show = race.show; race.show = function () { timing = false; show.call(race); };"
            "new MutationObserver((all) => timing && drawn.push(...all.map((m) => m.target.id)))"
            "  .observe($('race-card').querySelector('.lanes'), { subtree: true, childList: true });"
            "const open = race.open; race.open = () => { const s = open(); setTimeout(() => s"
            "  .addEventListener('open', () => (drawn.length = 0))); return s; };"
            "$('aloud').checked = false; $('race').click();"
            "globalThis.drawn = drawn"
        )
        await page.until("document.querySelector('.lane.won')")
        assert await page.js("drawn") == []
        seen = await page.js("$('race-card').getBoundingClientRect().top < innerHeight")
        assert seen, "the page scrolls to it"
        assert await page.js("$('race-asked').textContent"), "without a question, a suggestion races"
        assert page.errors == []


async def test_a_question_ends_a_race(tmp_path: Path) -> None:
    gate = Gate(shut=True)
    server = Stand(ScriptedEngine(["One two three."], gate=gate), voice=WordVoice)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js("$('aloud').checked = false; $('race').click()")
        await page.until("$('status').textContent.trim() === 'racing'")
        await page.until("race.runs.length === 1")
        await page.js("$('prompt').value = 'Count.'; ready(); $('ask').requestSubmit()")
        gate.open()
        await page.until("!turn.id && document.querySelector('.reply')")
        assert "stopped" in await page.js("$('race-says').textContent")
        assert await page.js(READY)
        assert page.errors == []


async def test_a_sound_behind_the_last_word_is_shown(tmp_path: Path) -> None:
    server = stand()
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js(
            "const deltas = [{at: 0, text: 'One', tokens: 1}, {at: 20, text: ' two', tokens: 2}];"
            "race.runs = [{}, {kind: 'on', deltas, sound: 10}, {kind: 'off', deltas, sound: 150}];"
            "$('race-card').hidden = false; race.show()"
        )
        await page.until("document.querySelector('.lane.won')")
        sounds = "[...document.querySelectorAll('.lane .first b')].map((b) => b.textContent)"
        assert await page.js(sounds) == ["10 ms", "150 ms"]
        assert page.errors == []


async def test_words_are_grey_until_they_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafting(monkeypatch, lambda chunk: chunk.text + " perhaps")
    gate = Gate(shut=False)
    gate.shut(after=1)
    server = Stand(ScriptedEngine(["One two three four five six."], gate=gate), voice=WordVoice)
    colours = "[...document.querySelectorAll('.reply span:not(:has(span))')]"
    colours += ".map((span) => [span.textContent, getComputedStyle(span).color])"
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js(
            "$('aloud').checked = false; $('prompt').value = 'Count.'; ready(); $('send').click()"
        )
        await page.until("document.querySelector('.draft')")
        await page.until("$('status').textContent.trim() === 'writing'")
        await page.js("Promise.all($('log').getAnimations({ subtree: true }).map((a) => a.finished))")
        shown = await page.js(colours)
        verified, drafted = shown[:-1], shown[-1]
        assert drafted[0].endswith(" perhaps")
        assert {colour for _, colour in verified} == {
            await page.js("getComputedStyle(document.body).color")
        }
        assert drafted[1] != verified[0][1]
        # Lines that a rejected draft took stay free, and who speaks meanwhile stops no text.
        height = "transcript.draft(%s) || transcript.reply.offsetHeight"
        high = await page.js(height % "' perhaps'.repeat(50)")
        assert await page.js(height % "''") == high
        await page.js("transcript.hear('But', false)")
        gate.open()
        await page.until("!turn.id")
        assert await page.js("document.querySelector('.draft')") is None
        text = await page.js("document.querySelector('.reply').textContent")
        assert text == "One two three four five six."
        assert await page.js("document.querySelector('.reply').offsetHeight") < high
        assert page.errors == []


@pytest.mark.parametrize(("width", "height"), [(390, 844), (360, 640), (320, 640), (844, 390)])
async def test_a_phone_shows_everything(tmp_path: Path, width: int, height: int) -> None:
    ears = Ears(ScriptedRecognizer(["Hello?"]), ScriptedTurnDetector())
    engine = ScriptedEngine(["Onomatopoetic " * 30 + "words."])
    server = Stand(engine, voice=WordVoice, ears=lambda: ears, bundled=True)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        await page.until(READY)
        await page.until("!$('mic').hidden")
        await page.js(
            "$('aloud').checked = false; $('prompt').value = 'Hello.'; ready(); $('send').click()"
        )
        await page.until("!turn.id && document.querySelector('.reply')")
        await page.js("turn.why = 'too many clients now; trying again'; ready()")
        await page.js("handlers.error({ error: { message: 'no room left; '.repeat(9) } })")
        await page.js("$('race-card').hidden = false")
        assert await page.js("document.documentElement.scrollWidth") == width
        parts = "body > header *, .talk *, .figures *, .turns *, .race *"
        wide = f"[...document.querySelectorAll('{parts}')].filter((e) =>"
        wide += " e.getBoundingClientRect().right > innerWidth).map((e) => e.outerHTML)"
        assert await page.js(wide) == []
        small = "[...document.querySelectorAll('button, .switch, summary')].filter((e) =>"
        small += " e.checkVisibility() && e.getBoundingClientRect().height < 44).map((e) => e.outerHTML)"
        assert await page.js(small) == []
        tiny = "[...document.querySelectorAll('body :not(script, style)')].filter((e) =>"
        tiny += " [...e.childNodes].some((n) => n.data?.trim())"
        tiny += " && parseFloat(getComputedStyle(e).fontSize) < 14).map((e) => e.outerHTML)"
        assert await page.js(tiny) == []
        note = await page.js("document.querySelector('.note.bad').getBoundingClientRect().bottom")
        assert note <= await page.js("$('ask').getBoundingClientRect().top"), "errors are in sight"
        at = await page.js("$('mic').getBoundingClientRect().bottom")
        assert height * 2 / 3 < at <= height, "a thumb reaches it"
        field = await page.js("$('prompt').getBoundingClientRect().bottom")
        assert field <= await page.js("$('mic').getBoundingClientRect().top")
