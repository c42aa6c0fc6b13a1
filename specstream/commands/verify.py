"""``specstream verify``: check on this machine that a model pair's output is that of the target."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import anyio

from specstream.commands.shared.common import engine_of
from specstream.commands.shared.output import note, print_json
from specstream.commands.shared.terminal import ends_at_once
from specstream.config import EngineConfig
from specstream.errors import ConfigError
from specstream.methods import AutoProposerConfig, DraftProposerConfig, SuffixProposerConfig

if TYPE_CHECKING:
    from specstream.bench.exactness.pair import Finding

__all__ = ["run"]


async def run(args: argparse.Namespace) -> int:
    """Print "yes", "NO" or "?" (too few samples to tell) for every claim; returns 1 if there is a "NO".

    Cancellation takes effect after the current check; an interrupt ends the process at once.

    Raises:
        ConfigError: ``--runs`` or ``--tokens`` is below 1.
        ModelError: the pair can't be loaded.
    """
    if args.runs < 1 or args.tokens < 1:
        raise ConfigError("--runs and --tokens must be at least 1")
    started = time.perf_counter()
    config = engine_of(args).config
    with ends_at_once():
        config = await anyio.to_thread.run_sync(_settled, config, args.proposer is None)
        findings = await anyio.to_thread.run_sync(_check_all, config, args)
    seconds = time.perf_counter() - started
    note(f"{len(findings)} claims checked in {seconds:.0f} s")
    if args.json:
        print_json(_as_json(config, findings, seconds))
    return 0 if all(finding.holds for finding in findings) else 1


def _check_all(config: EngineConfig, args: argparse.Namespace) -> list[Finding]:
    findings = []
    for finding in _findings(config, args):
        findings.append(finding)
        answer = "NO" if not finding.holds else "yes" if finding.conclusive else "?"
        print(f"{answer:4}{finding.claim}: {finding.says}", flush=True)
    return findings


def _settled(config: EngineConfig, may_choose: bool) -> EngineConfig:
    """The config with the draft's name, and with drafts of a fixed length unless a proposer was named.

    The proposer ``auto`` may choose not to draft, and then the verification rules would not be used.
    """
    from specstream.model.load import load_tokenizer
    from specstream.model.tokens.vocabulary import find_draft

    proposer = config.proposer
    if not isinstance(proposer, AutoProposerConfig | DraftProposerConfig):
        return config
    draft = find_draft(config, load_tokenizer(config.target))
    if may_choose and isinstance(proposer, AutoProposerConfig):
        proposer = SuffixProposerConfig() if draft is None else DraftProposerConfig()
    return config.model_copy(update={"draft": draft, "proposer": proposer})


def _findings(config: EngineConfig, args: argparse.Namespace) -> Iterator[Finding]:
    from specstream.bench.exactness.checks import check_bits, check_parameters, compare_greedy
    from specstream.bench.exactness.harness import AT_ONCE
    from specstream.bench.exactness.pair import Finding, check_rules, check_samples, end_ids_of
    from specstream.bench.prompts import read_prompts
    from specstream.engine.build import build_engine
    from specstream.model.load import load_tokenizer

    config = config.model_copy(update={"max_waiting": AT_ONCE})
    prompts = read_prompts().prompts
    chosen = [list(prompt.messages) for prompt in prompts[::21]]  # three, of three domains
    note(f"loading {config.target}")
    # Samples are compared with the distribution of the request, without the model's own defaults.
    plain = {"mode": "default", "model_defaults": False}
    core = build_engine(config.model_copy(update=plain))
    tokenizer = load_tokenizer(config.target)
    yield check_rules(core, chosen)
    yield check_samples(core, chosen, args.runs)
    count = max(1, args.tokens // 40)
    spread = prompts[:: max(1, len(prompts) // count)][:count]
    texts = [(p.id, list(p.messages), p.reference) for p in spread]
    greedy = compare_greedy(core, texts, max_tokens=60)
    dtype = str(core.target.dtype).removeprefix("torch.")
    says = (
        f"{greedy.tokens} tokens of {greedy.prompts} replies in {dtype}, "
        f"{len(greedy.divergences)} divergences (pass width changes logits by up to {greedy.noise:.1e})"
    )
    claim = "greedy text is the target's, or parts where rounding decides"
    yield Finding(claim, greedy.holds, says, greedy.to_dict() | {"dtype": dtype})
    yield check_parameters(core, tokenizer, end_ids_of(core, chosen[0]))
    del core
    dtypes = ["float32", "bfloat16"] if config.dtype == "auto" else [config.dtype]
    yield check_bits(config, dtypes, chosen)


def _as_json(config: EngineConfig, findings: list[Finding], seconds: float) -> dict[str, Any]:
    return {
        "target": config.target,
        "draft": config.draft if config.wants_draft or config.wants_heads else None,
        "proposer": config.proposer.kind,
        "rule": config.rule,
        "holds": all(finding.holds for finding in findings),
        "claims": [asdict(finding) for finding in findings],
        "seconds": seconds,
    }
