"""The demo page in a real browser: what it says of itself, and what it costs while nothing moves."""

import asyncio
from pathlib import Path

import pytest

from specstream.testing import ScriptedEngine
from tests.server.browser import needs_chromium, tab
from tests.server.doubles import Gate, Stand, WordVoice
from tests.server.test_page_browser import READY

pytestmark = [needs_chromium, pytest.mark.slow]
ASK = "$('prompt').value = '%s'; ready(); $('ask').requestSubmit()"
STATE = "$('status').textContent.trim()"
LINES = "[...$('log').querySelectorAll(':scope > :not(.hint)')].map((line) => line.textContent)"
LONG = " ".join(f"word{n}" for n in range(40)) + "."


async def test_stopped_is_a_state_and_no_line_above_the_next_question(tmp_path: Path) -> None:
    server = Stand(ScriptedEngine([LONG, "Fine."]), voice=WordVoice)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js(ASK % "Count.")
        await page.until(f"{STATE} === 'speaking'")
        await page.until("document.querySelectorAll('.said').length > 2")
        await page.js("$('stop').click()")
        await page.until(f"{STATE} === 'stopped'")
        await page.until("document.querySelector('.reply.cut')")
        assert len(await page.js(LINES)) == 2, "question and reply, and no remark"
        await page.js(ASK % "And now?")
        assert await page.js(STATE) != "stopped"
        await page.until(f"{STATE} === 'ready'")
        assert len(await page.js(LINES)) == 4
        states = await page.js("document.querySelectorAll('[role=status]:not(#race-says)').length")
        assert states == 1
        assert await page.js("$('cue').textContent") == "", "the face tells no state"
        assert page.errors == []


async def test_a_remark_on_a_reply_stands_below_it(tmp_path: Path) -> None:
    server = Stand(ScriptedEngine(["One."]), voice=WordVoice)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js("transcript.begin(true); transcript.hear('But', false)")
        await page.js("transcript.end('incomplete', 'The longest length.')")
        assert await page.js(LINES) == ["", "The longest length.", "But"]


async def test_a_new_conversation_is_named_as_one(tmp_path: Path) -> None:
    server = Stand(ScriptedEngine(["Fine."]), voice=WordVoice)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        assert await page.js(LINES) == []
        assert await page.js("$('fresh').disabled")
        await page.js("$('aloud').checked = false;" + ASK % "Hi.")
        await page.until("!turn.id && document.querySelector('.reply')")
        await page.js("socket.close(1000)")
        await page.until(f"{STATE} !== 'ready'")
        await page.until(f"{STATE} === 'ready'")
        (line,) = (await page.js(LINES))[2:]
        assert line.startswith("New conversation: the connection was lost")
        await page.js(ASK % "Do you know me?")
        await page.until("!turn.id && document.querySelectorAll('.reply').length === 2")
        assert len(server.engine.requests[-1][0]) == 1, "the server knows no more than the page says"
        await page.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
        await page.until(f"document.readyState === 'complete' && {READY}")
        (line,) = await page.js(LINES)
        assert line.startswith("New conversation: the page was loaded again")
        assert page.errors == []


async def test_a_button_begins_a_new_conversation(tmp_path: Path) -> None:
    gate = Gate(shut=False)
    server = Stand(ScriptedEngine([LONG], gate=gate), voice=WordVoice)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js(ASK % "Hi.")
        await page.until(f"{STATE} === 'speaking'")
        await page.js("$('fresh').click()")
        await page.until(f"{STATE} === 'ready' && ({LINES}).length === 0")
        await page.until("turn.items.length === 0")
        assert await page.js("$('board').hidden && !turns.last && $('fresh').disabled")
        await page.js("$('aloud').checked = false;" + ASK % "Who are you?")
        await page.until("!turn.id && document.querySelector('.reply')")
        assert [m["content"] for m in server.engine.requests[-1][0]] == ["Who are you?"]
        assert page.errors == []


async def test_names_of_models_and_voice_are_shown(tmp_path: Path) -> None:
    names = {"target": "big-model", "draft": "small-model"}
    server = Stand(ScriptedEngine(["Fine."]), voice=WordVoice, names=names)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        shown = await page.js("document.querySelector('.bar .names').textContent.trim()")
        assert shown == "model big-model draft small-model voice words"


async def test_nothing_is_drawn_while_nothing_moves(tmp_path: Path) -> None:
    server = Stand(ScriptedEngine(["One two three."]), voice=WordVoice)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js(ASK % "Count.")
        await page.until("document.querySelectorAll('.said').length >= 3")
        await page.until(f"!moving && {READY}")
        await page.js(
            "let frames = 0; const asked = requestAnimationFrame;"
            "globalThis.requestAnimationFrame = (act) => { frames++; return asked(act); };"
            "globalThis.blink = () => {}; globalThis.count = () => frames"
        )
        await asyncio.sleep(1)
        assert await page.js("count()") <= 30, "at most one blink"
        await page.until("document.getAnimations().length === 0")
        await page.until("player.context.state === 'suspended'")
        await page.js(ASK % "Again.")
        await page.until("document.querySelectorAll('.said').length >= 6")
        assert page.errors == []


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (320, 640)])
async def test_no_line_is_cut_in_half(tmp_path: Path, width: int, height: int) -> None:
    text = "# Heading\n\nSome `code` and **bold** words, " + "again and " * 60 + "\n\n- one\n- two\n"
    server = Stand(ScriptedEngine([text + "```\ncode\n```\nend."]), voice=WordVoice)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 400}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        await page.until(READY)
        for _ in range(2):
            await page.js("$('aloud').checked = false;" + ASK % ("Something long, " * 9))
            await page.until("turn.id")
            await page.until("!turn.id")
        cut = """(() => {
          const log = $("log"), box = log.getBoundingClientRect(), found = [];
          const walk = document.createTreeWalker(log, NodeFilter.SHOW_TEXT);
          while (walk.nextNode()) {
            const range = document.createRange();
            range.selectNodeContents(walk.currentNode);
            for (const { top, bottom } of range.getClientRects())
              for (const edge of [box.top, box.bottom])
                if (top + 2 < edge && edge < bottom - 2) found.push(walk.currentNode.data);
          }
          return found;
        })()"""
        row = await page.js("parseFloat(getComputedStyle($('log')).lineHeight)")
        assert await page.js("$('log').scrollHeight") > 3 * await page.js("$('log').clientHeight")
        assert await page.js("$('log').clientHeight") % row == 0
        for top in (0, 33, 140, 5000):
            await page.js(f"transcript.to({top})")
            assert await page.js(cut) == [], top
        await page.js("$('log').scrollTop = 45; $('log').dispatchEvent(new Event('scrollend'))")
        assert await page.js("$('log').scrollTop") % row == 0
        assert page.errors == []
