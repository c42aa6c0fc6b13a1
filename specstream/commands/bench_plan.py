"""The options of ``specstream bench``, checked: what is to be measured. Imports nothing heavy."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any

from specstream.bench.arms.base import DEFAULT_ARMS, Ask, parse_arms
from specstream.bench.options import check_gguf, parse_padding
from specstream.bench.prompts import PromptSet, choose, read_prompts
from specstream.commands.common import engine_of, params_of
from specstream.config import EngineConfig, parse_config
from specstream.errors import ConfigError
from specstream.types import SamplingParams

__all__ = ["Plan", "plan_of"]

QUICK_SECONDS = 210.0  # of five minutes: the last cell and the pictures need some, too
QUICK_TOKENS, TOKENS = 64, 128
MOST = {"limit": 100_000, "repeats": 1000, "threads": 1024, "concurrency": 256}
_COMPARABLE = {"temperature", "top_p", "top_k", "seed", "max_tokens"}
_PEER = "llama.cpp"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done.

    Attributes:
        config: The engine.
        prompts: Those that were chosen.
        ask: How each reply is sampled.
        arms: Names, see `parse_arms`.
        repeats: How often every prompt comes.
        budget: Seconds after which no further cell begins.
        at_once: Requests at once, measured beside; 1: not measured.
    """

    config: EngineConfig
    prompts: PromptSet
    ask: Ask
    arms: list[str]
    repeats: int
    budget: float | None
    at_once: int


def plan_of(args: argparse.Namespace) -> Plan:
    """Everything that is asked for, before any model is loaded.

    Raises:
        ConfigError: a bad option, prompt file or GGUF file, or options that exclude each other.
    """
    for name, most in MOST.items():
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} must be at least 1")
        if value is not None and value > most:
            raise ConfigError(f"--{name} can be {most} at most")
    if args.budget is not None and not args.budget > 0:
        raise ConfigError("--budget must be above 0 seconds")
    if not args.out.strip():
        raise ConfigError("--out must name a folder")
    if args.padded is not None:
        parse_padding(args.padded)
    arms = _arms(args)
    params = _params(args)
    if _PEER in arms and params.top_p < 1 and params.temperature not in (0, 1):
        raise ConfigError(
            "--llama-cpp can't be compared with top_p at a temperature other than 1: llama.cpp applies "
            "the temperature after top_p, the other arms before"
        )
    ask = Ask((), params.max_tokens, params.temperature, params.top_p, params.top_k, params.seed)
    at_once = args.concurrency or 1
    budget = args.budget or (QUICK_SECONDS if args.quick else None)
    return Plan(_config(args, at_once), _prompts(args), ask, arms, args.repeats, budget, at_once)


def _arms(args: argparse.Namespace) -> list[str]:
    arms = list(DEFAULT_ARMS) if args.arms is None else parse_arms(args.arms)
    if args.llama_cpp is None:
        if _PEER in arms:
            raise ConfigError(f"the arm {_PEER} takes a GGUF file of the target: --llama-cpp FILE")
        return arms
    if args.padded is not None:
        raise ConfigError(
            "--llama-cpp and --padded exclude each other: the file's model isn't padded, so its speed "
            "would be that of a smaller one"
        )
    check_gguf(args.llama_cpp)
    return arms if _PEER in arms else [*arms, _PEER]


def _prompts(args: argparse.Namespace) -> PromptSet:
    domains = [name.strip() for name in args.domains.split(",") if name.strip()]
    read = read_prompts(args.prompts)
    return choose(read, domains=domains, limit=args.limit, system=args.system or "")


def _params(args: argparse.Namespace) -> SamplingParams:
    """The sampling that is asked for, if all the arms can do the same."""
    params = params_of(args)
    plain = SamplingParams()
    for field in fields(SamplingParams):
        given = getattr(params, field.name)
        if field.name not in _COMPARABLE and given != getattr(plain, field.name):
            raise ConfigError(
                f"bench can't use {field.name}: only {', '.join(sorted(_COMPARABLE))} mean the same "
                "to every arm"
            )
    if params.max_tokens == plain.max_tokens and args.max_tokens is None:
        tokens = QUICK_TOKENS if args.quick else TOKENS
        params = SamplingParams(
            params.temperature, params.top_p, params.top_k, params.seed, max_tokens=tokens
        )
    return params


def _config(args: argparse.Namespace, at_once: int) -> EngineConfig:
    config = engine_of(args).config
    changed: dict[str, Any] = config.model_dump()
    changed["threads"] = args.threads or config.threads
    changed["max_running"] = max(config.max_running, at_once)
    if args.dtype is None and config.dtype == "auto":
        changed["dtype"] = "bfloat16"  # what is served fast, on a CPU too
    return parse_config(changed)
