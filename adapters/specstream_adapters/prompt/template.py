"""A storyboard by rules: sentences pass through, with their subject, place and style carried along."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from specstream.errors import ConfigError
from specstream.types import Phrase, ScenePrompt, Span
from specstream_adapters.prompt.bible import Bible, Seen
from specstream_adapters.prompt.reading import Reader, Sentence, is_code

__all__ = ["TemplateRewriter", "TemplateStoryboard"]

_STYLE = "Cinematic film still, natural light, shallow depth of field, rich colour, 35mm"
_NEGATIVE = (
    "text, captions, subtitles, watermark, logo, split screen, blurry, deformed hands, extra limbs"
)
_REMEMBERED = 64  # sentences that can be taken back
_LONGEST = 320  # characters of a sentence that go into its prompt
_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»|„[^“]*“")
_TALK = re.compile(r"\b(?:I|me|my|we|us|our|you|your)\b|\?\W*$", re.IGNORECASE)
_ENDED = re.compile(r"[.!?…。！？][\"”»]?$")
_MOODS = {
    "smile": "warm", "happy": "warm", "laugh": "warm", "chuckle": "warm", "giggle": "warm",
    "sad": "sombre", "cry": "sombre", "sob": "sombre", "tearful": "sombre",
    "worried": "tense", "afraid": "tense", "scared": "tense", "nervous": "tense",
    "sigh": "weary", "tired": "weary", "surprised": "astonished", "wide": "astonished",
    "gasp": "astonished", "angry": "fierce", "whisper": "hushed", "quiet": "hushed",
    "think": "pensive", "serious": "pensive", "determined": "determined", "brave": "determined",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Shot:
    """What one sentence makes of the screen."""

    seen: Seen
    camera: str
    mood: str
    talk: bool


@dataclass(kw_only=True, eq=False)
class TemplateRewriter:
    """Makes a shot list by passing sentences through; needs no model and no parser.

    Each sentence that shows something is a shot, in its own words and in any language. Added are the
    subject as the text introduced it ("Rusty, a brave little fox"), the place until another is
    named, a camera, the mood of the last tag, and the style. Introductions, pronouns and places are
    recognised in English only, by a few patterns (see `Bible`); what they miss is left out.

    Talk to the listener (a question, "I", "you") shows ``default_subject`` speaking: one shot for
    a run of such sentences. A quotation without any telling makes no shot of its own. JSON and code
    give no shot. ``t_start_ms`` is the number of characters spoken before the shot divided by
    ``chars_per_second``; tags don't count.

    Shot ids never repeat within one rewriter. A board that goes on where the last one ended in the
    same reply (after a flush) knows its people and places; with ``remember`` so does the next reply
    (use one rewriter per conversation then).

    Attributes:
        style: Closes every prompt.
        negative: What every prompt should keep out.
        chars_per_second: Expected speed of speech.
        max_shots: After so many shots of a turn, the last one is revised instead.
        default_subject: Who talks to the listener.
        default_setting: Where, until the text says so.
        remember: Keep people and places for the next turn.

    Raises:
        ConfigError: an option is empty or out of range.
    """

    style: str = _STYLE
    negative: str = _NEGATIVE
    chars_per_second: float = 14.0
    max_shots: int = 64
    default_subject: str = "a friendly assistant"
    default_setting: str = "in a softly lit, uncluttered space"
    remember: bool = False

    def __post_init__(self) -> None:
        if not 1.0 <= self.chars_per_second <= 1000.0:
            raise ConfigError(
                f"chars_per_second must be between 1 and 1000, not {self.chars_per_second}"
            )
        if self.max_shots < 1:
            raise ConfigError(f"max_shots must be at least 1, not {self.max_shots}")
        for name in ("style", "default_subject", "default_setting"):
            value: str = getattr(self, name)
            if not value.strip() or "\n" in value:
                raise ConfigError(f"{name} must be one line of text")
        self.ids = count(1)
        self.last: TemplateStoryboard | None = None  # the board that was closed last

    def open(self) -> TemplateStoryboard:
        """Begin a turn."""
        return TemplateStoryboard(self)


class TemplateStoryboard:
    """The shot list of one turn; see `TemplateRewriter`."""

    def __init__(self, rewriter: TemplateRewriter) -> None:
        self._rewriter = rewriter
        self._former = rewriter.last
        self._reader = Reader()
        self._bible = Bible()
        self._before: OrderedDict[int, Bible] = OrderedDict()  # by a sentence's first character
        self._shown: dict[int, str] = {}  # the shot that each of those sentences made
        self._sent: dict[str, ScenePrompt] = {}  # the newest version of each shot
        self._unshown: Sentence | None = None
        self._talk_at: int | None = None  # first character of the talk that the last shot shows
        self._index = 0

    async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
        """Take the next phrase; return the shots it made or revised. Never waits.

        A phrase that starts before the last one ended replaces what was there.
        """
        if self._reader.end is None:
            self._bible = self._former.bible_for(phrase) if self._former else self._bible
            self._former = None  # else each board would keep the one before it alive
        elif phrase.chars.start < (self._reader.end or 0):
            self._rewind(phrase.chars.start)
        self._index = phrase.index
        return self._show(self._reader.add(phrase))

    async def close(self) -> Sequence[ScenePrompt]:
        """The text has ended: return what was still open. Never waits; idempotent."""
        if self._reader.end is None:
            return []
        shots = self._show(self._reader.close())
        if not self._sent and self._unshown is not None:
            shots = self._emit(
                self._unshown, replace(self._shot(self._unshown, Bible()), talk=True)
            )
        self._rewriter.last = self
        return shots

    def bible_for(self, phrase: Phrase) -> Bible:
        """The bible of the next board, whose first phrase is ``phrase``."""
        start, end = phrase.chars.start, self._reader.end or 0
        if 0 < start <= end and 0 < phrase.index <= self._index + 1:  # the same reply goes on
            later = [at for at in self._before if at >= start]
            return (self._before[min(later)] if later else self._bible).copy()
        return self._bible.copy() if self._rewriter.remember else Bible()

    def _rewind(self, char: int) -> None:
        for start in sorted((start for start in self._before if start >= char), reverse=True):
            self._bible = self._before.pop(start)
            self._shown.pop(start, None)
        self._sent = {shot: p for shot, p in self._sent.items() if p.span.start < char}
        if self._talk_at is not None and self._talk_at >= char:
            self._talk_at = None

    def _show(self, sentence: Sentence | None) -> list[ScenePrompt]:
        """The shot that a sentence makes, or revises if the sentence has grown."""
        if sentence is None:
            return []
        start = sentence.span.start
        if start in self._before:  # its beginning was shown already: read it again as a whole
            self._bible = self._before[start].copy()
        else:
            self._before[start] = self._bible.copy()
            if len(self._before) > _REMEMBERED:
                self._shown.pop(self._before.popitem(last=False)[0], None)
        if not any(c.isalnum() for c in sentence.text) or is_code(sentence.text):
            return []
        began = bool(self._bible.current or self._bible.anchor)
        shot = self._shot(sentence, self._bible)
        again = shot.talk and self._talk_at not in (None, start)
        slight = again or _is_all_speech(sentence.text) or (not began and _is_aside(sentence.text))
        if slight and start not in self._shown:
            self._unshown = self._unshown or sentence
            return []
        self._talk_at = start if shot.talk else None
        return self._emit(sentence, shot)

    def _shot(self, sentence: Sentence, bible: Bible) -> _Shot:
        seen = bible.read(" ".join(sentence.text.split()))
        told = _QUOTED.sub(" ", seen.text)
        talk = bool(_TALK.search(told)) or (not seen.subject and _is_all_speech(seen.text))
        if talk:
            camera = "Medium shot"
        elif not self._sent.keys() - {self._shown.get(sentence.span.start)}:
            camera = "Establishing wide shot"
        elif told != seen.text:
            camera = "Close-up"
        else:
            camera = "Wide shot" if seen.new_place else "Medium shot"
        return _Shot(seen, camera, _mood_of(sentence.tags), talk)

    def _emit(self, sentence: Sentence, shot: _Shot) -> list[ScenePrompt]:
        """The shot as a prompt; nothing if the prompt is the one that was sent before."""
        rewriter = self._rewriter
        last = next(reversed(self._sent), None)
        shot_id = self._shown.get(sentence.span.start)
        if shot_id is None and len(self._sent) >= rewriter.max_shots:
            shot_id = last
        old = self._sent.get(shot_id) if shot_id is not None else None
        self._shown[sentence.span.start] = shot_id = shot_id or f"shot-{next(rewriter.ids)}"
        begins = sentence.spoken_before * 1000 / rewriter.chars_per_second
        seen = shot.seen
        subject = rewriter.default_subject if shot.talk else seen.subject
        prompt = ScenePrompt(
            shot_id=shot_id,
            rev=old.rev + 1 if old else 0,
            t_start_ms=old.t_start_ms if old else round(begins, 3),
            span=_union(old.span, sentence.span) if old else sentence.span,
            tokens=_union(old.tokens, sentence.tokens) if old else sentence.tokens,
            subject=subject,
            action=_shorten(seen.text),
            setting=seen.place or rewriter.default_setting,
            camera=shot.camera,
            style=rewriter.style,
            prompt=_compose(shot, subject, rewriter),
            negative=rewriter.negative,
            supersedes=f"{shot_id}@{old.rev}" if old else None,
        )
        if old and old.prompt == prompt.prompt:
            return []
        self._sent[shot_id] = prompt
        return [prompt]


def _compose(shot: _Shot, subject: str, rewriter: TemplateRewriter) -> str:
    """One line for a picture or video model: camera, sentence, subject, place, mood, style."""
    seen, text = shot.seen, _shorten(shot.seen.text)
    if shot.talk:
        said = text.replace('"', "'")
        parts = [f'{shot.camera} of {subject}, who says: "{said}"']
    else:
        parts = [f"{shot.camera}: {text}"]
        if subject and subject.casefold() not in text.casefold():
            parts.append(f"Featuring {subject}")
        if seen.anchor:
            parts.append(f"Same scene as: {_shorten(seen.anchor)}")
    place = seen.place or (rewriter.default_setting if shot.talk else "")
    if place and place.casefold() not in text.casefold():
        parts.append(place[:1].upper() + place[1:])
    if shot.mood:
        parts.append(f"{shot.mood.capitalize()} mood")
    parts.append(rewriter.style)
    return " ".join(p if _ENDED.search(p) else f"{p}." for p in parts)


def _is_aside(text: str) -> bool:
    """Whether a sentence that opens a reply says too little to be shown: "Sure!", "Of course."."""
    return text.isascii() and len(text.split()) <= 2


def _is_all_speech(text: str) -> bool:
    """Whether a sentence is a quotation and nothing else."""
    rest = _QUOTED.sub(" ", text)
    return rest != text and not any(c.isalnum() for c in rest)


def _mood_of(tags: tuple[str, ...]) -> str:
    """The mood that the last telling tag gives; "" for none: "[wide eyes]" is "astonished"."""
    for tag in reversed(tags):
        for word in re.findall(r"[a-z]+", tag.lower()):
            for stem in (word, *(word.removesuffix(end) for end in ("s", "ing", "ed", "d"))):
                if stem in _MOODS:
                    return _MOODS[stem]
    return ""


def _shorten(text: str) -> str:
    """At most `_LONGEST` characters, cut where a clause or at least a word ends."""
    text = text.strip().rstrip(" ,;")
    if len(text) <= _LONGEST:
        return text
    head = text[: _LONGEST + 1]
    cut = max(head.rfind(mark) for mark in (", ", "; ", ". "))
    end = cut if cut > _LONGEST // 2 else head.rfind(" ")
    return head[: end if end > 0 else _LONGEST].rstrip(" ,;")


def _union(a: Span, b: Span) -> Span:
    return Span(min(a.start, b.start), max(a.end, b.end))
