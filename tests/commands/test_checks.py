"""Wrong input is reported before torch is imported or a model is read."""

import json
import os
import socket
import subprocess
import sys

import pytest

# Importing either is an error then, and so is importing any module of ours that wants them.
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
"""
CHILD = (
    WITHOUT_TORCH
    + """
import contextlib, io, json
from specstream.commands.main import main
told = {}
for name, argv in json.load(sys.stdin).items():
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        code = main(argv)
    told[name] = code, stderr.getvalue()
json.dump(told, sys.stdout)
"""
)

CASES = {  # name: arguments, exit code, part of what is said
    "no target": (["generate", "x", "--target", "{tmp}/none"], 1, "no such model folder"),
    "no draft": (["say", "x", "--draft", "./none"], 1, "no such model folder"),
    "no model": (["generate", "x", "--target", "{tmp}"], 1, "not a model folder"),
    "no weights": (["generate", "x", "--target", "{tmp}/empty"], 1, "without weights"),
    "no config": (["generate", "x", "--draft", "{tmp}/broken"], 1, "config.json can't be read"),
    "not on the Hub": (["generate", "x", "--target", "some-org/some-model"], 1, "the Hub"),
    "no Hub id": (["generate", "x", "--draft", "some model"], 1, "some model"),
    "a head": (["generate", "x", "--target", "bundled-eagle"], 1, "is a drafting head"),
    "no model needed": (["adapter", "avatar", "--target", "x"], 2, "leave out --target"),
    "no ears": (["serve", "--port", "0", "--preempt", "--ears", "off"], 2, "leave out --ears off"),
    "no name": (["serve", "--port", "0", "--hosts", ""], 2, "'' is no host name"),
    "minutes": (["bench", "--minutes", "1"], 2, "--minutes goes with --conversation"),
    "own prompts": (["bench", "--serve", "2", "--prompts", "x"], 2, "leave --prompts out"),
    "two modes": (["bench", "--http", "--serve", "2"], 2, "--http and --serve are measurements"),
    "served": (["serve", "--port", "0", "--target", "./none"], 1, "no such model folder"),
    "verified": (["verify", "--target", "./none"], 1, "no such model folder"),
    "asked": (["adapter", "prompt", "--name", "model", "--draft", "./none"], 1, "no such model"),
    "device": (["generate", "x", "--device", "gpu"], 2, "say auto, cpu, cuda"),
    "empty": (["generate", " \n"], 2, "empty"),
    "empty, spoken": (["say", ""], 2, "empty"),
    "bytes": (["generate", "\udcff\udcfe\x01"], 2, "the prompt is binary"),
    "zeros": (["say", "x", "--system", "PK\x00\x03"], 2, "the system message is binary"),
    "empty stop": (["generate", "x", "--stop", ""], 2, "stop must be"),
    "stop of bytes": (["say", "x", "--stop", "\udcff"], 2, "stop must be"),
    "sampling": (["generate", "x", "--temperature", "101"], 2, "temperature must be"),
    "served sampling": (["serve", "--port", "0", "--top-p", "2"], 2, "top_p must be"),
    "no file": (["serve", "--port", "0", "--config", "{tmp}/none.toml"], 2, "config file"),
    "file": (["generate", "x", "--config", "{tmp}/bad.toml"], 2, "did you mean draft"),
    "grammar": (["generate", "x", "--config", "{tmp}/grammar.toml"], 2, "grammar can't be used"),
    "out": (["say", "x", "--out", "/dev/null/out"], 1, "can't write /dev/null/out"),
    "out, read-only": (["say", "x", "--out", "/proc"], 1, "can't write /proc"),
    "out, a file": (["say", "x", "--out", "{tmp}/bad.toml"], 1, "bad.toml: it is a file, and a folder"),
    "out, no name": (["say", "x", "--out", ""], 2, "--out must name a folder"),
    "pull": (["pull"], 2, "which model? one of: smollm2"),
    "before the start": (["trace", "x", "--at=-1s"], 2, "not '-1s'"),
    "drain": (["serve", "--port", "0", "--drain", "nan"], 2, "finite"),
    "host": (["serve", "--port", "0", "--host", "not a host"], 2, "'not a host' is no host name"),
    "voice by HTTP": (["say", "x", "--out", "{tmp}/out", "--voice", "http://a.b"], 1, "ws://a.b"),
    "voice": (["say", "x", "--out", "{tmp}/out", "--voice", "nobody"], 2, "are: elevenlabs, espeak"),
    "avatar": (["serve", "--port", "0", "--avatar", "nobody"], 2, "there are: viseme"),
    "prompts": (["adapter", "prompt", "--name", "nobody"], 2, "there are: model, template"),
    "voice away": (["serve", "--port", "0", "--voice", "{nobody}"], 1, "can't reach the voice"),
    "prompts away": (["say", "x", "--out", "{tmp}/out", "--prompts", "{nobody}"], 1, "{nobody}"),
    "no address": (["serve", "--port", "0", "--avatar", "ws://"], 2, "isn't an address"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """By case: exit code, stderr, and the text expected in it."""
    tmp = tmp_path_factory.mktemp("inputs")
    for name, config in (("empty", "{}"), ("broken", "{")):
        (tmp / name).mkdir()
        (tmp / name / "config.json").write_text(config)
    (tmp / "bad.toml").write_text('[engine]\ndraught = "x"\n')
    (tmp / "grammar.toml").write_text('[sampling]\ngrammar = {kind = "regex", text = "[a-"}\n')
    with socket.socket() as bound:  # but nobody listens
        bound.bind(("127.0.0.1", 0))
        places = {"tmp": str(tmp), "nobody": f"ws://127.0.0.1:{bound.getsockname()[1]}"}
        argvs = {name: [word.format(**places) for word in argv] for name, (argv, *_) in CASES.items()}
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            input=json.dumps(argvs),
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"HF_HOME": str(tmp / "hub")},
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {name: (*found[name], says.format(**places)) for name, (_, _, says) in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_it_is_one_line_before_anything_heavy_is_imported(
    name: str, told: dict[str, tuple[int, str, str]]
) -> None:
    code, said, wanted = told[name]
    assert said.startswith("specstream: ") and said.count("\n") == 1
    assert wanted in said
    assert code == CASES[name][1]


def test_what_passes_the_checks_is_loaded() -> None:
    """Check the other tests: a command that needs torch does fail in this process."""
    child = f"{WITHOUT_TORCH}from specstream.commands.main import main\nmain(['generate', 'x'])"
    argv = [sys.executable, "-c", child]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stderr == "specstream: this needs torch: pip install specstream-sdk\n"
