"""The composition root: builds an `EngineCore` from a config. No other module picks concrete classes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specstream.checks import first_line
from specstream.config import EngineConfig, Scheme
from specstream.drafting.calibration import MeasuredTimes, identity_of
from specstream.drafting.candidate import EngineParts, Rehearsed
from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers import build_proposer
from specstream.drafting.proposers.off import OffProposer
from specstream.engine.core.prompt import check_template
from specstream.engine.core.scheduler import choose_places
from specstream.engine.core.step import EngineCore
from specstream.engine.cores import core_quota, cores_here, default_threads
from specstream.errors import ConfigError, ModelBroken, ModelError, ModelUnsupported, VocabularyMismatch
from specstream.methods import AutoProposerConfig, DraftProposerConfig, MtpProposerConfig
from specstream.model.defaults import ModelDefaults
from specstream.model.graphs import DRAFT, TARGET
from specstream.model.heads import mtp
from specstream.model.heads.base import Head, read_head_config
from specstream.model.heads.recognise import head_folder, load_head, told_acceptance
from specstream.model.load import load_model, load_tokenizer, target_dtype
from specstream.model.own_forward import declared_positions, steady_positions
from specstream.model.quantised import loaded_scheme
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import (
    check_decoding,
    check_widths,
    find_fixed_width,
    rows_alike,
    warm_up,
)
from specstream.model.tokens.spelling import Spelling
from specstream.model.tokens.vocabulary import Translation, check_rows, find_draft, one_vocabulary
from specstream.model.weights import drop_matrices
from specstream.models.kept import located, shipped_heads

__all__ = ["build_engine", "end_ids", "heads_for", "load_target"]

_log = logging.getLogger("specstream.engine")


def build_engine(config: EngineConfig, check: Callable[[], None] = lambda: None) -> EngineCore:
    """Load the models and build the engine. Call this on the engine's thread.

    This takes seconds, and about ten more where native passes are compiled for the first time. ``check``
    is called before each model is compiled and before each pass is captured on a GPU; an exception
    raised by it aborts the build and propagates.

    Raises:
        ModelError: a model can't be read, or draft and target don't match (any subclass).
        ConfigError: the device is missing, or passes can't be compiled for it.
    """
    torch.set_num_threads(config.threads or min(torch.get_num_threads(), default_threads()))
    tokenizer = load_tokenizer(config.target)
    check_template(config.target, tokenizer)
    target = load_target(config, tokenizer)
    times = MeasuredTimes(identity_of(config, target, cores_here(), core_quota()))
    if config.max_running is None:
        config = config.model_copy(update={"max_running": choose_places(target, times)})
    draft, translation = None, None
    if config.wants_draft and (name := _draft_name(config, target, tokenizer)):
        draft, translation = _load_draft(name, config, target, tokenizer)
    lost = list[str]()
    heads, told = _load_heads(config, target, lost) if config.wants_heads else ({}, {})
    heads |= _own_modules(config, target)
    runners = [target] if draft is None else [target, draft]
    depths = sorted({depth for head in heads.values() for depth in head.depths})
    for runner in runners:
        check()
        runner.compile(check, config.places, depths if runner is target else ())
        warm_up(runner, config.places)
    # An end token without an output row is never drawn.
    eos_ids = frozenset(i for i in end_ids(target.model, tokenizer) if i < target.vocab_size)
    if draft is not None:
        told["draft"] = told_acceptance(vars(draft.model.config))
    chunk = config.prefill_chunk
    parts = EngineParts(target, eos_ids, tokenizer, draft, translation, heads, chunk, told, times)
    proposer = _proposer(config, parts, lost)
    times.keep()
    learner = None
    if config.learning is not None:
        from specstream.training.learning import build_learner  # imports the trainer

        learner = build_learner(config, parts, config.drafts or heads_for(config, target))
    return EngineCore(
        config, target, tokenizer, proposer, eos_ids, learner=learner, draft_weights=parts.draft_weights
    )


def _proposer(config: EngineConfig, parts: EngineParts, lost: Sequence[str]) -> Proposer:
    """The method's proposer; none at all, with a warning, if it fails on this machine.

    ``lost`` names heads that were left out for that reason.
    """
    try:
        made = build_proposer(config.proposer, parts)
        if isinstance(made, Rehearsed):
            made.rehearse()
    except RuntimeError as error:
        kind = config.proposer.kind
        _log.warning("%s fails here (%s): nothing is drafted", kind, first_line(error))
        return OffProposer()
    except ConfigError as error:
        if not lost:
            raise
        _log.warning("nothing is drafted: %s", first_line(error))
        return OffProposer()
    return made


def load_target(config: EngineConfig, tokenizer: PreTrainedTokenizerBase) -> ModelRunner:
    """Load the target and check that its passes can be relied on.

    Raises:
        ModelUnsupported: they can't, or the model can't be run as configured.
    """
    dtype = target_dtype(config)
    model = load_model(config.target, config, dtype)
    if model.device.type == "cuda":
        # A setting of this thread, which our kernels, streams and graphs use.
        torch.cuda.set_device(model.device)
    target = _target_runner(model, config)
    if dtype != config.dtype and not target.invariant:
        # Native code doesn't take the model; torch's bfloat16 passes round differently at each width.
        model = load_model(config.target, config, "float32")
        target = _target_runner(model, config)
    on_cpu, default = target.device.type == "cpu", config.mode == "default"
    if config.compile and on_cpu and default and not target.invariant:
        raise ModelUnsupported(
            f"compile: native code doesn't take {config.target} (sizes that are no multiple of 32, or "
            "another activation); leave compile off"
        )
    steady = steady_positions(model.config)
    if steady < min(declared_positions(model.config), config.context_length or steady + 1):
        _log.warning(
            "%s: the context ends at %d tokens; past them its rotary factors (longrope) change for "
            "those that were read before",
            config.target,
            steady,
        )
    if (config.context_length or 0) > declared_positions(model.config):
        most = declared_positions(model.config)
        _log.warning("%s: the context ends at %d tokens, as it declares", config.target, most)
    check_rows(config.target, tokenizer, target.model_vocab_size)
    check_decoding(config.target, target, tokenizer)
    scheme = _scheme(config.quantize) or loaded_scheme(model)
    if scheme is not None and not config.allow_width_dependent:
        check_widths(config.target, target, tokenizer, scheme)
    if config.quantize != "none":
        drop_matrices(model)
    if config.model_defaults:
        ModelDefaults.tell(config.target, model.generation_config)
        defaults = ModelDefaults.of(model.generation_config)
        defaults.check(config.target, target.vocab_size, target.device)
    if config.mode != "reproducible":
        return target
    if target.invariant:
        same, total = rows_alike(target, tokens=min(24, target.context_length))
        if same == total:
            return target
    if config.compile or config.quantize != "none":
        raise ConfigError(
            "mode='reproducible' takes passes of one width here, which are neither compiled nor "
            "quantised; leave compile and quantize off"
        )
    width = find_fixed_width(model, config)
    return ModelRunner(model, fixed_width=width, context_length=config.context_length)


def _target_runner(model: PreTrainedModel, config: EngineConfig) -> ModelRunner:
    return ModelRunner(
        model,
        context_length=config.context_length,
        captured=TARGET if _captures(config) else None,
        native=config.compile,
        quantize=_scheme(config.quantize),
        # A draft that is named may be large, and needs a pool of its own.
        pool_share=0.5 if config.wants_draft and config.drafts else 0.85,
    )


def _draft_name(
    config: EngineConfig, target: ModelRunner, tokenizer: PreTrainedTokenizerBase
) -> str | None:
    name = find_draft(config, tokenizer)
    if name is None:
        why = f"no draft was named, and the bundled one has another tokenizer than {config.target}"
        if isinstance(config.proposer, DraftProposerConfig) and config.drafts:
            raise ConfigError(
                "only drafting heads were named, and this method needs a draft model: name that, too "
                "(the bundled one is bundled-draft)"
            )
        if isinstance(config.proposer, DraftProposerConfig):
            raise VocabularyMismatch(f"{why}; name one of the same family, or --proposer suffix")
        if not config.drafts and not heads_for(config, target):
            _log.warning("%s: drafting by suffix lookup only (--draft names one)", why)
    return name


def _load_draft(
    name: str, config: EngineConfig, target: ModelRunner, tokenizer: PreTrainedTokenizerBase
) -> tuple[ModelRunner, Translation | None]:
    """Load the draft model, with a `Translation` if it can't use the target's ids as they are."""
    dtype: str = config.draft_dtype
    if dtype == config.dtype == "auto":
        dtype = str(target.dtype).removeprefix("torch.")
    model, own = load_model(name, config, dtype), load_tokenizer(name)
    rows = int(model.config.get_text_config().vocab_size)
    same = one_vocabulary(name, own, rows, tokenizer, target.vocab_size)
    try:
        draft = ModelRunner(
            model,
            vocab_size=target.vocab_size if same else None,
            captured=DRAFT if _captures(config) else None,
            native=config.compile,
            quantize=_scheme(config.draft_quantize),
            setting="draft_quantize",
        )
    except (ConfigError, ModelUnsupported) as error:
        raise type(error)(f"draft {name}: {error}") from None
    if not same:
        check_rows(name, own, draft.model_vocab_size)
        check_decoding(name, draft, own)
        return draft, Translation(
            Spelling(config.target, tokenizer),
            Spelling(name, own),
            target_ends=end_ids(target.model, tokenizer),
            draft_ends=end_ids(model, own),
            target_rows=target.vocab_size,
            draft_rows=draft.vocab_size,
        )
    check_decoding(name, draft, tokenizer)
    return draft, None


def _gives_states(target: ModelRunner) -> bool:
    """Whether target passes return hidden states."""
    return target.lean and target.fixed_width is None


def heads_for(config: EngineConfig, target: ModelRunner) -> tuple[str, ...]:
    """The heads that ship for the target; where no states are had, only one that is asked for."""
    if _gives_states(target) or config.proposer.loads == "head":
        return shipped_heads(config.target, config.proposer.kind)
    return ()


def _captures(config: EngineConfig) -> bool:
    """Whether passes are captured if the device is a GPU: not those of a draft that learns."""
    fixed = config.mode == "reproducible" or config.learning is not None
    return config.compile is True or (config.compile is None and not fixed)


def _scheme(named: Literal["none"] | Scheme) -> Scheme | None:
    return None if named == "none" else named


def _load_heads(
    config: EngineConfig, target: ModelRunner, lost: list[str]
) -> tuple[dict[str, Head], dict[str, tuple[float, ...]]]:
    """Load the heads among the drafts: by method, the head and the acceptance its config states.

    The names of heads that fail on this machine are added to ``lost``.
    """
    heads, told = dict[str, Head](), dict[str, tuple[float, ...]]()
    for name in config.drafts or heads_for(config, target):
        folder = head_folder(name)
        if folder is None:
            continue
        try:
            head = load_head(folder, target)
        except RuntimeError as error:  # of the device: a file's faults have types of their own
            _log.warning("%s is left out: it fails here (%s)", name, first_line(error))
            lost.append(name)
            continue
        if head.kind in heads:
            raise ConfigError(f"--draft names two heads of one method ({head.kind}); choose one")
        heads[head.kind] = head
        told[head.kind] = told_acceptance(read_head_config(folder))
    return heads, told


def _own_modules(config: EngineConfig, target: ModelRunner) -> dict[str, Head]:
    """Load the MTP module in the target's folder if it is asked for or ``auto`` can use it."""
    if isinstance(config.proposer, MtpProposerConfig):
        return {"mtp": mtp.load(located(config.target), target)}
    if not (_gives_states(target) and isinstance(config.proposer, AutoProposerConfig)):
        return {}
    try:
        found = mtp.find(located(config.target), target)
    except ModelError as error:
        _log.warning("auto drafts without the target's own module: %s", error)
        return {}
    return {} if found is None else {"mtp": found}


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Collect the end-of-turn ids of generation config and tokenizer, which often differ.

    Raises:
        ModelBroken: the generation config names something else than ids.
    """
    found = set[int]()
    for value in (model.generation_config.eos_token_id, tokenizer.eos_token_id):
        ids = value if isinstance(value, list | tuple) else () if value is None else (value,)
        if not all(isinstance(i, int) for i in ids):
            raise ModelBroken(
                f"{model.name_or_path}: its generation_config's eos_token_id is {value!r}; it must be "
                "a token id or a list of ids"
            )
        found.update(ids)
    return frozenset(found)
