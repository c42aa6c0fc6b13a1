"""Speech to the avatar's script: visemes, gestures and emotions on the audio's clock."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from specstream.errors import AdapterFailed, ConfigError
from specstream.types import AvatarCue, Mark, Span, Speech
from specstream_adapters.avatar.directions import NEUTRAL, Direction, direct
from specstream_adapters.avatar.mouth import Mouth, Segment
from specstream_adapters.avatar.timeline import Timeline
from specstream_adapters.avatar.visemes import SHAPES, SILENCE

__all__ = ["VisemeScripter"]


class VisemeScripter:
    """Makes viseme, gesture and emotion cues from marked speech; pure computation.

    **Visemes** tile the turn's audio, ``[0, total samples)``, with the 15 Oculus names. Their
    ``weights`` are ARKit blend shapes at their final values; a shape that a cue doesn't name is at
    0. Equal neighbours within a phrase are one cue; no cue spans two phrases. A voice without
    phoneme marks is spelled from its words, one without any marks follows its loudness.

    **Emotions** last 4 s (some less) or until the next emotion cue, which replaces them; if one
    still lasts when the speech ends, a "neutral" cue ends it there. **Gestures** have a duration of
    their own. Both begin at their tag's sample. An unknown tag is a gesture of that name.

    **Delay.** All cues come in the order of their first sample, at equal samples a tag's first. A
    viseme is handed over when the two that follow it are known and the word that it belongs to has
    ended (a tag may stand right before that), or ``patience_ms`` of audio later if no word is
    marked; at the latest with the phrase's last piece.

    Args:
        patience_ms: How much audio may come without a mark before its loudness moves the mouth.
            Words and sounds that last longer are followed by loudness for the first part.
    """

    copies = True  # of its tracks: they hold nothing but their own state

    def __init__(self, *, patience_ms: float = 800.0) -> None:
        if not 100.0 <= patience_ms <= 10_000.0:
            raise ConfigError(f"patience_ms must be between 100 and 10000, not {patience_ms}")
        self._patience_ms = patience_ms

    def open(self, sample_rate: int) -> VisemeTrack:
        """Begin a turn whose audio has ``sample_rate`` samples a second.

        Raises:
            ConfigError: the rate isn't one of speech.
        """
        if not 1_000 <= sample_rate <= 384_000:
            raise ConfigError(f"sample_rate must be between 1000 and 384000, not {sample_rate}")
        return VisemeTrack(sample_rate, int(sample_rate * self._patience_ms / 1000))


class VisemeTrack:
    """The script of one turn; see `VisemeScripter` for what it promises."""

    def __init__(self, sample_rate: int, patience: int) -> None:
        self._rate = sample_rate
        self._patience = patience
        self._timeline = Timeline(sample_rate, patience)
        self._mouth = Mouth(sample_rate)
        self._phrase: Speech | None = None  # the latest piece of the phrase under way
        self._waiting: list[tuple[int, bool, int, AvatarCue]] = []  # a heap in order of time
        self._count = 0
        self._settled = 0  # the first sample whose viseme is not certain yet
        self._words_until = 0
        self._emotion: Span | None = None
        self._last: AvatarCue | None = None

    def add(self, speech: Speech) -> Sequence[AvatarCue]:
        """Take the next piece; return the cues that became certain, in time order.

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
            self._rewind(speech.samples.start)
        elif self._phrase is not None and self._phrase.phrase != speech.phrase:
            self._finish_phrase()
        self._phrase = speech
        for mark in speech.marks:
            if mark.kind == "tag":
                self._direct(mark, speech.tokens)
            elif mark.kind == "word":
                self._words_until = max(self._words_until, mark.samples.end)
        for segment in self._timeline.add(speech):
            self._voice(self._mouth.push(segment))
        if speech.last:
            self._finish_phrase()
        heard = self._timeline.heard
        certain = heard if speech.last else max(self._words_until, heard - self._patience)
        return self._release(certain)

    def close(self) -> Sequence[AvatarCue]:
        """The speech has ended or was cancelled: the rest of the cues, and the face at rest.

        What is known is played out to the last sample that was heard. Unless that is silence, a
        "sil" cue without duration follows. Idempotent.
        """
        self._finish_phrase()
        heard = self._timeline.heard
        cues = self._release(heard)
        last, self._last = self._last, None
        if last is None:
            return cues
        if self._emotion is not None and self._emotion.end > heard:
            cues.append(self._cue(NEUTRAL, Span(heard, heard), last.chars, last.tokens))
        if last.name != SILENCE:
            cues.append(self._viseme(Segment(SILENCE, heard, heard, last.chars), last.tokens))
        return cues

    def _finish_phrase(self) -> None:
        if self._phrase is None:
            return
        for segment in self._timeline.finish(self._phrase.chars):
            self._voice(self._mouth.push(segment))
        self._voice(self._mouth.flush())
        self._words_until = self._timeline.heard
        self._phrase = None

    def _voice(self, segments: Sequence[Segment]) -> None:
        assert self._phrase is not None
        for segment in segments:
            self._wait(self._viseme(segment, self._phrase.tokens))
            self._settled = segment.end

    def _direct(self, mark: Mark, tokens: Span) -> None:
        direction = direct(mark.text)
        start = mark.samples.start
        samples = Span(start, start + round(direction.duration_ms * self._rate / 1000))
        if direction.kind == "emotion":
            self._emotion = samples
        self._wait(self._cue(direction, samples, mark.chars, tokens))

    def _wait(self, cue: AvatarCue) -> None:
        self._count += 1
        order = (cue.samples.start, cue.kind == "viseme", self._count)
        heappush(self._waiting, (*order, cue))

    def _release(self, certain: int) -> list[AvatarCue]:
        """The waiting cues that nothing can come before any more."""
        out: list[AvatarCue] = []
        until = min(certain, self._settled)
        while self._waiting and self._waiting[0][:2] <= (until, False):
            out.append(heappop(self._waiting)[3])
            if out[-1].kind == "viseme":
                self._last = out[-1]
        return out

    def _rewind(self, sample: int) -> None:
        self._timeline.rewind(sample)
        self._mouth = Mouth(self._rate)
        self._phrase = None
        self._waiting = [entry for entry in self._waiting if entry[0] < sample]
        heapify(self._waiting)
        self._settled = self._words_until = sample
        if self._emotion is not None and self._emotion.start >= sample:
            self._emotion = None

    def _viseme(self, segment: Segment, tokens: Span) -> AvatarCue:
        assert segment.viseme is not None
        weight = round(segment.strength(self._rate), 3)
        weights = {name: round(w * weight, 3) for name, w in SHAPES[segment.viseme].items()}
        shape = Direction("viseme", segment.viseme, 0, weight, weights)
        return self._cue(shape, Span(segment.start, segment.end), segment.chars, tokens)

    def _cue(self, direction: Direction, samples: Span, chars: Span, tokens: Span) -> AvatarCue:
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
        )
