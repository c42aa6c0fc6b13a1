"""What a prompt adapter promises (`specstream.stages.PromptRewriter`), one check a promise."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from copy import deepcopy
from typing import Any

from specstream.errors import SpecstreamError
from specstream.stages.contract import Link
from specstream.stages.interfaces import RevocableStoryboard
from specstream.stages.limits import prompts_of
from specstream.testing.conformance.checks import (
    UnderTest,
    apply_if,
    collected,
    left_behind,
    loop_stays_free,
    require,
)
from specstream.testing.conformance.speaking import NOTHING, UNUSUAL
from specstream.types import Cancel, Phrase, ScenePrompt, Span

__all__ = ["PROMPT_CHECKS"]

STORY = (
    "A grey fox runs through the snow. It stops at a frozen lake. ",
    "An old man stands on the bridge and holds a red lantern. ",
    "He waves to the fox. Behind him the village lies in the dark. ",
    "At dawn the ice breaks, and a small boat crosses the lake.",
)
_LONG = 300  # phrases
_PER_PHRASE = 16  # shots and revisions


def _phrases(texts: Sequence[str]) -> list[Phrase]:
    made, at = list[Phrase](), 0
    for number, text in enumerate(texts):
        made.append(Phrase(text, Span(at, at + len(text)), Span(number, number + 1), number))
        at += len(text)
    return made


async def _turn(subject: UnderTest[Any], texts: Sequence[str]) -> list[list[ScenePrompt]]:
    """What each phrase of a turn brought, and its end; a stage tells no phrases apart."""
    rewriter = await subject.new()
    if hasattr(rewriter, "open"):
        board = rewriter.open()
        found = [list(await board.add(phrase)) for phrase in _phrases(texts)]
        return [*found, list(await board.close())]
    try:
        link = Link[Phrase](len(texts) + 1)
        for phrase in _phrases(texts):
            await link.send(phrase)
        link.close()
        async with aclosing(rewriter.run(link)) as shots:
            return [[shot async for shot in shots if isinstance(shot, ScenePrompt)]]
    finally:
        await rewriter.aclose()


async def _shots(subject: UnderTest[Any], texts: Sequence[str] = STORY) -> list[ScenePrompt]:
    return [shot for some in await _turn(subject, texts) for shot in some]


async def _local(subject: UnderTest[Any]) -> Any:
    rewriter = await subject.new()
    if not hasattr(rewriter, "open"):
        await rewriter.aclose()
        apply_if(False, "it is a stage: its boards can't be reached")
    return rewriter


async def shots(subject: UnderTest[Any]) -> None:
    """A story gives `ScenePrompt` objects with an id, a prompt and whole ranges."""
    found = await _shots(subject)
    require(bool(found), "no shot for a story of four phrases")
    try:
        found = list(prompts_of(found))
    except SpecstreamError as error:
        require(False, str(error))
    for shot in found:
        require(bool(shot.shot_id), "a shot has no id")
        require(bool(shot.prompt.strip()), f"shot {shot.shot_id!r} has no prompt")


async def spans(subject: UnderTest[Any]) -> None:
    """A shot shows characters of the text that was given so far."""
    parts = await _turn(subject, STORY)
    lengths = [phrase.chars.end for phrase in _phrases(STORY)]
    ends = [*lengths, lengths[-1]] if len(parts) > 1 else lengths[-1:]
    for found, end in zip(parts, ends, strict=True):
        for shot in found:
            inside = 0 <= shot.span.start <= shot.span.end <= end
            require(inside, f"{shot.shot_id!r} shows {tuple(shot.span)} of {end} characters")


async def tokens(subject: UnderTest[Any]) -> None:
    """A shot's tokens are tokens of the phrases that it shows."""
    for shot in await _shots(subject):
        near = [p.tokens for p in _phrases(STORY) if p.chars.start < shot.span.end]
        near = near[sum(p.chars.end <= shot.span.start for p in _phrases(STORY)) :]
        inside = bool(near) and near[0].start <= shot.tokens.start <= shot.tokens.end <= near[-1].end
        require(inside, f"{shot.shot_id!r} of {tuple(shot.span)} has tokens {tuple(shot.tokens)}")


async def revisions(subject: UnderTest[Any]) -> None:
    """A revision has a higher number than what it replaces, and names it; a new shot names none."""
    newest: dict[str, int] = {}
    for shot in await _shots(subject):
        before = newest.get(shot.shot_id)
        replaced = None if before is None else f"{shot.shot_id}@{before}"
        what = f"{shot.shot_id}@{shot.rev}"
        require(shot.supersedes == replaced, f"{what} supersedes {shot.supersedes!r}, not {replaced!r}")
        require(before is None or shot.rev > before, f"{what} came after @{before}")
        newest[shot.shot_id] = shot.rev


async def order(subject: UnderTest[Any]) -> None:
    """New shots come in the order of the text, and none is to be seen earlier than one before."""
    seen: dict[str, ScenePrompt] = {}
    last: ScenePrompt | None = None
    for shot in await _shots(subject):
        if shot.shot_id in seen:
            continue
        seen[shot.shot_id] = shot
        if last is not None:
            later = shot.span.start >= last.span.start and shot.t_start_ms >= last.t_start_ms
            require(later, f"{shot.shot_id!r} begins before {last.shot_id!r}, which came earlier")
        last = shot


async def closed_shots(subject: UnderTest[Any]) -> None:
    """Once a later shot has begun, an earlier one keeps its span."""
    newest: dict[str, ScenePrompt] = {}
    for shot in await _shots(subject):
        before = newest.get(shot.shot_id)
        later = any(one.span.start > shot.span.start for one in newest.values())
        kept = before is None or not later or before.span == shot.span
        require(kept, f"{shot.shot_id!r} was revised to {tuple(shot.span)} after a later shot")
        newest[shot.shot_id] = shot


async def nothing_told(subject: UnderTest[Any]) -> None:
    """A turn without a phrase, and phrases without a word, give no error and no shot."""
    for texts in ([], *([text] for text in NOTHING)):
        found = await _shots(subject, texts)
        require(not found, f"{len(found)} shots for {texts!r}")


async def unusual_text(subject: UnderTest[Any]) -> None:
    """Other scripts, emoji, control characters and markup are no error."""
    for text in UNUSUAL:
        await _shots(subject, [text])


async def long_text(subject: UnderTest[Any]) -> None:
    """Hundreds of phrases, and one of thousands of characters, give a bounded number of shots."""
    texts = [STORY[number % len(STORY)] for number in range(_LONG)]
    found = await _shots(subject, texts)
    require(len(found) <= _PER_PHRASE * _LONG, f"{len(found)} shots for {_LONG} phrases")
    found = await _shots(subject, ["".join(texts[:50]), "x" * 5000])
    require(len(found) <= _PER_PHRASE * 200, f"{len(found)} shots for 200 sentences")


async def revoke(subject: UnderTest[Any]) -> None:
    """Text that is revoked is shown by no shot any more, and other text may follow."""
    rewriter = await _local(subject)
    given = _phrases(STORY)
    for at in (given[1].chars.start, given[2].chars.start, given[2].chars.start + 7):
        board = rewriter.open()
        apply_if(isinstance(board, RevocableStoryboard), "its boards can't take text back")
        live: dict[str, ScenePrompt] = {}
        for phrase in given[:3]:
            live |= {shot.shot_id: shot for shot in await board.add(phrase)}
        cut = {name for name, shot in live.items() if shot.span.start < at < shot.span.end}
        live = {name: shot for name, shot in live.items() if shot.span.end <= at}
        for shot in await board.revoke(at):
            require(shot.span.end <= at, f"{shot.shot_id!r} ends at {shot.span.end}, behind {at}")
            live[shot.shot_id] = shot
        lost = ", ".join(sorted(cut - set(live)))
        require(not lost, f"what is left of {lost}, which began before {at}, was not returned")
        new = Phrase("A tall lighthouse stands in the storm.", Span(at, at + 38), Span(9, 12), 3)
        found = [*await board.add(new), *await board.close()]
        require(any(shot.span.end > at for shot in found), "text after a revoke gave no shot")
        for shot in found:
            before = live.get(shot.shot_id)
            fresh = before is None or shot.rev > before.rev
            require(fresh, f"{shot.shot_id!r}@{shot.rev} came twice")


async def copies(subject: UnderTest[Any]) -> None:
    """If its boards may be copied, a copy and its original go on independently."""
    rewriter = await _local(subject)
    apply_if(bool(getattr(rewriter, "copies", False)), "its boards may not be copied")
    first, *others = _phrases(STORY)
    plain, board = (await subject.new()).open(), rewriter.open()
    await plain.add(first)
    await board.add(first)
    copy = deepcopy(board)
    await copy.add(Phrase("Two pilots land a plane.", Span(62, 86), Span(1, 2), 1))
    await copy.close()
    wanted = [_plain(await plain.add(one)) for one in others] + [_plain(await plain.close())]
    found = [_plain(await board.add(one)) for one in others] + [_plain(await board.close())]
    require(found == wanted, "a copy changed the board that it was made of")


def _plain(found: Sequence[ScenePrompt]) -> list[tuple[object, ...]]:
    """Shots without their ids, which may count on from one board to the next."""
    return [(shot.span, shot.tokens, shot.prompt, shot.rev) for shot in found]


async def boards_apart(subject: UnderTest[Any]) -> None:
    """Two turns at once have the shots that each has alone."""
    other = ("Rain falls on a market. ", "A girl sells yellow flowers. ", "A bus stops.")
    alone = [await _shots(subject, texts) for texts in (STORY, other)]
    rewriter = await _local(subject)
    boards = rewriter.open(), rewriter.open()
    found: tuple[list[ScenePrompt], list[ScenePrompt]] = ([], [])
    given = _phrases(STORY), _phrases(other)
    for step in range(len(STORY)):
        for which, board in enumerate(boards):
            for phrase in given[which][step : step + 1]:
                found[which].extend(await board.add(phrase))
    for which, board in enumerate(boards):
        found[which].extend(await board.close())
        same = [s.span for s in _newest(found[which])] == [s.span for s in _newest(alone[which])]
        require(same, "beside another turn, the shots show other text than alone")


def _newest(found: Sequence[ScenePrompt]) -> list[ScenePrompt]:
    return list({shot.shot_id: shot for shot in found}.values())


async def cancel(subject: UnderTest[Any]) -> None:
    """A turn that is cancelled at any phrase leaves the adapter ready for the next."""
    wanted = [shot.span for shot in _newest(await _shots(subject))]
    rewriter = await _local(subject)
    given = _phrases(STORY)
    for at in range(len(given)):
        board = rewriter.open()
        for phrase in given[:at]:
            await board.add(phrase)
        task = asyncio.ensure_future(board.add(given[at]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        broke = not task.cancelled() and task.exception() is not None
        require(not broke, "cancelling raised an exception")
        del board, task
        board = rewriter.open()
        found = [shot for phrase in given for shot in await board.add(phrase)]
        found += await board.close()
        same = [shot.span for shot in _newest(found)] == wanted
        require(same, f"after a turn that was cancelled at phrase {at}, the next has other shots")


async def cancel_stage(subject: UnderTest[Any]) -> None:
    """A stage that is cancelled ends with the cancel."""
    stage = await subject.new()
    apply_if(not hasattr(stage, "open"), "it is no stage")
    try:
        link = Link[Phrase]()
        await link.send(_phrases(STORY)[0])
        link.cancel(Cancel("checked"))
        async with aclosing(stage.run(link)) as made:
            found = [item async for item in made]
        require(found[-1:] == [Cancel("checked")], "the cancel isn't its last item")
    finally:
        await stage.aclose()


async def loop_free(subject: UnderTest[Any]) -> None:
    """The event loop goes on while shots are made."""
    await loop_stays_free(lambda: _shots(subject))


async def nothing_left(subject: UnderTest[Any]) -> None:
    """A turn that was closed, and one that was dropped, leave no task and no thread."""

    async def work() -> None:
        await _shots(subject)
        rewriter = await subject.new()
        if hasattr(rewriter, "open"):
            await rewriter.open().add(_phrases(STORY)[0])
        else:
            await rewriter.aclose()

    await left_behind(work)


PROMPT_CHECKS = collected("prompt", (
    shots, spans, tokens, revisions, order, closed_shots, nothing_told, unusual_text, long_text, revoke,
    copies, boards_apart, cancel, cancel_stage, loop_free, nothing_left,
))  # fmt: skip
"""The checks of a prompt adapter, in order."""
