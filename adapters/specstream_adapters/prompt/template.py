"""A storyboard by rules: sentences that show something become prompts, with subject, place and style."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

from specstream.errors import ConfigError
from specstream.types import Phrase, ScenePrompt
from specstream_adapters.avatar.directions import direct
from specstream_adapters.checks import in_range
from specstream_adapters.prompt.bible import Bible
from specstream_adapters.prompt.story import Sentence, Shot, Story, ended

__all__ = ["TemplateRewriter", "TemplateStoryboard"]

_STYLE = "Cinematic film still, natural light, shallow depth of field, rich colour, 35mm"
_NEGATIVE = (
    "text, captions, subtitles, watermark, logo, split screen, blurry, deformed hands, extra limbs"
)
_REMEMBERED = 64  # sentences that can be taken back
_NARRATOR = re.compile(r"\b(?:I|me|my|we|us|our|you|your)\b")  # shown by what he or she sees
_MOODS = {  # by the name that `direct` gives a tag
    "smile": "warm", "happy": "warm", "laugh": "warm", "sad": "sombre", "cry": "sombre",
    "worried": "tense", "afraid": "tense", "sigh": "weary", "tired": "weary",
    "surprised": "astonished", "wide eyes": "astonished", "wide": "astonished", "gasp": "astonished",
    "angry": "fierce", "whisper": "hushed", "quiet": "hushed", "think": "pensive",
    "serious": "pensive", "determined": "determined", "brave": "determined",
}  # fmt: skip


@dataclass(kw_only=True, eq=False)
class TemplateRewriter:
    """Makes a shot list by passing sentences through; needs no model and no parser.

    A sentence that shows something begins a shot, in its own words. A sentence that goes on about
    the shot before ("He sat down.") revises that shot while it is open, up to three sentences. A
    sentence that shows nothing (a thought, a remark, a question to the listener) and quoted speech
    are left out. JSON and code give no shot.

    The prompt also has the subject as the text introduced it ("Rusty, a brave little fox"), the place
    that was named last, a camera, the mood of the last tag, and the style. Whether an English sentence
    shows something is decided by a word list (see `specstream_adapters.prompt.visible`); in other
    languages statements of five words and more do. Subjects and places are recognised in English
    only. ``t_start_ms`` is the number of characters spoken before the shot divided by
    ``chars_per_second``; tags don't count.

    A shot is open, and may be revised, until the next one begins, the board is closed or ``revoke``
    takes it back. Shot ids never repeat within one rewriter. Boards may be copied, so they can be
    given drafted text (see `PromptRewriter`). A board that goes on where the last board ended in the
    same reply (after a flush) knows that board's people and places; with ``remember`` so does the
    next reply (use one rewriter per conversation then).

    Attributes:
        style: Closes every prompt.
        negative: What every prompt should keep out.
        chars_per_second: Expected speed of speech.
        max_shots: Most shots of a turn; after that, the last shot is revised instead.
        default_subject: Who is shown once in a reply that shows nothing itself; "" for no shot.
        default_setting: The place, until the text names one.
        remember: Keep people and places for the next turn.

    Raises:
        ConfigError: an option is empty or out of range.
    """

    copies = True  # boards may be copied

    style: str = _STYLE
    negative: str = _NEGATIVE
    chars_per_second: float = 14.0
    max_shots: int = 64
    default_subject: str = ""
    default_setting: str = "in a softly lit, uncluttered space"
    remember: bool = False

    def __post_init__(self) -> None:
        in_range("chars_per_second", self.chars_per_second, 1, 1000)
        in_range("max_shots", self.max_shots, 1, math.inf)
        for name in ("style", "default_setting", "default_subject"):
            text = getattr(self, name)
            if "\n" in text or not (text.strip() or name == "default_subject"):
                raise ConfigError(f"{name} must be one line of text")
        self.last_number = 0  # of the shots of all boards
        self.last: TemplateStoryboard | None = None  # the board that was closed last

    def open(self) -> TemplateStoryboard:
        """Begin a turn."""
        return TemplateStoryboard(self)


class TemplateStoryboard:
    """The shot list of one turn; see `TemplateRewriter`."""

    def __init__(self, rewriter: TemplateRewriter) -> None:
        self._rewriter = rewriter
        self._former = rewriter.last
        # Numbers of this turn's shots, shared by all copies: a shot has the same one in each of them.
        self._numbers = list[int]()
        self._count = 0  # of the shots of this copy
        # With what was known before each; the last is under way unless it has ended.
        self._sentences: deque[Sentence] = deque(maxlen=_REMEMBERED)
        self._end: int | None = None  # where the text so far ends in the reply
        self._story = Story()  # never changed once a sentence has it
        # The newest version of each shot, without its prompt if text that it told was taken back.
        self._sent: dict[str, ScenePrompt] = {}
        self._first: Sentence | None = None  # the first sentence with letters or digits
        self._index = 0  # of the last phrase

    def __deepcopy__(self, memo: object) -> TemplateStoryboard:
        other = copy(self)
        other._sentences = self._sentences.copy()
        other._sent = self._sent.copy()
        return other

    async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
        """Take the next phrase; return the shots it made or revised. Never waits.

        A phrase that starts before the last one ended replaces the text that was there.
        """
        start = phrase.chars.start
        if self._end is None:
            if self._former is not None:
                self._story = Story(self._former.bible_for(phrase))
            self._former = None  # otherwise each board would keep its predecessor alive
            self._sentences.append(Sentence(self._story, start))
        elif start < self._end:
            self._rewind(start)
        elif self._sentences[-1].ended or start > self._end:  # past the end: text was left out
            self._sentences.append(Sentence(self._story, self._sentences[-1].spoken_after))
        self._index, self._end = phrase.index, phrase.chars.end
        self._sentences[-1] = self._sentences[-1].add(phrase)
        return self._show(self._sentences[-1])

    async def revoke(self, from_char: int) -> Sequence[ScenePrompt]:
        """Withdraw the shots of the text from ``from_char`` on. Never waits.

        Return, as revisions, the shots that began before ``from_char`` and told some of that text, with
        the text that is left to them. Shots of text more than 64 sentences back stay withdrawn.
        """
        if self._end is None or from_char >= self._end:
            return []
        self._rewind(from_char)
        shots = self._show(self._sentences[-1])
        open_shot = self._story.open
        if open_shot is not None and not self._sent[open_shot.shot_id].prompt:
            shots += self._emit(open_shot)
        return shots

    async def close(self) -> Sequence[ScenePrompt]:
        """End the text; return the shots that were still open. Never waits; idempotent."""
        if self._end is None:
            return []
        last = self._sentences[-1]
        shots = self._show(replace(last, ended=True)) if not last.ended else []
        if not self._sent and self._rewriter.default_subject and self._first is not None:
            shots = self._emit(self._speaker(self._first))
        self._give_back()
        self._rewriter.last = self
        return shots

    def _speaker(self, sentence: Sentence) -> Shot:
        """The shot of ``default_subject`` speaking, for a reply that shows nothing itself."""
        who, place = self._rewriter.default_subject, self._rewriter.default_setting
        line = f"{who[:1].upper()}{who[1:]} speaks to the viewer."
        name = self._next_id()
        where = (sentence.span, sentence.tokens, sentence.spoken_before)
        return Shot(name, *where, (line,), subject=who, place=place, first=True)

    def bible_for(self, phrase: Phrase) -> Bible:
        """What the next board, whose first phrase is ``phrase``, knows; not to be changed."""
        start, end = phrase.chars.start, self._end or 0
        if 0 < start <= end and 0 < phrase.index <= self._index + 1:  # the same reply goes on
            later = (s for s in self._sentences if s.phrases and s.span.start >= start)
            return next((sentence.story for sentence in later), self._story).bible
        return self._story.bible if self._rewriter.remember else Bible()

    def _rewind(self, char: int) -> None:
        """Take back the text from ``char`` on, and go back to before the sentence that this cuts."""
        self._end = char
        sentence = self._sentences.pop()
        while self._sentences and not (sentence.phrases and sentence.span.start <= char):
            sentence = self._sentences.pop()
        self._sentences.append(sentence.until(char))
        self._story = sentence.story
        self._sent = {
            name: sent if sent.span.end <= char else replace(sent, prompt="")
            for name, sent in self._sent.items()
            if sent.span.start < char
        }

    def _show(self, sentence: Sentence) -> list[ScenePrompt]:
        """The shot that the last sentence begins or changes, if its prompt is new."""
        if not sentence.text.strip():
            return []
        if self._first is None and any(map(str.isalnum, sentence.text)):
            self._first = sentence
        # What was shown of its beginning is read again as part of the whole.
        self._story = sentence.story.copy()
        sent = self._sent.get(sentence.shot_id)
        begun = sent is not None and sent.prompt != ""
        shot = self._story.take(sentence, begun, self._shot_id, self._rewriter.max_shots)
        return self._emit(shot) if shot is not None else []

    def _shot_id(self) -> str:
        """The id of the shot that the last sentence begins."""
        name = self._sentences[-1].shot_id or self._next_id()
        self._sentences[-1] = replace(self._sentences[-1], shot_id=name)
        return name

    def _next_id(self) -> str:
        if self._count == len(self._numbers):
            self._rewriter.last_number += 1
            self._numbers.append(self._rewriter.last_number)
        self._count += 1
        return f"shot-{self._numbers[self._count - 1]}"

    def _give_back(self) -> None:
        """Free the numbers that only copies took, on drafted text that was revoked."""
        while len(self._numbers) > self._count and self._numbers[-1] == self._rewriter.last_number:
            self._numbers.pop()
            self._rewriter.last_number -= 1

    def _emit(self, shot: Shot) -> list[ScenePrompt]:
        """The shot as a prompt; nothing if the prompt is the one that was sent before."""
        rewriter, old = self._rewriter, self._sent.get(shot.shot_id)
        begins = round(shot.spoken_before * 1000 / rewriter.chars_per_second, 3)
        camera = _camera(shot)
        prompt = ScenePrompt(
            shot_id=shot.shot_id,
            rev=old.rev + 1 if old else 0,
            t_start_ms=begins,
            span=shot.span,
            tokens=shot.tokens,
            subject=shot.subject,
            action=shot.text,
            setting=shot.place or rewriter.default_setting,
            camera=camera,
            style=rewriter.style,
            prompt=_compose(shot, camera, rewriter.style),
            negative=rewriter.negative,
            supersedes=f"{shot.shot_id}@{old.rev}" if old else None,
        )
        if old and (old.prompt, old.span) == (prompt.prompt, prompt.span):
            return []
        self._sent[shot.shot_id] = prompt
        return [prompt]


def _camera(shot: Shot) -> str:
    if _NARRATOR.search(shot.text):
        return "First-person view"
    if shot.first:
        return "Establishing wide shot"
    return "Wide shot" if shot.moved else "Medium shot"


def _compose(shot: Shot, camera: str, style: str) -> str:
    """One line for a picture or video model: camera, sentences, subject, place, mood, style."""
    text = shot.text
    parts = [f"{camera}: {text}"]
    told = text.casefold()
    featured = [who for who in (shot.subject, *shot.others) if _bare(who) not in told]
    if any(featured):
        parts.append(f"Featuring {' and '.join(featured)}")
    if shot.context:
        parts.append(f"Same scene as: {shot.context}")
    if shot.place and shot.place.casefold() not in told:
        parts.append(shot.place[:1].upper() + shot.place[1:])
    if mood := _mood_of(shot.tags):
        parts.append(f"{mood.capitalize()} mood")
    parts.append(style)
    return " ".join(map(ended, parts))


def _bare(who: str) -> str:
    return re.sub(r"^an? ", "", who).casefold()


def _mood_of(tags: tuple[str, ...]) -> str:
    """The mood of the last tag that has one, as a whole or by one of its words; "" if none has."""
    asked = [words for tag in reversed(tags) for words in (tag, *re.findall(r"\w+", tag))]
    found = (_MOODS.get(direct(words).name) for words in asked)
    return next(filter(None, found), "")
