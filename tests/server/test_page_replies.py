"""The demo page in a real browser: how a reply is laid out, and what it tells of itself."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specstream.signals import LoopClock
from specstream.testing import ScriptedEngine, chunks_of
from specstream.types import Phrase, ScenePrompt
from tests.server.browser import Tab, needs_chromium, tab
from tests.server.doubles import OneShotBoard, Stand, WordVoice
from tests.server.test_page_browser import READY
from tests.server.test_page_states import ASK

pytestmark = [needs_chromium, pytest.mark.slow]
MARKDOWN = """# Fruit
**Two** kinds, *not* three, `a_b` and 2 * 3 * 4 of snake_case_names:

- apples
  - **red** ones
1. pears <img src=x onerror="globalThis.broken = 1">
```
**code** stays
```
> quoted **open
---
end \\*as it is\\*."""
LAID = """[...document.querySelectorAll('.reply .line')].map((line) =>
  [line.className.replace('line ', ''), line.checkVisibility() ? line.innerText.trim() : ''])"""


async def written(page: Tab, question: str = "Hi.") -> None:
    """Ask without sound, and wait for the whole reply."""
    await page.until(READY)
    await page.js("$('aloud').checked = false;" + ASK % question)
    await page.until("!turn.id && document.querySelector('.reply')")


@pytest.mark.parametrize("sizes", [[1], [3] * 99, [99]], ids=["by tokens", "by threes", "at once"])
async def test_markdown_is_shown_as_such(tmp_path: Path, sizes: list[int]) -> None:
    server = Stand(ScriptedEngine([chunks_of(MARKDOWN, sizes)]), voice=WordVoice)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await written(page)
        assert await page.js(LAID) == [
            ["heading", "Fruit"],
            ["text", "Two kinds, not three, a_b and 2 * 3 * 4 of snake_case_names:"],
            ["text", ""],
            ["bullet", "apples"],
            ["bullet", "red ones"],
            ["number", '1. pears <img src=x onerror="globalThis.broken = 1">'],
            ["fence", ""],
            ["code", "**code** stays"],
            ["fence", ""],
            ["quote", "quoted **open"],
            ["rule", ""],
            ["text", "end *as it is*."],
        ]
        of = "[...document.querySelectorAll('.reply .%s')].map((s) => s.textContent.trim()).join(' ')"
        assert await page.js(of % "bold") == "Two red"
        assert await page.js(of % "italic") == "not"
        assert (await page.js(of % "mono")).replace(" ", "") == "a_b"
        assert await page.js("document.querySelector('.reply [role=heading]').ariaLevel") == "3"
        marked = "getComputedStyle(document.querySelector('.bullet')).position"
        assert await page.js(marked) == "relative", "its dot scrolls with it"
        assert await page.js("document.querySelector('.reply img') ?? globalThis.broken ?? null") is None
        assert page.errors == []


async def test_a_word_tells_where_it_came_from(tmp_path: Path) -> None:
    first, second, third, *rest = chunks_of("One two three four fourfold.", [1, 3, 2])
    drafted = replace(second, proposer="draft", drafted=5, accepted=2)
    looked_up = replace(third, proposer="suffix", drafted=1, accepted=1)
    server = Stand(ScriptedEngine([[first, drafted, looked_up, *rest]]), voice=WordVoice)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await written(page)

        async def click(word: str) -> list[list[str]]:
            pick = "[...document.querySelectorAll('.reply span')].findLast((s) => s.textContent"
            await page.js(f"{pick}.trim() === {word!r}).click()")
            rows: list[list[str]] = await page.js(
                "[...document.querySelectorAll('#origin-tokens li')]"
                ".map((li) => [...li.children].map((part) => part.textContent))"
            )
            return rows

        assert await click("One") == [
            ["One", "written by the target; nothing was drafted in this round", "token 1, round 0"]
        ]
        round = "round 1: 2 of 5 drafted tokens accepted"
        assert await click("three") == [
            [" three", "drafted by the draft model, accepted by the target", f"token 3, {round}"]
        ]
        own = "the target's own, in place of a drafted token that it rejected"
        assert await click("four") == [[" four", own, f"token 4, {round}"]]
        two = await click("fourfold.")
        assert [row[0] for row in two] == [" fourfo", "ld."]
        assert two[0][1].startswith("drafted by a look-up")
        assert two[1][1].startswith("the target's own; it accepted all")
        assert await page.js("$('origin-word').textContent") == "fourfold."
        chosen = "[...document.querySelectorAll('.chosen')].map((s) => s.textContent.trim()).join('')"
        assert await page.js(chosen) == "fourfold."
        key = "document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))"
        await page.js(key)
        assert await page.js("$('origin').hidden && !document.querySelector('.chosen')")
        arrow = "document.querySelector('.reply').dispatchEvent("
        arrow += "new KeyboardEvent('keydown', { key: '%s', bubbles: true }))"
        for keys, word in (("Enter", "One"), ("ArrowRight", "two"), ("ArrowLeft", "One")):
            await page.js(arrow % keys)
            assert await page.js("$('origin-word').textContent") == word
        assert page.errors == []


async def test_a_spoken_word_tells_it_too_behind_a_tag(tmp_path: Path) -> None:
    server = Stand(ScriptedEngine(["[smile] Hello there."]), voice=WordVoice)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        await page.js(ASK % "Hi.")
        await page.until("document.querySelectorAll('.reply .said').length >= 2")
        await page.js("document.querySelector('.reply span.said').click()")
        assert await page.js("$('origin-word').textContent") == "Hello"
        assert await page.js("$('origin-tokens').textContent.includes('Hello')")


async def test_the_time_of_each_turn_is_shown(tmp_path: Path) -> None:
    engine = ScriptedEngine(["One two.", "Three."])
    server = Stand(engine, voice=WordVoice, clock=LoopClock())
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        await page.until(READY)
        assert await page.js("$('steps').textContent.match(/\\d/)") is None
        await page.js(ASK % "Count.")
        await page.until("turns.last?.sound !== undefined")
        steps = "[...document.querySelectorAll('#steps li span:first-child')].map((s) => s.textContent)"
        assert await page.js(steps) == ["first token", "first phrase", "voice", "first sound"]
        sum = "[...document.querySelectorAll('#steps %s')].map((e) => parseFloat(e.%s))"
        sum += ".reduce((a, b) => a + b)"
        total = float((await page.js("$('turn-total').textContent")).split()[0])
        assert abs(await page.js(sum % ("b", "textContent")) - total) <= 2
        assert abs(await page.js(sum % ("i", "style.width")) - 100) < 1
        await page.until(READY)
        await page.js("$('aloud').checked = false;" + ASK % "On.")
        await page.until("turns.turns.length === 2 && turns.last.token !== undefined")
        assert await page.js(steps) == ["first token"], "nothing is spoken"
        assert await page.js("$('turn-name').textContent") == "Time of turn 2"
        await page.js("$('turn-before').click()")
        assert len(await page.js(steps)) == 4
        assert await page.js("$('turn-before').disabled && !$('turn-after').disabled")
        assert page.errors == []


class Scenes(OneShotBoard):
    """Two shots, the first of them twice; a server counts on from an earlier reply."""

    async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
        def shot(id: str, rev: int, subject: str, action: str) -> ScenePrompt:
            facts: dict[str, Any] = {"setting": "a snowy wood", "camera": "wide", "style": "oil"}
            prompt = f"Wide shot: {action}. A snowy wood. Oil. " * 9
            spans = (phrase.chars, phrase.tokens)
            return ScenePrompt(
                id, rev, 0.0, *spans, subject, action, **facts, prompt=prompt, negative="blur"
            )

        long = "A fox runs through a snowy wood and on and on " + "over the hills and away " * 9
        first = shot("shot-7", 0, "a fox", "A fox runs")
        return [
            first,
            shot("shot-7", 1, "A fox, red and thin", long),
            shot("shot-8", 0, "a hare", "sits"),
        ]


@pytest.mark.parametrize("width", [1280, 320])
async def test_the_storyboard_is_short_and_can_be_opened(tmp_path: Path, width: int) -> None:
    server = Stand(ScriptedEngine(["One two."]), voice=WordVoice, prompts=Scenes)
    async with server.running(), tab(f"http://127.0.0.1:{server.port}/", tmp_path) as page:
        size = {"width": width, "height": 700, "deviceScaleFactor": 1, "mobile": width < 400}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        await page.until(READY)
        assert not await page.js("$('board').checkVisibility()"), "folded away while empty"
        await written(page)
        assert await page.js("$('board').checkVisibility()")
        heads = "[...document.querySelectorAll('.shot header')].map((h) => h.innerText.split('\\n')[0])"
        assert await page.js(heads) == ["1 · version 2", "2"]
        titles = await page.js("[...document.querySelectorAll('.shot h3')].map((h) => h.textContent)")
        assert titles[0].startswith("A fox runs"), "the subject isn't said twice"
        assert titles[1] == "a hare – sits"
        facts = "[...document.querySelectorAll('.shot li')].map((li) => li.textContent)"
        assert await page.js(facts) == ["wide", "wide", "a snowy wood"]
        high = "document.querySelector('.shot h3').getBoundingClientRect().height"
        line = await page.js(
            "parseFloat(getComputedStyle(document.querySelector('.shot h3')).lineHeight)"
        )
        assert await page.js(high) <= 3 * line + 1
        text = "document.querySelector('.shot details p')"
        assert not await page.js(f"{text}.checkVisibility()")
        await page.js("document.querySelector('.shot summary').click()")
        assert await page.js(f"{text}.checkVisibility() && {text}.scrollHeight <= {text}.clientHeight")
        assert await page.js(high) > 3 * line + 1
        origin = f"http://127.0.0.1:{server.port}"
        await page.call("Browser.grantPermissions", origin=origin, permissions=["clipboardReadWrite"])
        await page.call("Page.bringToFront")
        await page.js("document.querySelector('.shot details button').click()")
        await page.until("document.querySelector('.shot details button').textContent === 'Copied'")
        assert await page.js("navigator.clipboard.readText()") == (
            await page.js(f"{text}.textContent.trim()")
        )
        assert await page.js(
            "document.documentElement.scrollWidth === document.documentElement.clientWidth"
        )
        assert page.errors == []
