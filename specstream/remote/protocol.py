"""The rules of ``specstream.stage.v1`` without a socket: who may send what, and when.

The frames are in `specstream.remote.frames`. Both sides keep a `StageRules`; because frames cross
on the wire, each side has its own table. In a turn the client sends ``start``, items, ``end``, and
the adapter items, ``done``; ``cancel`` may come at any time after ``start`` and is answered by one
``cancelled``. Then the next turn may start on the same connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from specstream.remote import frames as fr
from specstream.remote.frames import AudioFrame, Frame, Kind, Violation, decode, encode
from specstream.types import AvatarCue, Flush, Phrase, Revoke, ScenePrompt, Speech

__all__ = ["RULES", "WINDOW", "Item", "Role", "Rule", "StageRules", "State"]

WINDOW = 16
"""Default maximum of unacknowledged items per direction: about a second of speech."""

Role = Literal["client", "adapter"]
State = Literal["greeting", "idle", "open", "ending", "done", "cancelling", "closed"]
Item = Phrase | Speech | AvatarCue | ScenePrompt | Flush | Revoke
"""The items of a turn; the windows count them."""

_INPUTS = ("chunk", "revoke", "flush")
_OUTPUTS = ("speech", "cue", "prompt", "flushed", "revoked")
_MADE_BY: dict[str, Kind] = {"speech": "voice", "cue": "avatar", "prompt": "prompt"}


class Rule(NamedTuple):
    """The frames that may be sent and received in a state, with the state that follows."""

    sends: Mapping[str, State]
    receives: Mapping[str, State]


def _to(state: State, *frames: str) -> dict[str, State]:
    return dict.fromkeys(frames, state)


# In each state of a turn, the client's frames and the adapter's; without "error", the adapter's last.
_CANCEL = _to("cancelling", "cancel")
_TURN: dict[State, tuple[dict[str, State], dict[str, State]]] = {
    "greeting": ({}, _to("idle", "ready")),
    "idle": (_to("open", "start"), {}),
    "open": (
        _to("open", *_INPUTS, "ack") | _to("ending", "end") | _CANCEL,
        _to("open", *_OUTPUTS, "ack"),
    ),
    "ending": (_to("ending", "ack") | _CANCEL, _to("ending", *_OUTPUTS) | _to("done", "done")),
    "done": (_to("open", "start") | _CANCEL, {}),
    "cancelling": ({}, _to("idle", "cancelled")),
}
# Frames that a side still receives, because they were sent before its own last frame had come.
_CROSSED: dict[Role, dict[State, dict[str, State]]] = {
    "client": {
        "ending": _to("ending", "ack"),
        "cancelling": _to("cancelling", *_OUTPUTS, "ack", "done"),
    },
    "adapter": {"done": _to("done", "ack")},
}


def _rules(role: Role) -> dict[State, Rule]:
    rules: dict[State, Rule] = {"closed": Rule({}, {})}
    for state, (asks, answers) in _TURN.items():
        answers = answers | _to("closed", "error")
        sends, receives = (asks, answers) if role == "client" else (answers, asks)
        rules[state] = Rule(sends, receives | _CROSSED[role].get(state, {}))
    return rules


RULES: dict[Role, dict[State, Rule]] = {role: _rules(role) for role in get_args(Role)}


class StageRules:
    """The protocol's state on one side of a connection.

    ``send`` turns an item or frame into messages, ``receive`` turns a message into an item or frame.
    Both track the turn's state, windows, audio numbers and unanswered flushes and revokes, and raise
    `Violation` for anything that the rules don't allow. So a peer can't make this side hold more than
    a window of items.

    Attributes:
        state: The state of the turn as seen from this side.
        room: How many items may be sent before the peer acknowledges some.
        read: The end of the text that the latest prompt was made from; None if the adapter didn't say.
    """

    def __init__(self, role: Role, kind: Kind) -> None:
        self.state: State = "greeting"
        self.room = 0
        self._role: Role = role
        self._kind: Kind = kind
        self._window_in = self._window_out = WINDOW
        self._begin()

    def _begin(self) -> None:
        self.room = self._window_out
        self._peer_room = self._window_in  # items that the peer may send now
        self._taken = 0  # items used since the last ack
        self._number_out = self._number_in = 0
        self._due: deque[Frame] = deque()  # answers to flushes and revokes, in order
        self._owed: fr.ChunkFrame | fr.SpeechFrame | None = None  # its audio comes next
        self.read: int | None = None

    def may_send(self, frame_type: str) -> bool:
        """Whether the state allows sending such a frame (for the window see `room`)."""
        return frame_type in RULES[self._role][self.state].sends

    def send(self, what: Item | Frame) -> tuple[str | bytes, ...]:
        """Encode ``what`` as messages, to be sent one right after the other.

        Raises:
            Violation: ``what`` may not be sent now.
            AdapterFailed: ``what`` is too long for a message.
        """
        frame = self._frame(what)
        state = self._next("go", RULES[self._role][self.state].sends, frame)
        messages: tuple[str | bytes, ...] = (encode(frame),)
        if isinstance(what, Speech) and what.pcm:
            audio = AudioFrame(self._number_out, what.sample_rate, what.samples.start, what.pcm)
            messages += (encode(audio),)
        self._count(frame, sent=True)
        self._number_out += len(messages) - 1
        self.state = state
        return messages

    def receive(self, message: str | bytes) -> Item | Frame | None:
        """Decode the next message; None for an ack, or for a frame whose audio message comes next.

        Raises:
            Violation: the message is no frame, or may not come now.
        """
        frame = decode(message)
        if isinstance(frame, AudioFrame):
            return self._join(frame)
        if self._owed is not None:
            raise Violation(f"{frame.type!r} came where audio message {self._owed.audio} was due")
        state = self._next("come", RULES[self._role][self.state].receives, frame)
        self._count(frame, sent=False)
        self.state = state
        return self._item(frame)

    def took(self) -> fr.AckFrame | None:
        """Count a received item as used; returns the ack if one is due (half a window was used)."""
        self._taken += 1
        if self._taken * 2 < self._window_in or not self.may_send("ack"):
            return None
        count, self._taken = self._taken, 0
        return fr.AckFrame(count=count)

    def _next(self, verb: str, allowed: Mapping[str, State], frame: Frame) -> State:
        if frame.type not in allowed:
            raise Violation(f"{frame.type!r} may not {verb} in state {self.state!r}")
        if _MADE_BY.get(frame.type, self._kind) != self._kind:
            raise Violation(f"{frame.type!r} is nothing that a {self._kind} adapter makes")
        if isinstance(frame, fr.ChunkFrame):
            what = "speech" if self._kind == "avatar" else "phrase"
            held = [name for name in ("phrase", "speech") if getattr(frame, name) is not None]
            if held != [what]:
                raise Violation(f"a chunk for a {self._kind} adapter holds a {what}, and only that")
        return allowed[frame.type]

    def _count(self, frame: Frame, *, sent: bool) -> None:
        """Update the windows and the answers that are due."""
        if isinstance(frame, (fr.ReadyFrame, fr.StartFrame)):
            if sent:
                self._window_in = frame.window
            else:
                self._window_out = frame.window
            self._begin()
        elif isinstance(frame, fr.AckFrame):
            if sent:
                self._peer_room += frame.count
            elif self.room + frame.count > self._window_out:
                raise Violation("an ack for more items than were sent")
            else:
                self.room += frame.count
        elif frame.type in _INPUTS or frame.type in _OUTPUTS:
            if not (self.room if sent else self._peer_room):
                raise Violation(f"{frame.type!r} finds the window full: it must wait for an ack")
            self.room -= sent
            self._peer_room -= not sent
        self._ask_or_answer(frame)

    def _ask_or_answer(self, frame: Frame) -> None:
        if isinstance(frame, fr.FlushFrame):
            self._due.append(fr.FlushedFrame())
        elif isinstance(frame, fr.RevokeFrame):
            answer = fr.RevokedFrame(from_char=frame.from_char, drafted=frame.drafted)
            self._due.append(answer)
        elif isinstance(frame, (fr.FlushedFrame, fr.RevokedFrame)):
            if not self._due or self._due.popleft() != frame:
                raise Violation(f"{frame.type!r} is not the answer to what was asked first")
        elif isinstance(frame, fr.DoneFrame) and self._due:
            raise Violation("'done' came before a flush or revoke was answered")

    def _frame(self, what: Item | Frame) -> Frame:
        """Convert an item to its frame; a frame of speech gets the number of its audio message."""
        client = self._role == "client"
        match what:
            case Speech(pcm=pcm):
                kind = fr.ChunkFrame if client else fr.SpeechFrame
                return kind(speech=fr.SpeechHead.of(what), audio=self._number_out if pcm else None)
            case Phrase():
                return fr.ChunkFrame(phrase=what)
            case AvatarCue():
                return fr.CueFrame(cue=what)
            case ScenePrompt():
                return fr.PromptFrame(prompt=what)
            case Flush():
                return fr.FlushFrame() if client else fr.FlushedFrame()
            case Revoke(from_char=char, drafted=drafted):
                answer = fr.RevokeFrame if client else fr.RevokedFrame
                return answer(from_char=char, drafted=drafted)
        return what

    def _item(self, frame: Frame) -> Item | Frame | None:
        match frame:
            case fr.ChunkFrame(speech=fr.SpeechHead() as head) | fr.SpeechFrame(speech=head):
                due = self._number_in if head.samples.length else None
                if frame.audio != due:
                    raise Violation(f"{frame.type!r} names audio message {frame.audio}, not {due}")
                if due is None:
                    return head.join(b"")
                self._owed = frame
                return None
            case fr.ChunkFrame():
                return frame.phrase
            case fr.CueFrame():
                return frame.cue
            case fr.PromptFrame(prompt=prompt):
                self.read = frame.read
                return prompt
            case fr.FlushFrame() | fr.FlushedFrame():
                return Flush()
            case fr.RevokeFrame() | fr.RevokedFrame():
                return Revoke(frame.from_char, frame.drafted)
            case fr.AckFrame():
                return None
        return frame

    def _join(self, audio: AudioFrame) -> Speech:
        owed, self._owed = self._owed, None
        if owed is None or owed.speech is None:
            raise Violation("an audio message came that no frame had named")
        head = owed.speech
        named = (owed.audio, head.sample_rate, head.samples.start, 2 * head.samples.length)
        if (audio.number, audio.sample_rate, audio.start, len(audio.pcm)) != named:
            raise Violation("an audio message differs in number, rate, place or length from its frame")
        self._number_in += 1
        return head.join(audio.pcm)
