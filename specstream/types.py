"""The values that flow through a pipeline: messages, chunks, phrases, speech, cues, scene prompts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from specstream.params import Grammar, Manner, SamplingParams, Truncation, template_kwargs
from specstream.tools import CallProblem, Message, Tool, ToolCall, ToolCallDelta, Tools

__all__ = [
    "PAUSE",
    "AvatarCue",
    "CallProblem",
    "Cancel",
    "Chunk",
    "Control",
    "FinishReason",
    "Flush",
    "Grammar",
    "Interruption",
    "Manner",
    "Mark",
    "Message",
    "Phrase",
    "Preview",
    "Revoke",
    "SamplingParams",
    "ScenePrompt",
    "Span",
    "Speech",
    "SpeechBuffer",
    "Tag",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Tools",
    "Truncation",
    "template_kwargs",
]

FinishReason = Literal["stop", "length", "cancelled", "tool_calls", "content_filter"]
PAUSE = "_"
"""The text of a phoneme mark that is silence."""


class Span(NamedTuple):
    """A half-open range ``[start, end)``."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """How many units the span covers."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt that the model goes on with as it is, without the chat template: a text, or tokens.

    Attributes:
        text: What the model reads. Control tokens that it spells are control tokens; the tokenizer's own
            first token is put before it.
        tokens: In place of a text, the ids of what the model reads; nothing is put before them.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was in the target's own distribution.

    That is the one of temperature 1, before penalties, bias and grammar.

    Attributes:
        token_id: The token.
        piece: The bytes of its text, which may be part of a character; empty for control tokens.
        logprob: The natural logarithm of its probability; nan of a prompt's first token, which nothing
            foretells.
        top: The likeliest tokens in its place, likeliest first.
    """

    token_id: int
    piece: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one round of the engine committed.

    A model's reasoning (``<think>…</think>`` and similar tags) and its tool calls are no part of the
    reply's text.

    Attributes:
        text: New text, whole characters only; may be empty (half a character, reasoning, a call, or
            text held back because it may turn out to be the beginning of a stop string or of a call).
        token_ids: The committed tokens; the first ``accepted`` of them were drafted.
        tokens: Where ``token_ids`` lie in the reply.
        chars: Where ``text`` lies in the reply's text.
        ends: For each token, the length of the reply's text once that token is in; behind the text's end
            for tokens of a stop string, which is cut off.
        round: Number of the round, from 0; round 0 is the prompt's own pass and drafts nothing.
        drafted: How many tokens were proposed in the round.
        accepted: How many of them the target accepted (and the reply kept).
        t_ms: Milliseconds from the request's arrival to the end of the round.
        draft_ms: Time spent on proposing.
        verify_ms: Time spent on the target's pass and the verification.
        finish_reason: Set on the last chunk only. ``"tool_calls"``: the reply ended by itself and has
            calls; ``"content_filter"``: another server cut it off.
        reasoning: New text of the model's reasoning, its tags left out.
        reasoning_end: The number of the reply's token after the last one so far that was reasoning,
            a tag, white space behind a tag, or part of a call; 0 as long as there was none.
        tool_calls: What is new of tool calls, in order.
        proposer: Who drafted the round's proposal, such as "draft" or "suffix"; empty if nobody did.
        logprobs: For each token, if `SamplingParams.logprobs` asks.
    """

    text: str
    token_ids: tuple[int, ...]
    tokens: Span
    chars: Span
    ends: tuple[int, ...] = ()
    round: int = 0
    drafted: int = 0
    accepted: int = 0
    t_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    finish_reason: FinishReason | None = None
    reasoning: str = ""
    reasoning_end: int = 0
    tool_calls: tuple[ToolCallDelta, ...] = ()
    proposer: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()

    def since(self, char: int) -> Chunk:
        """The chunk as if the reply's text began at the character ``char``."""
        gone = char - self.chars.start
        if gone <= 0:
            return self
        return replace(self, text=self.text[gone:], chars=Span(char, max(char, self.chars.end)))


@dataclass(frozen=True, slots=True)
class Preview:
    """A round's drafted tokens before the target has verified them: what its `Chunk` may begin with.

    It holds only text that would be emitted if every token were accepted: no reasoning, no calls, no
    half characters, nothing that may begin a stop string. The round's chunk begins at the same token
    and character; its first ``accepted`` tokens are the preview's, the rest of the preview is void.

    Attributes: as in `Chunk`.
    """

    text: str
    token_ids: tuple[int, ...]
    tokens: Span
    chars: Span
    ends: tuple[int, ...]
    round: int = 0
    t_ms: float = 0.0
    reasoning_end: int = 0

    @property
    def chunk(self) -> Chunk:
        """The chunk that would result if all these tokens were accepted."""
        spans = (self.text, self.token_ids, self.tokens, self.chars, self.ends, self.round)
        return Chunk(*spans, t_ms=self.t_ms, reasoning_end=self.reasoning_end)


@dataclass(frozen=True, slots=True)
class Tag:
    """An inline direction such as ``[smile]``; ``chars`` covers the brackets too."""

    name: str
    chars: Span


@dataclass(frozen=True, slots=True)
class Phrase:
    """A speakable stretch of the reply, as the segmenter cut it.

    Attributes:
        text: The exact slice ``reply[chars.start:chars.end]``, tags and white space included:
            phrases laid end to end are the reply. A stage before the voice may give it another text, as
            a translator does: of another length, it is heard as a whole, once its last word is spoken.
        chars: Where it lies in the reply's text.
        tokens: The tokens that its characters came from.
        index: Number of the phrase in the reply, from 0.
        tags: Directions inside it, in order.
        t_ms: When it was cut, on the clock of its chunks.
        reason: Why it was cut there.
    """

    text: str
    chars: Span
    tokens: Span
    index: int = 0
    tags: tuple[Tag, ...] = ()
    t_ms: float = 0.0
    reason: Literal["sentence", "clause", "deadline", "length", "end"] = "sentence"

    @property
    def spoken(self) -> str:
        """The text with each tag replaced by as many spaces, so that offsets stay the reply's.

        ``spoken[i]`` is the character at reply offset ``chars.start + i``.
        """
        out = self.text
        for tag in self.tags:
            a, b = tag.chars.start - self.chars.start, tag.chars.end - self.chars.start
            out = out[:a] + " " * (b - a) + out[b:]
        return out


@dataclass(frozen=True, slots=True)
class Mark:
    """A word, an IPA phoneme or a tag, at known samples.

    ``chars`` are absolute offsets in the reply (for a phoneme: those of its word). Several spoken
    words may stand for one written form, such as "$5", and have the same ``chars``. A tag's span is
    empty: it sits at the first sample of the word that follows it (or at the end of the phrase).
    """

    kind: Literal["word", "phoneme", "tag"]
    text: str
    samples: Span
    chars: Span


@dataclass(frozen=True, slots=True)
class SpeechBuffer:
    """A voice's output: a short stretch of PCM and the marks that are handed over with it.

    ``pcm`` is signed 16-bit little-endian mono. The samples of ``marks`` count from the start of
    the *phrase*. A mark is handed over once its end is known; a voice that knows it in time hands it
    over with the buffer that it begins in, or with the one before, so that a face moves with the audio.
    """

    pcm: bytes
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Speech:
    """PCM on the turn's sample clock, with its marks and where its words came from.

    ``chars`` and ``tokens`` are those of the phrase that is being spoken. ``last`` is true on the
    final buffer of a phrase; that buffer may hold no audio.
    """

    pcm: bytes
    sample_rate: int
    samples: Span
    marks: tuple[Mark, ...]
    chars: Span
    tokens: Span
    phrase: int
    last: bool = False


@dataclass(frozen=True, slots=True)
class AvatarCue:
    """One instruction to a face or body, on the clock of the audio that it goes with.

    ``kind="viseme"``: ``name`` is one of the 15 Oculus visemes and ``weights`` are ARKit blend
    shapes, unless the script is for another rig; ``sound`` is the IPA of what is spoken, empty where it
    isn't known. ``kind="gesture"`` or ``"emotion"``: from a tag in the text. Times are milliseconds from
    the turn's first sample; ``samples`` is the same on the sample clock.
    """

    kind: Literal["viseme", "gesture", "emotion"]
    name: str
    t_ms: float
    duration_ms: float
    weight: float
    samples: Span
    chars: Span
    tokens: Span
    weights: dict[str, float] = field(default_factory=dict)
    sound: str = ""


@dataclass(frozen=True, slots=True)
class ScenePrompt:
    """One shot for an image or video generator, usable as soon as it is emitted.

    ``span`` are the characters of the reply that the shot shows, ``tokens`` the tokens they came
    from. A later revision of a shot has the same ``shot_id``, a higher ``rev`` and names what it
    replaces in ``supersedes`` (``"shot_id@rev"``). ``t_start_ms`` is when the words are expected to
    be spoken, counted from the turn's first sample.
    """

    shot_id: str
    rev: int
    t_start_ms: float
    span: Span
    tokens: Span
    subject: str
    action: str
    setting: str
    camera: str
    style: str
    prompt: str
    negative: str
    supersedes: str | None = None


@dataclass(frozen=True, slots=True)
class Revoke:
    """Take back everything that was made from the reply's text at or past ``from_char``.

    ``drafted``: that text was never verified, so nothing of it was released; work on it is stopped.
    """

    from_char: int
    drafted: bool = False


@dataclass(frozen=True, slots=True)
class Flush:
    """Finish pending work now and pass on its results; more data may follow."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """No more data will come, and pending work is to be dropped."""

    reason: str = "cancelled"


Control = Revoke | Flush | Cancel


@dataclass(frozen=True, slots=True)
class Interruption:
    """What was heard of a turn, and what was not.

    Attributes:
        heard: The reply's text up to the last word that was heard completely, as the model wrote it:
            this is the assistant's message in the history; empty if no word was heard.
        unheard: What the model had written after that.
        tokens_kept: Tokens of the reply that wrote ``heard``; the KV cache is rolled back to these.
        tokens_dropped: Tokens of the reply after them.
        played_ms: How much of the turn's audio was heard.
        complete: Whether the whole turn had been heard, so that nothing was left to interrupt.
    """

    heard: str
    unheard: str
    tokens_kept: int
    tokens_dropped: int
    played_ms: float
    complete: bool = False
