"""From a sample back to tokens and rounds: the recorder's trace of a scripted turn, and the command."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("soundfile")

from specstream.commands import main as cli
from specstream.commands.shared.output import RunPrinter
from specstream.commands.shared.recorder import Recorder
from specstream.errors import ConfigError, RequestError
from specstream.stages.pipeline import Event, Pipeline
from specstream.stages.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage
from specstream.testing import ScriptedModel, ScriptedVoice, run_virtual
from specstream.trace import Trace, read_trace
from specstream.types import Phrase, Revoke, Span, Speech
from tests.server.doubles import OneCueFace, OneShotBoard

TEXT = "One two three four. Five six."


def traced(folder: Path) -> Path:
    """A turn in virtual time; words take 250 ms, and each phrase begins with 50 ms of silence."""
    voice = ScriptedVoice(first_audio_ms=80, real_time_factor=0.1, leading_silence_ms=50)

    async def work() -> None:
        model = ScriptedModel([TEXT], first_token_ms=200, round_ms=30, acceptance=0.5, seed=3)
        speech: list[Any] = [VoiceStage(voice), AvatarStage(OneCueFace())]
        clock: Any = {"clock": anyio.current_time}
        branches = [speech, [PromptStage(OneShotBoard())]]
        pipeline = Pipeline(branches, head=SegmentStage(**clock), **clock)
        with Recorder(folder, RunPrinter(StringIO(), show_runs=False)) as recorder:
            async with model.generate("Hi") as reply, pipeline.run(reply) as run:
                async for event in run:
                    recorder.add(event)

    run_virtual(work())
    return folder / "trace.json"


def test_every_sample_of_a_turn_is_followed_to_its_tokens(tmp_path: Path) -> None:
    trace = read_trace(traced(tmp_path))
    assert trace.samples == 24 * (50 + 4 * 250 + 50 + 2 * 250)
    for number, word in enumerate(["One", "two", "three", "four.", "Five", "six."]):
        phrase = number // 4
        ms = 50 * (phrase + 1) + 250 * number + 100
        story = trace.at(24 * ms)
        start = TEXT.index(word)
        assert (story.word, story.phrase["index"]) == (word, phrase)
        assert story.chars == (start, start + len(word))
        assert word in "".join(token.text for token in story.tokens)
        assert all(token.text in TEXT for token in story.tokens)
        assert list(story.times.values()) == sorted(story.times.values())
        assert story.attempts == 1
    assert trace.at(24 * 20).word is None, "the silence before the first word"
    seen = {token.origin for ms in range(0, 1600, 50) for token in trace.at(24 * ms).tokens}
    assert seen == {"plain", "accepted", "recovered"}
    first = trace.at(24 * 60)
    assert first.times["first token"] == pytest.approx(200)
    assert first.tokens[0].origin == "plain", "round 0 drafts nothing"
    # The first buffer of 60 ms comes 80 ms after the phrase was cut, and play-out begins with it.
    assert first.times["voice began"] == pytest.approx(first.times["phrase"] + 80)
    assert first.times["heard"] == pytest.approx(first.times["voice began"] + 60)
    with pytest.raises(RequestError, match=r"it lasts 1\.600 s"):
        trace.at(24 * 1600)


def test_what_was_made_again_after_a_revoke_is_the_latest_attempt(tmp_path: Path) -> None:
    def entry(seq: int, source: str, item: Any) -> Event:
        return Event(seq, 10.0 * seq, source, item)

    made = json.loads(traced(tmp_path).read_text())["events"]
    chunks = [e for e in made if e["type"] == "Chunk"]
    whole, again = Span(0, 19), Span(0, 3)
    phrase = Phrase(TEXT[:19], whole, Span(0, 4))
    speech = Speech(b"\1\1" * 100, 1000, Span(0, 100), (), whole, Span(0, 4), 0, last=True)
    other = replace(phrase, text=TEXT[:3], chars=again)
    items = [phrase, speech, Revoke(0), other, replace(speech, chars=again)]
    folder = tmp_path / "again"
    with Recorder(folder, RunPrinter(StringIO(), show_runs=False)) as recorder:
        for seq, item in enumerate(items):
            recorder.add(entry(seq, "voice", item))
    events = json.loads((folder / "trace.json").read_text())["events"]
    story = Trace({"events": [*events, *chunks]}).at(50)
    assert story.attempts == 2
    assert story.phrase["text"] == "One" and story.chars == (0, 3)
    assert "made 2 times" in "\n".join(story.lines())


def test_emotions_and_shots_that_were_replaced_are_not_told(tmp_path: Path) -> None:
    document = json.loads(traced(tmp_path).read_text())

    def cue(name: str, start: int, end: int) -> dict[str, Any]:
        return {"type": "AvatarCue", "kind": "emotion", "name": name, "samples": [start, end]}

    def shot(rev: int) -> dict[str, Any]:
        told = {"shot_id": "s1", "rev": rev, "prompt": f"A fox {rev}.", "span": [0, 40]}
        return {"type": "ScenePrompt", **told}

    known = {"seq": 10**6, "t_ms": 0.0, "logged_ms": 0.0}
    more = [cue("sad", 0, 10**6), cue("smile", 24 * 10, 10**6), shot(0), shot(1)]
    story = Trace({"events": [*document["events"], *({**known, **each} for each in more)]}).at(24 * 60)
    assert [cue for cue in story.cues if cue.startswith("emotion")] == ["emotion smile"]
    assert [shot for shot in story.shots if shot.startswith("s1@")] == ["s1@1: A fox 1."]


def test_the_command_tells_the_story(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(traced(tmp_path))
    capsys.readouterr()
    assert cli.main(["trace", path, "--at", "400ms", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sample 9600 (0.400 s): the word 'two'"
    assert "drafted by scripted, accepted" in "\n".join(lines)
    assert json.loads(lines[-1])["word"] == "two"
    for wrong, message in (
        (["--at", "soon"], "--at is a time such as 3.2s"),
        (["--at", "1s", "--picture", "x.bmp"], "a picture is one of .svg, .png, .pdf"),
        (["--at", "9s"], "it lasts 1.600 s"),
    ):
        assert cli.main(["trace", path, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_the_picture_shows_every_round_phrase_and_step(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, picture = traced(tmp_path), tmp_path / "trace.svg"
    assert cli.main(["trace", str(path), "--at", "400ms", "--picture", str(picture)]) == 0
    drawn = picture.read_text()
    for label in ("rounds", "phrases", "voice", "this sample"):
        assert f">{label}<" in drawn
    assert "One two three four.<" in drawn and "Five six.<" in drawn
    for step in read_trace(path).at(9600).times:
        assert f">until: {step}<" in drawn


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "this is no trace.json"),
        ('{"events": [{"type": "Chunk"}]}', "this is no trace.json"),
        ('{"events": []}', "there is no speech"),
    ],
)
def test_another_file_is_one_clear_error(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    assert str(path) in str(caught.value) and message in str(caught.value)
