"""What a voice promises (`specstream.stages.SpeechSynthesizer`), one check a promise."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import aclosing
from typing import Any

from specstream.stages.interfaces import SpeechSynthesizer, VoiceCapabilities
from specstream.stages.limits import most_audio_s
from specstream.testing.conformance.checks import (
    UnderTest,
    apply_if,
    collected,
    left_behind,
    loop_stays_free,
    may_refuse,
    require,
)
from specstream.testing.conformance.speaking import (
    LONE_SURROGATE,
    NEXT,
    NOTHING,
    PLAIN,
    UNUSUAL,
    SpokenPhrase,
    StageVoice,
    opened,
    phrase_of,
    same_sound,
    say,
)
from specstream.testing.conformance.voice_marks import MARK_CHECKS
from specstream.types import SpeechBuffer

__all__ = ["VOICE_CHECKS"]

_LONGEST_MS = 65
_HUGE = 16_000  # characters
_HELD_SHARE = 4  # of a huge text's audio, at most so much may be made ahead of the reader: a quarter
_CHARS_PER_S = 20
_LOOKS, _STILL = 1000, 10  # at the memory, and without growth, 10 ms each


async def _ready(voice: SpeechSynthesizer, alone: SpokenPhrase, after: str) -> None:
    said = await say(voice, phrase_of(NEXT))
    require(same_sound(voice, said, alone), f"{after}, the next phrase doesn't sound as it does alone")


async def capabilities(subject: UnderTest[Any]) -> None:
    """The capabilities are `VoiceCapabilities` with a name and a rate of speech, always the same."""
    async with opened(subject) as voice:
        facts = voice.capabilities
        require(isinstance(facts, VoiceCapabilities), f"they are {type(facts).__name__}")
        require(bool(facts.name), "the name is empty")
        whole = type(facts.sample_rate) is int and 4_000 <= facts.sample_rate <= 192_000
        require(whole, f"the sample rate is {facts.sample_rate!r}")
        await say(voice, phrase_of(NEXT))
        require(voice.capabilities == facts, "they changed after a phrase")


async def speaks(subject: UnderTest[Any]) -> None:
    """A phrase with words gives audio that isn't silent, and twice the words give more of it."""
    async with opened(subject) as voice:
        said = await say(voice, phrase_of(PLAIN))
        require(bool(said.pcm), f"no audio for {PLAIN!r}")
        require(any(said.pcm), f"all samples are 0 for {PLAIN!r}")
        twice = await say(voice, phrase_of(f"{PLAIN} {PLAIN}"))
        more = f"{said.samples} samples for {PLAIN!r}, and {twice.samples} for that text twice"
        require(2 * twice.samples > 3 * said.samples, more)


async def buffers(subject: UnderTest[Any]) -> None:
    """Each buffer is a `SpeechBuffer` of whole 16-bit samples and at most about 60 ms."""
    async with opened(subject) as voice:
        most = voice.capabilities.sample_rate * _LONGEST_MS // 1000
        for buffer in (await say(voice, phrase_of(PLAIN))).buffers:
            size = len(bytes(buffer.pcm))  # a view may count other items
            require(size % 2 == 0, "a buffer ends in half a sample")
            length = size // 2
            require(length <= most, f"a buffer has {length} samples, more than {_LONGEST_MS} ms")


async def nothing_to_say(subject: UnderTest[Any]) -> None:
    """Empty text, and text without a word, gives no word, little audio and no error."""
    async with opened(subject) as voice:
        for text in NOTHING:
            said = await say(voice, phrase_of(text))
            require(not said.marks("word"), f"a word is marked in {text!r}")
            seconds = said.samples / voice.capabilities.sample_rate
            require(seconds <= 2, f"{seconds:.1f} s of audio for {text!r}")


async def unusual_text(subject: UnderTest[Any]) -> None:
    """Other scripts, emoji, control characters and markup end with bounded audio and no error."""
    async with opened(subject) as voice:
        for text in UNUSUAL if isinstance(voice, StageVoice) else (*UNUSUAL, LONE_SURROGATE):
            seconds = (await say(voice, phrase_of(text))).samples / voice.capabilities.sample_rate
            require(seconds <= most_audio_s(len(text)), f"{seconds:.0f} s of audio for {text!r}")


async def huge_text(subject: UnderTest[Any]) -> None:
    """A text of 16,000 characters begins, and can be stopped."""
    async with opened(subject) as voice:
        said = await say(voice, phrase_of((PLAIN + " ") * (_HUGE // len(PLAIN))), most=3)
        require(bool(said.pcm), "no audio")
        again = await say(voice, phrase_of(NEXT))
        require(bool(again.pcm), "after it was stopped, the next phrase has no audio")


async def read_ahead(subject: UnderTest[Any]) -> None:
    """A reader that reads no further holds the voice up: most of a huge text's audio isn't made."""
    async with opened(subject) as voice:
        facts = voice.capabilities
        apply_if(facts.streaming, "it makes a phrase as a whole (streaming=False)")
        await say(voice, phrase_of(NEXT))
        allowed = 2 * facts.sample_rate * _HUGE // _CHARS_PER_S // _HELD_SHARE
        phrase = phrase_of((PLAIN + " ") * (_HUGE // len(PLAIN)))
        traced = tracemalloc.is_tracing()
        tracemalloc.start()
        try:
            async with aclosing(voice.synthesize(phrase)) as pieces:
                await anext(pieces, None)
                before = tracemalloc.get_traced_memory()[0]
                held = grown = -1
                for turn in range(_LOOKS):  # until it has made nothing more for a while
                    await asyncio.sleep(0.01)
                    now = tracemalloc.get_traced_memory()[0] - before
                    held, grown = max(held, now), turn if now > held + 1024 else grown
                    if held >= allowed or turn - grown > _STILL:
                        break
        finally:
            if not traced:
                tracemalloc.stop()
        require(held < allowed, f"{held} bytes were made ahead of a reader that had stopped")


async def deterministic(subject: UnderTest[Any]) -> None:
    """If the voice says that it is deterministic, a phrase has the same samples and marks each time."""
    async with opened(subject) as voice, opened(subject) as other:
        apply_if(voice.capabilities.deterministic, "it doesn't say that it is deterministic")
        first = await say(voice, phrase_of(PLAIN))
        for again, which in ((voice, "the same voice"), (other, "a new one")):
            said = await say(again, phrase_of(PLAIN))
            require(said.pcm == first.pcm, f"{which} gave other samples")
            require(said.marks() == first.marks(), f"{which} gave other marks")


async def cancel_before(subject: UnderTest[Any]) -> None:
    """Cancelled before its first buffer, a voice is ready for the next phrase."""
    async with opened(subject) as voice:
        alone = await say(voice, phrase_of(NEXT))
        for turns in range(3):
            task = asyncio.create_task(say(voice, phrase_of(PLAIN)))
            for _ in range(turns):
                await asyncio.sleep(0)
            over = task.done()
            task.cancel()
            await asyncio.wait({task})
            broke = not task.cancelled() and isinstance(task.exception(), Exception)
            require(not broke, f"cancelling raised {task if task.cancelled() else task.exception()!r}")
            require(over or task.cancelled(), "it spoke on although its task was cancelled")
            await _ready(voice, alone, "cancelled before its first buffer")


async def cancel_between(subject: UnderTest[Any]) -> None:
    """Closed after any of its buffers, a voice is ready for the next phrase."""
    async with opened(subject) as voice, opened(subject) as other:
        alone = await say(voice, phrase_of(NEXT))
        count = len((await say(other, phrase_of(PLAIN))).buffers)
        for most in sorted({1, 2, 3, 5, 8, count // 2} & set(range(1, count))):
            await say(voice, phrase_of(PLAIN), most)
            await _ready(voice, alone, f"closed after {most} of its buffers")


async def cancel_last(subject: UnderTest[Any]) -> None:
    """Closed at its last buffer, a voice is ready for the next phrase."""
    async with opened(subject) as voice, opened(subject) as other:
        alone = await say(voice, phrase_of(NEXT))
        count = len((await say(other, phrase_of(PLAIN))).buffers)
        await say(voice, phrase_of(PLAIN), count)
        await _ready(voice, alone, "closed at its last buffer")


async def in_sequence(subject: UnderTest[Any]) -> None:
    """A phrase after another sounds as from a new voice."""
    async with opened(subject) as voice, opened(subject) as one, opened(subject) as other:
        apply_if(voice.capabilities.deterministic, "it doesn't say that it is deterministic")
        alone, again = await say(one, phrase_of(NEXT)), await say(other, phrase_of(NEXT))
        apply_if(alone.pcm == again.pcm, "two new voices sound different: see the check deterministic")
        await say(voice, phrase_of(PLAIN))
        said = await say(voice, phrase_of(NEXT))
        require(said.pcm == alone.pcm, f"after {PLAIN!r}, {NEXT!r} has other samples")
        require(said.marks() == alone.marks(), f"after {PLAIN!r}, {NEXT!r} has other marks")


async def side_by_side(subject: UnderTest[Any]) -> None:
    """Two voices that are read by turns don't mix, and neither waits for the other's unread audio."""
    async with opened(subject) as one, opened(subject) as other:
        alone = await say(one, phrase_of(PLAIN)), await say(other, phrase_of(NEXT))
        streams = one.synthesize(phrase_of(PLAIN)), other.synthesize(phrase_of(NEXT))
        found: tuple[list[SpeechBuffer], list[SpeechBuffer]] = ([], [])
        running = [0, 1]
        async with aclosing(streams[0]), aclosing(streams[1]):
            while running:
                for which in list(running):
                    buffer = await anext(streams[which], None)
                    if buffer is None:
                        running.remove(which)
                    else:
                        found[which].append(buffer)
        for which, voice in enumerate((one, other)):
            same = same_sound(voice, SpokenPhrase(found[which]), alone[which])
            require(same, "beside another voice, a phrase doesn't sound as it does alone")


async def closed_twice(subject: UnderTest[Any]) -> None:
    """`aclose` may be called twice, before anything was said and after."""
    for said in ("", NEXT):
        async with opened(subject) as voice:
            await say(voice, phrase_of(said))
            await voice.aclose()


async def after_close(subject: UnderTest[Any]) -> None:
    """A voice that was closed speaks, or says by a SpecstreamError that it doesn't."""
    async with opened(subject, close=False) as voice:
        await voice.aclose()
        with may_refuse():
            await say(voice, phrase_of(NEXT))


async def nothing_left(subject: UnderTest[Any]) -> None:
    """After `aclose` no task and no thread of the voice runs."""

    async def work() -> None:
        async with opened(subject) as voice:
            await say(voice, phrase_of(NEXT))
            await say(voice, phrase_of(PLAIN), 1)

    await left_behind(work)


async def loop_free(subject: UnderTest[Any]) -> None:
    """The event loop goes on while a phrase is made."""
    async with opened(subject) as voice:
        await say(voice, phrase_of(NEXT))
        await loop_stays_free(lambda: say(voice, phrase_of(PLAIN)))


VOICE_CHECKS = collected(
    "voice",
    (
        capabilities,
        speaks,
        buffers,
        nothing_to_say,
        unusual_text,
        huge_text,
        read_ahead,
        deterministic,
        *MARK_CHECKS,
        cancel_before,
        cancel_between,
        cancel_last,
        in_sequence,
        side_by_side,
        closed_twice,
        after_close,
        nothing_left,
        loop_free,
    ),
)
"""The checks of a voice, in order."""
