"""Turn marked speech into an avatar's cues: visemes, gestures and emotions on the audio's clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import get_args

from specstream.errors import AdapterFailed
from specstream.types import AvatarCue, Mark, Span, Speech
from specstream_adapters.avatar.curves import Rig, recast
from specstream_adapters.avatar.directions import NEUTRAL, SHAPES, SILENCE, Direction, direct
from specstream_adapters.avatar.exports import export
from specstream_adapters.avatar.mouth import Mouth, Segment
from specstream_adapters.avatar.timeline import Timeline
from specstream_adapters.checks import in_range, one_of

__all__ = ["VisemeScripter"]

_REMEMBERED = 32  # cues of tags, of which the latest may be taken back


class VisemeScripter:
    """Makes viseme, gesture and emotion cues from marked speech; pure computation.

    **Visemes** tile the turn's audio, ``[0, total samples)``, with the 15 Oculus names. Their
    ``weights`` are ARKit blend shapes at their final values (`Face` makes smooth curves of them); a
    shape that a cue doesn't name is at 0. ``sound`` is the IPA. Equal neighbours within a phrase are
    one cue where both are known; no cue spans two phrases. Audio that the voice's marks don't cover
    follows its loudness.

    **Emotions** last 4 s (some less) or until the next emotion cue, which replaces them; if one
    still lasts when the speech ends, a "neutral" cue ends it there; without any speech it lasts as long
    as it says. **Gestures** have a duration of their own. Both begin at their tag's sample. An unknown
    tag is a gesture of that name.

    **Order.** A piece of speech gives all cues that begin in it: none is late, and none changes
    afterwards. Viseme cues come in order and without overlap; a tag's cue comes before the viseme cue
    that it falls into. A viseme cue that begins before the end of the viseme cue before it takes back
    all cues from its first sample on. Such are the "sil" cue without duration with which the
    replacement of revoked speech begins, and the one that ends a cancelled turn.

    Args:
        patience_ms: How long audio without a mark waits for one before its loudness is used; for voices
            that mark a word when it ends. Cues may then be late by up to this time; 0: never.
        rig: The kind of face that the cues are for: ``"arkit"`` (as above), ``"oculus"``,
            ``"microsoft"``, ``"vrm"`` or ``"rhubarb"``; see `recast`.

    Attributes:
        punctual: Whether no cue comes later than its audio.
    """

    copies = True  # tracks may be copied: they hold nothing but their own state

    named_by = "rig"

    def __init__(self, *, patience_ms: float = 0.0, rig: Rig = "arkit") -> None:
        in_range("patience_ms", patience_ms, 0, 10_000)
        one_of("rig", rig, get_args(Rig))
        self._patience_ms, self._rig = patience_ms, rig
        self.punctual = patience_ms == 0.0

    @staticmethod
    def export(cues: Sequence[AvatarCue], to: str, fps: float = 60.0) -> str:
        """A turn's cues, made for ARKit, as the text of a file; see `exports.export`."""
        return export(cues, to, fps)

    def open(self, sample_rate: int) -> VisemeTrack:
        """Begin a turn whose audio has ``sample_rate`` samples a second.

        Raises:
            ConfigError: the rate isn't one of speech.
        """
        in_range("sample_rate", sample_rate, 1_000, 384_000)
        patience = int(sample_rate * self._patience_ms / 1000)
        return VisemeTrack(sample_rate, patience, self._rig)


class VisemeTrack:
    """The script of one turn; for the order of its cues see `VisemeScripter`."""

    def __init__(self, sample_rate: int, patience: int, rig: Rig = "arkit") -> None:
        self._rate = sample_rate
        self._rig = rig
        self._timeline = Timeline(sample_rate, patience)
        self._mouth = Mouth(sample_rate)
        self._phrase: Speech | None = None  # the latest piece of the phrase under way
        self._waiting: list[tuple[int, bool, int, AvatarCue]] = []  # a heap in order of time
        self._count = 0
        self._given = 0  # the sample at which the last viseme cue ends
        self._directed: deque[AvatarCue] = deque(maxlen=_REMEMBERED)  # cues of tags
        self._last: AvatarCue | None = None

    def add(self, speech: Speech) -> Sequence[AvatarCue]:
        """Take the next piece; return the cues that begin in it.

        A piece that starts before the end of the one before replaces what lay there (its words
        were taken back).

        Raises:
            AdapterFailed: the piece has another sample rate than the turn.
        """
        if speech.sample_rate != self._rate:
            raise AdapterFailed(
                f"the avatar's track was opened for {self._rate} samples a second and got speech "
                f"with {speech.sample_rate}; open a track for each rate"
            )
        if speech.samples.start < self._timeline.heard:
            self._rewind(speech)
        elif self._phrase is not None and self._phrase.phrase != speech.phrase:
            self._finish_phrase()
        self._phrase = speech
        for mark in speech.marks:
            if mark.kind == "tag":
                self._direct(mark, speech.tokens)
        for segment in self._timeline.add(speech):
            self._mouth.push(segment)
        self._voice(self._mouth.take(self._timeline.heard))
        if speech.last:
            self._finish_phrase()
        return self._release(self._timeline.heard if speech.last else self._given - 1)

    def close(self) -> Sequence[AvatarCue]:
        """End the turn, whose speech has ended or was cancelled; return the cues that are left.

        They reach to the last sample of the speech. Unless they end in silence, a "sil" cue without
        duration follows. Idempotent.
        """
        self._finish_phrase()
        heard = self._timeline.heard
        cues = self._release(heard)
        last, self._last = self._last, None
        rest: list[AvatarCue] = []
        if last is not None and (last.name != SILENCE or self._given > heard):
            rest.append(self._rest(heard, last.chars, last.tokens))
        emotions = [cue.samples.end for cue in self._directed if cue.kind == "emotion"]
        if last is not None and emotions and emotions[-1] > heard:
            rest.append(self._cue(NEUTRAL, Span(heard, heard), last.chars, last.tokens))
        return cues + [recast(cue, self._rig) for cue in rest]

    def _finish_phrase(self) -> None:
        if self._phrase is None:
            return
        for segment in self._timeline.finish(self._phrase.chars):
            self._mouth.push(segment)
        heard = self._timeline.heard
        self._voice(self._mouth.flush(heard))
        self._timeline.advance(max(heard, self._given))
        self._phrase = None

    def _voice(self, segments: Sequence[Segment]) -> None:
        assert self._phrase is not None
        for segment in segments:
            self._wait(self._viseme(segment, self._phrase.tokens))
            self._given = segment.end

    def _direct(self, mark: Mark, tokens: Span) -> None:
        direction = direct(mark.text)
        start = mark.samples.start
        samples = Span(start, start + round(direction.duration_ms * self._rate / 1000))
        self._directed.append(self._cue(direction, samples, mark.chars, tokens))
        self._wait(self._directed[-1])

    def _wait(self, cue: AvatarCue) -> None:
        self._count += 1
        mouth = cue.kind == "viseme"
        order = (cue.samples.end if mouth else cue.samples.start, not mouth, self._count)
        heappush(self._waiting, (*order, cue))

    def _release(self, tags_until: int) -> list[AvatarCue]:
        """Return the cues that wait, in order: visemes, and tags that begin up to ``tags_until``."""
        out: list[AvatarCue] = []
        while self._waiting and self._waiting[0][0] <= max(tags_until, self._given):
            if self._waiting[0][1] and self._waiting[0][0] > tags_until:
                break
            out.append(heappop(self._waiting)[3])
            if out[-1].kind == "viseme":
                self._last = out[-1]
        return [recast(cue, self._rig) for cue in out]

    def _rewind(self, speech: Speech) -> None:
        sample = speech.samples.start
        self._timeline.rewind(sample)
        self._mouth = Mouth(self._rate)
        self._phrase = None
        self._waiting.clear()
        char = speech.chars.start
        kept = [
            cue
            for cue in self._directed
            if cue.samples.start < sample or (cue.samples.start == sample and cue.chars.end <= char)
        ]
        self._directed = deque(kept, maxlen=_REMEMBERED)
        if self._given > sample:
            self._wait(self._rest(sample, Span(char, char), speech.tokens))
            for cue in kept:
                if cue.samples.start == sample:  # the cue before takes it back, too
                    self._wait(cue)
        self._given = sample

    def _viseme(self, segment: Segment, tokens: Span) -> AvatarCue:
        assert segment.viseme is not None
        weight = round(segment.strength(self._rate), 3)
        weights = {name: round(w * weight, 3) for name, w in SHAPES[segment.viseme].items()}
        shape = Direction("viseme", segment.viseme, 0, weight, weights)
        samples = Span(segment.start, segment.end)
        return self._cue(shape, samples, segment.chars, tokens, segment.sound)

    def _rest(self, sample: int, chars: Span, tokens: Span) -> AvatarCue:
        return self._viseme(Segment(SILENCE, sample, sample, chars), tokens)

    def _cue(
        self, direction: Direction, samples: Span, chars: Span, tokens: Span, sound: str = ""
    ) -> AvatarCue:
        return AvatarCue(
            kind=direction.kind,
            name=direction.name,
            t_ms=samples.start * 1000 / self._rate,
            duration_ms=samples.length * 1000 / self._rate,
            weight=direction.weight,
            samples=samples,
            chars=chars,
            tokens=tokens,
            weights=dict(direction.weights),
            sound=sound,
        )
