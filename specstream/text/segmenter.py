"""Text to phrases: cuts a reply, while it is being written, into stretches that can be spoken.

Phrases end where sentences do; the first one may end with a clause, so that speech begins early,
and a sentence that is too long ends at its best break. Laid end to end, phrases are the reply.

The phrases depend on the reply alone, not on how its text was split into chunks (except those that a
deadline forced): a boundary is decided as soon as no further text can change the decision, and no
sooner. `segment_marks` and `segment_stops` state how much text that takes; mostly it is the next
visible character.
"""

from __future__ import annotations

import re
from copy import copy

from specstream.errors import ConfigError
from specstream.stages.deadline import Bounds, Deadlines
from specstream.text.marks import (
    END,
    WORDS,
    Decision,
    Reason,
    Undecided,
    backticks,
    bracket,
    clause,
    end_of,
    newline,
)
from specstream.text.stops import FIRST_MARKS, MARKS, is_stop, stop
from specstream.text.window import Whole, Window
from specstream.types import Chunk, Phrase

__all__ = ["Segmenter", "word_break"]

_LONGEST = 9  # letters; no opener is longer
_LETTERS = re.compile(r"[^\W\d_]*")
# Words, light punctuation and nothing else: no quote, bracket, emphasis, link or table is open.
_PROSE = re.compile(r"\s*(?:[^\W_]+(?:['’.,:-][^\W_]+)*[,;:.!?]?\s+)*([^\W\d_]+(?:['’-][^\W\d_]+)*)")
_ENGLISH = re.compile(
    r"\b(?:and|are|because|been|between|does|during|from|how|it's|should|that|the|their|there|these|they|"
    r"this|through|which|while|who|whose|with|without|would|you|your)\b",
    re.IGNORECASE,
)
_OPENERS = WORDS["breaths"]
_OPEN = _OPENERS | WORDS["open_words"]


def word_break(text: str, at: int, before: str) -> Decision:
    """Decide whether the phrase may end after the white space at ``at``.

    ``before`` is the phrase so far, without directions, links and code.
    """
    after = at + 1
    end = end_of(_LETTERS, text, after, after + _LONGEST)
    if text[after:end] not in _OPENERS or text[end] != " ":
        return Decision(after)
    prose = _PROSE.fullmatch(before)
    if prose is None or not prose[1].islower() or prose[1] in _OPEN:
        return Decision(after)
    if text[after:end] in ("and", "or") and before.lower().split()[-2:][0] in _OPEN:
        return Decision(after)  # "a rare and precious stone"
    english = _ENGLISH.search(f"{before} {text[after:end]}")
    return Decision(after, cut=english is not None, reason="clause")


_SHORTEST_WINDOW = 64  # so that a tag always fits


class Segmenter(Window):
    """Cuts one reply into phrases, in linear time.

    At most ``max_chars`` characters wait, and `LOOK_BACK` characters of spoken text are kept.

    Args:
        first_clause_chars: The first phrase may end with a clause once it is this long (a Chinese,
            Japanese or Korean character counts as three); None waits for the sentence.
        first_words_chars: Once it is this long, an English first phrase may also end before a joining
            word such as "because"; None: it may not.
        max_chars: No phrase is longer.

    Attributes:
        pace: Bounds the size of phrases; it is told of each that is cut. A boundary where a phrase would
            have the wrong size is passed over. Where it doesn't know what was heard, every boundary ends
            a phrase.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self,
        *,
        first_clause_chars: int | None = 24,
        first_words_chars: int | None = 36,
        max_chars: int = 240,
    ) -> None:
        if max_chars < _SHORTEST_WINDOW:
            raise ConfigError(f"max_chars must be at least {_SHORTEST_WINDOW}, not {max_chars}")
        firsts = {"first_clause_chars": first_clause_chars, "first_words_chars": first_words_chars}
        for name, chars in firsts.items():
            if chars is not None and chars < 1:
                raise ConfigError(f"{name} must be at least 1, not {chars}")
        super().__init__(max_chars)
        self._first_clause_chars = first_clause_chars
        self._first_words_chars = first_words_chars
        self.pace = Deadlines()

    def add(self, chunk: Chunk) -> list[Phrase]:
        """Take the next chunk; return the phrases that it completed.

        Raises:
            ProtocolError: the chunk doesn't begin where the text so far ends.
        """
        self._join(chunk)
        return self._cut_all()

    def again(self, *, ended: bool = False) -> list[Phrase]:
        """Cut again after the bounds of ``pace`` have changed; return the phrases that fit now.

        Args:
            ended: No more text will come.
        """
        if self._passed:
            self._rewind()
        phrases = self._cut_all()
        if not ended or self._crowded:
            return phrases
        self._text += END
        while found := self._fitting_cut():
            phrases.append(self._emit(*found))
        self._text = self._text[:-1]
        self._seen = min(self._seen, len(self._text))
        size = self._weight(len(self._text))
        if self.pending and size <= self.pace.bounds().most:
            phrases.append(self._emit(len(self._text), "end"))
        return phrases

    def _cut_all(self) -> list[Phrase]:
        phrases: list[Phrase] = []
        while True:
            self._fill()
            if found := self._fitting_cut() or self._length_cut():
                phrases.append(self._emit(*found))
            else:
                return phrases

    def due(self, waited_s: float) -> float:
        """Return in how many seconds the text that waits must be released (`Deadlines.due_s`)."""
        return self.pace.due_s(lambda: self._weight(self._quiet_cut()), waited_s)

    def release(self) -> list[Phrase]:
        """As `flush`, at the best boundary that the bounds of ``pace`` allow."""
        cut, reason = self._paced_cut(self.pace.bounds())
        return [self._emit(cut, reason)] if cut > self._head else []

    def _paced_cut(self, bounds: Bounds) -> tuple[int, Reason]:
        """Return the last boundary within ``bounds``, else the best break; head: nowhere."""
        for cut, reason in reversed(self._passed):
            if bounds.least <= self._weight(cut) <= bounds.most:
                return cut, reason
        cut = self._stretch().paced_break(
            lambda cut: self._weight(cut) <= bounds.most, lambda cut: self._weight(cut) >= bounds.least
        )
        return cut, "deadline"

    def fork(self) -> Segmenter:
        """Make an independent copy that goes on from here, to cut text that is only drafted."""
        twin = copy(self)
        twin._tokens = self._tokens.fork()
        twin._wholes, twin._fences = list(self._wholes), list(self._fences)
        twin._passed, twin.pace = [], Deadlines()
        return twin

    def look(self, drafted: str) -> list[Phrase]:
        """Cut the text that waits where ``drafted`` text, which may come next, decides a boundary.

        Only text that was added is returned, so the white space behind a boundary may fall to the next
        phrase. Apart from that, if the drafted text is accepted, the phrases are those that it would
        have brought. If other text comes, a cut may be superfluous, but only where `flush` would cut if
        the text ended there: never behind a title, an initial or a number.
        """
        phrases: list[Phrase] = []
        while cut := self._cut_ahead(drafted):
            phrases.append(self._emit(*cut))
        return phrases

    def _cut_ahead(self, drafted: str) -> tuple[int, Reason] | None:
        if self._crowded:
            return None
        end, ahead = len(self._text), self.fork()
        ahead._text += drafted[: self._max_chars - (end - self._head)]
        found = ahead._next_cut() if self.pending else None
        if found is None:
            return None
        cut = min(found[0], end)
        if ahead._text[cut : found[0]].strip():
            return None  # what ends the phrase is itself only drafted
        if not self._fits(cut):
            return None
        late = self.fork()  # cut only where `flush` would cut if no more text came
        late._text = self._text[:cut]
        late._rewind()
        if late._next_cut() or late._quiet_cut() != cut:
            return None
        self._wholes = [whole for whole in ahead._wholes if whole.end <= cut]
        self._fences = [at for at in ahead._fences if at < cut]
        return cut, found[1]

    def _quiet_cut(self) -> int:
        return self._stretch().quiet_break()

    def flush(self) -> list[Phrase]:
        """A deadline has passed: return the text that can be spoken without splitting a unit.

        That is up to the last white space, or up to a stop or comma right after a word. A word,
        number, link or tag that is still being written stays; so does a list's bullet, a title or a
        number, which belong to the word after them. Returns nothing if no word is complete.
        """
        cut = self._quiet_cut()
        return [self._emit(cut, "deadline")] if cut > self._head else []

    def close(self) -> list[Phrase]:
        """The reply has ended: return everything that is left."""
        self.pace = Deadlines()
        return self.again(ended=True)

    def _fitting_cut(self) -> tuple[int, Reason] | None:
        """The next boundary that ends a phrase of the right size."""
        while (found := self._next_cut()) and not self._fits(found[0]):
            self._passed.append(found)
        return found

    def _fits(self, cut: int) -> bool:
        least, most = self.pace.bounds()
        return least <= self._weight(cut) <= most

    def _next_cut(self) -> tuple[int, Reason] | None:
        """The next boundary, or None while the text so far doesn't decide it."""
        marks = MARKS if self._clause_chars is None else FIRST_MARKS
        while mark := marks.search(self._text, self._seen):
            self._seen = at = mark.start()
            try:
                decision = self._decide(mark[0], at)
            except Undecided:
                return None
            self._seen = decision.resume
            if decision.whole:
                self._wholes.append(Whole(at, decision.resume, decision.tag))
            if decision.fence:
                self._fences.append(at)
            if decision.cut and self._stretch().has_words(decision.resume):
                return decision.resume, decision.reason
        self._seen = len(self._text)
        return None

    @property
    def _clause_chars(self) -> int | None:
        """How long a clause must be to end the phrase; None if it can't."""
        return self._first_clause_chars if self._start == self._origin else None

    def _decide(self, mark: str, at: int) -> Decision:
        fenced = self._fenced ^ (len(self._fences) % 2 == 1)
        if mark == "`":
            return backticks(self._text, at, fenced=fenced)
        if fenced:
            return Decision(at + 1)
        if mark == "[":
            return bracket(self._text, at)
        if mark == "\n":
            return newline(self._text, at)
        if is_stop(self._text, at):
            return stop(self._text, at)
        wanted = self._clause_chars
        if wanted is None:
            return Decision(at + 1)
        if mark == " ":
            least = self._first_words_chars
            if least is None or self._weight(at) < least:
                return Decision(at + 1)
            return word_break(self._text, at, self._without_wholes(at))
        decision = clause(self._text, at, self._head)
        if decision.cut and self._weight(decision.resume) < wanted:
            return Decision(decision.resume)
        return decision

    def _length_cut(self) -> tuple[int, Reason] | None:
        """Return where to cut a full window; None if it isn't full, or may wait for a busy voice."""
        if len(self._text) - self._head < self._max_chars:
            return None
        cut = self._stretch().length_break()
        if self._fits(cut):
            return cut, "length"
        if self.pace.busy:
            return None
        paced = self._paced_cut(self.pace.bounds())
        return paced if paced[0] > self._head else (cut, "length")

    def _emit(self, cut: int, reason: Reason) -> Phrase:
        phrase = self._take(cut, reason)
        self.pace.released(phrase)
        return phrase
