"""A small ONNX graph with the shape of a Piper voice, written by hand: tones, and durations."""

import json
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["write_voice"]

_FLOAT, _INT64 = 1, 7
_FRAME = 256


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _field(number: int, content: bytes | str | int) -> bytes:
    """A field of protobuf: a number as a varint, else its bytes with their length."""
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _node(op: str, inputs: str, output: str, **attributes: int) -> bytes:
    """NodeProto: .input (1), .output (2), .op_type (4), .attribute (5), all integers (type 2)."""
    out = b"".join(_field(1, name) for name in inputs.split()) + _field(2, output) + _field(4, op)
    for name, value in attributes.items():
        out += _field(5, _field(1, name) + _field(3, value) + _field(20, 2))
    return _field(1, out)


def _constant(name: str, values: list[int] | list[float] | int | float) -> bytes:
    """A graph's initializer (5): TensorProto .dims (1), .data_type (2), .name (8), .raw_data (9)."""
    array = np.asarray(values)
    kind, data = (_INT64, "<i8") if array.dtype.kind == "i" else (_FLOAT, "<f4")
    dims = b"".join(_field(1, length) for length in array.shape)
    raw = array.astype(data).tobytes()
    return _field(5, dims + _field(2, kind) + _field(8, name) + _field(9, raw))


def _value(number: int, name: str, kind: int) -> bytes:
    """A graph's input (11) or output (12) of any shape."""
    return _field(number, _field(1, name) + _field(2, _field(1, _field(1, kind))))


def _graph(durations: str, speakers: bool) -> bytes:
    """A tone of two frames a number, times ``length_scale``, with a tenth of the noise of Piper's graph.

    The tone's pitch follows the speaker. ``durations`` names the inner output of the frames.
    """
    sid = "sid" if speakers else "zero_i"
    nodes = [
        _node("Cast", "input", "as_float", to=_FLOAT),
        _node("Unsqueeze", "as_float one_axis", "row"),
        _node("Concat", "row row", "pair", axis=1),
        _node("RandomNormalLike", "pair", "/dp/RandomNormalLike_output_0", dtype=_FLOAT),
        _node("ReduceSum", "/dp/RandomNormalLike_output_0 one_axis", "drawn", keepdims=1),
        _node("Mul", "drawn tenth", "noise"),
        _node("Gather", "scales one_i", "length", axis=0),
        _node("Mul", "row zero", "zeros"),
        _node("Add", "zeros two", "twos"),
        _node("Add", "twos noise", "wanted"),
        _node("Mul", "wanted length", "stretched"),
        _node("Relu", "stretched", "positive"),
        _node("Ceil", "positive", durations),
        _node("ReduceSum", durations, "frames", keepdims=0),
        _node("Mul", "frames frame", "samples"),
        _node("Range", "zero samples one", "times"),
        _node("Cast", sid, "speaker", to=_FLOAT),
        _node("ReduceSum", "speaker", "pitch", keepdims=0),
        _node("Add", "pitch one", "higher"),
        _node("Mul", "higher tenth", "step"),
        _node("Mul", "times step", "angles"),
        _node("Sin", "angles", "sine"),
        _node("Mul", "sine tenth", "tone"),
        _node("Unsqueeze", "tone three_axes", "output"),
    ]
    constants = [
        *(_constant("zero", 0.0), _constant("one", 1.0), _constant("two", 2.0)),
        *(_constant("tenth", 0.1), _constant("frame", float(_FRAME))),
        *(_constant("one_i", 1), _constant("zero_i", [0])),
        *(_constant("one_axis", [1]), _constant("three_axes", [0, 1, 2])),
    ]
    inputs = [("input", _INT64), ("input_lengths", _INT64), ("scales", _FLOAT)]
    inputs += [("sid", _INT64)] if speakers else []
    given = [_value(11, name, kind) for name, kind in inputs]
    return b"".join([*nodes, _field(2, "voice"), *constants, *given, _value(12, "output", _FLOAT)])


def write_voice(
    folder: Path, *, durations: str = "/Ceil_output_0", speakers: bool = False, **facts: Any
) -> Path:
    """Write ``tones.onnx`` and ``tones.onnx.json`` to ``folder``; return the first.

    Args:
        folder: Where to write.
        durations: The name of the graph's inner output of durations.
        speakers: It has two, "low" and "high".
        facts: Replace keys of the JSON.
    """
    graph = _graph(durations, speakers)
    # ModelProto: .ir_version (1), .graph (7), .opset_import (8) with .version (2).
    path = folder / "tones.onnx"
    path.write_bytes(_field(1, 8) + _field(7, graph) + _field(8, _field(1, "") + _field(2, 15)))
    symbols = "_^$ !',-.:;?abcdefhijklmnopqrstuvwxyz\u00e6\u00f0\u014b\u0251\u0254\u0259\u025a\u025b"
    symbols += "\u025c\u0261\u026a\u0279\u027e\u0283\u028a\u028c\u0292\u02c8\u02cc\u02d0\u03b8\u0327"
    said = {
        "audio": {"sample_rate": 16_000},
        "espeak": {"voice": "en-us"},
        "inference": {"noise_scale": 0.667, "length_scale": 1, "noise_w": 0.8},
        "phoneme_type": "espeak",
        "phoneme_id_map": {symbol: [number] for number, symbol in enumerate(symbols)},
        "speaker_id_map": {"low": 0, "high": 1} if speakers else {},
    }
    Path(f"{path}.json").write_text(json.dumps(said | facts), "utf-8")
    return path
