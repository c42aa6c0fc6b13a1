"""The command line: parses arguments, runs a command, turns errors into one line and an exit code."""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specstream import __version__
from specstream.commands.shared.terminal import Parser, adding_to, ends_at_once, parse, tell_interrupted
from specstream.errors import SpecstreamError

if TYPE_CHECKING:
    import argparse

__all__ = ["COMMANDS", "Command", "command_parsers", "main", "read_arguments"]

_ENGINE = {"torch", "transformers"}  # what specstream-client comes without

# Slow imports are made inside functions, so that Ctrl-C during an import is handled by `main`.


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand.

    Attributes:
        about: What it does, in a few words, for the list of all.
        run: Its function in `specstream.commands`, as ``module:name``.
        add_options: Adds its arguments. Its imports take tenths of a second, so only that of the
            command which is called runs.
        description: The text above its own help.
    """

    about: str
    run: str
    add_options: Callable[[Parser], None]
    description: str | None = None


def _add_say(parser: Parser) -> None:
    from specstream.commands.provenance import add_signing_options
    from specstream.commands.shared.common import add_prompt_options

    add_prompt_options(parser)
    add = adding_to(parser)
    add("--out DIR", "where the files go (default: out)", default="out")
    verbatim = "speak the text itself: no language model is loaded, and none writes a reply"
    add("--verbatim", verbatim, action="store_true")
    add("--compare", "also run it without speculation", action="store_true")
    _add_adapter_options(add)
    add_signing_options(parser)
    _add_engine_options(parser)


def _add_generate(parser: Parser) -> None:
    from specstream.commands.shared.common import add_prompt_options

    add_prompt_options(parser)
    _add_engine_options(parser)


def _add_chat(parser: Parser) -> None:
    _add_engine_options(parser, serves=True)


def _add_serve(parser: Parser) -> None:
    from specstream.commands.shared.serving import PORT, add_server_options

    add_server_options(parser, port=PORT, clients=True)
    add = adding_to(parser)
    _add_adapter_options(add)
    add(
        "--ears auto|off|NAME[=VALUE]",
        "speech recogniser: whisper=FOLDER_OR_NAME of a model, openai=http://HOST:PORT/v1 "
        "(default: whisper if it is installed)",
        default="auto",
    )
    _add_engine_options(parser, serves=True, json=False)


def _add_adapter(parser: Parser) -> None:
    from specstream.commands.shared.common import add_model_options
    from specstream.commands.shared.serving import add_server_options

    add = adding_to(parser)
    add("kind", choices=["voice", "avatar", "prompt"])
    add("--name", "which adapter of that kind, as the options --voice, --avatar, --prompts name it")
    _add_delivery_options(add)
    add_server_options(parser, port=0, clients=False)
    add_model_options(parser, json=False)


def _add_verify(parser: Parser) -> None:
    from specstream.commands.shared.common import add_model_options

    add = adding_to(parser)
    add("--runs", "samples of each of three prompts (default: 150)", type=int, default=150)
    tokens = "tokens compared with plain greedy decoding (default: 400)"
    add("--tokens", tokens, type=int, default=400)
    add_model_options(parser)


def _add_bench(parser: Parser) -> None:
    from specstream.commands.bench.plan import add_bench_options
    from specstream.commands.shared.common import add_model_options, add_sampling_options

    add_bench_options(parser)
    add_model_options(parser, every_method=True)
    add_sampling_options(parser)


def _add_latency(parser: Parser) -> None:
    add = adding_to(parser)
    live = "ws://HOST:PORT/v1/realtime; without it, everything is scripted and takes virtual time"
    add("url", live, nargs="?")
    add("--scenario FILE", "a conversation, in TOML; see docs/guides/testing.md", required=True)
    add("--voice", "the user's voice, for a server (default: auto)")
    add("--out DIR", "write latency.json and latency.svg there")
    add("--json", "one JSON object as the last line", action="store_true")


def _add_trace(parser: Parser) -> None:
    add = adding_to(parser)
    add("file", "the trace.json that `specstream say` wrote")
    add("--at TIME", "a moment of the speech, such as 3.2s or 450ms", required=True)
    add("--picture FILE", "a timeline: .svg, .png or .pdf")
    add("--json", "one JSON object as the last line", action="store_true")


def _add_json(parser: Parser) -> None:
    adding_to(parser)("--json", "one JSON object", action="store_true")


def _add_engine_options(parser: Parser, *, serves: bool = False, json: bool = True) -> None:
    """Options of the models and of sampling, for commands that write a reply, or ``serve`` them."""
    from specstream.commands.shared import common

    common.add_model_options(parser, json=json)
    common.add_sampling_options(parser)
    if serves:
        common.add_learning_options(parser)
        common.add_server_engine_options(parser)


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
    add("--pitch FACTOR", "of the voice, 0.5 to 2 (default: 1); neural ones have one only", type=float)


def _from(place: str) -> Callable[[Parser], None]:
    """The function at ``place``, as ``module:name`` of `specstream.commands`; imported when called."""
    return lambda parser: _named(place)(parser)


def _named(place: str) -> Any:
    module, name = place.split(":")
    return getattr(importlib.import_module(f"specstream.commands.{module}"), name)


COMMANDS = {
    "say": Command("speak a reply, with avatar cues and scene prompts", "say:run", _add_say),
    "generate": Command("write a reply, text only", "generate:run", _add_generate),
    "chat": Command("a conversation, in the terminal or line by line", "chat:run", _add_chat),
    "serve": Command("the WebSocket server and the demo page", "serve:run_server", _add_serve),
    "adapter": Command("one adapter behind its own WebSocket", "serve:run_adapter", _add_adapter),
    "verify": Command("check that this pair's output is the target's own", "verify:run", _add_verify),
    "bench": Command(
        "the same prompts with and without speculation",
        "bench.run:run",
        _add_bench,
        "Runs the same prompts with and without speculation, and with transformers; prints a table of "
        "speeds and a verdict. Defaults here: --dtype bfloat16, --max-tokens 128 (64 with --quick).",
    ),
    "latency": Command(
        "a scripted conversation: how long each turn waits, and for what", "latency:run", _add_latency
    ),
    "trace": Command("where a moment of the speech came from", "trace:run", _add_trace),
    "provenance": Command(
        "who signed an audio file, and what made it",
        "provenance:run",
        _from("provenance:add_provenance_options"),
    ),
    "export": Command(
        "recorded avatar cues, for another player of faces",
        "export:run",
        _from("export:add_export_options"),
    ),
    "train": Command(
        "make a draft, or a drafting head, for a target", "train:run", _from("train:add_train_options")
    ),
    "pull": Command(
        "bring a known model into the cache folder", "pull:run", _from("pull:add_pull_options")
    ),
    "models": Command("the models that are here, and that can be pulled", "models:run", _add_json),
    "doctor": Command("what was found, what is missing, how to fix it", "doctor:run", _add_json),
}


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read a command line; ends the process with 2 and the usage where it is wrong."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser, commands = command_parsers(words[:1])
    return parse(parser, commands, words)


def command_parsers(names: Collection[str] = COMMANDS) -> tuple[Parser, dict[str, Parser]]:
    """The parser of the command line, and those of all commands; only ``names`` know their options."""
    parser = Parser(
        prog="specstream",
        description="A speculative token stream that feeds speech, avatar and picture stages.",
    )
    parser.add_argument("--version", action="version", version=f"specstream {__version__}")
    added = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        made = added.add_parser(name, help=command.about, description=command.description)
        made.set_defaults(run=command.run)
        if name in names:
            command.add_options(made)
    return parser, added.choices


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    0 done, 1 failed, 2 bad usage, 130 interrupted, 141 the reader of stdout closed the pipe, 143 ended
    by SIGTERM.
    """
    stopped: list[int] = []
    try:
        return _run(argv, stopped)
    except SpecstreamError as error:
        print(f"specstream: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name not in _ENGINE:
            raise
        print(f"specstream: this needs {error.name}: pip install specstream-sdk", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return tell_interrupted(signal.SIGTERM if stopped else signal.SIGINT, last=argv is None)
    except BrokenPipeError:
        return 141  # 128 + SIGPIPE: the usual exit code of a filter whose reader closed the pipe
    except OSError as error:
        print(f"specstream: can't write: {error.strerror or error}", file=sys.stderr)
        return 1
    finally:
        _let_go_of_stdout()
        # The interpreter's last collection takes up to a second, for what ends anyway.
        if argv is None:
            gc.freeze()


def _run(argv: Sequence[str] | None, stopped: list[int]) -> int:
    """Run the command; ``stopped`` notes a SIGTERM, which otherwise is an interrupt."""

    def stop(number: int, frame: object) -> None:
        stopped.append(number)
        _stop()

    signal.signal(signal.SIGTERM, stop)
    with ends_at_once():
        _mend_streams()
        args = read_arguments(argv)
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        command = _named(args.run)
        import anyio

        from specstream.signals import event_loops
    return anyio.run(command, args, backend_options={"use_uvloop": "uvloop" in event_loops()}) or 0


def _stop() -> None:
    """Treat SIGTERM as an interrupt, so that connections are closed and files are completed."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell makes background jobs ignore SIGINT; SIGTERM must stop them all the same.
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _mend_streams() -> None:
    """Send a closed stdout to /dev/null; print "?" for characters that the output encoding lacks."""
    # Where a standard stream is closed, its number goes to the next file that is opened: uvloop aborts
    # the process when it closes one of these, and what a library prints would end up in the file.
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(spare)
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
