"""What a text engine promises (`specstream.engine.protocol.TextEngine`), one check a promise."""

from __future__ import annotations

import asyncio
from typing import Any

from specstream.engine.protocol import EngineCapabilities
from specstream.errors import RequestError
from specstream.metrics import Report
from specstream.testing.conformance.checks import (
    apply_if,
    collected,
    left_behind,
    loop_stays_free,
    may_refuse,
    require,
)
from specstream.testing.conformance.engine_claims import (
    ASK,
    CLAIM_CHECKS,
    OTHER,
    PARAMS,
    Tested,
    opened,
    reply,
    tiled,
)
from specstream.types import Chunk, Manner

__all__ = ["ENGINE_CHECKS"]

_IDLE_TURNS = 30  # of a reader that doesn't read
_UNDER_WAY = 4  # chunks: what an engine may have written when it is cancelled
_FLAGS = (
    "previews", "rounds", "token_ids", "reference", "truncation", "reproducible", "raw_prompts",
    "logprobs", "token_prompts",
)  # fmt: skip


async def capabilities(subject: Tested) -> None:
    """Capabilities, manner and `no_tools` have their types."""
    async with opened(subject) as engine:
        facts = engine.capabilities
        require(isinstance(facts, EngineCapabilities), f"they are {type(facts).__name__}")
        for flag in _FLAGS:
            require(type(getattr(facts, flag)) is bool, f"{flag} is {getattr(facts, flag)!r}")
        require(isinstance(engine.manner, Manner), f"manner is {type(engine.manner).__name__}")
        why = engine.no_tools
        require(why is None or (isinstance(why, str) and bool(why)), f"no_tools is {why!r}")


async def writes(subject: Tested) -> None:
    """A reply is chunks (`Chunk`) with text."""
    async with opened(subject) as engine:
        chunks, _ = await reply(engine)
        require(all(isinstance(one, Chunk) for one in chunks), "what is iterated is no Chunk")
        require(any(one.text for one in chunks), f"no text in {len(chunks)} chunks")


async def chars_tile(subject: Tested) -> None:
    """The characters of chunks tile the reply's text, each as long as its text."""
    async with opened(subject) as engine:
        tiled((await reply(engine))[0])


async def tokens_tile(subject: Tested) -> None:
    """The tokens of chunks tile the reply, and their ids are there exactly if it says so."""
    async with opened(subject) as engine:
        claimed, at = engine.capabilities.token_ids, 0
        chunks, _ = await reply(engine)
        for chunk in chunks:
            start, end = chunk.tokens
            require(
                start == at and start <= end, f"a chunk's tokens are {start} to {end}, not from {at}"
            )
            at = end
            ids = len(chunk.token_ids)
            require(not claimed or ids == end - start, f"{ids} ids for tokens {start} to {end}")
        found = any(chunk.token_ids for chunk in chunks)
        require(found or not claimed, "token_ids is claimed, and there are none")


async def ends(subject: Tested) -> None:
    """For each token with an id, `ends` has the text's length with it: never less, at last all."""
    async with opened(subject) as engine:
        apply_if(engine.capabilities.token_ids, "its chunks have no token ids")
        before, chunks = 0, (await reply(engine))[0]
        for chunk in chunks:
            if not chunk.ends:
                continue
            require(len(chunk.ends) == len(chunk.token_ids), f"{len(chunk.ends)} ends for {chunk}")
            forward = [before, *chunk.ends]
            require(forward == sorted(forward), f"ends run backwards: {forward}")
            require(chunk.ends[-1] >= chunk.chars.end, f"the last end is before {chunk.chars.end}")
            before = chunk.ends[-1]
        length = chunks[-1].chars.end
        require(before <= length, f"the last end is {before}, and the text has {length} characters")


async def finish_reason(subject: Tested) -> None:
    """One finish reason, on the last chunk; the iteration then stays ended."""
    async with opened(subject) as engine:
        async with engine.generate(ASK, PARAMS) as generation:
            chunks = [chunk async for chunk in generation]
            require([chunk async for chunk in generation] == [], "chunks came after the end")
        reasons = [chunk.finish_reason for chunk in chunks]
        require(bool(reasons) and reasons[-1] is not None, "the last chunk has no finish reason")
        require(not any(reasons[:-1]), f"a chunk before the last has a finish reason: {reasons}")


async def texts(subject: Tested) -> None:
    """`text_read` is the text of the chunks that were read, and `text` begins with it."""
    async with opened(subject) as engine, engine.generate(ASK, PARAMS) as generation:
        read = ""
        async for chunk in generation:
            read += chunk.text
            require(generation.text_read == read, f"text_read is {generation.text_read!r}, not {read!r}")
            require(generation.text.startswith(read), f"text is {generation.text!r:.80}")
        require(generation.text == read, f"at the end text is {generation.text!r}, not {read!r}")


async def report(subject: Tested) -> None:
    """The report tells the text, the tokens and the finish reason that were read."""
    async with opened(subject) as engine:
        chunks, generation = await reply(engine)
        told = generation.report
        require(isinstance(told, Report), f"it is {type(told).__name__}")
        read = "".join(chunk.text for chunk in chunks)
        require(told.text == read, f"its text is {told.text!r}, not {read!r}")
        require(told.finish_reason == chunks[-1].finish_reason, f"it says {told.finish_reason!r}")
        ids = tuple(number for chunk in chunks for number in chunk.token_ids)
        require(told.token_ids == ids, f"its token ids are {told.token_ids}, not {ids}")
        require(told.prompt_tokens >= 0, f"its prompt has {told.prompt_tokens} tokens")
        require(generation.error is None, f"its error is {generation.error!r}")
        require(generation.tool_calls == (), f"its calls are {generation.tool_calls}")


async def options(subject: Tested) -> None:
    """Every option of the protocol is taken: without drafts, without learning, in a conversation."""
    async with opened(subject) as engine:
        for given in ({"speculate": False}, {"speculate": 2}, {"learn": False}, {"session": "s"}):
            chunks, _ = await reply(engine, **given)
            require(chunks[-1].finish_reason is not None, f"with {given} the reply has no end")


async def cancel_before(subject: Tested) -> None:
    """Cancelled before its first chunk, a reply ends; the next is written."""
    async with opened(subject) as engine:
        await _stopped(engine, 0)


async def cancel_between(subject: Tested) -> None:
    """Cancelled after any of its chunks, a reply ends and its chunks tile; the next is written."""
    async with opened(subject) as engine:
        for count in (1, 2, 3):
            await _stopped(engine, count)


async def _stopped(engine: Any, count: int) -> None:
    async with engine.generate(OTHER, PARAMS) as generation:
        found = list[Chunk]()
        while len(found) < count and (chunk := await anext(generation, None)) is not None:
            found.append(chunk)
        over = bool(found) and found[-1].finish_reason is not None
        generation.cancel()
        generation.cancel()
        late = [chunk async for chunk in generation]
        reason = generation.report.finish_reason
    tiled(found + late)
    ended = over or (count > 0 and len(late) <= _UNDER_WAY and reason is not None)
    more = f"{len(late)} more chunks and the finish reason {reason!r}"
    require(reason == "cancelled" or ended, f"cancelled after {len(found)} chunks, it gave {more}")
    require(bool((await reply(engine, OTHER))[0]), "after a cancel, there is no further reply")


async def cancel_ended(subject: Tested) -> None:
    """Cancelling a reply that has ended changes nothing."""
    async with opened(subject) as engine:
        async with engine.generate(ASK, PARAMS) as generation:
            chunks = [chunk async for chunk in generation]
            before = generation.report.finish_reason
            generation.cancel()
            require([chunk async for chunk in generation] == [], "further chunks came")
        now = generation.report.finish_reason
        require(now == before == chunks[-1].finish_reason, f"the finish reason became {now!r}")


async def leave_early(subject: Tested) -> None:
    """Leaving the block before the end stops the reply; the next one is complete."""
    async with opened(subject) as engine:
        for count in (0, 1, 2):
            async with engine.generate(OTHER, PARAMS) as generation:
                for _ in range(count):
                    await anext(generation, None)
            chunks, _ = await reply(engine)
            require(chunks[-1].finish_reason is not None, "the next reply doesn't end")
            reason, length = generation.report.finish_reason, len(generation.text)
            require(count > 0 or reason == "cancelled", f"its finish reason is {reason!r}")
            await reply(engine)
            more = len(generation.text) - length
            require(not more, f"{more} characters were written after its block was left")
        try:
            async with engine.generate(OTHER, PARAMS) as generation:
                await anext(generation, None)
                raise _Left
        except _Left:
            return
        require(False, "what the reader raised didn't leave the block")


class _Left(Exception):
    """Raised by a reader."""


async def cancelled_wait(subject: Tested) -> None:
    """A wait for the next chunk that is cancelled loses no chunk."""
    async with opened(subject) as engine, engine.generate(ASK, PARAMS) as generation:
        found = list[Chunk]()
        for turns in range(400):
            task = asyncio.ensure_future(anext(generation, None))
            for _ in range(turns % 3):
                await asyncio.sleep(0)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            chunk = None if task.cancelled() else task.result()
            if chunk is None and not task.cancelled():
                break
            found += [] if chunk is None else [chunk]
        found += [chunk async for chunk in generation]
        tiled(found)
        require(bool(found) and found[-1].finish_reason is not None, "the last chunk was lost")


async def side_by_side(subject: Tested) -> None:
    """Replies at once are each complete, and their chunks tile."""
    async with opened(subject) as engine:
        for chunks, generation in await asyncio.gather(
            *(reply(engine, ask) for ask in (ASK, OTHER, ASK))
        ):
            tiled(chunks)
            whole = "".join(chunk.text for chunk in chunks) == generation.text
            require(whole and chunks[-1].finish_reason is not None, "a reply is not complete")


async def slow_reader(subject: Tested) -> None:
    """A reader that stops for a while gets everything, and holds up nobody else."""
    async with opened(subject) as engine:
        async with engine.generate(OTHER, PARAMS) as generation:
            first = await anext(generation)
            for _ in range(_IDLE_TURNS):
                await asyncio.sleep(0.002)
            other, _ = await reply(engine)
            chunks = [first, *[chunk async for chunk in generation]]
        tiled(chunks)
        require(other[-1].finish_reason is not None, "another reply didn't end meanwhile")
        require(chunks[-1].finish_reason is not None, "the reply has no end")


async def needed_by(subject: Tested) -> None:
    """`needed_by` is taken at any time and changes no text; who needs it late gets it, too."""
    async with opened(subject) as engine, engine.generate(ASK, PARAMS) as generation:
        generation.needed_by(asyncio.get_running_loop().time() + 60)  # its first phrase is long
        found = [await anext(generation)]
        async for chunk in generation:
            generation.needed_by(asyncio.get_running_loop().time(), heard=True)
            found.append(chunk)
        tiled(found)
        generation.needed_by(0.0)


async def session(subject: Tested) -> None:
    """A conversation keeps what was asked and what was read, in order."""
    async with opened(subject) as engine:
        talk = engine.session("Be brief.")
        try:
            said = list[tuple[str, str]]([("system", "Be brief.")])
            for ask in (ASK, OTHER):
                async with talk.generate(ask, PARAMS) as generation:
                    text = "".join([chunk.text async for chunk in generation])
                said += [("user", ask), ("assistant", text)]
            kept = [(message["role"], message["content"]) for message in talk.messages]
            require(kept == said, f"its history is {kept!r:.200}, not {said!r:.200}")
        finally:
            await talk.aclose()


async def session_busy(subject: Tested) -> None:
    """A second turn of a conversation in the middle of one is refused by a RequestError."""
    async with opened(subject) as engine:
        talk = engine.session()
        try:
            async with talk.generate(ASK, PARAMS):
                try:
                    async with talk.generate(OTHER, PARAMS):
                        pass
                except RequestError:
                    return
                require(False, "a second turn was taken")
        finally:
            await talk.aclose()


async def unknown_session(subject: Tested) -> None:
    """`forget` and `trim` of a conversation that isn't known do nothing."""
    async with opened(subject) as engine:
        engine.trim("no such session", 3)
        engine.forget("no such session")
        engine.forget("no such session")
        require(bool((await reply(engine))[0]), "after that there is no reply")


async def after_close(subject: Tested) -> None:
    """An engine that was left writes, or says by a SpecstreamError that it doesn't."""
    async with opened(subject) as engine:
        await reply(engine)
    with may_refuse():
        await reply(engine)


async def loop_free(subject: Tested) -> None:
    """The event loop goes on while a reply is written."""
    async with opened(subject) as engine:
        await loop_stays_free(lambda: reply(engine))


async def nothing_left(subject: Tested) -> None:
    """Once it is left, no task and no thread of the engine runs, replies that weren't read included."""

    async def work() -> None:
        async with opened(subject) as engine:
            await reply(engine)
            async with engine.generate(OTHER, PARAMS) as generation:
                await anext(generation, None)

    await left_behind(work)


ENGINE_CHECKS = collected(
    "engine",
    (
        capabilities,
        writes,
        chars_tile,
        tokens_tile,
        ends,
        finish_reason,
        texts,
        report,
        options,
        cancel_before,
        cancel_between,
        cancel_ended,
        leave_early,
        cancelled_wait,
        side_by_side,
        slow_reader,
        needed_by,
        *CLAIM_CHECKS,
        session,
        session_busy,
        unknown_session,
        after_close,
        loop_free,
        nothing_left,
    ),
)
"""The checks of a text engine, in order."""
