"""What was played of a reply, word by word, and what a stopped turn still gives."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from specstream.signals import LoopClock
from specstream.stages.contract import Event
from specstream.types import AvatarCue, Chunk, Phrase, Revoke, ScenePrompt, Span, Speech

__all__ = ["AfterStop", "PlayedEstimate", "PlayedTrack", "SpokenWord"]

_WORD = re.compile(r"\S+")
_NO_LETTER = re.compile(r"[\W_]+")
_WIDE = "。！？；，、："  # no space follows them
_SLOW_CHARS_PER_S = 10
"""Pace assumed of a voice without marks before a phrase's length is known: slower than voices speak, so
that no word counts as heard too early."""


class SpokenWord(Protocol):
    """A word mark: when it is spoken, and the characters of the reply that it stands for."""

    @property
    def text(self) -> str: ...  # noqa: D102

    @property
    def samples(self) -> Span: ...  # noqa: D102

    @property
    def chars(self) -> Span: ...  # noqa: D102


class _Word(NamedTuple):
    samples: Span
    chars: Span


class _Open(NamedTuple):
    """A phrase whose speech has begun and not ended."""

    chars: Span
    samples: Span
    words_before: int  # of earlier phrases
    rate: float  # samples a second, on the caller's clock
    as_written: bool = True  # the last word: it isn't one of several that stand for one form


class PlayedTrack:
    """When each word of a reply is spoken, on a sample clock of the caller's choice.

    Attributes:
        tags: The parts of the text that are not spoken.
        half: Where a written form begins of which an earlier process has given some words only.
    """

    def __init__(self, tags: Sequence[Span] = ()) -> None:
        self.tags = tags
        self.half: int | None = None
        self._words: list[_Word] = []
        self._ends: list[int] = []  # of phrases, in the reply's text
        self._open: _Open | None = None

    @property
    def words(self) -> Sequence[tuple[Span, Span]]:
        """The words so far, in order: their samples, and their characters in the reply."""
        return self._words

    def restore(self, words: Iterable[Sequence[Span]]) -> None:
        """Append words that were read from `words` once."""
        self._words += [_Word(samples, chars) for samples, chars in words]

    def add(self, words: Iterable[SpokenWord], speech: Speech, samples: Span, text: str) -> None:
        """Add the words of the next piece of speech, which covers ``samples``.

        If the voice gave no words for a phrase, its words are spread over its audio by length. Speech
        that begins before the last one ended replaces what was there (see `Revoke`).

        Args:
            words: The marks of the words that end in the piece.
            speech: The piece, on the voice's clock.
            samples: Where it lies on the caller's clock.
            text: The reply so far.
        """
        if self._open is None:
            while self._words and self._words[-1].samples.start >= samples.start:
                self._words.pop()
            self._open = _Open(speech.chars, samples, len(self._words), 0.0)
            while self._ends and self._ends[-1] > speech.chars.start:
                self._ends.pop()
            self._ends.append(speech.chars.end)
            self.half = None  # it is spoken again
        as_written = self._open.as_written
        for mark in words:
            self._words.append(_Word(mark.samples, mark.chars))
            as_written = _plain(mark.text) == _plain(text[slice(*mark.chars)])
        scale = samples.length / speech.samples.length if speech.samples.length else 1.0
        covered = Span(self._open.samples.start, samples.end)
        chars, before = self._open.chars, self._open.words_before
        self._open = _Open(chars, covered, before, speech.sample_rate * scale, as_written)
        if speech.last:
            if len(self._words) == before:
                self._words += self._spread(text, chars, covered)
            # A voice's rounding may put a word's end behind the audio: it is heard with the audio's end.
            for at, (spoken, word) in enumerate(self._words[before:], before):
                self._words[at] = _Word(Span(*(min(s, covered.end) for s in spoken)), word)
            self._open = None

    def _spread(self, text: str, chars: Span, samples: Span) -> list[_Word]:
        """Spread the words of a part of ``text`` over ``samples`` by their length."""
        words: list[_Word] = []
        for found in _WORD.finditer(text, chars.start, chars.end):
            word = Span(*found.span())
            if any(tag.start < word.end and tag.end > word.start for tag in self.tags):
                continue
            start, end = (
                samples.start + samples.length * (edge - chars.start) // chars.length for edge in word
            )
            words.append(_Word(Span(start, end), word))
        return words

    def _unmarked(self, text: str) -> list[_Word]:
        """The words of a phrase that has no marks yet and may go on."""
        phrase = self._open
        if phrase is None or len(self._words) > phrase.words_before:
            return []
        slow = int(phrase.chars.length / _SLOW_CHARS_PER_S * phrase.rate)
        start, end = phrase.samples
        return self._spread(text, phrase.chars, Span(start, max(end, start + slow)))

    def _going_on(self) -> int | None:
        """Where the form of the last word begins, if further words of it may come; else None."""
        phrase = self._open
        if phrase is None or phrase.as_written or len(self._words) == phrase.words_before:
            return self.half
        return self._words[-1].chars.start

    def half_given(self, samples: int) -> int | None:
        """Where the written form begins of which ``samples`` have some words and not all; else None."""
        given = bisect_right(self._words, samples, key=lambda word: word.samples.end)
        coming = [word.chars.start for word in self._words[given:]]
        first = min(coming) if coming else self._going_on()
        behind = self._words[given - 1].chars.end if given else 0
        return first if first is not None and first < behind else None

    def cut(self, text: str, samples: int) -> int:
        """Return the length of the part of ``text`` that was heard once ``samples`` were played.

        It ends right behind the last word that was heard completely, with its punctuation. Characters
        that are spoken as several words ("$5") were heard once the last of these was; a phrase of which
        that holds as a whole (a translation) once its audio is complete.
        """
        words = [*self._words, *self._unmarked(text)]
        unheard = [word.chars.start for word in words if word.samples.end > samples]
        if self._open is not None:
            chars, before = self._open.chars, self._open.words_before
            unheard += [chars.start for word in self._words[before:] if word.chars == chars]
        if (going_on := self._going_on()) is not None:
            unheard.append(going_on)
        limit = min(unheard, default=len(text))
        heard = [word.chars.end for word in words if word.samples.end <= samples]
        heard = [end for end in heard if end <= limit or not unheard]
        if not heard:
            return 0
        end = min(max(heard), len(text))
        # What is behind the phrase is another's, with or without a space.
        phrase = bisect_left(self._ends, end)
        limit = min(limit, len(text), *self._ends[phrase : phrase + 1])
        while end < limit and not (text[end].isspace() or text[end] == "["):
            if text[end - 1] in _WIDE:
                break
            end += 1
        return end


def _plain(word: str) -> str:
    return _NO_LETTER.sub("", word).casefold()


_NEUTRAL = "neutral"
_SILENT = frozenset({"sil", "0", "X", _NEUTRAL})
"""Names of the closed mouth: Oculus's and ARKit's, Microsoft's, Rhubarb's, VRM's."""
_MAX_DIRECTIONS = 1024  # emotions and gestures of a turn that are remembered
_ROUNDING_MS = 1e-6


class AfterStop:
    """After an interruption, drops the turn's leftover events and brings the face to rest.

    The stages' own cues end with their speech, which may reach far behind the moment of the stop. So
    none of them is given any more, but what brings the face that was shown to rest at that moment: a
    closed mouth, which takes back all cues behind it, and a neutral expression if there was another.
    """

    def __init__(self) -> None:
        self._mouth: AvatarCue | None = None  # the last viseme that was given
        self._directions: deque[AvatarCue] = deque(maxlen=_MAX_DIRECTIONS)  # given, not taken back
        self._closed: AvatarCue | None = None  # a closed mouth as the avatar itself describes it
        self._latest: Event | None = None  # with a cue
        self._made_before = 0
        self._t_ms = 0.0
        self._sample = 0

    def saw(self, event: Event) -> None:
        """Take note of an event of the turn that is given."""
        if isinstance(event.item, AvatarCue):
            self._latest = event
            self._show(event.item)

    def stopped(self, made_before: int, sample: int, t_ms: float) -> None:
        """The turn was stopped at ``sample``, after ``made_before`` events were made.

        Called again with an earlier sample, it makes the face come to rest there.
        """
        self._made_before, self._sample, self._t_ms = made_before, sample, t_ms

    def late(self, event: Event) -> Event | None:
        """Return what to give for an event that is read after the stop; None: nothing.

        Events that were made before the stop, text, speech and prompts are left out. A cue is replaced
        by one that brings the face to rest; later failures, controls and all revokes pass.
        """
        early = event.seq < self._made_before
        if isinstance(event.item, AvatarCue):
            if _is_closed(event.item):
                self._closed = event.item
            # Without a closed mouth of this avatar one may follow, or else `last` makes one.
            due = None if early or self._closed is None else self._next()
            return None if due is None else replace(event, item=due)
        if isinstance(event.item, Revoke):  # of drafts that were given before the stop
            return event
        if early or isinstance(event.item, Chunk | Phrase | Speech | ScenePrompt):
            return None
        return event

    def last(self, seq: int) -> Event | None:
        """Return the next cue that must follow all other events, if one is missing.

        An avatar stage that had ended before the stop gives no more cues, and one that hangs neither.
        """
        due = self._next()
        return replace(self._latest, seq=seq, item=due) if self._latest and due else None

    def _show(self, cue: AvatarCue) -> None:
        if cue.kind != "viseme":
            self._directions.append(cue)
            return
        if self._mouth is not None and _end(self._mouth) > cue.t_ms + _ROUNDING_MS:
            kept = (old for old in self._directions if old.t_ms < cue.t_ms)
            self._directions = deque(kept, _MAX_DIRECTIONS)
        self._mouth = cue
        if _is_closed(cue):
            self._closed = cue

    def _next(self) -> AvatarCue | None:
        """Return the next cue that the face needs to be at rest from the stop on, as shown."""
        cue = self._closing() or self._calming()
        if cue is not None:
            self._show(cue)
        return cue

    def _closing(self) -> AvatarCue | None:
        mouth, stop = self._mouth, self._t_ms + _ROUNDING_MS
        if mouth is not None and (_end(mouth) > stop or not _is_closed(mouth)):
            return self._silence(mouth)
        behind = [cue for cue in self._directions if cue.t_ms > stop]
        if not behind:
            return None
        # Only a viseme that begins before the last one's end takes back: a longer one comes first.
        lasting = replace(self._silence(behind[-1]), duration_ms=behind[-1].t_ms - self._t_ms)
        return replace(lasting, samples=Span(self._sample, behind[-1].samples.start))

    def _calming(self) -> AvatarCue | None:
        emotion = next((cue for cue in reversed(self._directions) if cue.kind == "emotion"), None)
        if emotion is None or emotion.name == _NEUTRAL:
            return None
        return self._now(replace(emotion, name=_NEUTRAL, weight=1.0, weights={}))

    def _silence(self, like: AvatarCue) -> AvatarCue:
        if self._closed is not None:
            return self._now(self._closed)
        flat = dict.fromkeys(like.weights, 0.0) if like.kind == "viseme" else {}
        cue = replace(like, kind="viseme", name="sil", weight=1.0, weights=flat, sound="")
        return self._now(cue)

    def _now(self, cue: AvatarCue) -> AvatarCue:
        samples = Span(self._sample, self._sample)
        return replace(cue, t_ms=self._t_ms, duration_ms=0.0, samples=samples)


def _end(cue: AvatarCue) -> float:
    return cue.t_ms + cue.duration_ms


def _is_closed(cue: AvatarCue) -> bool:
    """Whether it is a closed mouth: by its name, or as the viseme without duration that ends a turn."""
    return cue.kind == "viseme" and (cue.name in _SILENT or not cue.samples.length)


class PlayedEstimate:
    """Estimates what was heard where there is no play-out: speech counts as played when it arrives.

    Attributes:
        until: When all speech so far will have been heard, on the clock of the event loop.
    """

    def __init__(self) -> None:
        self._put_s = self.until = 0.0
        self._clock = LoopClock()

    def put(self, speech: Speech) -> None:
        """Take the next speech."""
        end_s = speech.samples.end / speech.sample_rate
        self.until = max(self.until, self._clock.now()) + end_s - self._put_s
        self._put_s = end_s

    @property
    def heard_s(self) -> float:
        """Seconds of the turn's audio that were heard."""
        return self._put_s - max(0.0, self.until - self._clock.now())
