"""What a recogniser promises (`specstream.listening.Recognizer`), one check a promise."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from specstream.listening.interfaces import (
    Recognizer,
    RecognizerCapabilities,
    RecognizerStream,
    Transcript,
)
from specstream.testing.conformance.checks import (
    Pulse,
    UnderTest,
    apply_if,
    at_rate,
    collected,
    in_pieces,
    left_behind,
    loop_stays_free,
    may_refuse,
    require,
    require_members,
)

__all__ = ["RECOGNIZER_CHECKS"]

_SILENCE_S = 2
_MANY = 6  # streams at once
_FEW_BEATS = 20  # of a loop, for a call that has nothing to do
_WRONG_RATE = 12_345
_SHORTEST_MS = 30  # of a word
_SHIFT_MS = 500  # by which a word's time may differ from one hearing to the next

Tested = UnderTest[Recognizer]


@asynccontextmanager
async def opened(subject: Tested) -> AsyncGenerator[Recognizer, None]:
    """Make a recogniser and close it at the end of the block."""
    made = await subject.new()
    require_members(made, "capabilities", "open", "aclose")
    rates = getattr(made.capabilities, "sample_rates", ())
    many = isinstance(rates, Sequence) and all(type(rate) is int for rate in rates)
    require(many, f"sample_rates is {rates!r}; it must be a tuple of whole numbers")
    try:
        yield made
    finally:
        await made.aclose()


def _speech(subject: Tested, recognizer: Recognizer) -> bytes:
    return at_rate(subject.speech, recognizer.capabilities.sample_rates[0])


def _silence(recognizer: Recognizer) -> bytes:
    return bytes(2 * _SILENCE_S * recognizer.capabilities.sample_rates[0])


@asynccontextmanager
async def stream_of(
    recognizer: Recognizer, pieces: Sequence[bytes] = ()
) -> AsyncGenerator[RecognizerStream, None]:
    """A stream that was given some audio, closed at the end of the block."""
    stream = recognizer.open(recognizer.capabilities.sample_rates[0])
    require_members(stream, "add", "partial", "finish", "aclose")
    try:
        for piece in pieces:
            stream.add(piece)
        yield stream
    finally:
        await stream.aclose()


async def _heard(recognizer: Recognizer, *pieces: bytes) -> Transcript:
    async with stream_of(recognizer, pieces) as stream:
        return await stream.finish()


async def capabilities(subject: Tested) -> None:
    """The capabilities are `RecognizerCapabilities` with a name, a rate and a worker at least."""
    async with opened(subject) as recognizer:
        facts = recognizer.capabilities
        require(isinstance(facts, RecognizerCapabilities), f"they are {type(facts).__name__}")
        require(bool(facts.name), "the name is empty")
        require(bool(facts.sample_rates), "they name no sample rate")
        require(facts.workers >= 1, f"workers is {facts.workers}")
        for language in facts.languages:
            require(_is_code(language), f"the language {language!r} is no code such as 'en'")


def _is_code(language: object) -> bool:
    return isinstance(language, str) and bool(re.fullmatch("[a-z]{2,3}(-[A-Za-z0-9]+)*", language))


async def rates_and_languages(subject: Tested) -> None:
    """Every rate and every language that the capabilities name can be opened."""
    async with opened(subject) as recognizer:
        facts = recognizer.capabilities
        for rate in facts.sample_rates:
            for language in (None, *facts.languages):
                stream = recognizer.open(rate, language=language)
                stream.add(bytes(rate // 50))
                await stream.aclose()


async def unknown_rate(subject: Tested) -> None:
    """A sample rate that the capabilities don't name is taken, or refused by a SpecstreamError."""
    async with opened(subject) as recognizer:
        with may_refuse():
            stream = recognizer.open(_WRONG_RATE)
            await stream.aclose()


async def hears(subject: Tested) -> None:
    """Speech gives words."""
    apply_if(subject.understood, "no speech was given to the checks")
    async with opened(subject) as recognizer:
        heard = await _heard(recognizer, _speech(subject, recognizer))
        require(heard.has_words, f"the transcript is {heard.text!r}")


async def silence(subject: Tested) -> None:
    """Silence, a single sample and no audio at all give no words and no error."""
    async with opened(subject) as recognizer:
        for name, audio in (
            ("silence", _silence(recognizer)),
            ("one sample", b"\0\0"),
            ("no audio", b""),
        ):
            heard = await _heard(recognizer, audio)
            require(not heard.has_words, f"the transcript of {name} is {heard.text!r}")


async def transcript(subject: Tested) -> None:
    """A transcript is a `Transcript` whose text has no outer white space."""
    async with opened(subject) as recognizer:
        heard = await _heard(recognizer, _speech(subject, recognizer))
        require(isinstance(heard, Transcript), f"it is {type(heard).__name__}")
        require(heard.text == heard.text.strip(), f"its text is {heard.text!r}")
        code = heard.language is None or _is_code(heard.language)
        require(code, f"its language {heard.language!r} is no code such as 'en'")


async def words_claimed(subject: Tested) -> None:
    """Words have times exactly if the capabilities say so; times run forward inside the audio."""
    async with opened(subject) as recognizer:
        facts, audio = recognizer.capabilities, _speech(subject, recognizer)
        heard = await _heard(recognizer, audio)
        if not facts.words:
            require(not heard.words, "it gives words with times, and its capabilities deny it")
            return
        require(bool(heard.words) == heard.has_words, f"no times for the words of {heard.text!r}")
        times = [t for word in heard.words for t in (word.start_ms, word.end_ms)]
        require(times == sorted(times), f"the times of words run backwards: {times}")
        end = len(audio) / 2 / facts.sample_rates[0] * 1e3
        require(all(-1 <= t <= end + 1000 for t in times), f"{times} ms in audio of {end:.0f} ms")
        count, last = len(heard.words), max(times, default=0.0)
        letters, said = (
            re.sub(r"\W", "", text).casefold()
            for text in (heard.text, "".join(word.text for word in heard.words))
        )
        require(letters == said, f"its words are {said!r}, its text {heard.text!r}")
        fast = f"{count} words in {last:g} ms; start_ms and end_ms are milliseconds"
        require(last >= _SHORTEST_MS * count, fast)


async def silence_around(subject: Tested) -> None:
    """Silence behind speech gives no further words; silence before it moves their times by as much."""
    apply_if(subject.understood, "no speech was given to the checks")
    async with opened(subject) as recognizer:
        audio, quiet = _speech(subject, recognizer), _silence(recognizer)
        alone, behind = await _heard(recognizer, audio), await _heard(recognizer, audio, quiet)
        more = len(behind.text.split()) > len(alone.text.split())
        require(not more, f"with silence behind it {behind.text!r}, alone {alone.text!r}")
        late = await _heard(recognizer, quiet, audio)
        if late.text == alone.text and alone.words and late.words:
            moved = late.words[0].start_ms - alone.words[0].start_ms
            said = f"{_SILENCE_S * 1e3:.0f} ms of silence before them moved the words by {moved:.0f} ms"
            require(abs(moved - _SILENCE_S * 1e3) <= _SHIFT_MS, said)


async def partials(subject: Tested) -> None:
    """Partial transcripts can be asked for at any time, and change nothing of the last one."""
    async with opened(subject) as recognizer:
        audio = _speech(subject, recognizer)
        alone = await _heard(recognizer, audio)
        async with stream_of(recognizer) as stream:
            await stream.partial()
            for piece in in_pieces(audio, len(audio) // 12):
                stream.add(piece)
                require(isinstance(await stream.partial(), Transcript), "a partial is no Transcript")
            last = await stream.finish()
        require(last.text == alone.text, f"with partials {last.text!r}, without {alone.text!r}")


async def finish_is_the_partial(subject: Tested) -> None:
    """`finish` without new audio gives the words of the partial before; so does a second `finish`."""
    async with opened(subject) as recognizer:
        audio = _speech(subject, recognizer)
        alone = await _heard(recognizer, audio)
        async with stream_of(recognizer, [audio]) as stream:
            partial, last = await stream.partial(), await stream.finish()
            # A partial that couldn't be told is an older one: the end may then know more.
            kept = last.text in (partial.text, alone.text)
            require(kept, f"the partial was {partial.text!r}, finish gave {last.text!r}")
            again = await stream.finish()
            require(again.text == last.text, f"a second finish gave {again.text!r}, not {last.text!r}")


async def finish_hears_the_rest(subject: Tested) -> None:
    """`finish` hears all of the audio, what came after the last partial included."""
    async with opened(subject) as recognizer:
        audio = _speech(subject, recognizer)
        alone = await _heard(recognizer, audio)
        first, *rest = in_pieces(audio, len(audio) // 3)
        async with stream_of(recognizer, [first]) as stream:
            await stream.partial()
            for piece in rest:
                stream.add(piece)
            last = await stream.finish()
        require(last.text == alone.text, f"after a partial {last.text!r}, alone {alone.text!r}")


async def finish_costs_nothing(subject: Tested) -> None:
    """`finish` without new audio doesn't read the audio again.

    Counted in turns of the event loop while the recogniser works, not in seconds.
    """
    async with opened(subject) as recognizer:
        audio, counts = _speech(subject, recognizer), list[tuple[int, int]]()
        for _ in range(3):
            async with stream_of(recognizer, [audio]) as stream, Pulse().running() as pulse:
                partial = await stream.partial()
                first, pulse.beats = pulse.beats, 0
                last = await stream.finish()
                counts.append((first, pulse.beats))
                apply_if(last.text == partial.text, "it doesn't trust a partial of this audio")
            if counts[-1][1] <= max(_FEW_BEATS, counts[-1][0] // 4):
                return
        require(False, f"turns of the loop during partial and finish, three times: {counts}")


async def cancel_partial(subject: Tested) -> None:
    """A partial that is cancelled, at once or while it works, leaves its stream usable."""
    async with opened(subject) as recognizer:
        audio = _speech(subject, recognizer)
        alone = await _heard(recognizer, audio)
        for turns in (0, 1, 3, 20):
            async with stream_of(recognizer, [audio]) as stream:
                await _cancelled(asyncio.ensure_future(stream.partial()), turns)
                last = await stream.finish()
            require(last.text == alone.text, f"{last.text!r} after a cancel, {alone.text!r} without")


async def cancel_finish(subject: Tested) -> None:
    """A `finish` that is cancelled can be asked for again."""
    async with opened(subject) as recognizer:
        audio = _speech(subject, recognizer)
        alone = await _heard(recognizer, audio)
        for turns in (0, 2):
            async with stream_of(recognizer, [audio]) as stream:
                await _cancelled(asyncio.ensure_future(stream.finish()), turns)
                last = await stream.finish()
            require(last.text == alone.text, f"{last.text!r} after a cancel, {alone.text!r} without")


async def _cancelled(task: asyncio.Future[Transcript], turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    broke = None if task.cancelled() else task.exception()
    require(broke is None, f"cancelling raised {broke!r}")


async def streams_apart(subject: Tested) -> None:
    """Many streams at once don't mix: each has the words that it has alone."""
    async with opened(subject) as recognizer:
        speech = _speech(subject, recognizer)
        alone = [await _heard(recognizer, audio) for audio in (speech, speech[: len(speech) // 2])]
        sounds = [speech if number % 2 == 0 else speech[: len(speech) // 2] for number in range(_MANY)]
        rate = recognizer.capabilities.sample_rates[0]
        streams = [recognizer.open(rate) for _ in sounds]
        try:
            pieces = [in_pieces(sound, rate // 4) for sound in sounds]
            for step in range(max(map(len, pieces))):
                for which, stream in enumerate(streams):
                    for piece in pieces[which][step : step + 1]:
                        stream.add(piece)
            found = await asyncio.gather(*(stream.finish() for stream in streams))
        finally:
            for stream in streams:
                await stream.aclose()
        for number, heard in enumerate(found):
            wanted = alone[number % 2].text
            require(heard.text == wanted, f"beside others {heard.text!r}, alone {wanted!r}")


async def pieces(subject: Tested) -> None:
    """The same audio in pieces of another size gives the same words."""
    async with opened(subject) as recognizer:
        audio = _speech(subject, recognizer)
        alone = await _heard(recognizer, audio)
        for samples in (331, 1600):
            heard = await _heard(recognizer, *in_pieces(audio, samples))
            cut = f"in pieces of {samples} samples {heard.text!r}, at once {alone.text!r}"
            require(heard.text == alone.text, cut)


async def stream_closed_twice(subject: Tested) -> None:
    """A stream may be closed twice, finished or not, and before it was given anything."""
    async with opened(subject) as recognizer:
        audio = _speech(subject, recognizer)
        for given in ([], [audio]):
            async with stream_of(recognizer, given) as stream:
                await stream.aclose()
                await stream.aclose()
        async with stream_of(recognizer, [audio]) as stream:
            await stream.finish()
            await stream.aclose()


async def after_close(subject: Tested) -> None:
    """A stream that was closed gives a transcript, or a SpecstreamError."""
    async with opened(subject) as recognizer:
        async with stream_of(recognizer, [_speech(subject, recognizer)]) as stream:
            await stream.aclose()
            with may_refuse():
                await stream.partial()


async def closed_twice(subject: Tested) -> None:
    """`aclose` of the recogniser may be called twice."""
    async with opened(subject) as recognizer:
        await _heard(recognizer, _speech(subject, recognizer))
        await recognizer.aclose()
        await recognizer.aclose()


async def closed_recognizer(subject: Tested) -> None:
    """A stream of a recogniser that was closed gives a transcript, or a SpecstreamError."""
    async with opened(subject) as recognizer:
        async with stream_of(recognizer, [_speech(subject, recognizer)]) as stream:
            await recognizer.aclose()
            with may_refuse():
                await stream.finish()


async def unknown_language(subject: Tested) -> None:
    """A language that the capabilities don't name is taken, or refused by a SpecstreamError."""
    async with opened(subject) as recognizer:
        with may_refuse():
            stream = recognizer.open(recognizer.capabilities.sample_rates[0], language="zz")
            await stream.aclose()


async def loop_free(subject: Tested) -> None:
    """The event loop goes on while a transcript is made."""
    async with opened(subject) as recognizer:
        audio = _speech(subject, recognizer)
        await loop_stays_free(lambda: _heard(recognizer, audio))


async def nothing_left(subject: Tested) -> None:
    """After `aclose` no task and no thread of the recogniser runs."""

    async def work() -> None:
        async with opened(subject) as recognizer:
            await _heard(recognizer, _silence(recognizer))

    await left_behind(work)


RECOGNIZER_CHECKS = collected("recognizer", (
    capabilities, rates_and_languages, unknown_rate, hears, silence, transcript, words_claimed,
    silence_around, partials, finish_is_the_partial, finish_hears_the_rest, finish_costs_nothing,
    cancel_partial, cancel_finish, streams_apart, pieces,
    stream_closed_twice, after_close, closed_twice, closed_recognizer, unknown_language, loop_free,
    nothing_left,
))  # fmt: skip
"""The checks of a recogniser, in order."""
