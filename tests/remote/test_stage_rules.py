"""Whole conversations: windows, audio, questions; honest ones and others."""

import random
from collections import deque
from copy import deepcopy
from typing import Any

import pytest

from specstream.errors import AdapterFailed
from specstream.remote.frames import (
    MAX_MESSAGE,
    AckFrame,
    AudioFrame,
    CancelFrame,
    ChunkFrame,
    CueFrame,
    DoneFrame,
    EndFrame,
    FlushedFrame,
    FlushFrame,
    Frame,
    Kind,
    ReadyFrame,
    RevokedFrame,
    RevokeFrame,
    SpeechFrame,
    SpeechHead,
    StartFrame,
    Violation,
    decode,
    encode,
)
from specstream.remote.protocol import Item, StageRules
from specstream.stages.interfaces import VoiceCapabilities
from specstream.types import Flush, Revoke, Span, Speech
from tests.server.frames import CUE, HEAD, KINDS, MADE, PHRASE, SILENT, SPEECH, TAKEN


def pair(kind: Kind, up: int = 3, down: int = 3) -> tuple[StageRules, StageRules]:
    """A client and an adapter in an open turn."""
    client, adapter = StageRules("client", kind), StageRules("adapter", kind)
    deliver(client, adapter.send(ReadyFrame(kind=kind, adapter="x", window=up)))
    deliver(adapter, client.send(StartFrame(window=down)))
    return client, adapter


def deliver(side: StageRules, messages: tuple[str | bytes, ...]) -> Item | Frame | None:
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


def refused(side: StageRules, *whats: Item | Frame | str | bytes) -> Violation:
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
