"""One of each item and frame of the stage protocol."""

from specstream.remote.frames import (
    AckFrame,
    CancelFrame,
    CancelledFrame,
    ChunkFrame,
    CueFrame,
    DoneFrame,
    EndFrame,
    ErrorFrame,
    FlushedFrame,
    FlushFrame,
    Frame,
    Kind,
    PromptFrame,
    ReadyFrame,
    RevokedFrame,
    RevokeFrame,
    SpeechFrame,
    SpeechHead,
    StartFrame,
)
from specstream.remote.protocol import Item, Role
from specstream.types import AvatarCue, Mark, Phrase, ScenePrompt, Span, Speech, Tag

PHRASE = Phrase("Hi [wink] you", Span(5, 18), Span(1, 4), 2, (Tag("wink", Span(8, 14)),), 1 / 3, "end")
MARK = Mark("phoneme", "ɑː", Span(0, 4), Span(5, 7))
SPEECH = Speech(bytes(range(8)), 8000, Span(100, 104), (MARK,), Span(5, 18), Span(1, 4), 2)
SILENT = Speech(b"", 8000, Span(104, 104), (), Span(5, 18), Span(1, 4), 2, last=True)
CUE = AvatarCue("viseme", "aa", 0.1 + 0.2, 1e-17, 1.0, Span(0, 4), Span(5, 7), Span(1, 2), {"a": 0.7})
SHOT = ScenePrompt("s", 1, 2.5, Span(5, 18), Span(1, 4), "a", "b", "c", "d", "e", "f\n“g”", "h", "s@0")
READY = ReadyFrame(kind="voice", adapter="tone", window=3)
HEAD = SpeechHead.of(SPEECH)

SAMPLES: dict[str, Frame] = {
    frame.type: frame
    for frame in (
        StartFrame(window=3),
        ChunkFrame(phrase=PHRASE),
        RevokeFrame(from_char=7),
        FlushFrame(),
        EndFrame(),
        CancelFrame(reason="barge-in"),
        AckFrame(count=1),
        READY,
        SpeechFrame(speech=SpeechHead.of(SILENT)),
        CueFrame(cue=CUE),
        PromptFrame(prompt=SHOT),
        FlushedFrame(),
        RevokedFrame(from_char=7),
        DoneFrame(),
        CancelledFrame(cues=(CUE, CUE)),
        ErrorFrame(code="adapter_failed", message="no"),
    )
}
MADE: dict[Kind, Item] = {"voice": SPEECH, "avatar": CUE, "prompt": SHOT}
TAKEN: dict[Kind, Item] = {"voice": PHRASE, "avatar": SPEECH, "prompt": PHRASE}
ROLES: tuple[Role, ...] = ("client", "adapter")
KINDS: tuple[Kind, ...] = ("voice", "avatar", "prompt")
