"""The options of ``specstream bench``, and the plan that results from checking them."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, fields, replace
from typing import Any

from specstream.bench.arms.base import COMPARABLE, DEFAULT_ARMS, METHODS, parse_arms
from specstream.bench.prompts import Padding, PromptSet, check_gguf, choose, parse_padding, read_prompts
from specstream.commands.shared.common import engine_of, params_of
from specstream.commands.shared.terminal import adding_to
from specstream.config import DEFAULT_TARGET, EngineConfig, parse_config
from specstream.errors import ConfigError
from specstream.models.kept import bundled_heads
from specstream.types import SamplingParams

__all__ = ["Plan", "add_bench_options", "bench_config", "check_mode", "plan_of"]

QUICK_SECONDS = 210.0  # of five minutes, the rest of which is for loading, the last cell and plots
QUICK_TOKENS, TOKENS = 64, 128  # longest reply, with --quick and without
MOST = {"limit": 100_000, "repeats": 1000, "threads": 1024, "concurrency": 256}


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only this command has."""
    add = adding_to(parser)
    add("--quick", "shorter replies and a time limit: within 5 minutes", action="store_true")
    own = 'your own prompts: JSON lines with "messages" or "prompt", also "id" and "domain"'
    add("--prompts FILE", own)
    add("--domains A,B", "only prompts of these domains", default="")
    add("--limit N", "at most N prompts of each domain", type=int)
    add("--repeats N", "runs of each prompt, or rounds (default: 1; --http 3, --serve 2)", type=int)
    add(
        "--arms A,B",
        "what is compared: own (no speculation), auto (speculation as configured), draft-K (always "
        "K drafted tokens), suffix (drafts by lookup) or any other --proposer, also with -K, and "
        "transformers' generate, assisted and lookup; or all (default: own,auto,generate,assisted,"
        "lookup; with --proposer all: own, auto and every method that can be loaded)",
    )
    threads = "CPU threads of every arm (default: all cores, fewer if they are busy)"
    add("--threads N", threads, type=int)
    add("--concurrency N", "also measure N requests at once", type=int)
    add(
        "--padded SIZE[:LAYERS]",
        "enlarge the target to the cost of a model of this size, such as 100M or 8B:32, without "
        "changing its output",
    )
    add(
        "--llama-cpp FILE",
        "also compare with llama.cpp on this GGUF file of the target (needs llama-cpp-python)",
    )
    add(
        "--conversation",
        "measure a spoken conversation instead: waits for the first audible sample and their "
        "parts, word errors, time from an interruption to silence; --limit N typed and N spoken turns "
        "(default: 20)",
        action="store_true",
    )
    add(
        "--http",
        "measure chat completions over HTTP instead, beside the Python API: tokens a second and the "
        "first text; --repeats N rounds",
        action="store_true",
    )
    add(
        "--serve N",
        "measure the Realtime server instead: N sessions of a scripted engine, as text and as speech, "
        "beside a bare WebSocket that sends as much; CPU time of an event, gaps between "
        "deltas, on each event loop",
        type=int,
    )
    add(
        "--load A,B",
        "measure the engine under load instead: so many requests at once, such as 1,4,16, with and "
        "without speculation, in closed groups and one after the other; --repeats N rounds",
    )
    add(
        "--callers A,B",
        "measure the Realtime server instead: so many callers that ask at once, such as 4,16; when each "
        "hears the first sound, and gaps, beside first-come order; --repeats N rounds",
    )
    add(
        "--capacity",
        "measure what a token, a second of speech and of listening cost here instead, and print how "
        "many conversations at once that makes",
        action="store_true",
    )
    add(
        "--minutes N",
        "with --conversation: talk for N minutes instead, and report memory, waits and delays of "
        "avatar cues",
        type=float,
    )
    add("--budget SECONDS", "begin no further prompt after this time", type=float)
    add("--out DIR", "where results go (default: bench-out)", default="bench-out")


_MODES = ("conversation", "http", "serve", "load", "callers", "capacity")


def check_mode(args: argparse.Namespace) -> None:
    """Require that at most one other measurement is asked for, with all that it needs and fit counts.

    Raises:
        ConfigError: the options don't go together, or a number is out of range.
    """
    for name, most in MOST.items():
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} must be at least 1")
        if value is not None and value > most:
            raise ConfigError(f"--{name} can be {most} at most")
    asked = [f"--{name}" for name in _MODES if getattr(args, name) not in (None, False)]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} are measurements of their own: choose one")
    if args.minutes is not None and not args.conversation:
        raise ConfigError("--minutes goes with --conversation")
    if args.prompts is not None and asked and asked[0] not in ("--http", "--load"):
        raise ConfigError(f"{asked[0]} has questions of its own: leave --prompts out")


@dataclass(frozen=True, slots=True)
class Plan:
    """The options, checked."""

    config: EngineConfig
    prompts: PromptSet
    params: SamplingParams  # how each reply is sampled
    arms: list[str]  # names, see `parse_arms`
    budget: float | None  # seconds that the cells may take, see `run_cells`
    padding: Padding | None  # of the target

    @property
    def heads(self) -> dict[str, str]:
        """The bundled heads by method; none for another target, or where a draft is named."""
        bundled = self.config.target == DEFAULT_TARGET and not self.config.drafts
        return bundled_heads() if bundled else {}

    def told(self, args: argparse.Namespace) -> dict[str, Any]:
        """The options as JSON data, for the results' provenance."""
        given = {k: v for k, v in vars(args).items() if k not in ("run", "command", "json", "out")}
        given["prompts"] = {
            "file": self.prompts.name,
            "sha256": self.prompts.sha256,
            "domains": {d: len(self.prompts.of(d)) for d in self.prompts.domains},
        }
        given |= {"arms": self.arms, "max_tokens": self.params.max_tokens, "budget": self.budget}
        given["temperature"] = self.params.temperature
        plain: dict[str, Any] = json.loads(json.dumps(given, default=str))
        return plain


def plan_of(args: argparse.Namespace) -> Plan:
    """Check the options before any model is loaded.

    Raises:
        ConfigError: a bad option, prompt file or GGUF file, or options that exclude each other.
    """
    if args.budget is not None and not args.budget > 0:
        raise ConfigError("--budget must be above 0 seconds")
    if not args.out.strip():
        raise ConfigError("--out must name a folder")
    padding = None if args.padded is None else parse_padding(args.padded)
    arms, params = _arms(args), _params(args)
    if "llama.cpp" in arms and params.top_p < 1 and params.temperature not in (0, 1):
        raise ConfigError(
            "--llama-cpp can't be compared with top_p at a temperature other than 1: llama.cpp applies "
            "the temperature after top_p, the other arms before"
        )
    domains = [name.strip() for name in args.domains.split(",") if name.strip()]
    read = read_prompts(args.prompts)
    return Plan(
        bench_config(args),
        choose(read, domains=domains, limit=args.limit, system=args.system or ""),
        params,
        arms,
        args.budget or (QUICK_SECONDS if args.quick else None),
        padding,
    )


def bench_config(args: argparse.Namespace) -> EngineConfig:
    """The engine's config, in bfloat16 unless another dtype was asked for."""
    config = engine_of(args).config
    changed: dict[str, Any] = config.model_dump()
    changed["max_running"] = max(config.places, args.concurrency or 1)
    if args.dtype is None and config.dtype == "auto":
        changed["dtype"] = "bfloat16"  # the fastest, on a CPU too
    return parse_config(changed)


def _arms(args: argparse.Namespace) -> list[str]:
    if args.proposer == "all":
        if args.arms is not None:
            raise ConfigError("--proposer all and --arms exclude each other: both say what is compared")
        args.proposer = None
        return ["own", *METHODS, "auto"]
    arms = list(DEFAULT_ARMS) if args.arms is None else parse_arms(args.arms)
    if args.llama_cpp is None:
        if "llama.cpp" in arms:
            raise ConfigError("the arm llama.cpp takes a GGUF file of the target: --llama-cpp FILE")
        return arms
    if args.padded is not None:
        raise ConfigError(
            "--llama-cpp and --padded exclude each other: the file's model isn't padded, so its speed "
            "would be that of a smaller one"
        )
    check_gguf(args.llama_cpp)
    return arms if "llama.cpp" in arms else [*arms, "llama.cpp"]


def _params(args: argparse.Namespace) -> SamplingParams:
    """The sampling parameters, if they mean the same to all arms."""
    params, plain = params_of(args), SamplingParams()
    for field in fields(SamplingParams):
        same = getattr(params, field.name) == getattr(plain, field.name)
        if field.name not in COMPARABLE and not same:
            raise ConfigError(
                f"bench can't use {field.name}: only {', '.join(COMPARABLE)} mean the same to every arm"
            )
    if params.max_tokens == plain.max_tokens and args.max_tokens is None:
        params = replace(params, max_tokens=QUICK_TOKENS if args.quick else TOKENS)
    return params
