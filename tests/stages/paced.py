"""Replies at a token rate through a voice of a given pace, and what the best cuts could have done."""

import itertools
import math
import random
import re
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import anyio

from specstream.playback.played import PlayedEstimate
from specstream.stages.deadline import Bounds, Deadlines
from specstream.stages.interfaces import VoiceCapabilities
from specstream.stages.pipeline import Pipeline
from specstream.stages.stages import SegmentStage, VoiceStage
from specstream.testing import chunks_of
from specstream.text.segmenter import Segmenter
from specstream.types import Chunk, Phrase, Speech, SpeechBuffer

TEXTS = {
    "prose": (
        "The lighthouse keeper had lived alone for eleven winters, and he knew every sound that "
        "the sea could make. One night he heard a new one. It was low and slow, like somebody "
        "humming behind a closed door, and it came from the rocks below the stairs. He took his "
        "lamp and went down to look. Nothing was there but a wooden box with a brass lock. He "
        "carried it up to the kitchen, put it on the table and waited for the morning, because he "
        "did not trust things that hum in the dark."
    ),
    "chat": (
        "Sure! I can help. Yes, it's open. You leave at nine. Take the red line, get off at the "
        "third stop. Walk north. It's on the left. No ticket? No problem. You can pay there. Cash "
        "is fine. Ask for Ana. She knows. Bring a coat! It gets cold. Call me if you are lost. "
        "Have fun."
    ),
    "list": (
        "Here is what you need for the soup:\n\n- two large onions\n- a handful of thyme and one bay "
        "leaf\n- 1.5 litres of stock, which may be cold\n- salt, pepper and a little sugar\n\nChop "
        "the onions [smile] and fry them in butter until they are brown. That takes about forty "
        "minutes. Add the rest, then let it simmer for 20 min. Serve it with bread."
    ),
    "long": (
        "What the committee had not expected when it met on the second floor of the old customs "
        "house was that the engineers from the river authority would bring with them a model of "
        "the whole delta made of clay and glass and copper wire which took nine people to carry "
        "and which when it was filled with water from the tap in the corridor showed within "
        "minutes that the new harbour would silt up every spring and that the road behind it "
        "would have to be moved by at least a mile"
    ),
}
WORD_S = 0.3
_WORD = re.compile(r"\S*[^\W_]\S*")
_RATE = 4000
_MOST = 240  # characters of a phrase


class Setting(NamedTuple):
    """Tokens a second, the voice (milliseconds, factor, whether it streams), the text, and chance."""

    rate: float
    first_ms: float
    factor: float
    streams: bool
    text: str
    seed: int
    stall_s: float = 0.0


class Played(NamedTuple):
    """Phrases, when each was released, and the gaps between them in seconds."""

    phrases: list[Phrase]
    released: list[float]
    gaps: list[float]


def words(text: str) -> int:
    return len(_WORD.findall(re.sub(r"\[\w+\]", "", text)))


@dataclass
class PacedVoice:
    """A tone for each word; ``first_s`` of silence before a phrase, then ``factor`` seconds a second.

    If it doesn't stream, all buffers of a phrase come at once when it is finished.
    """

    first_s: float
    factor: float
    streams: bool = True
    capabilities = VoiceCapabilities("paced", _RATE, streaming=True, deterministic=True)

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        began, count = anyio.current_time() + self.first_s, words(phrase.text)
        for at in range(count):
            ready = at if self.streams else count
            await anyio.sleep_until(began + ready * WORD_S * self.factor)
            yield SpeechBuffer(bytes(2 * int(_RATE * WORD_S)))
        await anyio.sleep_until(began + count * WORD_S * self.factor)

    async def aclose(self) -> None:
        return None


def arrivals(setting: Setting) -> list[Chunk]:
    """The reply in rounds of one to five tokens, at uneven times (seconds in ``t_ms``)."""
    rng = random.Random(repr(setting))
    sizes = [rng.choice((1, 1, 2, 3, 5)) for _ in range(400)]
    chunks, at = [], 0.2
    made = chunks_of(TEXTS[setting.text], sizes)
    stall = len(made) * 2 // 5
    for number, chunk in enumerate(made):
        chunks.append(replace(chunk, t_ms=at))
        at += len(chunk.token_ids) / setting.rate * rng.uniform(0.5, 1.5)
        at += setting.stall_s if number == stall else 0.0
    return chunks


async def play(setting: Setting, *, paced: bool, turns: int = 1) -> Played:
    """Speak the reply in each of ``turns`` turns; return what the last one played."""
    voice = PacedVoice(setting.first_ms / 1e3, setting.factor, setting.streams)
    line = Pipeline([[VoiceStage(voice)]], head=SegmentStage(clock=anyio.current_time))
    for _ in range(turns):
        began, played = anyio.current_time(), Played([], [], [])

        async def chunks(began: float = began) -> AsyncIterator[Chunk]:
            for chunk in arrivals(setting):
                await anyio.sleep_until(began + chunk.t_ms)
                yield chunk

        clock, heard = PlayedEstimate(), False
        async with line.run(chunks()) as run:
            if paced:
                run.follow(lambda clock=clock: clock.heard_s)  # type: ignore[misc]
            async for event in run:
                now = anyio.current_time()
                if isinstance(event.item, Phrase):
                    played.phrases.append(event.item)
                    played.released.append(now - began)
                elif isinstance(event.item, Speech) and event.item.pcm:
                    gap = now - clock.until
                    if heard and gap > 1e-6:
                        played.gaps.append(gap)
                    clock.put(event.item)
                    heard = True
    return played


class _Never(Deadlines):
    def bounds(self) -> Bounds:
        return Bounds(math.inf, 0.0)


@cache
def boundaries(text: str) -> dict[int, int]:
    """Where a phrase may end, and how much of the text must be known for that."""
    segmenter = Segmenter(first_clause_chars=None, max_chars=10_000)
    segmenter.pace = _Never()
    found: dict[int, int] = {}
    for chunk in chunks_of(text, [1] * len(text)):
        for at, char in enumerate(chunk.text):
            span = (chunk.chars.start + at, chunk.chars.start + at + 1)
            one = replace(chunk, text=char, chars=type(chunk.chars)(*span), ends=(span[1],))
            segmenter.add(one)
            if cut := segmenter.fork().flush():
                found.setdefault(cut[0].chars.end, span[1])
    return found | {len(text): len(text)}


class Cuts:
    """Computes when audio would come with other cuts of a reply after the first phrase as spoken."""

    def __init__(self, setting: Setting, played: Played) -> None:
        self.setting, self.text = setting, TEXTS[setting.text]
        chunks = arrivals(setting)
        ends = [chunk.chars.end for chunk in chunks]
        self.first = played.phrases[0].chars.end
        legal = sorted(boundaries(self.text).items())
        self.ends = [self.first] + [end for end, _ in legal if end > self.first]
        self.known = [played.released[0]] + [
            chunks[min(bisect_left(ends, need), len(ends) - 1)].t_ms
            for end, need in legal
            if end > self.first
        ]
        self.known[-1] = chunks[-1].t_ms
        counts = [words(self.text[a:b]) for a, b in itertools.pairwise([0, *self.ends])]
        self.audio = [WORD_S * count for count in itertools.accumulate(counts)]

    def speak(self, start: float, audio: float) -> tuple[float, float]:
        """When the first audio comes, and when the voice is free."""
        first, factor = self.setting.first_ms / 1e3, self.setting.factor
        done = start + first + factor * audio
        return (start + first if self.setting.streams else done), done

    def feasible(self, spare_s: float = 0.0) -> bool:
        """Whether with some cuts every phrase begins ``spare_s`` before the audio ahead of it ends.

        For each boundary: how early can the voice be free there?
        """
        begins, free = self.speak(self.known[0], self.audio[0])
        done = [math.inf] * len(self.ends)
        done[0] = free
        for at in range(len(self.ends) - 1):
            if done[at] == math.inf:
                continue
            until = begins + self.audio[at]
            for to in range(at + 1, len(self.ends)):
                if self.ends[to] - self.ends[at] > _MOST:
                    break
                start = max(self.known[to], done[at])
                first, free = self.speak(start, self.audio[to] - self.audio[at])
                if first <= until - spare_s + 1e-6:
                    done[to] = min(done[to], free)
                elif start > until:
                    break
        return done[-1] < math.inf

    def fixed(self, size: int) -> tuple[int, float]:
        """Gaps and mean length of phrases that end at the first word past ``size`` characters."""
        begins, free = self.speak(self.known[0], self.audio[0])
        until, gaps, at, count = begins + self.audio[0], 0, 0, 1
        while at < len(self.ends) - 1:
            to = at + 1
            while to < len(self.ends) - 1 and self.ends[to] - self.ends[at] < size:
                to += 1
            audio = self.audio[to] - self.audio[at]
            first, free = self.speak(max(self.known[to], free), audio)
            if audio:
                gaps += first > until + 1e-6
                until = max(until, first) + audio
            at, count = to, count + 1
        return gaps, len(self.text) / count
