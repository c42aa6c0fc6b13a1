"""Frames survive the wire, and what is malformed is refused."""

import json
import random
import struct
from contextlib import suppress
from dataclasses import fields
from typing import Any, get_args

import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable, ConnectionFailed, SpecstreamError
from specstream.remote.frames import (
    MAX_MESSAGE,
    AudioFrame,
    ChunkFrame,
    ErrorFrame,
    Frame,
    Kind,
    SpeechHead,
    Violation,
    decode,
    encode,
)
from specstream.remote.protocol import Item, StageRules
from specstream.types import Phrase, ScenePrompt, Span, Speech
from tests.server.frames import CUE, PHRASE, SAMPLES, SHOT, SILENT, SPEECH


def test_there_is_a_sample_of_every_frame() -> None:
    assert {frame.__name__ for frame in get_args(Frame)} == {type(f).__name__ for f in SAMPLES.values()}


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
    kind: Kind = "voice" if isinstance(item, Phrase) else "avatar"
    kind = "prompt" if isinstance(item, ScenePrompt) else kind
    client = isinstance(item, (Phrase, Speech))
    side = StageRules("client" if client else "adapter", kind)
    ready, start = SAMPLES["ready"], SAMPLES["start"]
    if client:
        side.receive(encode(ready))
        side.send(start)
    else:
        side.send(ready)
        side.receive(encode(start))
    data = json.loads(side.send(item)[0])
    (body,) = (key for key in data if isinstance(data[key], dict))
    for span in ("chars", "tokens", "samples", "span"):
        if span in data[body]:
            for bad in ([4, 3], [-1, 2], [0, 2**53], [0], [0, 1, 2], [0.5, 1], ["0", 1], None):
                with pytest.raises(Violation):
                    decode(json.dumps({**data, body: {**data[body], span: bad}}))
    with pytest.raises(Violation):
        decode(json.dumps({**data, body: {**data[body], "more": 0}}))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("type", "name"),
    [("cue", "t_ms"), ("cue", "duration_ms"), ("cue", "weight"), ("prompt", "t_start_ms")],
)
def test_numbers_are_finite(type: str, name: str, bad: float) -> None:
    data = json.loads(encode(SAMPLES[type]))
    data[type][name] = bad
    with pytest.raises(Violation, match="finite"):
        decode(json.dumps(data))


@pytest.mark.parametrize(
    "change",
    [
        {"text": None},
        {"tags": [{"name": "wink", "chars": [3, 9]}]},
        {"tags": [{"name": "wink", "chars": [8, 14], "loud": True}]},
        {"t_ms": float("inf")},
        {"reason": "boredom"},
    ],
    ids=str,
)
def test_a_phrase_is_checked(change: dict[str, Any]) -> None:
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


def test_a_phrase_is_bounded_as_a_server_reads_it_between_other_clients_frames() -> None:
    messages = list[str | bytes]()
    for length in (16_384, 16_385):
        phrase = Phrase("a" * length, Span(0, length), Span(0, 1), 0)
        messages.append(encode(ChunkFrame.model_construct(type="chunk", turn=1, phrase=phrase)))
    decode(messages[0])
    with pytest.raises(Violation, match="at most 16384"):
        decode(messages[1])
