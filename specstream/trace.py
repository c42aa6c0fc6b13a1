"""Trace a sample of a reply's speech to its tokens, from the ``trace.json`` of ``specstream say``.

``specstream trace out/trace.json --at 3.2s`` prints a `SampleOrigin`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from specstream.errors import ConfigError, RequestError

__all__ = ["Origin", "SampleOrigin", "TokenOrigin", "Trace", "read_trace"]

Origin = Literal["accepted", "recovered", "bonus", "plain"]
_ORIGINS: dict[Origin, str] = {
    "accepted": "drafted by {proposer}, accepted",
    "recovered": "the target's own, in place of a rejected draft of {proposer}",
    "bonus": "the target's own, after all that {proposer} drafted",
    "plain": "the target's own, nothing was drafted",
}


@dataclass(frozen=True, slots=True)
class TokenOrigin:
    """One token: its number in the reply, id, text, and the round that wrote it.

    ``accepted``: ``proposer`` drafted it. ``recovered``: the target's token where a drafted token was
    rejected (in a speculative tree: where the accepted path ended). ``bonus``: the target's token after
    a proposal that was accepted completely. ``plain``: nothing was drafted. ``draft_ms`` and
    ``verify_ms`` are the round's; its tokens were logged at ``t_ms``, from the start of the turn.
    """

    number: int
    id: int
    text: str
    round: int
    origin: Origin
    proposer: str
    drafted: int
    accepted: int
    draft_ms: float
    verify_ms: float
    t_ms: float


@dataclass(frozen=True, slots=True)
class SampleOrigin:
    """What led to one sample of the speech. Times are milliseconds from the start of the turn.

    Attributes:
        sample: The sample, from 0.
        at_ms: Where it lies in the speech.
        word: The word that is being said; None in a pause.
        phoneme: The phoneme, if the voice gives any.
        chars: Offsets in the reply that the word, or else the phrase, was made from.
        phrase: The phrase: its number, text, what made the cut, and its offsets.
        tokens: The tokens that wrote ``chars``.
        times: When each stage delivered its part for the sample, in order. ``heard`` is computed, for a
            player that starts with the first audio and waits only where audio is missing.
        attempts: How often this part of the speech was made; more than 1 after a revoke.
        cues: The avatar's cues at the sample.
        shots: The scene prompts that show these words.
    """

    sample: int
    at_ms: float
    word: str | None
    phoneme: str | None
    chars: tuple[int, int]
    phrase: dict[str, Any]
    tokens: tuple[TokenOrigin, ...]
    times: dict[str, float]
    attempts: int
    cues: tuple[str, ...]
    shots: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The story as lines of text."""
        said = f"the word {self.word!r}" if self.word is not None else "a pause"
        phoneme = f", phoneme {self.phoneme!r}" if self.phoneme else ""
        phrase = self.phrase
        lines = [
            f"sample {self.sample} ({self.at_ms / 1e3:.3f} s): {said}{phoneme}",
            f"  phrase {phrase['index']} ({phrase['reason']}): {phrase['text'].strip()!r}",
            f"  characters {self.chars[0]} to {self.chars[1]} of the reply",
        ]
        for token in self.tokens:
            how = _ORIGINS[token.origin].format(proposer=token.proposer or "the draft")
            lines.append(f"  token {token.number} {token.text!r} (id {token.id}): {how}")
            counts = f"{token.accepted} of {token.drafted} accepted, " if token.drafted else ""
            took = f"drafting {token.draft_ms:.1f} ms, verifying {token.verify_ms:.1f} ms"
            lines.append(f"    round {token.round}: {counts}{took}, done at {token.t_ms:.1f} ms")
        before = 0.0
        for name, ms in self.times.items():
            lines.append(f"{ms:9.1f} ms  {name:<13} {ms - before:+9.1f}")
            before = ms
        if self.attempts > 1:
            lines.append(f"  made {self.attempts} times: what was made before was revoked")
        lines += [f"  avatar: {', '.join(self.cues)}"] if self.cues else []
        return [*lines, *(f"  scene: {shot}" for shot in self.shots)]


class Trace:
    """One turn's log. ``events`` are its entries, ``rate`` the samples a second of its speech.

    Raises:
        ConfigError: it is no log of a turn with speech.
    """

    def __init__(self, document: Any) -> None:
        try:
            self.events: list[dict[str, Any]] = list(document["events"])
            self._chunks, self._speech = self._entries("Chunk"), self._entries("Speech")
            self.text = "".join(chunk["text"] for chunk in self._chunks)
            self.rate = int(self._speech[0]["sample_rate"]) if self._speech else 0
            self._tokens = list(self._origins())
            # Tokens before this number without text were reasoning or part of a tool call.
            self._aside = max((chunk["reasoning_end"] for chunk in self._chunks), default=0)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ConfigError("this is no trace.json of `specstream say`") from error
        if not self.rate:
            raise ConfigError("there is no speech in this trace")
        self._ends = [end for _, end in self._tokens]
        self.samples: int = max(entry["samples"][1] for entry in self._speech)

    def _entries(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.events if entry["type"] == kind]

    def _origins(self) -> Iterator[tuple[TokenOrigin, int]]:
        """Each token, and the length of the reply's text once it is in."""
        end = 0
        for chunk in self._chunks:
            for at, token in enumerate(chunk["token_ids"]):
                # A chunk without ends: all its text counts as the first token's.
                ends = chunk["ends"] or [chunk["chars"][1]] * len(chunk["token_ids"])
                start, end = end, max(end, ends[at])
                drafted, accepted = chunk["drafted"], chunk["accepted"]
                origin: Origin = "accepted"
                if at >= accepted:
                    origin = "plain" if not drafted else "bonus"
                    origin = "recovered" if accepted < drafted else origin
                number = chunk["tokens"][0] + at
                who, took = chunk.get("proposer", ""), (chunk["draft_ms"], chunk["verify_ms"])
                figures = (chunk["round"], origin, who, drafted, accepted, *took, _logged(chunk))
                yield TokenOrigin(number, token, self.text[start:end], *figures), end

    def tokens(self, chars: tuple[int, int]) -> tuple[TokenOrigin, ...]:
        """The tokens that wrote a range of characters; tokens without text count with the one after."""
        first = bisect_right(self._ends, chars[0])
        while first and not (before := self._tokens[first - 1][0]).text:
            if before.number < self._aside:
                break  # reasoning, or part of a call
            first -= 1
        kept: list[TokenOrigin] = []
        for token, end in self._tokens[first:]:
            kept.append(token)
            if end >= chars[1]:
                break
        return tuple(kept)

    def at(self, sample: int) -> SampleOrigin:
        """The story of a sample.

        Raises:
            RequestError: the speech is shorter, or does not have that sample.
        """
        covering = [e for e in self._speech if _within(sample, e["samples"])]
        if not covering:
            length = self.samples / self.rate
            raise RequestError(f"the speech has no sample {sample}: it lasts {length:.3f} s")
        speech = covering[-1]  # earlier versions were revoked
        phrase = self._phrase(speech)
        marks = [mark for entry in self._made_for(speech) for mark in entry["marks"]]
        marks = [mark for mark in marks if _within(sample, mark["samples"])]
        word = next((mark for mark in marks if mark["kind"] == "word"), None)
        phoneme = next((mark["text"] for mark in marks if mark["kind"] == "phoneme"), None)
        start, end = (word or phrase)["chars"]
        chars = (start, end)
        tokens = self.tokens(chars)
        return SampleOrigin(
            sample=sample,
            at_ms=sample / self.rate * 1e3,
            word=word["text"] if word is not None else None,
            phoneme=phoneme,
            chars=chars,
            phrase={key: phrase[key] for key in ("index", "text", "reason", "chars")},
            tokens=tokens,
            times=self._times(sample, speech, phrase, tokens),
            attempts=len(covering),
            cues=self._cues(sample),
            shots=self._shots(chars),
        )

    def _phrase(self, speech: dict[str, Any]) -> dict[str, Any]:
        before = [e for e in self._entries("Phrase") if e["seq"] < speech["seq"]]
        same = [entry for entry in before if entry["index"] == speech["phrase"]]
        if not same:
            raise ConfigError("the trace lacks the phrase of this sample")
        return same[-1]

    def _made_for(self, speech: dict[str, Any]) -> list[dict[str, Any]]:
        """The voice's output for the phrase, in the attempt that ``speech`` belongs to."""
        made: list[dict[str, Any]] = []
        for entry in self._speech:
            if entry["phrase"] == speech["phrase"]:
                if made and made[-1]["last"]:
                    made = []  # the phrase is spoken again: a new attempt
                made.append(entry)
                if entry["last"] and entry["seq"] >= speech["seq"]:
                    break
        return made

    def _times(
        self,
        sample: int,
        speech: dict[str, Any],
        phrase: dict[str, Any],
        tokens: tuple[TokenOrigin, ...],
    ) -> dict[str, float]:
        times: dict[str, float] = {}
        if tokens:
            times |= {"first token": tokens[0].t_ms, "last token": tokens[-1].t_ms}
        times["phrase"] = _logged(phrase)
        times["voice began"] = _logged(self._made_for(speech)[0])
        times["voice"] = _logged(speech)
        times["heard"] = self._heard(sample)
        return times

    def _heard(self, sample: int) -> float:
        """When a player that begins at once and waits only for audio plays the sample."""
        clock = 0.0
        for entry in self._speech:
            start, end = (int(edge) for edge in entry["samples"])
            if start == end:
                continue
            clock = max(clock, _logged(entry))
            if start <= sample < end:
                return clock + (sample - start) / self.rate * 1e3
            clock += (end - start) / self.rate * 1e3
        return clock

    def _cues(self, sample: int) -> tuple[str, ...]:
        cues = [e for e in self._entries("AvatarCue") if "samples" in e]
        replaced = [e for e in cues if e["kind"] == "emotion" and e["samples"][0] <= sample][:-1]
        return tuple(
            f"{e['kind']} {e['name']}"
            for e in cues
            if _within(sample, e["samples"]) and not any(e is old for old in replaced)
        )

    def _shots(self, chars: tuple[int, int]) -> tuple[str, ...]:
        latest = {e["shot_id"]: e for e in self._entries("ScenePrompt")}
        return tuple(
            f"{e['shot_id']}@{e['rev']}: {e['prompt']}"
            for e in latest.values()
            if e["span"][0] < chars[1] and chars[0] < e["span"][1]
        )


def _logged(entry: dict[str, Any]) -> float:
    """When an entry entered the log; the ``t_ms`` of chunks and phrases is on the request's clock."""
    return float(entry.get("logged_ms", entry["t_ms"]))


def _within(value: int, span: list[int]) -> bool:
    return bool(span[0] <= value < span[1])


def read_trace(path: str | Path) -> Trace:
    """Read a ``trace.json``.

    Raises:
        ConfigError: it can't be read, or is no log of a turn with speech.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    try:
        return Trace(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
