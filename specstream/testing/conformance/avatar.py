"""What an avatar promises (`specstream.stages.AvatarScripter`), one check a promise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import aclosing
from copy import deepcopy
from dataclasses import replace
from typing import Any

from specstream.errors import SpecstreamError
from specstream.stages.contract import Link
from specstream.stages.limits import cues_of
from specstream.testing.conformance.checks import (
    UnderTest,
    apply_if,
    at_rate,
    babble,
    collected,
    left_behind,
    require,
)
from specstream.types import AvatarCue, Cancel, Mark, Span, Speech

__all__ = ["AVATAR_CHECKS", "speech_of"]

_RATES = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
_RATE = 24_000
_SOUNDS = ("h", "\u0259", "l", "o\u028a", "m", "i", "f", "\u0251")
_CUES_PER_S = 200  # more than a face can show
_BUFFERS_PER_S = 16
_LONG_S = 300
_LATE_S = 0.5  # a track may wait for marks, but what it gives later comes after its sound


def speech_of(
    text: str,
    rate: int = _RATE,
    *,
    marks: bool = True,
    sounds: Sequence[str] = _SOUNDS,
    first: int = 0,
    start: int = 0,
    phrase: int = 0,
) -> list[Speech]:
    """A phrase as a voice speaks it: a quarter of a second a word, in buffers of a sixteenth.

    Args:
        text: Words, and tags in square brackets.
        rate: Samples a second.
        marks: Whether words, phonemes and tags are marked.
        sounds: IPA of the phonemes, four a word.
        first: The phrase's first sample.
        start: Its first character.
        phrase: Its number.
    """
    parts = [(m[0], Span(start + m.start(), start + m.end())) for m in re.finditer(r"\S+", text)]
    each, placed, at = rate // 4, list[Mark](), first
    for word, chars in parts:
        if word.startswith("["):
            placed.append(Mark("tag", word.strip("[]"), Span(at, at), chars))
            continue
        placed.append(Mark("word", word, Span(at, at + each), chars))
        for number in range(4):
            span = Span(at + number * each // 4, at + (number + 1) * each // 4)
            placed.append(Mark("phoneme", sounds[len(placed) % len(sounds)], span, chars))
        at += each
    where = (Span(start, start + len(text)), Span(0, max(1, len(parts))), phrase)
    sound, made, size = at_rate(babble(), rate), list[Speech](), rate // _BUFFERS_PER_S
    for begin in range(first, at, size):
        end = min(begin + size, at)
        offset = 2 * (begin - first) % (len(sound) - 2 * size)
        pcm = sound[offset - offset % 2 :][: 2 * (end - begin)]
        inside = tuple(m for m in placed if begin <= m.samples.start < end) if marks else ()
        made.append(Speech(pcm, rate, Span(begin, end), inside, *where))
    late = tuple(m for m in placed if m.samples.start >= at) if marks else ()
    return [*made, Speech(b"", rate, Span(at, at), late, *where, last=True)]


def _talk(rate: int = _RATE, *, marks: bool = True) -> list[Speech]:
    one = speech_of("Hello [smile] my good friend", rate, marks=marks)
    end = one[-1].samples.end
    return one + speech_of("and [wave] bye", rate, marks=marks, first=end, start=28, phrase=1)


async def _turn(subject: UnderTest[Any], speech: Sequence[Speech]) -> list[AvatarCue]:
    """The cues of one turn of a new avatar, here or behind a socket."""
    avatar = await subject.new()
    if hasattr(avatar, "open"):
        track = avatar.open(speech[0].sample_rate if speech else _RATE)
        return [cue for piece in speech for cue in track.add(piece)] + list(track.close())
    try:
        link = Link[Speech](len(speech) + 1)
        for piece in speech:
            await link.send(piece)
        link.close()
        async with aclosing(avatar.run(link)) as cues:
            return [cue async for cue in cues if isinstance(cue, AvatarCue)]
    finally:
        await avatar.aclose()


async def _local(subject: UnderTest[Any]) -> Any:
    avatar = await subject.new()
    if not hasattr(avatar, "open"):
        await avatar.aclose()
        apply_if(False, "it is a stage: its tracks can't be reached")
    return avatar


def _visemes(cues: Sequence[AvatarCue]) -> list[AvatarCue]:
    return [cue for cue in cues if cue.kind == "viseme"]


async def rates(subject: UnderTest[Any]) -> None:
    """A turn may have any usual sample rate."""
    for rate in _RATES:
        require(bool(await _turn(subject, _talk(rate))), f"no cues at {rate} samples a second")


async def cues(subject: UnderTest[Any]) -> None:
    """What it gives are `AvatarCue` objects with finite times and whole ranges."""
    avatar = await _local(subject)
    track = avatar.open(_RATE)
    for piece in _talk():
        _well_formed(track.add(piece))
    _well_formed(track.close())


def _well_formed(given: object) -> None:
    try:
        found = list(cues_of(given))
    except SpecstreamError as error:
        require(False, str(error))
    for cue in found:
        require(bool(cue.name), "a cue has no name")
        require(cue.duration_ms >= 0, f"{cue.name!r} lasts {cue.duration_ms} ms")


async def time_order(subject: UnderTest[Any]) -> None:
    """Viseme cues come in time order, and the cues of one call do."""
    shown = _visemes(await _turn(subject, _talk()))
    for one, after in zip(shown, shown[1:], strict=False):
        when = f"{after.name!r} at {after.t_ms:.0f} ms comes after {one.name!r} at {one.t_ms:.0f} ms"
        require(one.t_ms <= after.t_ms, when)
    avatar = await subject.new()
    if hasattr(avatar, "open"):
        track = avatar.open(_RATE)
        for piece in _talk():
            times = [cue.t_ms for cue in track.add(piece)]
            require(times == sorted(times), f"the cues of one call are at {times} ms")
    else:
        await avatar.aclose()


async def clock(subject: UnderTest[Any]) -> None:
    """A cue's milliseconds and its samples say the same."""
    for cue in await _turn(subject, _talk()):
        ms = cue.samples.start * 1e3 / _RATE
        require(abs(cue.t_ms - ms) < 1, f"{cue.name!r}: {cue.t_ms} ms and sample {cue.samples.start}")


async def in_audio(subject: UnderTest[Any]) -> None:
    """A cue begins inside of the turn's audio."""
    speech = _talk()
    end = speech[-1].samples.end
    for cue in await _turn(subject, speech):
        inside = 0 <= cue.samples.start <= end and cue.samples.start <= cue.samples.end
        require(inside, f"{cue.name!r} covers samples {tuple(cue.samples)} of {end}")


async def punctual(subject: UnderTest[Any]) -> None:
    """Cues are given half a second behind their sound at most, long before the speech has ended."""
    track = (await _local(subject)).open(_RATE)
    speech = speech_of("and so it went on and on for a while")
    for piece in speech:
        for cue in track.add(piece):
            late = (piece.samples.start - cue.samples.start) / _RATE
            require(late <= _LATE_S, f"{cue.name!r} is given {late:.2f} s after its sound")
    left = [cue for cue in track.close() if cue.samples.length]
    late = (speech[-1].samples.end - min((cue.samples.start for cue in left), default=10**9)) / _RATE
    require(late <= _LATE_S, f"{left[0].name if left else ''!r} is kept until the end")


async def each_word(subject: UnderTest[Any]) -> None:
    """Each word of a phrase moves the mouth."""
    speech = speech_of("Hello my good friend and goodbye")
    starts = [cue.samples.start for cue in _visemes(await _turn(subject, speech))]
    for word in (mark for piece in speech for mark in piece.marks if mark.kind == "word"):
        begin, end = word.samples
        begin -= _RATE // 10  # lips are ahead of their sound
        require(any(begin <= at < end for at in starts), f"no viseme begins in {word.text!r}")


async def in_text(subject: UnderTest[Any]) -> None:
    """A cue's characters are characters of the text."""
    speech = _talk()
    end = speech[-1].chars.end
    for cue in await _turn(subject, speech):
        inside = 0 <= cue.chars.start <= cue.chars.end <= end
        require(inside, f"{cue.name!r} covers characters {tuple(cue.chars)} of {end}")


async def tags(subject: UnderTest[Any]) -> None:
    """A tag becomes a gesture or an emotion, and an unknown one no error."""
    speech = speech_of("Hello [smile] my friend [no-such-tag] bye")
    kinds = {cue.kind for cue in await _turn(subject, speech)}
    require(bool(kinds & {"gesture", "emotion"}), "no cue for [smile]")


async def _rest(subject: UnderTest[Any], cues: Sequence[AvatarCue], when: str) -> None:
    silent = [replace(one, pcm=bytes(len(one.pcm)), marks=()) for one in speech_of("a b c d")]
    resting = {cue.name for cue in _visemes(await _turn(subject, silent))[-1:]}
    shown = _visemes(cues)
    apply_if(bool(shown), "it gives no visemes")
    last = shown[-1]
    open_mouth = last.weight > 0 and any(value > 0 for value in last.weights.values())
    require(last.name in resting or not open_mouth, f"{when}, the last viseme is {last.name!r}")


async def rest(subject: UnderTest[Any]) -> None:
    """When the speech has ended, the face is brought to rest."""
    await _rest(subject, await _turn(subject, _talk()), "at the end of the speech")


async def rest_when_cut(subject: UnderTest[Any]) -> None:
    """When the speech is cut off, in the middle of any word, the face is brought to rest."""
    speech = _talk()
    for count in (1, 3, 6, 11):
        await _rest(subject, await _turn(subject, speech[:count]), f"cut off after {count} pieces")


async def rest_when_cancelled(subject: UnderTest[Any]) -> None:
    """A stage that is cancelled gives nothing but what brings the face to rest."""
    stage = await subject.new()
    apply_if(not hasattr(stage, "open"), "it is no stage")
    try:
        link = Link[Speech]()
        found = list[object]()
        async with aclosing(stage.run(link)) as made:
            await link.send(_talk()[0])
            found.append(await anext(made))
            link.cancel(Cancel("checked"))
            found += [item async for item in made]
        controls = [item for item in found if isinstance(item, Cancel)]
        require(len(controls) == 1 and found[-1] is controls[0], "the cancel isn't its last item")
    finally:
        await stage.aclose()


async def nothing_said(subject: UnderTest[Any]) -> None:
    """A turn without speech, or without a single sample, ends without an error."""
    await _turn(subject, [])
    await _turn(subject, speech_of(""))


async def closed_twice(subject: UnderTest[Any]) -> None:
    """A track may be closed twice; the second time gives nothing new."""
    track = (await _local(subject)).open(_RATE)
    for piece in _talk():
        track.add(piece)
    track.close()
    require(not _visemes(track.close()), "closing a track again gave further visemes")


async def no_marks(subject: UnderTest[Any]) -> None:
    """Speech without marks, as of a voice that gives none, moves the face all the same."""
    found = _visemes(await _turn(subject, _talk(marks=False)))
    shown = {cue.name for cue in found}
    require(len(shown) > 1, f"speech without marks shows {', '.join(shown) or 'nothing'} only")


async def unusual_marks(subject: UnderTest[Any]) -> None:
    """Sounds that no table has, empty ones and whole words as phonemes are no error."""
    sounds = ("\u0298", "\u6f22", "", "_", "hello", "\U0001f600", "\u02c8\u02cc", "x" * 500)
    await _turn(subject, speech_of("one two three four five", sounds=sounds))


async def repeats(subject: UnderTest[Any]) -> None:
    """The same speech gives the same cues, in a second turn of the same avatar, too."""
    avatar = await _local(subject)
    made = list[list[AvatarCue]]()
    for _ in range(2):
        track = avatar.open(_RATE)
        made.append([cue for piece in _talk() for cue in track.add(piece)] + list(track.close()))
    require(made[0] == made[1], "the second turn has other cues than the first")


async def tracks_apart(subject: UnderTest[Any]) -> None:
    """Two turns at once have the cues that each has alone."""
    texts = ("Hello my good old friend", "nothing [wave] of that at all now")
    alone = [await _turn(subject, speech_of(text)) for text in texts]
    avatar = await _local(subject)
    tracks = [avatar.open(_RATE) for _ in texts]
    found: list[list[AvatarCue]] = [[] for _ in texts]
    spoken = [speech_of(text) for text in texts]
    for step in range(max(map(len, spoken))):
        for which, track in enumerate(tracks):
            found[which] += [cue for one in spoken[which][step : step + 1] for cue in track.add(one)]
    for which, track in enumerate(tracks):
        found[which] += track.close()
        require(found[which] == alone[which], "beside another turn, the cues aren't those alone")


async def copies(subject: UnderTest[Any]) -> None:
    """If its tracks may be copied, a copy and its original go on independently."""
    avatar = await _local(subject)
    apply_if(bool(getattr(avatar, "copies", False)), "its tracks may not be copied")
    speech = _talk()
    for at in (1, len(speech) // 2, len(speech) - 2):
        plain, track = avatar.open(_RATE), avatar.open(_RATE)
        for piece in speech[:at]:
            plain.add(piece)
            track.add(piece)
        wanted = [cue for piece in speech[at:] for cue in plain.add(piece)] + list(plain.close())
        copy = deepcopy(track)
        for piece in speech_of("quite another thing", first=speech[at - 1].samples.end):
            copy.add(piece)
        copy.close()
        after = [cue for piece in speech[at:] for cue in track.add(piece)] + list(track.close())
        require(after == wanted, f"a copy after {at} pieces changed the track that it was made of")


async def replaced(subject: UnderTest[Any]) -> None:
    """Speech that is spoken anew (its words were taken back) gets cues of its own."""
    track = (await _local(subject)).open(_RATE)
    speech = _talk()
    for piece in speech:
        track.add(piece)
    first = next(piece.samples.start for piece in speech if piece.phrase == 1)
    again = speech_of("quite another thing", first=first, start=28, phrase=1)
    found = [cue for piece in again for cue in track.add(piece)] + list(track.close())
    shown = [cue for cue in _visemes(found) if cue.samples.start >= first and cue.samples.length]
    require(bool(shown), "speech that replaces other speech has no visemes")


async def weights(subject: UnderTest[Any]) -> None:
    """All weights lie from 0 to 1."""
    for cue in await _turn(subject, _talk()):
        values = {cue.name: cue.weight, **cue.weights}
        wrong = [f"{name} {value:g}" for name, value in values.items() if not 0 <= value <= 1]
        require(not wrong, f"weights from 0 to 1 are asked for; {cue.name!r} has {', '.join(wrong)}")


async def bounded(subject: UnderTest[Any]) -> None:
    """Five minutes of speech give a bounded number of cues, and few at once at the end."""
    speech, end = list[Speech](), 0
    for number in range(_LONG_S // 10):
        speech += speech_of("word " * 40, first=end, start=200 * number, phrase=number)
        end = speech[-1].samples.end
    found = await _turn(subject, speech)
    most = _CUES_PER_S * end // _RATE
    require(len(found) <= most, f"{len(found)} cues for {end / _RATE:.0f} s of speech")


async def no_tasks(subject: UnderTest[Any]) -> None:
    """It leaves no task and no thread behind."""

    async def work() -> None:
        await _turn(subject, _talk())

    await left_behind(work)


AVATAR_CHECKS = collected("avatar", (
    rates, cues, time_order, clock, in_audio, punctual, each_word, in_text, tags,
    rest, rest_when_cut, rest_when_cancelled,
    nothing_said, closed_twice, no_marks, unusual_marks, repeats, tracks_apart, copies, replaced,
    weights, bounded, no_tasks,
))  # fmt: skip
"""The checks of an avatar, in order."""
