"""The command line as a person or a script meets it."""

import asyncio
import json
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from specstream.commands.main import main
from tests.support.missing import needs_installation
from tests.support.tiny import save_pair

STORY = [
    "say",
    "Tell me a story about a shy tortoise.",
    "--system",
    "You are a storyteller. Mark feelings and gestures in brackets.",
]
CONTRACT = {
    "text",
    "token_ids",
    "finish_reason",
    "rounds",
    "drafted",
    "accepted",
    "acceptance_rate",
    "mean_acceptance_length",
    "tokens_per_second",
    "ttft_ms",
}


def needs_say() -> None:
    """``say`` finds its adapters by name, and writes a WAV file."""
    needs_installation()
    pytest.importorskip("soundfile")


def last_json(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    out = capsys.readouterr().out
    values: dict[str, object] = json.loads(out.splitlines()[-1])
    return values


def test_generate_gives_the_same_greedy_text_with_and_without(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = []
    for proposer in ("draft", "suffix", "off"):
        argv = ["generate", "I need a taxi to the station", "--proposer", proposer, "--json"]
        assert main(argv) == 0
        results.append(last_json(capsys))
    assert CONTRACT <= results[0].keys()
    assert results[0]["text"]
    assert results[0]["token_ids"] == results[1]["token_ids"] == results[2]["token_ids"]


def test_a_target_alone_is_served_and_one_line_says_what_drafts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, _ = save_pair(tmp_path)
    capsys.readouterr()
    assert main(["generate", "hello", "--target", str(target), "--max-tokens", "4", "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out.splitlines()[-1])["token_ids"]) == 4
    said = [line for line in captured.err.splitlines() if line.startswith("specstream: ")]
    assert [line for line in said if "lookup" in line] == said[:1]
    assert "suffix lookup only" in said[0]


def test_generate_prints_the_text_and_tells_its_figures_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # `auto` may choose not to draft for so few tokens.
    assert main(["generate", "I need a taxi", "--max-tokens", "12", "--proposer", "draft"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip()
    assert "│" not in captured.out
    assert "acceptance" in captured.err


@pytest.mark.parametrize("voice", ["reference", "espeak"])
def test_say_writes_speech_cues_prompts_and_a_trace(
    voice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_say()
    if voice == "espeak":
        pytest.importorskip("espeakng_loader")
    import soundfile

    assert main([*STORY, "--out", str(tmp_path), "--voice", voice, "--json"]) == 0
    values = last_json(capsys)
    assert CONTRACT | {"ttfa_ms", "audio_seconds"} <= values.keys()
    reply = str(values["text"])

    samples, rate = soundfile.read(tmp_path / "speech.wav")
    seconds = len(samples) / rate
    assert seconds == pytest.approx(values["audio_seconds"], abs=0.01)
    assert 8 < len(reply) / seconds < 25  # characters a second: speech, not a buzz or a blip
    assert np.sqrt(np.mean(samples**2)) > 0.01
    assert np.abs(samples).max() < 1.0

    cues = [json.loads(line) for line in (tmp_path / "avatar.jsonl").read_text().splitlines()]
    visemes = [cue for cue in cues if cue["kind"] == "viseme"]
    ends = [0, *(cue["samples"][1] for cue in visemes)]
    assert [cue["samples"][0] for cue in visemes] == ends[:-1]  # no gap, no overlap
    assert ends[-1] == len(samples)
    tagged = [cue for cue in cues if cue["kind"] != "viseme"]
    assert len(tagged) >= reply.count("[")

    prompts = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert prompts
    for prompt in prompts:
        start, end = prompt["span"]
        assert 0 <= start < end <= len(reply)
        assert prompt["prompt"]
        assert "[" not in prompt["prompt"]

    trace = json.loads((tmp_path / "trace.json").read_text())
    events = trace["events"]
    assert [event["seq"] for event in events] == list(range(len(events)))
    phrases = [event for event in events if event["type"] == "Phrase"]
    assert "".join(phrase["text"] for phrase in phrases) == reply
    marks = [m for e in events if e["type"] == "Speech" for m in e["marks"] if m["kind"] == "word"]
    spoken = [reply[m["chars"][0] : m["chars"][1]] for m in marks]
    assert "tortoise" in " ".join(spoken).lower() or len(spoken) > 20
    assert not any("[" in word for word in spoken)


def test_say_compares_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_say()
    argv = ["say", "Book a table", "--out", str(tmp_path), "--voice", "reference", "--compare"]
    assert main([*argv, "--max-tokens", "16", "--json"]) == 0
    captured = capsys.readouterr()
    compared = json.loads(captured.out.splitlines()[-1])["without_speculation"]
    assert compared["same_tokens"]
    assert compared["repeats"] >= 3
    assert "without speculation" in captured.err


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["generate", ""], 2, "empty"),
        (["generate", "x " * 5000], 2, "shorten"),
        (["generate", "x", "--target", "/no/such/model"], 1, "no such model folder"),
        (["generate", "x", "--target", "some-org/some-model"], 1, "Hub"),
        (["generate", "x", "--temperature", "-1"], 2, "temperature"),
        (["generate", "x", "--top-p", "0"], 2, "top_p"),
        (["generate", "x", "--max-tokens", "0"], 2, "max_tokens"),
        (["generate", "x", "--device", "abacus"], 2, "abacus"),
        (["generate", "x", "--proposer", "sufix"], 2, "suffix); did you mean suffix?"),
        (["generate", "x", "--config", "/no/such/file.toml"], 2, "can't read"),
        (["export", "/no/such/file.jsonl", "--to", "vrm"], 2, "can't read /no/such/file.jsonl: No such"),
        (["say", "x", "--voice", "nobody"], 2, "nobody"),
        (["say", "x", "--out", "/dev/null/out", "--voice", "reference"], 1, "can't write"),
    ],
)
def test_bad_input_is_one_clear_line(
    argv: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if argv[0] == "say":
        needs_say()
    elif argv[0] == "export":
        needs_installation()
    assert main(argv) == code
    error = capsys.readouterr().err.strip()
    assert error.startswith("specstream: ")
    assert says in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["fly"], "unknown command 'fly'; there are: say, generate, "),
        (["genrate", "x"], "unknown command 'genrate'; did you mean generate?\n"),
        (["--vrsion"], "unknown option '--vrsion'; did you mean --version?\n"),
        (["say", "--stpo", "x"], "unknown option '--stpo'; did you mean --stop?\n"),
        (["say", "x", "--tempratur=1"], "'--tempratur'; did you mean --temperature?\n"),
        (["serve", "--quickly"], "unknown option '--quickly'; see `specstream serve --help`"),
        (["say", "to", "be", "or"], "unexpected 'be or': a text of several words needs quotes"),
        (["say", "x", "-q"], "unexpected '-q': no such option"),
        (["generate", "--", "-x", "--y"], "unexpected '--y'"),
        (["serve", "--port", "http"], "a port is a number from 0 to 65535"),
        (["generate", "x", "--top", "1"], "--top could match --top-p, --top-k"),
        (["trace", "x", "--at", "-1s"], "a value that begins with - is written --at=VALUE"),
        (["adapter"], "required: kind; see `specstream adapter --help`\n"),
    ],
)
def test_bad_usage_is_one_line_that_says_what_was_meant(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("specstream: ") and captured.err.count("\n") == 1
    assert says in captured.err
    assert captured.out == ""


def test_without_a_command_help_is_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["--help"]):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        assert caught.value.code == 0
    captured = capsys.readouterr()
    first, second = captured.out.split("usage: ")[1:]
    assert first == second and "doctor" in first
    assert captured.err == ""


@pytest.mark.parametrize("words", [["--- a rule"], ["-5 degrees"], ["--seed=1", "--", "--stpo"]])
def test_a_prompt_may_begin_with_a_dash(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def run(args: Any) -> None:
        asked.append(args.text)

    monkeypatch.setattr("specstream.commands.generate.run", run)
    assert main(["generate", *words]) == 0
    assert asked == words[-1:]


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The event loop of commands: uvloop's, or Python's, as where uvloop isn't installed."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    else:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    return str(request.param)


def test_commands_run_on_uvloop_where_it_is_installed(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    async def command(args: object) -> None:
        ran.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])

    monkeypatch.setattr("specstream.commands.main._named", lambda name: command)
    assert main(["doctor"]) == 0
    assert ran == [loop]


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes the streams")
@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_end_no_command(closed: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m specstream models {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_config_file_and_options_on_top(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[engine]\nproposer = {kind = "suffix", num_tokens = 3}\n'
        '[sampling]\nmax_tokens = 5\nstop = ["zzz"]\n'
    )
    argv = ["generate", "I need a taxi", "--config", str(file), "--json"]
    assert main(argv) == 0
    values = last_json(capsys)
    assert values["proposer"] == "suffix"
    assert len(values["token_ids"]) <= 5  # type: ignore[arg-type]
    assert main([*argv, "--proposer", "off", "--max-tokens", "2"]) == 0
    values = last_json(capsys)
    assert values["proposer"] == "off"
    assert len(values["token_ids"]) == 2  # type: ignore[arg-type]
    for text, says in (("[engine]\nspeed = 9\n", "speed"), ("[magic]\n", "magic"), ("[", "TOML")):
        file.write_text(text)
        assert main(argv) == 2
        assert says in capsys.readouterr().err


@pytest.mark.slow
def test_doctor_says_what_is_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_installation()
    monkeypatch.setenv("SPECSTREAM_CACHE", str(tmp_path))
    assert main(["doctor", "--json"]) == 0
    found = last_json(capsys)
    assert found["models"] == {
        "target": "found",
        "draft": "found",
        "smollm2": "not here; specstream pull smollm2",
        "smart-turn": "not here; specstream pull smart-turn",
    }
    assert "normt2s" in found
    assert {"cpu", "cores", "cache", "port"} <= found.keys()
    cache = str(found["cache"])
    assert "can be written" in cache and str(tmp_path) in cache
    voices = found["voice"]
    assert isinstance(voices, dict)
    assert voices["reference"] == "ready"
    assert voices[found["default_voice"]] == "ready"
    assert main(["doctor"]) == 0
    assert "torch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("reason", "advised"),
    [
        ("compile: no native passes: there is no C++ compiler (g++)", "install a wheel"),
        ("compile: no native passes: set SPECSTREAM_CACHE to a folder", "set SPECSTREAM_CACHE"),
    ],
)
def test_doctor_advises_what_the_reason_asks_for(
    reason: str, advised: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_installation()  # or that is what it advises
    told = {"cpu_passes": reason}
    monkeypatch.setattr("specstream.commands.doctor._ask_torch", object)
    monkeypatch.setattr("specstream.commands.doctor._told", lambda asked: told)
    assert main(["doctor"]) == 0
    *_, advice = capsys.readouterr().out.strip().splitlines()  # others may be about adapters
    assert advised in advice
    assert ("install" in advice) is ("install" in advised)


def test_a_run_that_fails_to_start_leaves_the_last_results_alone(tmp_path: Path) -> None:
    needs_say()
    argv = ["say", "Hi there", "--voice", "reference", "--max-tokens", "6", "--out", str(tmp_path)]
    assert main(argv) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"speech.wav", "avatar.jsonl", "prompts.jsonl", "trace.json"}
    assert main([*argv, "--target", "/no/such/model"]) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_a_terminal_that_takes_no_more_is_one_line_up_to_the_exit() -> None:
    argv = [
        sys.executable,
        "-m",
        "specstream.commands.main",
        "generate",
        "Hi there",
        "--max-tokens",
        "12",
    ]
    with open("/dev/full", "w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_terminal_that_takes_no_more_loses_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_say()
    argv = ["say", "Hi there", "--max-tokens", "12", "--voice", "reference", "--out", str(tmp_path)]
    full = open("/dev/full", "w")  # not closed by `with`: closing it writes what is buffered
    monkeypatch.setattr(sys, "stdout", full)
    assert main(argv) == 1
    sys.stdout.close()  # the null device that main put in its place
    with suppress(OSError):
        full.close()
    assert "No space left" in capsys.readouterr().err
    assert (tmp_path / "speech.wav").stat().st_size > 1000
    assert json.loads((tmp_path / "trace.json").read_text())["report"]["text"]


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"sampling = 3", b"[[sampling]]", b"a = " + b"[" * 5000]
)
def test_a_config_file_of_any_shape_is_one_clear_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    assert main(["generate", "x", "--config", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


def test_a_key_without_a_certificate_serves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--tls-key", "key.pem"]) == 2
    assert "--tls-cert" in capsys.readouterr().err


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("interrupts", [signal.default_int_handler, signal.SIG_IGN])
def test_a_service_manager_can_stop_it(
    interrupts: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where interrupts are ignored, as a shell script has it for its background jobs."""
    closed: list[bool] = []

    async def endless(args: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await anyio.sleep(60)
        finally:
            closed.append(True)

    monkeypatch.setattr("specstream.commands.generate.run", endless)
    before = signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGINT, interrupts)
    try:
        assert main(["generate", "hello"]) == 143
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
    assert closed == [True]
    assert capfd.readouterr().err == "specstream: terminated\n"
