"""A rule-based storyboard: phrases become shots, each usable as soon as it is emitted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import count

from specstream.errors import ConfigError
from specstream.types import Phrase, ScenePrompt, Span
from specstream_adapters.prompt.bible import Bible, Subject
from specstream_adapters.prompt.board import Story
from specstream_adapters.prompt.look import compose
from specstream_adapters.prompt.reading import Reader, Sentence, is_code
from specstream_adapters.prompt.world import World

__all__ = ["TemplateRewriter", "TemplateStoryboard"]

_STYLE = "Cinematic film still, natural light, shallow depth of field, rich colour, 35mm"
_NEGATIVE = (
    "text, captions, subtitles, watermark, logo, split screen, blurry, deformed hands, extra limbs"
)
_REMEMBERED = 64  # sentences that can be taken back


class TemplateRewriter:
    """Makes a shot list from plain English narration by rules alone; needs no model.

    A sentence with a new action is a new shot; one that only describes (weather, a name, a state)
    revises the shot on screen, and so does the rest of a sentence that was cut in two. Whoever is
    introduced is carried word for word from shot to shot, a place until the story moves on. Every
    word of ``subject``, ``action`` and ``setting`` comes from the text or from an option; only
    ``prompt`` also brings verbs into the form that captions have.

    Where nobody is told of (a question, an answer, an order) the subject is ``default_subject``;
    JSON and code give no shot. ``t_start_ms`` is the number of characters spoken before the shot
    divided by ``chars_per_second``; tags don't count.

    Shot ids never repeat within one rewriter. A board that goes on where the last one ended in the
    same reply (after a flush) knows its people and places; with ``remember`` so does the next reply
    (use one rewriter per conversation then).

    Args:
        style: Closes every prompt.
        negative: What every prompt should keep out.
        chars_per_second: Expected speed of speech.
        max_shots: After so many shots of a turn, the last one is revised instead.
        default_subject: Who talks when nobody else does.
        default_setting: Where, until the text says so.
        remember: Keep people and places for the next turn.

    Raises:
        ConfigError: an option is empty or out of range.
    """

    def __init__(
        self,
        *,
        style: str = _STYLE,
        negative: str = _NEGATIVE,
        chars_per_second: float = 14.0,
        max_shots: int = 64,
        default_subject: str = "a friendly assistant",
        default_setting: str = "in a softly lit, uncluttered space",
        remember: bool = False,
    ) -> None:
        if not 1.0 <= chars_per_second <= 1000.0:
            raise ConfigError(
                f"chars_per_second must be between 1 and 1000, not {chars_per_second}"
            )
        if max_shots < 1:
            raise ConfigError(f"max_shots must be at least 1, not {max_shots}")
        for name, value in (
            ("style", style),
            ("default_subject", default_subject),
            ("default_setting", default_setting),
        ):
            if not value.strip() or "\n" in value:
                raise ConfigError(f"{name} must be one line of text")
        self.style = style
        self.negative = negative
        self.chars_per_second = chars_per_second
        self.max_shots = max_shots
        self.default_subject = default_subject
        self.default_setting = default_setting
        self.remember = remember
        speaker = Subject(default_subject, set(), animate=True)
        self._blank = Story(Bible(speaker), World(default_setting))
        self._ids = count(1)
        self._last: TemplateStoryboard | None = None

    def open(self) -> TemplateStoryboard:
        """Begin a turn."""
        return TemplateStoryboard(self, self._ids, self._last)

    def first_story(self, phrase: Phrase, former: TemplateStoryboard | None) -> Story:
        """What a board knows whose first phrase is ``phrase``; ``former`` was closed before it."""
        story = former.story_before(phrase) if former is not None else None
        if story is None and self.remember and former is not None:
            story = former.story_after()
        return story or self._blank.copy()

    def closed(self, board: TemplateStoryboard) -> None:
        """Keep what ``board`` knows for the next one."""
        self._last = board


class TemplateStoryboard:
    """The shot list of one turn; see `TemplateRewriter`."""

    def __init__(
        self, rewriter: TemplateRewriter, ids: Iterator[int], former: TemplateStoryboard | None
    ) -> None:
        self._rewriter = rewriter
        self._former = former
        self._ids = ids
        self._reader = Reader()
        self._story: Story | None = None
        self._before: OrderedDict[int, Story] = OrderedDict()  # by a sentence's first character
        self._shown: dict[int, str] = {}  # the shot that each of those sentences made
        self._sent: dict[str, ScenePrompt] = {}  # the newest version of each shot
        self._unshown: Sentence | None = None
        self._index = 0

    async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
        """Take the next phrase; return the shots it made or revised. Never waits.

        A phrase that starts before the last one ended replaces what was there.
        """
        if self._story is None:
            self._story = self._rewriter.first_story(phrase, self._former)
            self._former = None  # or boards would keep each other for ever
        elif phrase.chars.start < (self._reader.end or 0):
            self._rewind(phrase.chars.start)
        self._index = phrase.index
        prompts = [self._show(sentence) for sentence in self._reader.add(phrase)]
        return [prompt for prompt in prompts if prompt is not None]

    async def close(self) -> Sequence[ScenePrompt]:
        """The text has ended: return what was still open. Never waits; idempotent."""
        if self._story is None:
            return []
        rest = self._reader.close()
        prompt = self._show(rest) if rest is not None else None
        if not self._sent and self._unshown is not None:
            prompt = self._say(self._unshown)
        self._rewriter.closed(self)
        return [prompt] if prompt is not None else []

    def story_before(self, phrase: Phrase) -> Story | None:
        """What was known where ``phrase`` begins, if it can be the next one of the same reply."""
        start, end = phrase.chars.start, self._reader.end or 0
        if self._story is None or not (0 < start <= end and 0 < phrase.index <= self._index + 1):
            return None
        later = [at for at in self._before if at >= start]
        return (self._before[min(later)] if later else self._story).copy()

    def story_after(self) -> Story | None:
        """What the next turn may remember: people and place, but no shot."""
        if self._story is None:
            return None
        story = self._story.copy()
        story.draft, story.mood, story.speaking = None, "", False
        return story

    def _rewind(self, char: int) -> None:
        for start in sorted((start for start in self._before if start >= char), reverse=True):
            self._story = self._before.pop(start)
            self._shown.pop(start, None)
        self._sent = {shot: p for shot, p in self._sent.items() if p.span.start < char}

    def _show(self, sentence: Sentence) -> ScenePrompt | None:
        start = sentence.span.start
        if start in self._before:  # its beginning was shown already: read it again as a whole
            self._story = self._before[start].copy()
        else:
            assert self._story is not None
            self._before[start] = self._story.copy()
            if len(self._before) > _REMEMBERED:
                self._shown.pop(self._before.popitem(last=False)[0], None)
        step = self._story.tell(sentence)
        if step == "none":
            if any(c.isalnum() for c in sentence.text) and not is_code(sentence.text):
                self._unshown = self._unshown or sentence
            return None
        return self._emit(sentence, new=step == "new")

    def _say(self, sentence: Sentence) -> ScenePrompt | None:
        assert self._story is not None
        self._story.say(sentence.text)
        return self._emit(sentence, new=True)

    def _emit(self, sentence: Sentence, *, new: bool) -> ScenePrompt | None:
        """The story's draft as a prompt; None if that says nothing that was not said before."""
        assert self._story is not None
        draft = self._story.draft
        assert draft is not None
        last = next(reversed(self._sent), None)
        shot = self._shown.get(sentence.span.start) or (None if new else last)
        if shot is None and len(self._sent) >= self._rewriter.max_shots:
            shot = last
        old = self._sent.get(shot) if shot is not None else None
        self._shown[sentence.span.start] = shot = shot or f"shot-{next(self._ids)}"
        style = self._rewriter.style
        prompt = ScenePrompt(
            shot_id=shot,
            rev=old.rev + 1 if old else 0,
            t_start_ms=old.t_start_ms if old else self._ms(sentence.spoken_before),
            span=_union(old.span, sentence.span) if old else sentence.span,
            tokens=_union(old.tokens, sentence.tokens) if old else sentence.tokens,
            subject=draft.subject,
            action=draft.moment.action,
            setting=draft.setting,
            camera=draft.camera,
            style=style,
            prompt=compose(draft, style),
            negative=self._rewriter.negative,
            supersedes=f"{shot}@{old.rev}" if old else None,
        )
        if old and old.prompt == prompt.prompt:
            return None
        self._sent[shot] = prompt
        return prompt

    def _ms(self, chars: int) -> float:
        return round(chars * 1000 / self._rewriter.chars_per_second, 3)


def _union(a: Span, b: Span) -> Span:
    return Span(min(a.start, b.start), max(a.end, b.end))
