"""Names and numbers of other rigs as they are published, and files in their formats."""

import csv
import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from specstream.commands.export import read_cues
from specstream.commands.main import main
from specstream.commands.shared.chain import stage_or_adapter
from specstream.errors import ConfigError
from specstream.types import AvatarCue, Mark, Span, Speech
from specstream_adapters.avatar import VisemeScripter, export, talking_head
from specstream_adapters.avatar.curves import VRM, VRM_MOUTH, recast
from specstream_adapters.avatar.directions import ARKIT_SHAPES, DIRECTIONS, VISEMES
from specstream_adapters.avatar.exports import FORMATS, GESTURES, MOODS
from specstream_adapters.avatar.sounds import names_of, parse_ipa

# Azure's table for US English (IPA, viseme id); SAPI's SPVISEMES says the same by example.
AZURE = {
    "i": 6, "ɪ": 6, "eɪ": 4, "ɛ": 4, "æ": 1, "ɑ": 2, "ɔ": 3, "ʊ": 4, "oʊ": 8, "u": 7, "ʌ": 1,
    "aɪ": 11, "aʊ": 9, "ɔɪ": 10, "ə": 1, "ɝ": 5, "w": 7, "j": 6, "p": 21, "b": 21, "t": 19, "d": 19,
    "k": 20, "g": 20, "m": 21, "n": 19, "ŋ": 20, "f": 18, "v": 18, "θ": 17, "ð": 17, "s": 15,
    "z": 15, "ʃ": 16, "ʒ": 16, "tʃ": 16, "dʒ": 16, "h": 12, "ɹ": 13, "l": 14,
}  # fmt: skip
# What Rhubarb's own rules give where they give one shape, or the first of several.
RHUBARB_RULES = {
    "ɔ": "E", "ɑ": "D", "i": "B", "u": "F", "ɛ": "C", "ɪ": "B", "ʊ": "F", "ʌ": "C", "æ": "C",
    "ɝ": "E", "p": "A", "b": "A", "m": "A", "f": "G", "v": "G", "θ": "B", "s": "B", "ʃ": "B",
    "t": "B", "k": "B", "n": "B", "l": "H", "w": "F",
}  # fmt: skip
ARKIT = """
eyeBlinkLeft eyeLookDownLeft eyeLookInLeft eyeLookOutLeft eyeLookUpLeft eyeSquintLeft eyeWideLeft
eyeBlinkRight eyeLookDownRight eyeLookInRight eyeLookOutRight eyeLookUpRight eyeSquintRight eyeWideRight
jawForward jawLeft jawRight jawOpen mouthClose mouthFunnel mouthPucker mouthLeft mouthRight
mouthSmileLeft mouthSmileRight mouthFrownLeft mouthFrownRight mouthDimpleLeft mouthDimpleRight
mouthStretchLeft mouthStretchRight mouthRollLower mouthRollUpper mouthShrugLower mouthShrugUpper
mouthPressLeft mouthPressRight mouthLowerDownLeft mouthLowerDownRight mouthUpperUpLeft mouthUpperUpRight
browDownLeft browDownRight browInnerUp browOuterUpLeft browOuterUpRight cheekPuff cheekSquintLeft
cheekSquintRight noseSneerLeft noseSneerRight tongueOut
""".split()
THREE_VRM = """
aa ih ou ee oh blink happy angry sad relaxed lookUp surprised lookDown lookLeft lookRight blinkLeft
blinkRight neutral
""".split()


def microsoft(sound: str) -> int:
    phone = parse_ipa(sound)[0]
    return names_of(phone.viseme or "I", phone.sound).microsoft


def test_names_and_ids_are_those_that_are_published() -> None:
    assert {sound: microsoft(sound) for sound in AZURE} == AZURE
    assert set(AZURE.values()) | {0} == set(range(22))
    assert names_of("sil") == ("sil", 0, "X")
    for sound, shape in RHUBARB_RULES.items():
        phone = parse_ipa(sound)[0]
        assert names_of(str(phone.viseme), phone.sound).rhubarb == shape, sound
    assert {names_of(v).rhubarb for v in VISEMES} | {"H"} == set("ABCDEFGHX")
    assert sorted(ARKIT) == sorted(ARKIT_SHAPES)
    assert sorted(THREE_VRM) == sorted(VRM)
    assert set(VRM_MOUTH) == set(VISEMES)
    assert {name for weights in VRM_MOUTH.values() for name in weights} == set(VRM[:5])
    assert set(MOODS.values()) <= set("neutral happy angry sad fear disgust love sleep".split())
    emotions = {name for name, known in DIRECTIONS.items() if known.kind == "emotion"}
    assert emotions == set(MOODS)
    assert set(GESTURES) <= set(DIRECTIONS)


def speech() -> Speech:
    """ "[happy] Bam loo [wave]", with a pause; the "l" is 5 ms short of a frame."""
    marks, at = [Mark("tag", "happy", Span(0, 0), Span(0, 7))], 0
    for word in (["b", "æ", "m"], ["_", "l", "uː"]):
        first = at + 1600 * (word[0] == "_")
        for sound in word:
            marks.append(Mark("phoneme", sound, Span(at, at + 1600), Span(8, 11)))
            at += 1600
        marks.append(Mark("word", "bam" if at == 4800 else "loo", Span(first, at), Span(8, 11)))
    marks.append(Mark("tag", "wave", Span(at, at), Span(16, 22)))
    return Speech(bytes(2 * at), 16_000, Span(0, at), tuple(marks), Span(0, 22), Span(0, 9), 0, True)


def script(**options: Any) -> list[AvatarCue]:
    track = VisemeScripter(**options).open(16_000)
    return [*track.add(speech()), *track.close()]


def test_a_script_can_be_made_for_each_rig() -> None:
    names = {
        "arkit": ["PP", "aa", "PP", "sil", "nn", "U"],
        "oculus": ["PP", "aa", "PP", "sil", "nn", "U"],
        "microsoft": ["21", "1", "21", "0", "14", "7"],
        "vrm": ["neutral", "aa", "neutral", "neutral", "ih", "ou"],
        "rhubarb": ["A", "C", "A", "X", "H", "F"],
    }
    for rig, expected in names.items():
        cues = script(rig=rig)
        mouth = [cue for cue in cues if cue.kind == "viseme" and cue.samples.length]
        assert [cue.name for cue in mouth] == expected, rig
        assert [cue.sound for cue in mouth] == ["b", "æ", "m", "", "l", "u"]
        happy = next(cue for cue in cues if cue.kind == "emotion")
        assert bool(happy.weights) == (rig in ("arkit", "vrm"))
    assert next(c for c in script(rig="vrm") if c.kind == "emotion").weights == {"happy": 0.8}
    assert stage_or_adapter("avatar", "viseme=vrm").open(16_000).add(speech())[1].name == "neutral"
    with pytest.raises(ConfigError, match="muppet"):
        stage_or_adapter("avatar", "viseme=muppet")
    with pytest.raises(ConfigError, match="rig already"):
        recast(script(rig="rhubarb")[1], "vrm")


def test_files_have_the_shape_that_their_readers_expect() -> None:
    cues = script()
    events = json.loads(export(cues, "microsoft"))
    assert [(e["audio_offset"], e["viseme_id"]) for e in events] == [
        (0, 21), (1_000_000, 1), (2_000_000, 21), (3_000_000, 0), (4_000_000, 14), (5_000_000, 7),
        (6_000_000, 0),
    ]  # fmt: skip
    made = json.loads(export(cues, "rhubarb"))
    assert made["metadata"] == {"soundFile": "speech.wav", "duration": 0.6}
    assert made["mouthCues"][0] == {"start": 0.0, "end": 0.1, "value": "A"}
    rows = [line.split("\t") for line in export(cues, "rhubarb-tsv").splitlines()]
    assert rows == [
        ["0.00", "A"], ["0.10", "C"], ["0.20", "A"], ["0.30", "X"], ["0.40", "H"], ["0.50", "F"],
        ["0.60", "X"],
    ]  # fmt: skip
    for rig, names in (("arkit", ARKIT_SHAPES), ("oculus", VISEMES)):
        head, *table = list(csv.reader(io.StringIO(export(cues, rig, 50))))
        assert head == ["ms", *names]
        assert [float(row[0]) for row in table] == [20.0 * i for i in range(31)]
        assert all(0.0 <= float(x) <= 1.0 for row in table for x in row[1:])
    clip = json.loads(export(cues, "vrm", 25))
    assert {t["name"] for t in clip["tracks"]} >= {
        "VRMExpression_aa.weight",
        "VRMExpression_happy.weight",
    }
    for track in clip["tracks"]:
        assert track["type"] == "number"
        assert len(track["times"]) == len(track["values"]) == 16
    assert clip["duration"] == 0.6
    assert export([], "microsoft") == "[]\n"
    assert export([], "rhubarb-tsv") == "0.00\tX\n"
    with pytest.raises(ConfigError, match="rhubarb-tsv"):
        export(cues, "muppet")


def test_what_was_taken_back_is_not_exported() -> None:
    span = Span(1600, 1600)
    rest = AvatarCue("viseme", "sil", 100.0, 0.0, 1.0, span, Span(0, 0), Span(0, 0))
    events = json.loads(export([*script(), rest], "microsoft"))
    assert events == [{"audio_offset": 0, "viseme_id": 21}, {"audio_offset": 1_000_000, "viseme_id": 0}]


def test_talking_head_s_payload() -> None:
    """Run against 1.7.0 of its package: `streamAudio` queues every entry (see docs/guides/avatar.md)."""
    payload = talking_head(script(), [speech()])
    assert payload["visemes"] == ["PP", "aa", "PP", "nn", "U"]
    assert payload["vtimes"] == [0, 100, 200, 400, 500]
    assert payload["vdurations"] == [100] * 5
    assert (payload["words"], payload["wtimes"]) == (["bam", "loo"], [0, 400])
    assert payload["wdurations"] == [300, 200]
    assert len(payload["audio"]) == 4 * 2 * 9600 / 3
    assert payload["calls"] == [
        {"t_ms": 0, "method": "setMood", "args": ["happy"]},
        {"t_ms": 600, "method": "playGesture", "args": ["handup", 1.5, False, 300]},
        {"t_ms": 600, "method": "setMood", "args": ["neutral"]},
    ]
    (anim,) = talking_head(script(), blendshapes=True, fps=50)["anims"]
    assert (anim["name"], anim["delay"], len(anim["dt"])) == ("blendshapes", 0, 31)
    assert {len(values) for values in anim["vs"].values()} == {31}
    assert set(anim["vs"]) <= set(ARKIT_SHAPES)
    assert talking_head([]) == {"visemes": [], "vtimes": [], "vdurations": []}


def test_the_command_writes_what_the_function_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cues, file = script(), tmp_path / "avatar.jsonl"
    file.write_text("".join(json.dumps(asdict(cue)) + "\n" for cue in cues))
    assert read_cues(file) == cues
    assert main(["export", str(file), "--to", "arkit", "--fps", "30"]) == 0
    assert capsys.readouterr().out == export(cues, "arkit", 30)
    out = tmp_path / "cues.json"
    assert main(["export", str(file), "--to", "rhubarb", "--out", str(out)]) == 0
    assert out.read_text() == export(cues, "rhubarb")
    for bad in (["--to", "muppet"], ["--to", "arkit", "--fps", "0"]):
        assert main(["export", str(file), *bad]) == 2
    kept = file.read_text()
    assert main(["export", str(file), "--to", "vrm", "--out", str(file)]) == 2
    assert file.read_text() == kept and "name another" in capsys.readouterr().err
    file.write_text('{"kind": "viseme"}\n')
    assert main(["export", str(file), "--to", "vrm"]) == 2
    assert main(["export", str(tmp_path / "none"), "--to", "vrm"]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 2
    assert "line 1: not an avatar cue: it has no 'name'" in errors[0]


ABSURD = ("1e400", "-1e400", "NaN", "1e12", "1" + "0" * 400, "-5", "true", '"long"', "null")


@pytest.mark.parametrize("to", sorted(FORMATS))
@pytest.mark.parametrize("number", ABSURD)
@pytest.mark.parametrize("key", ["t_ms", "duration_ms"])
def test_absurd_times_are_one_error(
    key: str, number: str, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "avatar.jsonl"
    values = {**asdict(script()[1]), key: "NUMBER"}
    file.write_text(json.dumps(values).replace('"NUMBER"', number))
    assert main(["export", str(file), "--to", to]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert len(line) < 400


@pytest.mark.parametrize(
    "change",
    [
        '"kind": "grimace"', '"name": 5', '"sound": null', '"weight": 1e400', '"weights": [1]',
        '"weights": {"jawOpen": NaN}', '"samples": [0, 1e400]', '"samples": [0]', '"chars": null',
    ],
)  # fmt: skip
def test_a_line_that_is_no_cue_is_named(change: str, tmp_path: Path) -> None:
    file = tmp_path / "avatar.jsonl"
    line = json.dumps(asdict(script()[1]))
    file.write_text(f"{line}\n{line[:-1]}, {change}}}\n")  # of two equal keys the last one counts
    with pytest.raises(ConfigError, match="line 2: not an avatar cue"):
        read_cues(file)


def test_a_line_that_is_no_json_is_told_in_words(tmp_path: Path) -> None:
    file = tmp_path / "avatar.jsonl"
    file.write_text("{\n")
    with pytest.raises(ConfigError, match="line 1: not an avatar cue: Invalid JSON"):
        read_cues(file)


def test_more_frames_than_anyone_draws_are_refused_before_the_first() -> None:
    (cue,) = (cue for cue in script() if cue.name == "aa")
    late = replace(cue, t_ms=5 * 3_600_000.0)
    for to in ("arkit", "oculus", "vrm"):
        with pytest.raises(ConfigError, match="at most 1000000"):
            export([cue, late], to)
    assert json.loads(export([cue, late], "microsoft"))[-1]["viseme_id"] == 0
    assert len(export([cue, replace(cue, t_ms=60_000.0)], "oculus", 1.0).splitlines()) == 63
