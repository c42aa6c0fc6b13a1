"""Loads models and tokenizers from folders, the Hub and GGUF files, with a typed error per failure."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from specstream.checks import first_line
from specstream.config import EngineConfig
from specstream.errors import ConfigError, ModelBroken, ModelError, ModelUnsupported, SpecstreamError
from specstream.model.native.library import library
from specstream.model.own_forward import check_supported, declared_positions
from specstream.model.weights import FAMILY
from specstream.models.kept import located
from specstream.models.sources import WEIGHTS, check_folder, gguf_file, hub_options, not_found

__all__ = [
    "check_config",
    "choose_device",
    "choose_dtype",
    "load_config",
    "load_model",
    "load_tokenizer",
    "parameters_of",
    "prepare_device",
    "quietly",
    "target_dtype",
]

_PACKAGES = {
    "awq": ("gptqmodel",),
    "bitsandbytes": ("bitsandbytes", "accelerate"),
    "compressed-tensors": ("compressed-tensors",),
    "gptq": ("gptqmodel", "optimum"),
    "hqq": ("hqq",),
    "torchao": ("torchao",),
}
"""Packages that transformers needs to read quantised weights, by their ``quant_method``."""


def check_config(name: str, config: PreTrainedConfig) -> None:
    """Refuse a model by the config of its folder, Hub id or GGUF file.

    Raises:
        ModelUnsupported: the model is not decoder-only, keeps state that can't be rolled back, or has
            quantised weights whose packages are not installed.
        ModelBroken: its context has no positions, or its weight files can't hold its parameters.
    """
    nbytes = _weight_bytes(name)
    text = config.get_text_config()
    layers, width = (getattr(text, size, None) for size in ("num_hidden_layers", "hidden_size"))
    if nbytes and isinstance(layers, int) and isinstance(width, int):
        # One norm a layer, before anything that takes time or memory for each layer.
        _check_size(name, config, nbytes, layers * width)
    try:
        check_supported(config)
    except ModelUnsupported as error:
        raise ModelUnsupported(f"{name}: {error}") from None
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelUnsupported(
            f"{name}: transformers has no causal language model of type {config.model_type!r}; "
            "choose a decoder-only model"
        )
    _check_package(name, config)
    if declared_positions(config) < 1:
        raise ModelBroken(
            f"{name}: its config's max_position_embeddings is {declared_positions(config)}; it must be "
            "the length of the model's context"
        )
    if nbytes:
        _check_size(name, config, nbytes, parameters_of(config))


def _check_package(name: str, config: PreTrainedConfig) -> None:
    """Refuse quantised weights if the packages that transformers reads them with are not installed.

    With those packages the model loads, and runs through its own forward instead of `Decoder`.
    """
    scheme = getattr(config, "quantization_config", None)
    method = scheme.get("quant_method") if isinstance(scheme, dict) else None
    packages = _PACKAGES.get(str(method), ())
    if any(importlib.util.find_spec(one.replace("-", "_")) is None for one in packages):
        raise ModelUnsupported(
            f"{name}: its weights are quantised ({method}), and reading them needs "
            f"{' and '.join(packages)}: pip install {' '.join(packages)}"
        )


def parameters_of(config: PreTrainedConfig) -> int:
    """Return how many parameters the model of a config has; allocates no memory for them."""
    factory: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model: Any = factory.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def _weight_bytes(name: str) -> int:
    """Return the size of a folder's weight files or of a GGUF file; 0 for a Hub id."""
    path = Path(name)
    files = [path] if path.is_file() else [file for kind in WEIGHTS for file in path.glob(kind)]
    return sum(file.stat().st_size for file in files)


def _check_size(name: str, config: PreTrainedConfig, nbytes: int, described: int) -> None:
    """Refuse a model whose weights are too small for its config.

    transformers takes default sizes for those that a config doesn't give, and would allocate the whole
    model, which may be many times the machine's memory, before it reported missing weights.

    Args:
        name: Folder or GGUF file.
        config: Its config.
        nbytes: Size of its weights, in bytes.
        described: How many parameters the config describes at least.

    Raises:
        ModelBroken: there is less than a byte of weights per parameter (a bit if they are quantised).
    """
    packed = Path(name).is_file() or getattr(config, "quantization_config", None) is not None
    if nbytes * (8 if packed else 1) < described:
        raise ModelBroken(
            f"{name}: its config describes a model of at least {described:,} parameters, but its "
            f"weights are {nbytes:,} bytes; correct the sizes in the config (those it doesn't give have "
            "defaults), or take the files of the right model"
        )


def choose_device(wanted: str) -> torch.device:
    """Return the device named ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or alike.

    Raises:
        ConfigError: this machine doesn't have that device.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        there = ["auto", "cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        raise ConfigError(
            f"device {wanted!r} can't be used here ({first_line(error)}); choose {' or '.join(there)}"
        ) from None
    return device


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """Return the named dtype; ``"auto"``: float32 on a CPU, bfloat16 on a GPU with it, else float16."""
    if wanted != "auto":
        named: torch.dtype = getattr(torch, wanted)
        return named
    if device.type == "cpu":
        return torch.float32
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        return torch.float16
    return torch.bfloat16


def target_dtype(config: EngineConfig) -> str:
    """Return the dtype to load the target in: ``config.dtype``, or bfloat16 for ``"auto"`` on a CPU.

    A Llama-like checkpoint that is bfloat16 by its ``config.json`` is kept so if there is native code.
    In its passes a token's logits don't depend on the width of the pass in bfloat16 either, and half as
    many bytes are read, so passes are about twice as fast.
    """
    on_cpu = config.dtype == "auto" and choose_device(config.device).type == "cpu"
    if not on_cpu or library(config.compile) is None:
        return config.dtype
    found = load_config(config.target)
    quantised = getattr(found, "quantization_config", None) is not None
    ours = not FAMILY.isdisjoint(found.architectures or ()) and not quantised
    keep = ours and found.get_text_config().dtype is torch.bfloat16
    return "bfloat16" if keep else config.dtype


def prepare_device(device: torch.device) -> None:
    """Make torch's global settings for models on this device.

    On a GPU disable cuDNN's attention: it builds a plan for every new key length, which takes tens of
    milliseconds each time.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder, a Hub id, a pulled model or a GGUF file.

    Raises:
        ModelNotFound: there is no such model, or the Hub can't be reached.
        ModelBroken: the files are missing or can't be read.
        ModelUnsupported: a GGUF file whose tokenizer can't be converted.
    """
    with _reading(name, "tokenizer") as name:
        if path := gguf_file(name):
            from specstream.model.gguf import read_gguf_tokenizer

            return read_gguf_tokenizer(path)
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, **hub_options(name))
    # For some model types transformers makes a tokenizer of special tokens where there are no files.
    if len(loaded) <= len(loaded.added_tokens_decoder):
        raise ModelBroken(f"{name}: it has no tokenizer; save the tokenizer's files beside the weights")
    # Prompts are checked against the model's context; the tokenizer would warn of a length of its own.
    loaded.model_max_length = sys.maxsize
    return loaded


def load_config(name: str) -> PreTrainedConfig:
    """Load the config of a folder, a Hub id, a pulled model or a GGUF file; reads no weights.

    Raises:
        ModelNotFound: there is no such model, or the Hub can't be reached.
        ModelBroken: the config can't be read, or its model type is unknown to transformers.
        ModelUnsupported: a GGUF file that can't be converted.
    """
    with _reading(name, "config") as name:
        return _read_config(name, hub_options(name))


def load_model(name: str, config: EngineConfig, dtype: str = "auto") -> PreTrainedModel:
    """Load the model of a folder, a Hub id, a pulled model or a GGUF file, on the configured device.

    Args:
        name: Folder, Hub id, name of a pulled model, or GGUF file, whose weights are dequantised.
        config: Gives device and dtype.
        dtype: Overrides the configured dtype unless ``"auto"``.

    Raises:
        ModelNotFound: there is no such model, or the Hub can't be reached.
        ModelBroken: files are damaged, or weights are missing or have the wrong shape.
        ModelUnsupported: the model is not decoder-only, keeps state that can't be rolled back, or has
            quantised weights whose packages are not installed.
        ModelError: the model doesn't fit into the device's memory.
        ConfigError: this machine doesn't have the configured device.
    """
    with _reading(name, "model") as name:
        device = choose_device(config.device)
        wanted = choose_dtype(config.dtype if dtype == "auto" else dtype, device)
        options = hub_options(name)
        described = _read_config(name, options)
        check_config(name, described)
        model = _read_model(name, described, wanted, options)
        prepare_device(device)
        ready: PreTrainedModel = model.to(device).eval()
    return ready


def _read_model(
    name: str, described: PreTrainedConfig, dtype: torch.dtype, options: Mapping[str, Any]
) -> Any:
    if path := gguf_file(name):
        from specstream.model.gguf import read_gguf_model

        return read_gguf_model(path, described, dtype)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        name,
        dtype=dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # `_check_weights` reports them, with their shapes
        **options,
    )
    model, info = loaded
    _tie(model, info["missing_keys"])
    _check_weights(name, info)
    quantised = getattr(described, "quantization_config", None) is not None
    wide = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
    if not (quantised or any(getattr(model, name, None) for name in wide)):
        for weight in model.parameters():  # some have another dtype if another thread loads, too
            if weight.is_floating_point():
                weight.data = weight.data.to(dtype)
    return model


def _read_config(name: str, options: Mapping[str, Any]) -> PreTrainedConfig:
    if path := gguf_file(name):
        from specstream.model.gguf import read_gguf_config

        return read_gguf_config(path)
    values, _ = PreTrainedConfig.get_config_dict(name, **options)
    kind = values.get("model_type")
    if kind not in CONFIG_MAPPING:
        own = "its files bring code of their own, which is not run" if "auto_map" in values else ""
        raise ModelBroken(
            f"{name}: transformers {transformers.__version__} knows no model type {kind!r} "
            f"({own or 'a newer transformers may; or its config.json is wrong'})"
        )
    if not isinstance(values.get("architectures") or [], list):
        raise ModelBroken(f"{name}: the architectures in its config.json should be a list of names")
    config: PreTrainedConfig = AutoConfig.from_pretrained(name, **options)
    return config


def _tie(model: Any, missing: set[str]) -> None:
    """Tie weights that are in no file because others stand for them; takes them from ``missing``.

    transformers does so itself, but not while another thread loads a model: it replaces the method that
    ties for the whole process, and two threads put back each other's.
    """
    for key in sorted(missing):
        if source := getattr(model, "all_tied_weights_keys", {}).get(key):
            owner, _, leaf = key.rpartition(".")
            setattr(model.get_submodule(owner), leaf, model.get_parameter(source))
            missing.discard(key)


def _check_weights(name: str, info: Mapping[str, Any]) -> None:
    """Refuse missing and misshapen weights, which transformers would fill with random numbers."""
    wrong = [
        f"{key} has shape {list(found)} and should have {list(meant)}"
        for key, found, meant in sorted(info["mismatched_keys"])
    ]
    if wrong:
        raise ModelBroken(
            f"{name}: {len(wrong)} weights don't have the shape that config.json says: {_some(wrong)}"
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelBroken(f"{name}: {len(missing)} weights are missing: {_some(missing)}")


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:3]) + (f", and {len(words) - 3} more" if len(words) > 3 else "")


@contextmanager
def quietly() -> Iterator[None]:
    """Hide transformers' progress bars while the block runs."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def _reading(name: str, what: str) -> Iterator[str]:
    """Check a name; give the folder, file or Hub id that it stands for.

    Within, progress bars are hidden, and transformers' errors raised as `SpecstreamError`.
    """
    name = located(name)
    check_folder(name)
    try:
        with quietly():
            yield name
    except SpecstreamError:
        raise
    except torch.OutOfMemoryError as error:
        raise ModelError(f"{name} doesn't fit into the device's memory") from error
    except Exception as error:
        if Path(name).exists():
            why = f"{name}: the {what} can't be read: {first_line(error)}"
            if gguf_file(name) is not None:
                why += " (was the file copied as a whole?)"
            raise ModelBroken(why) from error
        raise not_found(name, error) from error
