"""The command line: parses arguments, runs a command, turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from specstream import __version__
from specstream.commands.shared.terminal import ends_at_once, tell_interrupted
from specstream.errors import SpecstreamError

if TYPE_CHECKING:
    import argparse

__all__ = ["main", "read_arguments"]

_ENGINE = {"torch", "transformers"}  # what specstream-client comes without

# Slow imports are made inside functions, so that Ctrl-C during an import is handled by `main`.


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read a command line; ends the process with 2 and the usage where it is wrong."""
    from specstream.commands.bench.plan import add_bench_options
    from specstream.commands.export import add_export_options
    from specstream.commands.provenance import add_provenance_options, add_signing_options
    from specstream.commands.pull import add_pull_options
    from specstream.commands.shared.common import (
        add_learning_options,
        add_model_options,
        add_prompt_options,
        add_sampling_options,
        add_server_engine_options,
    )
    from specstream.commands.shared.serving import PORT, add_server_options
    from specstream.commands.shared.terminal import Parser, adding_to, read_arguments
    from specstream.commands.train import add_train_options

    parser = Parser(
        prog="specstream",
        description="A speculative token stream that feeds speech, avatar and picture stages.",
    )
    parser.add_argument("--version", action="version", version=f"specstream {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help: str, run: str = "", **more: Any) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, **more)
        made.set_defaults(run=run or f"{name}:run")
        return made

    say = command("say", "speak a reply, with avatar cues and scene prompts")
    add_prompt_options(say)
    add = adding_to(say)
    add("--out DIR", "where the files go (default: out)", default="out")
    verbatim = "speak the text itself: no language model is loaded, and none writes a reply"
    add("--verbatim", verbatim, action="store_true")
    add("--compare", "also run it without speculation", action="store_true")
    _add_adapter_options(add)
    add_signing_options(say)

    generate = command("generate", "write a reply, text only")
    add_prompt_options(generate)

    chat = command("chat", "a conversation, in the terminal or line by line")

    serve = command("serve", "the WebSocket server and the demo page", "serve:run_server")
    add_server_options(serve, port=PORT, clients=True)
    add = adding_to(serve)
    _add_adapter_options(add)
    add(
        "--ears auto|off|NAME[=VALUE]",
        "speech recogniser: whisper=FOLDER_OR_NAME of a model, openai=http://HOST:PORT/v1 "
        "(default: whisper if it is installed)",
        default="auto",
    )

    adapter = command("adapter", "one adapter behind its own WebSocket", "serve:run_adapter")
    add = adding_to(adapter)
    add("kind", choices=["voice", "avatar", "prompt"])
    add("--name", "which adapter of that kind, as the options --voice, --avatar, --prompts name it")
    _add_delivery_options(add)
    add_server_options(adapter, port=0, clients=False)

    verify = command("verify", "check that this pair's output is the target's own")
    add = adding_to(verify)
    add("--runs", "samples of each of three prompts (default: 150)", type=int, default=150)
    tokens = "tokens compared with plain greedy decoding (default: 400)"
    add("--tokens", tokens, type=int, default=400)

    bench = command(
        "bench",
        help="the same prompts with and without speculation",
        run="bench.run:run",
        description="Runs the same prompts with and without speculation, and with transformers; prints "
        "a table of speeds and a verdict. Defaults here: --dtype bfloat16, --max-tokens 128 (64 with "
        "--quick).",
    )
    add_bench_options(bench)

    for made in (say, generate, chat, serve, adapter, verify, bench):
        add_model_options(made, every_method=made is bench)
        if made not in (adapter, verify):
            add_sampling_options(made)
    for made in (chat, serve):
        add_learning_options(made)
        add_server_engine_options(made)

    latency = command("latency", "a scripted conversation: how long each turn waits, and for what")
    add = adding_to(latency)
    live = "ws://HOST:PORT/v1/realtime; without it, everything is scripted and takes virtual time"
    add("url", live, nargs="?")
    add("--scenario FILE", "a conversation, in TOML; see docs/guides/testing.md", required=True)
    add("--voice", "the user's voice, for a server", default="auto")
    add("--out DIR", "write latency.json and latency.svg there")

    trace = command("trace", "where a moment of the speech came from")
    add = adding_to(trace)
    add("file", "the trace.json that `specstream say` wrote")
    add("--at TIME", "a moment of the speech, such as 3.2s or 450ms", required=True)
    add("--picture FILE", "a timeline: .svg, .png or .pdf")

    about = "who signed an audio file, and what made it"
    add_provenance_options(command("provenance", about))
    add_export_options(command("export", "recorded avatar cues, for another player of faces"))
    add_train_options(command("train", "make a draft, or a drafting head, for a target"))
    add_pull_options(command("pull", "bring a known model into the cache folder"))
    models = command("models", "the models that are here, and that can be pulled")
    doctor = command("doctor", "what was found, what is missing, how to fix it")
    for made in (latency, trace):
        adding_to(made)("--json", "one JSON object as the last line", action="store_true")
    for made in (models, doctor):
        adding_to(made)("--json", "one JSON object", action="store_true")
    return read_arguments(parser, commands.choices, argv)


def _add_adapter_options(add: Callable[..., None]) -> None:
    for name, default, what in (
        (
            "voice",
            "auto",
            "voice adapter, perhaps with a voice of it, as in espeak=de or piper=VOICE.onnx",
        ),
        ("avatar", "viseme", "avatar adapter, perhaps with a rig, as in viseme=vrm"),
        ("prompts", "template", "prompt adapter"),
    ):
        where = f"{what}, or the address where it is served (default: {default})"
        add(f"--{name} NAME_OR_URL", where, default=default)
    add("--mark NAME[=VALUE]", "mark in the speech itself, as in audioseal=FOLDER (default: none)")
    _add_delivery_options(add)


def _add_delivery_options(add: Callable[..., None]) -> None:
    add("--speed FACTOR", "of the voice, 0.5 to 2 (default: 1)", type=float)
    add(
        "--pitch FACTOR",
        "of the voice, 0.5 to 2 (default: 1); neural ones have one only",
        type=float,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    0 done, 1 failed, 2 bad usage, 130 interrupted, 141 the reader of stdout closed the pipe.
    """
    try:
        return _run(argv)
    except SpecstreamError as error:
        print(f"specstream: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name not in _ENGINE:
            raise
        print(f"specstream: this needs {error.name}: pip install specstream-sdk", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return tell_interrupted(last=argv is None)
    except BrokenPipeError:
        return 141  # 128 + SIGPIPE: the usual exit code of a filter whose reader closed the pipe
    except OSError as error:
        print(f"specstream: can't write: {error.strerror or error}", file=sys.stderr)
        return 1
    finally:
        _let_go_of_stdout()


def _run(argv: Sequence[str] | None) -> int:
    signal.signal(signal.SIGTERM, _stop)
    with ends_at_once():
        _mend_streams()
        args = read_arguments(argv)
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        module, function = args.run.split(":")
        command = getattr(importlib.import_module(f"specstream.commands.{module}"), function)
        import anyio
    return anyio.run(command, args) or 0


def _stop(*_: object) -> None:
    """Treat SIGTERM as an interrupt, so that connections are closed and files are completed."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell makes background jobs ignore SIGINT; SIGTERM must stop them all the same.
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _mend_streams() -> None:
    """Send a closed stdout to /dev/null; print "?" for characters that the output encoding lacks."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _let_go_of_stdout() -> None:
    """Flush stdout; if that fails, replace it, so that the interpreter doesn't fail again at exit."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
