"""Reads GGUF files: config, tokenizer and weights, dequantised into a plain transformers model.

transformers can load GGUF weights only with accelerate installed. Here its name tables and its
per-architecture tensor conversions are used without accelerate. Its tokenizers don't know every
pre-tokenizer that a file can name, see `_set_split`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from tokenizers import Tokenizer, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from specstream.checks import first_line
from specstream.errors import ConfigError, ModelBroken, ModelUnsupported, SpecstreamError

try:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        GGUF_PRE_TOKENIZER_SPLITS,
        convert_gguf_tokenizer,
        get_gguf_tokenizer,
    )
    from transformers.integrations.gguf.reader import (
        GgufHeader,
        load_gguf_state_dict,
        read_gguf_metadata,
    )
    from transformers.modeling_gguf_pytorch_utils import (
        GGUF_SUPPORTED_ARCHITECTURES,
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )
except ImportError as error:  # the rest of the package works with older versions of transformers
    raise ConfigError(
        f"GGUF files need transformers 5.20 or newer, and this is {transformers.__version__}: "
        'pip install "specstream-sdk[gguf]"'
    ) from error

__all__ = ["convert", "read_gguf_config", "read_gguf_model", "read_gguf_tokenizer"]

# llama.cpp's names of pre-tokenizers (how text is split before the merges): those that split as GPT-2
# does, and those that split off every digit first.
_AS_GPT2 = {"gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion", "granite-docling"}
_DIGITS_APART = {
    "smollm",
    "starcoder",
    "refact",
    "command-r",
    "codeshell",
    "exaone",
    "minerva-7b",
    "mellum2",
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_PLAIN = {0, 1, 30}  # tensor types F32, F16 and BF16, which are not stored in quantised blocks
_SCALING = "rope_freqs.weight"  # a tensor with rotary scaling, which is missing in the config


def read_gguf_config(path: Path) -> PreTrainedConfig:
    """Return the config that the file's metadata describe.

    Raises:
        ModelUnsupported: the architecture or the rotary scaling can't be converted.
        Exception: whatever transformers raises for a file that can't be read.
    """
    metadata, names = read_gguf_metadata(str(path))
    kind = metadata["general.architecture"]
    if kind not in GGUF_SUPPORTED_ARCHITECTURES:
        raise ModelUnsupported(
            f"{path}: GGUF files of the architecture {kind!r} can't be converted; "
            "take the model's safetensors folder"
        )
    scaling = metadata.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none" or _SCALING in names:
        raise ModelUnsupported(
            f"{path}: its rotary scaling can't be converted from GGUF; "
            "take the model's safetensors folder"
        )
    config: PreTrainedConfig = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    return config


def read_gguf_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer in the file, with its chat template. Files beside it are not read.

    Raises:
        ModelUnsupported: the file names an unknown pre-tokenizer.
        Exception: whatever transformers raises for a file that can't be read.
    """
    architecture, described, settings = get_gguf_tokenizer(str(path))
    backend, more = convert_gguf_tokenizer(architecture, described)
    _set_split(path, backend, described)
    backend = _without_others(backend, described["tokens"])
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **settings, **more
    )
    return made


def _set_split(path: Path, backend: Tokenizer, described: Mapping[str, Any]) -> None:
    """Set the pre-tokenizer that the file names: transformers takes GPT-2's for all unknown names."""
    stated = described.get("pre_tokenizer_type", "(unstated)")
    if described.get("tokenizer_type") != "gpt2" or stated in GGUF_PRE_TOKENIZER_SPLITS:
        return
    if stated in _DIGITS_APART:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif stated not in _AS_GPT2:
        raise ModelUnsupported(
            f"{path}: its tokenizer splits text by the rules {stated!r}, which are not known here; "
            "take the model's safetensors folder"
        )


def _without_others(backend: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """Drop the special tokens that transformers' tokenizer class adds and the file doesn't have."""
    known, values = set(tokens), json.loads(backend.to_str())
    values["added_tokens"] = [e for e in values["added_tokens"] if e["content"] in known]
    return Tokenizer.from_str(json.dumps(values))


def read_gguf_model(
    path: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> PreTrainedModel:
    """Return the model on the CPU, in evaluation mode, with weights in ``dtype``.

    Args:
        path: The file.
        config: The result of `read_gguf_config` for this file; reading it again would take seconds.
        dtype: Dtype of the weights.
        tell: Progress callback; gets the number of tensors done and the number of all tensors.

    Raises:
        ModelBroken: weights are missing, have the wrong shape, or don't belong to the model.
        Exception: whatever transformers raises for a file that can't be read.
    """
    factory: Any = AutoModelForCausalLM
    model: Any = factory.from_config(config, dtype=dtype)
    weights = _weights(path, model, dtype, tell)
    own = model.state_dict()
    for name, weight in weights.items():
        if weight.shape != own[name].shape:
            raise ModelBroken(
                f"{path}: {name} has shape {list(weight.shape)} and should have {list(own[name].shape)}"
            )
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    tied = {parameter.data_ptr() for n, parameter in model.named_parameters() if n in weights}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name not in weights and parameter.data_ptr() not in tied:
            raise ModelBroken(f"{path}: the weight {name} is missing")
    metadata, _ = read_gguf_metadata(str(path))
    ends = {metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS} - {None}
    if len(ends) > 1 and model.generation_config is not None:
        model.generation_config.eos_token_id = sorted(ends)
    ready: PreTrainedModel = model.eval()
    return ready


def _weights(
    path: Path, model: PreTrainedModel, dtype: torch.dtype, tell: Callable[[int, int], None]
) -> dict[str, torch.Tensor]:
    import gguf

    header = GgufHeader.from_file(str(path))
    settings = model.config.to_dict()
    factory: Any = TENSOR_PROCESSORS.get(header.architecture, TensorProcessor)
    processor = factory(config=settings)
    # A stand-in without child modules: for each child the mapping looks all names up again (half a
    # minute in total).
    own = model.state_dict()
    flat = SimpleNamespace(config=model.config, state_dict=lambda: own, named_children=lambda: ())
    mapped: Any = get_gguf_hf_weights_map
    names = mapped(flat, processor)
    found: dict[str, torch.Tensor] = {}
    parsed = {"config": settings, "tensors": found}
    tensors = load_gguf_state_dict(header)
    for done, (name, stored) in enumerate(tensors.items()):
        tell(done, len(tensors))
        kind = gguf.GGMLQuantizationType(stored.ggml_type)
        packed = stored.data if kind in _PLAIN else stored.data.reshape(stored.shape)
        values = gguf.quants.dequantize(packed, kind)
        if kind in _PLAIN:
            values = values.reshape(stored.shape)
        result = processor.process(
            weights=values, name=name, tensor_key_mapping=names, parsed_parameters=parsed
        )
        if result.name is None:  # the processor has merged this tensor into another
            continue
        if result.name not in names:
            raise ModelBroken(f"{path}: the model has no place for the weight {name}")
        found[names[result.name]] = torch.from_numpy(result.weights.copy()).to(dtype)
    tell(len(tensors), len(tensors))
    return found


def convert(path: Path, folder: Path, tell: Callable[[int, int], None]) -> None:
    """Write the model in a GGUF file as a folder: bfloat16 weights, config, tokenizer.

    Raises:
        ModelBroken: the file can't be read or converted.
        ModelUnsupported: the architecture, rotary scaling or tokenizer can't be converted.
        OSError: the folder can't be written.
    """
    try:
        model = read_gguf_model(path, read_gguf_config(path), torch.bfloat16, tell)
        tokenizer = read_gguf_tokenizer(path)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(None, first_line(error)) from error
    except (SpecstreamError, OSError):
        raise
    except Exception as error:
        raise ModelBroken(f"{path.name} can't be converted: {first_line(error)}") from error
