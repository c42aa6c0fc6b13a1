"""A proposer that isn't specstream's own: given to an engine, or found in an installed package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from transformers import PreTrainedTokenizerBase

from specstream.checks import first_line, meant
from specstream.drafting.candidate import EngineParts
from specstream.drafting.proposal import Capabilities, Proposer
from specstream.errors import ConfigError, SpecstreamError
from specstream.methods import OwnProposerConfig, installed_proposers, lacking
from specstream.model.runner import ModelRunner

__all__ = ["ProposerContext", "build"]


@dataclass(frozen=True, slots=True)
class ProposerContext:
    """What a function that makes a proposer is told about the engine.

    Attributes:
        vocab_size: V, the width of the target's logits: `Proposal.probs` is ``[K, V]``, token ids are 0
            to V - 1.
        device: The target's device, on which proposals must be.
        context_length: The most tokens that a sequence may have.
        tokenizer: The target's tokenizer, of transformers. The engine's thread uses it, too, and calls
            the proposer; a thread of the proposer's own needs a copy.
        eos_ids: Token ids that end a turn.
        target: The target itself, for proposers that draft with its layers or weights. It is an inner
            interface, which may change from version to version.
    """

    vocab_size: int
    device: torch.device
    context_length: int
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    target: ModelRunner


def build(config: OwnProposerConfig, parts: EngineParts) -> Proposer:
    """Return the proposer that was given, or make it.

    Raises:
        ConfigError: it can't be made, or isn't a proposer; the message says what it lacks.
    """
    made = config.made
    if config.makes:
        called = config.name or getattr(made, "__name__", type(made).__name__)
        made = _made(_loaded(config.name) if made is None else made, called, config, parts)
    return _checked(made)


def _loaded(name: str) -> Callable[..., object]:
    points = installed_proposers()
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise ConfigError(
            f"no installed package has a proposer {name!r} (there are: {known}){meant(name, points)}"
        )
    try:
        return cast("Callable[..., object]", points[name].load())
    except Exception as error:
        raise ConfigError(f"proposer {name} can't be loaded: {first_line(error)}") from error


def _made(
    make: Callable[..., object], called: str, config: OwnProposerConfig, parts: EngineParts
) -> object:
    target = parts.target
    context = ProposerContext(
        target.vocab_size, target.device, target.context_length, parts.tokenizer, parts.eos_ids, target
    )
    try:
        return make(context, **config.options)
    except SpecstreamError:
        raise
    except Exception as error:
        raise ConfigError(f"proposer {called} can't be made: {first_line(error)}") from error


def _checked(made: object) -> Proposer:
    kind = type(made).__name__
    if missing := lacking(made):
        raise ConfigError(f"{kind} is no proposer: it lacks {missing}")
    name, capabilities = getattr(made, "name", None), getattr(made, "capabilities", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"proposer {kind}: its name must be a text, not {name!r:.80}")
    if name == "off":  # a request of that name doesn't speculate
        raise ConfigError(f"proposer {kind}: 'off' is the name of plain decoding; take another")
    if not isinstance(capabilities, Capabilities):
        raise ConfigError(
            f"proposer {kind}: its capabilities must be a Capabilities object, not {capabilities!r:.80}"
        )
    return cast("Proposer", made)
