"""Phrases sized by the audio ahead: no gap that other cuts would have avoided, no phrase too short."""

import itertools
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator

import anyio
import pytest

from specstream.playback.played import PlayedEstimate
from specstream.playback.playout import Playout
from specstream.stages.deadline import MOMENT_S, START_S, Bounds, Deadlines
from specstream.stages.pipeline import Pipeline, StageFailed
from specstream.stages.stages import SegmentStage, VoiceStage
from specstream.testing import ScriptedEngine, ScriptedSession, ScriptedVoice, chunks_of, run_virtual
from specstream.text.segmenter import Segmenter
from specstream.types import Chunk, Phrase, Span, Speech, SpeechBuffer
from tests.stages.paced import TEXTS, Cuts, Played, Setting, boundaries, play

RATES, FIRST_MS, FACTORS = (5.0, 20.0, 200.0), (20.0, 150.0, 400.0), (0.1, 0.5, 0.9)
SPARE_S = 0.1  # the oracle's, as the product's: a shorter gap is hardly heard


def settings(*, streams: bool) -> list[Setting]:
    """All combinations; in every fourth, the token stream stalls for two seconds."""
    axes = itertools.product(RATES, FIRST_MS, FACTORS, TEXTS, (0, 1))
    return [
        Setting(rate, first, factor, streams, text, seed, 2.0 if number % 4 == 3 else 0.0)
        for number, (rate, first, factor, text, seed) in enumerate(axes)
    ]


def check(setting: Setting, played: Played) -> None:
    """The phrases are the reply, and each ends where one may."""
    text, ends = TEXTS[setting.text], [phrase.chars.end for phrase in played.phrases]
    assert "".join(phrase.text for phrase in played.phrases) == text
    assert {*ends} <= {*boundaries(text)}, setting
    for phrase in played.phrases:
        assert phrase.text == text[slice(*phrase.chars)]
        assert all(text[slice(*tag.chars)] == f"[{tag.name}]" for tag in phrase.tags)
    assert sum(len(phrase.tags) for phrase in played.phrases) == text.count("[")


@pytest.mark.slow
def test_playback_runs_dry_only_where_no_cuts_could_have_prevented_it() -> None:
    found = [(setting, run_virtual(play(setting, paced=True))) for setting in settings(streams=True)]
    avoidable = [(s, p) for s, p in found if Cuts(s, p).feasible(SPARE_S)]
    assert len(found) > 200 and len(avoidable) > len(found) / 2
    for setting, played in found:
        check(setting, played)
    assert [(setting, played.gaps) for setting, played in avoidable if played.gaps] == []
    lengths = [len(TEXTS[s.text]) / len(played.phrases) for s, played in avoidable]
    fixed = [Cuts(s, played).fixed(60) for s, played in avoidable]
    assert sum(lengths) > sum(length for _, length in fixed)
    assert sum(gaps for gaps, _ in fixed) > 30  # what phrases of a fixed size would have cost


@pytest.mark.slow
def test_a_voice_that_gives_whole_phrases_is_hardly_ever_late_once_its_pace_is_known() -> None:
    """Estimates of a text's audio are up to a quarter off, so a few gaps of some 10 ms are left."""
    gaps, lost, heard = 0, 0.0, 0
    for setting in settings(streams=False)[1::2]:
        played = run_virtual(play(setting, paced=True, turns=2))
        check(setting, played)
        if Cuts(setting, played).feasible(SPARE_S):
            gaps, lost, heard = gaps + len(played.gaps), lost + sum(played.gaps), heard + 1
    assert heard > 50 and gaps <= 3 and lost < 0.3


def test_without_that_the_same_voices_are_late() -> None:
    some = settings(streams=False)[3::8]
    gaps = {True: 0, False: 0}
    for setting in some:
        found = {paced: run_virtual(play(setting, paced=paced, turns=2)) for paced in gaps}
        if Cuts(setting, found[True]).feasible(SPARE_S):
            for paced, played in found.items():
                gaps[paced] += len(played.gaps) > 0
    assert 4 * gaps[True] < gaps[False]


async def spoken(text: str, *, paced: bool) -> list[tuple[str, str]]:
    line = Pipeline(
        [[VoiceStage(ScriptedVoice(first_audio_ms=50, real_time_factor=0.2))]], head=SegmentStage()
    )
    clock = PlayedEstimate()
    for _ in range(2):  # in the first turn the voice isn't known yet
        phrases: list[tuple[str, str]] = []

        async def chunks() -> AsyncIterator[Chunk]:
            for chunk in chunks_of(text):
                await anyio.sleep(0.02)
                yield chunk

        async with line.run(chunks()) as run:
            if paced:
                clock = PlayedEstimate()
                run.follow(lambda: clock.heard_s)  # noqa: B023
            async for event in run:
                if isinstance(event.item, Phrase):
                    phrases.append((event.item.text, event.item.reason))
                elif isinstance(event.item, Speech):
                    clock.put(event.item)
    return phrases


@pytest.mark.parametrize("text", [TEXTS["prose"], TEXTS["list"], "一天，狐狸来了。它很饿。" * 8])
@pytest.mark.virtual_time
async def test_phrases_are_sentences_where_nothing_presses(text: str) -> None:
    assert await spoken(text, paced=True) == await spoken(text, paced=False)


@pytest.mark.virtual_time
async def test_a_stalled_stream_is_flushed_before_the_audio_ahead_ends() -> None:
    start = "One two three four, five six seven eight nine. The price is 3.50 and th"
    chunk = Chunk(start, (), Span(0, 0), Span(0, len(start)))
    rest = Chunk("en some.", (), Span(0, 0), Span(len(start), len(start) + 8))

    async def stalling() -> AsyncIterator[Chunk]:
        yield chunk
        await anyio.sleep(30)
        yield rest

    voice = ScriptedVoice(first_audio_ms=150, real_time_factor=0.3)
    line = Pipeline([[VoiceStage(voice)]], head=SegmentStage(clock=anyio.current_time))
    began, told = anyio.current_time(), list[tuple[str, float]]()
    async with Playout().play() as playback, line.run(stalling()) as run:
        run.follow(lambda: playback.played_ms / 1e3)
        async for event in run:
            if isinstance(event.item, Phrase):
                told.append((event.item.text, anyio.current_time() - began))
            elif isinstance(event.item, Speech):
                playback.put(event.item)
    assert [text for text, _ in told] == [
        "One two three four, five six seven eight nine. ",
        "The price is 3.50 and ",
        "then some.",
    ]
    # 9 words of 250 ms from 0.15 s on; the voice needs 0.15 s, and 0.1 s are kept in reserve.
    assert told[1][1] == pytest.approx(0.15 + 9 * 0.25 - 0.15 - 0.1, abs=0.02)


@pytest.mark.virtual_time
async def test_a_turn_sizes_its_phrases_by_its_own_play_out() -> None:
    text = "Well, yes. " + TEXTS["chat"]
    counts = {}
    for paced in (True, False):
        voice = ScriptedVoice(first_audio_ms=400, real_time_factor=0.8)
        session = ScriptedSession(ScriptedEngine([text, text]))
        line = Pipeline([[VoiceStage(voice)]], head=SegmentStage(clock=anyio.current_time))
        async with session.turn("Hi", line, Playout(paced=paced)) as turn:
            phrases = [event.item async for event in turn if isinstance(event.item, Phrase)]
        assert "".join(phrase.text for phrase in phrases) == text
        counts[paced] = len(phrases)
    assert counts[True] < counts[False] / 2, "each sentence costs this voice 0.4 s"


@pytest.mark.virtual_time
async def test_text_is_not_held_for_a_voice_that_broke_or_a_turn_that_was_cancelled() -> None:
    class Broken(ScriptedVoice):
        async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
            await anyio.sleep(1)
            if phrase.text:
                raise ValueError("no")
            yield SpeechBuffer(b"")

    for cancel in (False, True):
        line = Pipeline([[VoiceStage(Broken())]], head=SegmentStage(clock=anyio.current_time))
        reply = ScriptedEngine(["One is here. Two is here. Three is here."])
        async with reply.generate("Hi") as chunks, line.run(chunks) as run:
            run.follow(lambda: 0.0)
            found = []
            async for event in run:
                found.append(event.item)
                if cancel and isinstance(event.item, Phrase):
                    run.cancel()
        phrases = [item.text for item in found if isinstance(item, Phrase)]
        assert len(phrases) == (1 if cancel else 3)
        assert cancel or any(isinstance(item, StageFailed) for item in found)


class Whims(Deadlines):
    """Gives random bounds."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    @property
    def busy(self) -> bool:
        return self._rng.random() < 0.7

    def bounds(self) -> Bounds:
        return Bounds(self._rng.choice((0, 0, 20, 60, 300)), self._rng.choice((5, 30, 100, math.inf)))

    def released(self, phrase: Phrase) -> None:
        return None


def test_however_phrases_are_sized_and_text_comes_and_goes_they_are_the_reply() -> None:
    rng = random.Random(0)
    for _ in range(80):
        text = TEXTS[rng.choice([*TEXTS])] * rng.choice((1, 2))
        segmenter, cut, at = Segmenter(), list[Phrase](), 0
        segmenter.pace = Whims(rng)
        while at < len(text):
            end = min(len(text), at + rng.choice((1, 3, 10, 50, 500)))
            cut += segmenter.add(Chunk(text[at:end], (), Span(0, 0), Span(at, end)))
            at = end
            if rng.random() < 0.3:
                cut += segmenter.again()
            if rng.random() < 0.2:
                cut += segmenter.release() + segmenter.look(text[at : at + 9])
            if rng.random() < 0.1:
                at = rng.randint(cut[-1].chars.end if cut else 0, at)
                segmenter.revoke(at)
        cut += segmenter.again(ended=True) + segmenter.close()
        assert not segmenter.pending and "".join(phrase.text for phrase in cut) == text
        assert [phrase.index for phrase in cut] == list(range(len(cut)))
        assert max(phrase.chars.length for phrase in cut) <= 240


@pytest.mark.virtual_time
async def test_nothing_is_limited_before_the_play_out_tells() -> None:
    limits = Deadlines()
    limits.released(Phrase("One. ", Span(0, 5), Span(0, 1)))
    assert not limits.on and limits.bounds() == (0.0, math.inf)
    limits.follow(lambda: 0.0)
    assert limits.on
    limits.stop()
    assert limits.bounds() == (0.0, math.inf)


async def test_a_direction_behind_a_boundary_makes_the_text_before_it_no_shorter() -> None:
    class Fixed(Deadlines):
        sizes = Bounds(math.inf, 0.0)

        def bounds(self) -> Bounds:
            return self.sizes

    segmenter, text = Segmenter(), "One two three. [look around] And many more words follow here "
    segmenter.pace = pace = Fixed()
    assert not segmenter.add(Chunk(text, (), Span(0, 1), Span(0, len(text))))
    pace.sizes = Bounds(10.0, 20.0)
    assert [phrase.text for phrase in segmenter.release()] == ["One two three. "]


@pytest.mark.virtual_time
async def test_the_engine_is_told_by_when_more_text_is_needed() -> None:
    """Half a second for the first sound; later when all that was made or is coming was heard."""
    told, heard_s = list[tuple[float, bool]](), 0.0
    limits, began = Deadlines(), anyio.current_time()
    limits.follow(lambda: heard_s, lambda moment, heard: told.append((moment - began, heard)))
    phrase = Phrase("One. ", Span(0, 5), Span(0, 1))
    limits.released(phrase)
    assert told == [(START_S, False)] * 2
    await anyio.sleep(0.2)
    pcm = bytes(2 * 16_000)
    speech = Speech(pcm, 16_000, Span(0, 16_000), (), phrase.chars, phrase.tokens, 0, last=True)
    limits.made(speech, 0.1)
    assert told[-1][0] == pytest.approx(1.2) and told[-1][1]
    assert limits.silent_at - began == pytest.approx(1.2)
    await anyio.sleep(0.5)
    heard_s = 0.5
    limits.released(Phrase("Two! ", Span(5, 10), Span(1, 2)))
    letter_s = limits.pace.letter_s
    assert told[-1][0] == pytest.approx(1.2 + 5 * letter_s)
    assert limits.silent_at - began == pytest.approx(1.2), "the voice hasn't spoken it yet"


@pytest.mark.virtual_time
async def test_who_has_heard_nothing_is_due_in_a_moment_at_the_soonest() -> None:
    limits = Deadlines()
    assert limits.silent_at == math.inf
    limits.follow(lambda: 0.0)
    await anyio.sleep(3.0)
    assert limits.silent_at == anyio.current_time() + MOMENT_S
