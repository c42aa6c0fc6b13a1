"""Options that several commands share, and the engine, parameters and prompt that they describe."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields, replace
from typing import Any

from specstream.checks import counted, meant
from specstream.commands.shared.progress import show_log
from specstream.commands.shared.terminal import adding_to, ends_at_once, read_prompt
from specstream.config import parse_config, read_config
from specstream.drafting.proposers import KINDS
from specstream.engine.core.prompt import check_messages
from specstream.engine.engine import Engine
from specstream.engine.openai.engine import OpenAIEngine
from specstream.errors import ConfigError, PromptError
from specstream.models.sources import check_models
from specstream.params import template_kwargs
from specstream.types import Grammar, Message, SamplingParams

__all__ = [
    "add_learning_options",
    "add_model_options",
    "add_prompt_options",
    "add_sampling_options",
    "add_server_engine_options",
    "engine_of",
    "messages_of",
    "params_of",
    "remedy",
    "speed_line",
    "tables_of",
    "text_engine_of",
]


def add_model_options(
    parser: argparse.ArgumentParser, *, every_method: bool = False, json: bool = True
) -> None:
    """Add the options of every command that runs a model pair.

    ``every_method`` allows ``--proposer all``, which the command must handle before `engine_of`;
    ``json``: the command ends with figures.
    """
    add = adding_to(parser, "model pair")
    where = "a pulled model's name, a folder, a GGUF file or a Hub id"
    add("--target MODEL", f"target model: {where} (default: the bundled one)")
    add(
        "--draft MODEL",
        "draft model, named in the same ways (default: the bundled one, if it fits), or a trained "
        "head's folder; repeatable",
        action="append",
    )
    kinds = ", ".join([*sorted(KINDS.keys() - {"own"}), *(["all"] if every_method else [])])
    add(
        "--proposer NAME",
        f"drafting method (default: auto, chosen each round): {kinds}, or an installed package's",
    )
    variables = """variables for the model's chat template, such as '{"enable_thinking": false}'"""
    add("--chat-template-kwargs JSON", variables, type=_template_kwargs)
    add("--device", "auto, cpu, cuda, cuda:1 …")
    add("--dtype", choices=["auto", "float32", "bfloat16", "float16"])
    integers = "quantise the target's weight matrices to integers"
    add("--quantize", integers, choices=["none", "int8", "int4"])
    add(
        "--allow-width-dependent",
        "run a quantised target even if its logits depend on how many tokens share a pass",
        action="store_const",
        const=True,
    )
    add(
        "--compile",
        "short passes in native code on a CPU (default: where it can be had), as CUDA "
        "graphs on a GPU (default: yes)",
        action=argparse.BooleanOptionalAction,
        default=None,
    )
    add(
        "--max-running N",
        "requests decoded side by side, the others wait (default: 16 where that pays, else 4)",
        type=int,
    )
    add("--config FILE", "TOML file with tables [engine], [sampling] and, for serve, [server]")
    if json:
        add("--json", "one JSON object as the last line of stdout", action="store_true")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of replies and sampling."""
    add = adding_to(parser, "reply and sampling")
    add(
        "--temperature",
        "0 is greedy; default: 0, in a conversation (chat, say, serve) what the model recommends",
        type=float,
    )
    add("--top-p", "nucleus sampling", type=float)
    add("--top-k", "only the k most likely tokens", type=int)
    add("--seed", "seed of the sampling", type=int)
    add("--max-tokens", "longest reply (default: 256)", type=int)
    add("--reproducible", "a seed fixes the tokens, with any proposer", action="store_true")
    add("--stop TEXT", "end the reply before this text; repeatable", action="append")
    add("--system TEXT", "system message")


def add_learning_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of learning, for commands that serve many replies."""
    add = adding_to(parser, "learning in service")
    add(
        "--learn with-consent",
        "train the draft on replies while no request waits; their tokens are kept in memory, to "
        "which the users must have agreed",
    )
    add("--learn-out DIR", "write the improved draft to this new folder at the end")


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """Add the prompt, and an option that shows the target passes of the reply."""
    add = adding_to(parser)
    add("text", 'what the user says, such as "Tell me a story about a fox."; - reads it from stdin')
    add(
        "--show-runs",
        "separate the tokens of each target pass by bars where stdout is no terminal (on a "
        "terminal they are shaded)",
        action="store_true",
    )


def _template_kwargs(text: str) -> dict[str, Any]:
    try:
        return template_kwargs(json.loads(text))
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError(f"not JSON: {text!r:.80}") from None
    except PromptError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_TABLES = ("engine", "sampling", "server")
_AS_GIVEN = ("target", "draft", "device", "dtype", "quantize", "allow_width_dependent", "compile",
             "threads", "max_running")  # fmt: skip
"""Options that are keys of `EngineConfig` as they are."""


def tables_of(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The config file's tables by name; missing ones are empty.

    Raises:
        ConfigError: the file can't be read, or holds something else.
    """
    values = read_config(args.config) if args.config else {}
    unknown = sorted(values.keys() - set(_TABLES))
    if unknown:
        known = ", ".join(_TABLES)
        raise ConfigError(f"{args.config}: unknown table {unknown[0]!r}; known: {known}")
    for name in _TABLES:
        if not isinstance(values.setdefault(name, {}), dict):
            raise ConfigError(f"{args.config}: {name} must be a table")
    return values


def engine_of(args: argparse.Namespace) -> Engine:
    """The engine that the options and the config file describe; options win.

    Asks the Hub, for a few seconds at most, about a named model that isn't a folder.

    Raises:
        ConfigError: an option or the file is wrong.
        ModelNotFound, ModelBroken: there is no such model; see `check_models`.
    """
    of_file = tables_of(args)["engine"]
    engine = dict(of_file)
    for key in _AS_GIVEN:
        if getattr(args, key, None) is not None:
            engine[key] = getattr(args, key)
    if isinstance(named := engine.get("draft"), list):
        engine["draft"] = named[0] if len(named) == 1 else tuple(named)
    if args.chat_template_kwargs:
        given = engine.get("chat_template_kwargs")
        base = given if isinstance(given, dict) else {}
        engine["chat_template_kwargs"] = base | args.chat_template_kwargs
    if getattr(args, "reproducible", False):  # a sampling option
        engine["mode"] = "reproducible"
    if (learning := _learning_of(args, engine.get("learning"))) is not None:
        engine["learning"] = learning
    if args.proposer is not None:
        given = engine.get("proposer")
        same = isinstance(given, dict) and given.get("kind") == args.proposer
        engine["proposer"] = given if same else {"kind": args.proposer}
    try:
        config = parse_config(engine)
    except ConfigError:
        _check_file(args.config, of_file)
        raise
    with ends_at_once():
        check_models(config)
    show_log(info=config.compile is True or config.learning is not None)
    return Engine(config)


def add_server_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a text engine behind an address."""
    add = adding_to(parser, "a model that a server serves")
    add("--engine URL", "OpenAI's chat completions, such as http://127.0.0.1:8000/v1, write the text")
    add("--model NAME", "the model's name there (default: the only one)")


def text_engine_of(args: argparse.Namespace) -> Engine | OpenAIEngine:
    """The engine behind ``--engine``, else that of `engine_of`, with its errors.

    Raises:
        ConfigError: ``--engine`` together with an option of models that are loaded here.
    """
    if args.engine is None:
        if args.model is not None:
            raise ConfigError("--model names a model of --engine; a model to load is a --target")
        return engine_of(args)
    ours = [*_AS_GIVEN, "proposer", "learn", "learn_out", "chat_template_kwargs"]
    if given := [name for name in ours if getattr(args, name, None)]:
        option = given[0].replace("_", "-")
        raise ConfigError(f"--{option} is for models that are loaded here, not for --engine")
    return OpenAIEngine(args.engine, args.model)


def _check_file(path: str | None, table: dict[str, Any]) -> None:
    """Raise the mistakes of the config file's table ``engine`` as errors that name the file."""
    try:
        parse_config(table)
    except ConfigError as error:
        raise ConfigError(f"{path}, table engine: {error}") from None


def _learning_of(args: argparse.Namespace, given: object) -> object:
    """The config's table ``learning``, changed by the options (which only some commands have)."""
    words, out = getattr(args, "learn", None), getattr(args, "learn_out", None)
    if words is None and out is None:
        return given
    table = dict(given) if isinstance(given, dict) else {}
    if words is not None:
        table["consent"] = words == "with-consent"
    return table | ({} if out is None else {"out": out})


_GREEDY = SamplingParams()


def params_of(args: argparse.Namespace, base: SamplingParams = _GREEDY) -> SamplingParams:
    """The sampling parameters that the options and the config file describe; options win.

    ``base`` has those that neither sets.

    Raises:
        ConfigError: an unknown key, or a value of the wrong type.
        SamplingError: a value out of range.
    """
    values = tables_of(args)["sampling"]
    names = {field.name for field in fields(SamplingParams)}
    if unknown := sorted(values.keys() - names):
        raise ConfigError(f"{args.config}: unknown key sampling.{unknown[0]}{meant(unknown[0], names)}")
    for key in names:
        if getattr(args, key, None) is not None:
            values[key] = getattr(args, key)
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    try:
        if isinstance(values.get("grammar"), dict):
            values["grammar"] = Grammar(**values["grammar"])
        if isinstance(values.get("logit_bias"), dict):  # TOML's keys are always texts
            values["logit_bias"] = {int(token): b for token, b in values["logit_bias"].items()}
        params = replace(base, **values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a sampling value has the wrong type: {error}") from None
    if params.grammar is not None:
        from specstream.model.tokens.grammar import check_grammar

        check_grammar(params.grammar)
    return params


def messages_of(args: argparse.Namespace) -> list[Message]:
    """The prompt, with its system message; ``-`` reads it from stdin.

    Raises:
        PromptError: it is empty, or no text.
    """
    text = read_prompt() if args.text == "-" else args.text
    messages: list[Message] = [{"role": "user", "content": text}]
    if args.system:
        messages.insert(0, {"role": "system", "content": args.system})
    for message in messages:
        # Python decodes arguments that aren't UTF-8 to lone surrogates.
        if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in message["content"]):
            what = "prompt" if message["role"] == "user" else "system message"
            raise PromptError(f"the {what} is binary data; it must be text in UTF-8")
    return check_messages(messages)


def remedy(reason: str) -> str:
    """What to do where passes aren't native for ``reason`` (see `native_library`)."""
    if "no C++ compiler" in reason:
        return "install a wheel for this platform, or a C++ compiler (g++)"
    return reason.removeprefix("compile: no native passes: ")


def speed_line(engine: Engine | OpenAIEngine) -> str:
    """One line about the speed of a running engine; with the cure where it is half of what could be."""
    if isinstance(engine, OpenAIEngine):
        return f"{engine.model} of {engine.url} writes the replies"
    import torch

    from specstream.engine.cores import cpu_name
    from specstream.model.native.library import loaded_library

    if (reason := engine.slowed) is not None:
        return f"half speed: the target's passes are not native; {remedy(reason)} (specstream doctor)"
    if torch.cuda.is_available() and engine.config.device != "cpu":
        return f"on {torch.cuda.get_device_name()}"
    threads, native = counted(torch.get_num_threads(), "thread"), loaded_library()
    code = "" if native is None else f", native code {native.name!r}"
    return f"on {threads} of {cpu_name()} (OMP_NUM_THREADS=N sets it){code}"
