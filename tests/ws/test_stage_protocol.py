"""The stage protocol without sockets: frames, tables, windows, and what breaks them."""

from __future__ import annotations

import json
import random
import re
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields
from typing import Any, get_args

import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable, ConnectionFailed, SpecstreamError
from specstream.pipeline.interfaces import VoiceCapabilities
from specstream.types import AvatarCue, Flush, Mark, Phrase, Revoke, ScenePrompt, Span, Speech, Tag
from specstream.ws.stage_codec import MAX_MESSAGE, AudioFrame, Violation, decode, encode
from specstream.ws.stage_frames import (
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
from specstream.ws.stage_protocol import RULES, Conversation, Item, Role, Rule, State

PHRASE = Phrase(
    "Hi [wink] you", Span(5, 18), Span(1, 4), 2, (Tag("wink", Span(8, 14)),), 1 / 3, "end"
)
MARK = Mark("phoneme", "ɑː", Span(0, 4), Span(5, 7))
SPEECH = Speech(bytes(range(8)), 8000, Span(100, 104), (MARK,), Span(5, 18), Span(1, 4), 2)
SILENT = Speech(b"", 8000, Span(104, 104), (), Span(5, 18), Span(1, 4), 2, last=True)
CUE = AvatarCue(
    "viseme", "aa", 0.1 + 0.2, 1e-17, 1.0, Span(0, 4), Span(5, 7), Span(1, 2), {"a": 0.7}
)
SHOT = ScenePrompt(
    "s", 1, 2.5, Span(5, 18), Span(1, 4), "a", "b", "c", "d", "e", "f\n“g”", "h", "s@0"
)
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


def test_there_is_a_sample_of_every_frame() -> None:
    assert {frame.__name__ for frame in get_args(Frame)} == {
        type(f).__name__ for f in SAMPLES.values()
    }


@pytest.mark.parametrize("frame", SAMPLES.values(), ids=lambda frame: str(frame.type))
def test_a_frame_survives_the_wire_and_refuses_what_it_does_not_know(frame: Frame) -> None:
    message = encode(frame)
    assert decode(message) == frame
    data = json.loads(message)
    for spoilt in (
        {**data, "extra": 1},
        {**data, "type": frame.type + "s"},
        [data],
        {**data, "type": 1},
    ):
        with pytest.raises(Violation):
            decode(json.dumps(spoilt))
    for key in data.keys() - {"type"}:
        for junk in ({"x": [1]}, -1.5):
            with pytest.raises(Violation) as caught:
                decode(json.dumps({**data, key: junk}))
            assert caught.value.close_code == 1007
            assert len(str(caught.value)) <= 300


@pytest.mark.parametrize(
    "item", [PHRASE, SPEECH, SILENT, CUE, SHOT], ids=lambda item: type(item).__name__
)
def test_nested_values_are_checked_as_strictly(item: Item) -> None:
    side = Conversation("client" if isinstance(item, (Phrase, Speech)) else "adapter", "avatar")
    frame = side._frame(item)
    data = json.loads(encode(frame))
    (body,) = (key for key in data if isinstance(data[key], dict))
    for span in ("chars", "tokens", "samples", "span"):
        if span in data[body]:
            for bad in ([4, 3], [-1, 2], [0, 2**53], [0], [0, 1, 2], [0.5, 1], ["0", 1], None):
                with pytest.raises(Violation):
                    decode(json.dumps({**data, body: {**data[body], span: bad}}))
    with pytest.raises(Violation):
        decode(json.dumps({**data, body: {**data[body], "more": 0}}))


@pytest.mark.parametrize(
    "change",
    [
        {"text": "short"},
        {"tags": [{"name": "wink", "chars": [3, 9]}]},
        {"tags": [{"name": "wink", "chars": [8, 14], "loud": True}]},
        {"t_ms": float("inf")},
        {"reason": "boredom"},
    ],
    ids=str,
)
def test_a_phrase_must_fit_its_text(change: dict[str, Any]) -> None:
    data = json.loads(encode(ChunkFrame(phrase=PHRASE)))
    data["phrase"].update(change)
    with pytest.raises(Violation):
        decode(json.dumps(data))


def test_speech_loses_nothing_but_its_pcm() -> None:
    assert {field.name for field in fields(Speech)} == {"pcm", *SpeechHead.model_fields}
    assert SpeechHead.of(SPEECH).join(SPEECH.pcm) == SPEECH


def test_the_audio_header_is_what_the_document_says() -> None:
    message = encode(AudioFrame(7, 22050, 2**40 + 1, b"\x01\x02\x03\x04"))
    assert message == b"SPST\x01\x01\x00\x00" + struct.pack("<IIQI", 7, 22050, 2**40 + 1, 4) + (
        b"\x01\x02\x03\x04"
    )
    assert decode(message) == AudioFrame(7, 22050, 2**40 + 1, b"\x01\x02\x03\x04")


def test_a_spoilt_audio_message_is_refused() -> None:
    message = encode(AudioFrame(7, 22050, 5, bytes(64)))
    assert isinstance(message, bytes)
    for length in range(len(message)):
        with pytest.raises(Violation):
            decode(message[:length])
    for position in (0, 3, 4, 5, 6, 7, 24, 27):  # magic, version, coding, reserved, byte length
        spoilt = bytearray(message)
        spoilt[position] ^= 0xFF
        with pytest.raises(Violation):
            decode(bytes(spoilt))
    with pytest.raises(Violation):
        decode(message + b"\0")
    with pytest.raises(Violation):
        decode(struct.pack("<4sBBHIIQI", b"SPST", 1, 1, 0, 0, 8000, 0, 3) + b"abc")  # half a sample


def test_size_is_limited_both_ways() -> None:
    with pytest.raises(AdapterFailed, match="smaller pieces"):
        encode(AudioFrame(0, 8000, 0, bytes(MAX_MESSAGE)))
    for message in (" " * (MAX_MESSAGE + 1), bytes(MAX_MESSAGE + 1)):
        with pytest.raises(Violation) as caught:
            decode(message)
        assert caught.value.close_code == 1009


@pytest.mark.parametrize("seed", range(20))
def test_junk_is_a_violation_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    texts = [str(encode(frame)) for frame in SAMPLES.values()]
    for _ in range(200):
        text = list(rng.choice(texts))
        for _ in range(rng.randint(1, 4)):
            spot = rng.randrange(len(text))
            text[spot : spot + rng.randint(0, 3)] = rng.choice(
                [
                    "",
                    "{",
                    "}",
                    "[",
                    '"',
                    "\\",
                    "\\ud800",
                    "\0",
                    "9" * 5000,
                    "[" * 300,
                    "null",
                    "é",
                    "-",
                    "1e999",
                ]
            )
        with suppress(Violation):
            decode("".join(text))
        with pytest.raises(Violation):
            decode(rng.randbytes(rng.randint(0, 60)))


def test_errors_keep_their_type_over_the_wire() -> None:
    for cls in (AdapterFailed, AdapterUnavailable, ConnectionFailed, SpecstreamError):
        back = ErrorFrame.of(cls("why")).error()
        assert type(back) is cls
        assert str(back) == "why"
    assert type(ErrorFrame(code="from_the_future", message="x").error()) is AdapterFailed
    assert ErrorFrame.of(Violation("x")).code == "protocol_error"
    assert len(ErrorFrame.of(AdapterFailed("x" * 10_000)).message) == 2000


# --- the tables ---------------------------------------------------------------------------------

# state: frames that may be sent → next state; < marks frames that may be received.
TABLE = {
    "client": """
        greeting:   <ready→idle
        idle:       start→open
        open:       chunk revoke flush ack→open end→ending cancel→cancelling <out <ack→open
        ending:     ack→ending cancel→cancelling <out <ack→ending <done→done
        done:       start→open cancel→cancelling
        cancelling: <out <ack <done→cancelling <cancelled→idle
    """,
    "adapter": """
        greeting:   ready→idle
        idle:       <start→open
        open:       out ack→open <chunk <revoke <flush <ack→open <end→ending <cancel→cancelling
        ending:     out→ending done→done <ack→ending <cancel→cancelling
        done:       <ack→done <start→open <cancel→cancelling
        cancelling: cancelled→idle
    """,
}


def expected(role: Role) -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {"closed": {}}
    for line in TABLE[role].strip().splitlines():
        state, _, rest = line.strip().partition(":")
        row = table.setdefault(state, {"<error" if role == "client" else "error": "closed"})
        for names, target in re.findall(r"([^→]+)→(\w+)", rest.strip()):
            for name in names.split():
                sign, bare = re.match(r"(<?)(\w+)", name).groups()  # type: ignore[union-attr]
                many = (
                    ["speech", "cue", "prompt", "flushed", "revoked"] if bare == "out" else [bare]
                )
                row.update({sign + one: target for one in many})
    return table


@pytest.mark.parametrize("role", ROLES)
def test_the_table_is_the_documented_one(role: Role) -> None:
    given = {
        state: dict(rule.sends) | {f"<{name}": after for name, after in rule.receives.items()}
        for state, rule in RULES[role].items()
    }
    assert given == expected(role)


def at(role: Role, kind: Kind, state: State) -> Conversation:
    """A conversation that was led to ``state`` the straight way."""
    side = Conversation(role, kind)
    start, end, cancel = StartFrame(window=3), EndFrame(), CancelFrame()
    way: dict[State, list[Frame]] = {
        "greeting": [],
        "idle": [READY],
        "open": [READY, start],
        "ending": [READY, start, end],
        "done": [READY, start, end, DoneFrame()],
        "cancelling": [READY, start, cancel],
        "closed": [ErrorFrame(code="x", message="")],
    }
    for frame in way[state]:
        mine = isinstance(frame, (ReadyFrame, DoneFrame, ErrorFrame)) == (role == "adapter")
        side.send(frame) if mine else side.receive(encode(frame))
    assert side.state == state
    return side


def exchange(side: Conversation, frame: Frame, *, sent: bool) -> None:
    side.send(frame) if sent else side.receive(encode(frame))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ROLES)
def test_every_frame_in_every_state(role: Role, kind: Kind) -> None:
    own = {"voice": "speech", "avatar": "cue", "prompt": "prompt"}[kind]
    for state, row in expected(role).items():
        for name, sample in SAMPLES.items():
            frame = sample
            if name == "chunk" and kind == "avatar":
                frame = ChunkFrame(speech=SpeechHead.of(SILENT))
            for sent in (True, False):
                side = at(role, kind, state)  # type: ignore[arg-type]
                if name in ("flushed", "revoked") and side.state in (
                    "open",
                    "ending",
                    "cancelling",
                ):
                    side._ask_or_answer(
                        FlushFrame() if name == "flushed" else RevokeFrame(from_char=7)
                    )
                if name == "ack" and side.state in ("open", "ending", "cancelling", "done"):
                    side.room -= 1  # so that there is something to acknowledge
                target = row.get(name if sent else f"<{name}")
                if name in ("speech", "cue", "prompt") and name != own:
                    target = None
                if target is None:
                    before = deepcopy(vars(side))
                    with pytest.raises(Violation) as caught:
                        exchange(side, frame, sent=sent)
                    assert caught.value.close_code == 1002
                    assert vars(side) == before, "a refused frame must leave no trace"
                else:
                    exchange(side, frame, sent=sent)
                    assert side.state == target


# --- the two tables together --------------------------------------------------------------------

Joint = tuple[State, State, tuple[str, ...], tuple[str, ...]]
Tables = dict[Role, dict[State, Rule]]
CLASSES = {"chunk", "flush", "speech", "flushed"}  # stand for their likes, to keep the search small


def moves(joint: Joint, tables: Tables, depth: int) -> Iterator[tuple[str, Joint | None]]:
    """Every next joint state; None is a frame that arrives where it may not."""
    client, adapter, up, down = joint
    skip = {"revoke", "cue", "prompt", "revoked", "error"}
    for name, after in tables["client"][client].sends.items():
        if name not in skip and len(up) < depth:
            yield f"client sends {name}", (after, adapter, (*up, name), down)
    for name, after in tables["adapter"][adapter].sends.items():
        if name not in skip and len(down) < depth:
            yield f"adapter sends {name}", (client, after, up, (*down, name))
    if up:
        target = tables["adapter"][adapter].receives.get(up[0])
        yield f"adapter gets {up[0]}", target and (client, target, up[1:], down)
    if down:
        target = tables["client"][client].receives.get(down[0])
        yield f"client gets {down[0]}", target and (target, adapter, up, down[1:])


def explore(tables: Tables, depth: int = 3) -> tuple[dict[Joint, set[Joint]], list[str]]:
    start: Joint = ("greeting", "greeting", (), ())
    seen: dict[Joint, set[Joint]] = {}
    wrong: list[str] = []
    todo = deque([start])
    while todo:
        joint = todo.popleft()
        if joint in seen:
            continue
        seen[joint] = set()
        for what, following in moves(joint, tables, depth):
            if following is None:
                wrong.append(f"{what} in {joint}")
            else:
                seen[joint].add(following)
                todo.append(following)
    return seen, wrong


def test_two_sides_that_keep_to_their_tables_never_clash_and_always_get_home() -> None:
    seen, wrong = explore(RULES)
    assert len(seen) > 1000
    assert not wrong, wrong[:3]
    back: dict[Joint, set[Joint]] = {joint: set() for joint in seen}
    for joint, following in seen.items():
        for other in following:
            back[other].add(joint)
    home: Joint = ("idle", "idle", (), ())
    reaches, todo = {home}, deque([home])
    while todo:
        for other in back[todo.popleft()] - reaches:
            reaches.add(other)
            todo.append(other)
    assert reaches == set(seen), "some state has no way to the next turn"


def test_nothing_in_the_tables_is_there_for_nothing() -> None:
    """Take any frame out of what a side may receive, and two honest sides clash."""
    for role in ROLES:
        for state, rule in RULES[role].items():
            for name in rule.receives.keys() & (
                CLASSES | {"ack", "end", "cancel", "done", "start", "ready"}
            ):
                less = {key: value for key, value in rule.receives.items() if key != name}
                tables: Tables = {**RULES, role: {**RULES[role], state: Rule(rule.sends, less)}}
                assert explore(tables)[1], f"{role} needs no {name} in {state}"


# --- windows, audio, questions ------------------------------------------------------------------


def pair(kind: Kind, up: int = 3, down: int = 3) -> tuple[Conversation, Conversation]:
    """A client and an adapter in an open turn."""
    client, adapter = Conversation("client", kind), Conversation("adapter", kind)
    deliver(client, adapter.send(ReadyFrame(kind=kind, adapter="x", window=up)))
    deliver(adapter, client.send(StartFrame(window=down)))
    return client, adapter


def deliver(side: Conversation, messages: tuple[str | bytes, ...]) -> Item | Frame | None:
    got = None
    for message in messages:
        assert got is None, "only the last message of a frame completes it"
        got = side.receive(message)
    return got


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(15))
def test_random_honest_turns_arrive_whole_and_within_the_window(kind: Kind, seed: int) -> None:
    rng = random.Random(seed)
    windows = {"client": rng.randint(1, 5), "adapter": rng.randint(1, 5)}
    client, adapter = pair(kind, windows["adapter"], windows["client"])
    sides = {"client": client, "adapter": adapter}
    wires: dict[str, deque[tuple[str | bytes, ...]]] = {"client": deque(), "adapter": deque()}
    sent: dict[str, list[Any]] = {"client": [], "adapter": []}
    got: dict[str, list[Any]] = {"client": [], "adapter": []}
    unused = {"client": 0, "adapter": 0}
    questions: deque[Item] = deque()

    def post(side: str, what: Item | Frame) -> None:
        wires[side].append(sides[side].send(what))

    for _ in range(300):
        act = rng.choice(["send", "send", "deliver", "deliver", "use", "end"])
        side = rng.choice(list(sides))
        other = "adapter" if side == "client" else "client"
        me = sides[side]
        if act == "send" and me.room and me.may_send("chunk" if side == "client" else "flushed"):
            options: list[Item] = [TAKEN[kind], Flush(), Revoke(rng.randint(0, 99))]
            if side == "adapter":
                options = [MADE[kind], *list(questions)[:1]]
            item = rng.choice(options)
            if side == "adapter" and isinstance(item, (Flush, Revoke)):
                questions.popleft()
            sent[side].append(item)
            post(side, item)
        elif act == "deliver" and wires[other]:
            thing = deliver(me, wires[other].popleft())
            if isinstance(thing, Item):
                got[side].append(thing)
                unused[side] += 1
                assert unused[side] <= windows[side], "more in hand than the window"
                if side == "adapter" and isinstance(thing, (Flush, Revoke)):
                    questions.append(thing)
        elif act == "use" and unused[side]:
            unused[side] -= 1
            ack = me.took()
            if ack is not None:
                post(side, ack)
        elif act == "end" and rng.random() < 0.02:
            if side == "client" and me.may_send("end"):
                post(side, EndFrame())
            elif side == "client" and me.may_send("start"):
                post(side, StartFrame(window=windows["client"]))
                unused = {"client": 0, "adapter": unused["adapter"]}
            elif side == "adapter" and me.may_send("done") and not questions:
                unused["adapter"] = 0
                post(side, DoneFrame())
    for side, other in (("client", "adapter"), ("adapter", "client")):
        while wires[side]:
            thing = deliver(sides[other], wires[side].popleft())
            got[other] += [thing] if isinstance(thing, Item) else []
        assert got[other] == sent[side]
        assert got[other]


def refused(side: Conversation, *whats: Item | Frame | str | bytes) -> Violation:
    """The violation that the last of ``whats`` makes; those before it are fine."""
    *fine, bad = whats
    for what in fine:
        side.receive(what if isinstance(what, (str, bytes)) else encode(what))  # type: ignore[arg-type]
    with pytest.raises(Violation) as caught:
        side.receive(bad if isinstance(bad, (str, bytes)) else encode(bad))  # type: ignore[arg-type]
    return caught.value


NAMED = SpeechFrame(speech=HEAD, audio=0)
AUDIO = AudioFrame(0, 8000, 100, SPEECH.pcm)


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([encode(AUDIO)], "no frame had named"),
        ([NAMED, DoneFrame()], "was due"),
        ([SpeechFrame(speech=HEAD, audio=1)], "names audio"),
        ([SpeechFrame(speech=HEAD)], "names audio"),
        ([SpeechFrame(speech=SpeechHead.of(SILENT), audio=0)], "names audio"),
        ([NAMED, encode(AudioFrame(1, 8000, 100, SPEECH.pcm))], "differs"),
        ([NAMED, encode(AudioFrame(0, 8001, 100, SPEECH.pcm))], "differs"),
        ([NAMED, encode(AudioFrame(0, 8000, 101, SPEECH.pcm))], "differs"),
        ([NAMED, encode(AudioFrame(0, 8000, 100, SPEECH.pcm[:-2]))], "differs"),
        ([NAMED, encode(AUDIO), NAMED], "names audio"),
        ([NAMED, encode(AUDIO), encode(AUDIO)], "no frame had named"),
        ([CueFrame(cue=CUE)], "nothing that a voice adapter makes"),
        ([FlushedFrame()], "not the answer"),
        ([AckFrame(count=1)], "more items than were sent"),
        ([SpeechFrame(speech=SpeechHead.of(SILENT))] * 4, "window"),
    ],
)
def test_a_dishonest_adapter_is_found_out(frames: list[Any], why: str) -> None:
    client, _ = pair("voice")
    assert why in str(refused(client, *frames))


@pytest.mark.parametrize(
    ("kind", "frames", "why"),
    [
        ("voice", [ChunkFrame(speech=SpeechHead.of(SILENT))], "holds a phrase"),
        ("avatar", [ChunkFrame(phrase=PHRASE)], "holds a speech"),
        ("prompt", [ChunkFrame()], "holds a phrase"),
        ("prompt", [ChunkFrame(phrase=PHRASE, speech=SpeechHead.of(SILENT))], "only that"),
        ("avatar", [ChunkFrame(speech=HEAD, audio=0), FlushFrame()], "was due"),
        ("voice", [ChunkFrame(phrase=PHRASE)] * 4, "window"),
        ("voice", [FlushFrame(), RevokeFrame(from_char=1), FlushFrame(), FlushFrame()], "window"),
        ("voice", [AckFrame(count=4)], "more items"),
        ("voice", [EndFrame(), EndFrame()], "may not come"),
        ("voice", [EndFrame(), StartFrame(window=1)], "may not come"),
    ],
)
def test_a_dishonest_client_is_found_out(kind: Kind, frames: list[Any], why: str) -> None:
    _, adapter = pair(kind)
    assert why in str(refused(adapter, *frames))


def test_answers_come_in_the_order_of_the_questions() -> None:
    wrong: list[list[Frame]] = [
        [RevokedFrame(from_char=5)],
        [FlushedFrame(), RevokedFrame(from_char=6)],
        [FlushedFrame(), RevokedFrame(from_char=5), FlushedFrame()],
    ]
    for *fine, bad in wrong:
        client, adapter = pair("voice")
        for question in (Flush(), Revoke(5)):
            assert deliver(adapter, client.send(question)) == question
        for frame in fine:
            adapter.send(frame)
            client.receive(encode(frame))
        with pytest.raises(Violation):
            adapter.send(bad)
        with pytest.raises(Violation):
            client.receive(encode(bad))
    client, adapter = pair("voice")
    deliver(adapter, client.send(Flush()))
    deliver(adapter, client.send(EndFrame()))
    with pytest.raises(Violation, match="was answered"):
        adapter.send(DoneFrame())


def test_acks_give_room_back_and_none_is_sent_when_it_would_be_late() -> None:
    client, adapter = pair("voice", up=4)
    for _ in range(4):
        deliver(adapter, client.send(PHRASE))
    assert client.room == 0
    with pytest.raises(Violation, match="window full"):
        client.send(PHRASE)
    assert adapter.took() is None
    ack = adapter.took()
    assert ack == AckFrame(count=2)
    assert deliver(client, adapter.send(ack)) is None
    assert client.room == 2
    deliver(adapter, client.send(CancelFrame()))
    assert [adapter.took() for _ in range(4)] == [None] * 4


def test_what_is_too_long_is_refused_before_it_counts() -> None:
    client, _ = pair("avatar")
    samples = MAX_MESSAGE // 2
    long = Speech(bytes(2 * samples), 8000, Span(0, samples), (), Span(0, 1), Span(0, 1), 0)
    before = deepcopy(vars(client))
    with pytest.raises(AdapterFailed):
        client.send(long)
    assert vars(client) == before


def test_ready_tells_what_a_voice_can_do() -> None:
    voice = VoiceCapabilities("tone", 8000, True, True, True, False)
    frame = ReadyFrame(kind="voice", adapter="tone", window=1, voice=voice)
    assert decode(encode(frame)) == frame
